"""`chains trace` as somebody in a terminal uses it, on a real store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from chains.cli import tracing
from chains.cli.main import main, parser
from tests.chains.records import made


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = tmp_path / "traces.sqlite"
    made.stored(path, list(made.calls(5)))
    made.stored(path, made.phone_call("bad", start=made.START + 10**13, outcome="error"))
    return str(path)


def told(capsys: pytest.CaptureFixture[str], store: str, *line: str) -> str:
    assert main(["trace", *line, "--traces", store, "--width", "120"]) == 0
    return capsys.readouterr().out


def test_the_list(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, store).splitlines()
    assert lines[0].startswith("call ") and len(lines) == 7
    assert lines[1].startswith("bad ") and "error" in lines[1]
    assert told(capsys, store, "--limit", "2").splitlines()[-1].startswith("2 of 6 ")
    assert told(capsys, store, "--failed").count("\n") == 2
    assert "no call in" in told(capsys, store, "--version", "other")
    assert "no call in" in told(capsys, store, "--since", "1m", "--hop", "Nobody.run")


def test_nothing_that_others_named_speaks_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[31mA\x07\x9b2J\u202eB"
    spans = made.phone_call("call-1", 1)
    for one in spans:
        one.name += evil
        one.attributes |= dict.fromkeys(("chains.node", "chains.method", "chains.replica", "chains.reason"), evil)
    path = tmp_path / "t.sqlite"
    made.stored(path, spans, dict.fromkeys(made.RESOURCE, evil))
    made.stored(path, made.phone_call("call-2", 1), dict.fromkeys(made.RESOURCE, evil + "2"))
    for line in ([], ["last"], ["diff", "call-1", "call-2"], ["--chain", evil]):
        out = told(capsys, str(path), *line)
        assert "A" in out or line[:1] == ["--chain"]
        assert not [one for one in out if not one.isprintable() and one != "\n"], line
    assert main(["trace", evil, "--traces", str(path)]) != 0
    assert not [one for one in capsys.readouterr().err if not one.isprintable() and one != "\n"]


def test_no_name_is_no_call(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "", "--traces", store]) == 2
    assert "no call is named" in capsys.readouterr().err


async def test_the_list_goes_on_with_calls_as_they_end(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "POLL_S", 0.01)
    arguments = parser().parse_args(["trace", "-f", "--limit", "1", "--traces", store])
    following = asyncio.ensure_future(tracing._list(arguments))
    said: list[str] = []

    async def line(beginning: str) -> None:
        async with asyncio.timeout(30.0):
            while not any(one.startswith(beginning) for one in said):
                said.extend(capsys.readouterr().out.splitlines())
                await asyncio.sleep(0.01)

    await line("1 of 6 ")
    made.stored(Path(store), made.phone_call("fresh", start=made.START + 2 * 10**13))
    await line("fresh ")
    following.cancel()
    assert sum(one.startswith("fresh ") for one in said) == 1


def test_the_list_for_programs(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(told(capsys, store, "--json", "--slowest", "--limit", "3"))
    slowest = [row["slowest_ms"] for row in answer["rows"]]
    assert len(slowest) == 3 and slowest == sorted(slowest, reverse=True) and answer["total"] == 6


def test_a_call_by_the_beginning_of_its_id_and_one_of_its_turns(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(capsys, store, "call-3").startswith("call call-3  PhoneCall")
    assert told(capsys, store, "last").startswith("call bad ")
    assert told(capsys, store, "call-1", "--turn", "2").count("\nturn ") == 1
    detail = json.loads(told(capsys, store, "call-1", "--turn", "2", "--json"))
    assert [turn["number"] for turn in detail["turns"]] == [2]
    assert {span[detail["columns"].index("turn")] for span in detail["spans"]} == {2}
    assert main(["trace", "call-1", "--turn", "99", "--traces", store]) == 2
    assert "has no turn 99; its turns are 1, 2" in capsys.readouterr().err
    assert main(["trace", "call-", "--traces", store]) == 2
    assert "several calls begin with" in capsys.readouterr().err


def test_a_call_as_one_file(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "call.html"
    told(capsys, store, "call-1", "--html", str(out))
    page = out.read_text()
    assert page.lstrip().lower().startswith("<!doctype html") and "call-1" in page and 'src="/' not in page
    assert main(["trace", "call-1", "--html", "/no/such/folder/x.html", "--traces", store]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_two_of_them(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, store, "diff", "call-1", "call-2")
    assert "turn 1" in text and "TTS.speak" in text
    assert set(json.loads(told(capsys, store, "diff", "call-1", "call-2", "--json"))) >= {"a", "b", "hops", "turns"}


def test_one_is_deleted_and_nothing_of_it_stays(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "delete", "call-1", "--traces", store]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert "call call-1, with all that was kept of it is gone" in told(capsys, store, "delete", "call-1", "--yes")
    assert main(["trace", "call-1", "--traces", store]) == 2
    assert "there is no call 'call-1'" in capsys.readouterr().err
    assert len(told(capsys, store).splitlines()) == 6


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
def test_the_list_keeps_what_it_is_for_at_any_width(store: str, capsys: pytest.CaptureFixture[str], width: int) -> None:
    assert main(["trace", "--traces", store, "--width", str(width)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width and {"call", "slowest", "lasted"} <= set(lines[0].split())
    assert all(" ms" in line or " s" in line for line in lines[1:])
    if width >= 60:
        assert all(" turns" in line for line in lines[1:])


def test_each_id_of_the_list_opens_its_call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "traces.sqlite"
    ids = ["e9f87599e7b53172", "replay-of-e9f87599e7b53172-d669", "replay-of-e9f87599e7b53172-d669-after-a"]
    ids.append("replay-of-e9f87599e7b53172-d66a")
    for one, id in enumerate(ids):
        made.stored(path, made.phone_call(id, start=made.START + one * 10**12))
    for width in ("60", "80", "120"):
        assert main(["trace", "--traces", str(path), "--width", width]) == 0
        listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
        assert sorted(listed) == sorted(ids)
    for id in ids:
        assert main(["trace", id, "--traces", str(path)]) == 0
        assert capsys.readouterr().out.startswith(f"call {id} ")


def test_the_last_call_is_no_work_that_one_left_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "traces.sqlite"
    made.stored(path, made.phone_call("call-1"))
    made.stored(path, made.phone_call("call-1-after-a", start=made.START + 10**12))
    assert told(capsys, str(path), "last").startswith("call call-1 ")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["last", "--slow"], "--slow is not for `chains trace CALL`; it goes with `chains trace`"),
        (["--html", "x.html"], "--html is not for `chains trace`; it goes with `chains trace CALL`"),
        (["--recording"], "--recording is not for `chains trace`; it goes with `chains trace delete`"),
        (["diff", "call-1", "call-2", "--limit", "3"], "--limit is not for `chains trace diff`"),
        (["delete", "call-1", "--chain", "C"], "--chain is not for `chains trace delete`"),
        (["last", "--html", "x.html", "--turn", "1"], "--html writes the call's whole page"),
        ([""], "no call is named"),
        (["c"], "several calls begin with 'c'"),
    ],
)
def test_what_would_be_of_no_effect_is_an_error(
    store: str, capsys: pytest.CaptureFixture[str], line: list[str], told: str
) -> None:
    assert main(["trace", *line, "--traces", store]) == 2
    assert told in capsys.readouterr().err


def test_every_option_is_for_something() -> None:
    given = vars(parser().parse_args(["trace"])).keys() - {"what", "command", "usual"}
    everywhere = {"width", "traces", "url", "key", "debug"}
    assert given == tracing._FOR.keys() | everywhere


@pytest.mark.parametrize("text", ["5000", "-3", "0", "some"])
def test_a_limit_that_cannot_be_is_told_at_once(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trace", f"--limit={text}"])
    assert f"--limit: {text} " in capsys.readouterr().err


def test_no_name_that_was_sent_steers_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "traces.sqlite"
    evil = "\x1b[31mRED\x07"
    for one, call in enumerate(["evil", "evil-2"]):
        spans = made.phone_call(call, start=made.START + one * 10**12)
        for span in spans:
            span.name = f"{evil}{span.name}"
        made.stored(path, spans, {**made.RESOURCE, "service.version": evil, "chains.chain": evil})
    for line in ([], ["last"], ["diff", "evil", "evil-2"], ["delete", "evil", "--yes"], [evil]):
        main(["trace", *line, "--traces", str(path), "--width", "120"])
        shown = "".join(capsys.readouterr())
        assert "\x1b" not in shown and "\x07" not in shown
        assert shown
