"""The cost of export is measured on spans that all arrive."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.tracing import SPANS_OF_A_TURN, measured, round_of
from tests.chains.received import receiving


def test_a_small_run_has_every_row() -> None:
    rows = measured(rounds=2, hops=200, turns=1, seed=0)
    assert len(rows) == 5 and [row.goal for row in rows] == [100.0, 100.0, None, None, None]
    assert all(row.ours > 0 for row in rows[2:])


@pytest.mark.parametrize(("method", "times", "spans"), [("plain", 300, 302), ("turns", 2, 2 * SPANS_OF_A_TURN + 4)])
def test_each_hop_is_a_span_that_arrives(monkeypatch: pytest.MonkeyPatch, method: str, times: int, spans: int) -> None:
    with receiving() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        assert asyncio.run(round_of(method, times, on=True, seconds=method == "turns")) > 0
        assert len(received.spans) == spans
