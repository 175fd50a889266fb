"""`chains view` as a process: the page of a store, also for spans that others send it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from chains.cli.main import main
from chains.cli.view import shown, traces
from chains.viewer.settings import ViewerSettings
from tests.chains.records import made
from tests.chains.wire.hosted import eventually


@contextmanager
def viewing(*options: str) -> Iterator[tuple[str, list[str]]]:
    """The URL of the page, and what the command said; it is ended as by Ctrl-C."""
    line = [sys.executable, "-m", "chains", "view", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for text in process.stdout:
                lines.append(text)
                if "spans are taken at" in text:
                    break
            found = re.search(r"calls are shown at (http://\S+)/ ", "".join(lines))
            assert found, lines
            yield found[1], lines
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_store_that_is_there_is_shown_and_takes_more(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    made.stored(path, list(made.calls(2)))
    with viewing("--traces", str(path), "--port", "0") as (url, _):
        assert httpx.get(f"{url}/api/calls", timeout=30).json()["total"] == 2
        body = made.request(made.foreign_trace(3), {"service.name": "shop"}).SerializeToString()
        sent = httpx.post(f"{url}/v1/traces", content=body, headers={"content-type": "application/x-protobuf"})
        assert sent.status_code == 200
    with viewing("--traces", str(path), "--port", "0") as (url, _):
        chains = [one["chain"] for one in httpx.get(f"{url}/api/info", timeout=30).json()["chains"]]
        assert sorted(chains) == ["PhoneCall", "shop"]


def test_others_need_its_key(tmp_path: Path) -> None:
    options = ("--traces", str(tmp_path / "t.sqlite"), "--port", "0", "--host", "0.0.0.0", "--key", "sesame")
    with viewing(*options) as (url, lines):
        assert httpx.get(f"{url}/api/info", timeout=30).status_code == 401
        assert httpx.get(f"{url}/api/info", headers={"authorization": "Bearer sesame"}).status_code == 200
    assert "sesame" not in "".join(lines)


def test_a_port_in_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert main(["view", "--port", port, "--traces", str(tmp_path / "t.sqlite")]) == 2
    assert f"port {port} is in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--host", "0.0.0.0"], "no key is set; add --key KEY"),
        (["--traces", "/dev/null/t.sqlite", "--port", "0"], "/dev/null/t.sqlite"),
    ],
)
def test_what_is_wrong_is_told(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", *options]) == 2
    assert says in capsys.readouterr().err


def test_the_store_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    assert traces("~/a.sqlite") == Path.home() / "a.sqlite"
    assert str(traces("")) == os.environ["CHAINS_TRACES"]


async def test_a_page_that_cannot_start_has_no_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with shown(ViewerSettings(traces=tmp_path / "file" / "t.sqlite", port=0)) as page:
        assert page.url.startswith("http://127.0.0.1:")
        await eventually(lambda: not page.link())
        assert "file" in page.failed()
    async with shown(ViewerSettings(traces=tmp_path / "t.sqlite", port=0)) as page:
        async with httpx.AsyncClient(timeout=30.0) as client:
            assert (await client.get(f"{page.link()}healthz")).status_code == 200
        assert page.link() == page.url


def test_a_store_that_cannot_be_opened_is_said_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["view", "--traces", str(tmp_path / "file" / "t.sqlite"), "--port", "0"]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.startswith("chains: ")
