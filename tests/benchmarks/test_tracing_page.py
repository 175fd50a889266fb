"""The page's benchmark: what it measures stands, and other tools' pages get the same spans."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.peers.trace_pages import DESKTOP, JAEGER, PEERS, Summary, served
from benchmarks.tracing_page import LIST, Place, Samples, rows_of
from tests.browser.fetch import browser
from tests.chains.records import made
from tests.shape.tree import ROOT

CALL = made.phone_call("one", 2)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text("<title>their page</title>")
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "a.js").write_text("1")
    return tmp_path


def test_a_peer_that_is_not_at_hand_is_left_out_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: Path
) -> None:
    for peer in PEERS:
        monkeypatch.delenv(peer.variable, raising=False)
        assert peer.folder is None
        assert peer.variable in capsys.readouterr().err
        monkeypatch.setenv(peer.variable, str(page))
        assert peer.folder == page


def test_the_first_peer_is_called_by_method_and_gets_the_tree(page: Path) -> None:
    with served(DESKTOP, page, DESKTOP.prepared([Summary.of(CALL)], CALL)) as url:

        def call(method: str) -> Any:
            return httpx.post(f"{url}/rpc", json={"jsonrpc": "2.0", "method": method, "id": 7}).json()["result"]

        [listed] = call("searchTraces")
        trace = call("searchSpans")
        assert call("getTraceAttributes") == []
        assert httpx.get(f"{url}/traces/x").text == "<title>their page</title>"
        assert "immutable" in httpx.get(f"{url}/assets/a.js").headers["cache-control"]
    assert listed["traceID"] == trace["traceID"] == CALL[0].trace.hex()
    assert listed["spanCount"] == len(trace["spans"]) == len(CALL)
    depths = {node["spanData"]["spanID"]: node["depth"] for node in trace["spans"]}
    seen: set[str] = set()
    for node in trace["spans"]:
        above = node["spanData"]["parentSpanID"]
        assert node["depth"] == (depths[above] + 1 if above else 0)
        assert above is None or above in seen
        seen.add(node["spanData"]["spanID"])


def test_the_second_lists_no_more_than_its_first_page(page: Path) -> None:
    calls = [made.phone_call(f"call-{n}", 1, start=made.START + n * made.MS) for n in range(30)]
    with served(JAEGER, page, JAEGER.prepared([Summary.of(call) for call in calls], CALL)) as url:
        summaries = httpx.get(f"{url}/api/v3/trace-summaries").json()["summaries"]
        [whole] = httpx.get(f"{url}/api/traces/{CALL[0].trace.hex()}").json()["data"]
        assert httpx.get(f"{url}/search").headers["content-encoding"] == "gzip"
    assert [one["traceId"] for one in summaries] == [call[0].trace.hex() for call in calls[:-21:-1]]
    assert {span["spanID"] for span in whole["spans"]} == {span.span.hex() for span in CALL}


def test_each_side_has_its_rows() -> None:
    places = {
        name: Place("", LIST, Samples([900.0], [ms], [70.0], [50.0]))
        for name, ms in (("ours", 400.0), ("theirs", 800.0))
    }
    found = {row.name: row for row in rows_of("10 calls", places, 500.0)}
    assert [found[f"ms: 10 calls, {when}"].met for when in ("nothing cached", "again")] == [False, True]
    assert found["ms: 10 calls, again / theirs"].ratio == pytest.approx(0.5)
    assert len(found) == 9


@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason="no chromium here: make test-browser brings it where apt is at hand")
def test_the_whole_of_it(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "tracing_page.py"), "--quick", "--json", str(rows)]
    subprocess.run(command, check=True, capture_output=True, timeout=110)
    found = json.loads(rows.read_text())
    assert len(found) >= 9
    assert all(row["ours"] > 0 for row in found)
