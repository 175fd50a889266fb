"""One span with all that it carries."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.errors import InvalidValue, NotFound
from chains.records import call, span
from tests.chains.records import made
from tests.chains.records.shaped import kept


def test_a_span_is_told_with_its_attributes_and_sum(tmp_path: Path) -> None:
    spans = made.phone_call(turns=1)
    sent = next(one for one in spans if one.name == "LLM.stream")
    with kept(tmp_path / "t.sqlite", (spans, made.RESOURCE)) as connection:
        told = span.span(connection, "call-1", sent.span.hex())
        assert told["name"] == "LLM.stream" and told["kind"] == "hop"
        assert told["attributes"]["gen_ai.request.model"] == "qwen3-0.6b"
        assert told["attributes"]["chains.replica"] == sent.attributes["chains.replica"]
        assert told["sum_ms"] == pytest.approx(told["ms"], abs=0.01) == pytest.approx((sent.end - sent.start) / made.MS)
        assert told["parts"]["compute"] > 50 and len(told["works"]) == 12 and told["waits"][0][2] == "credit"
        turn = next(one for one in spans if one.name == "turn 1")
        events = span.span(connection, "call-1", turn.span.hex())["events"]
        assert [event["name"] for event in events] == ["speech_start", "speech_end", "first_audio"]
        assert events[1]["at"] == 600.0
        every = span.details(connection, "call-1")
        assert every.keys() == {one.span.hex() for one in spans} and every[sent.span.hex()] == told


@pytest.mark.parametrize("id", ["0" * 16, "zz", "", "12345678901234567", "'; --"])
def test_a_span_that_is_not_there_is_said_so(tmp_path: Path, id: str) -> None:
    with (
        kept(tmp_path / "t.sqlite", (made.phone_call(turns=1), made.RESOURCE)) as connection,
        pytest.raises(NotFound, match="has no span"),
    ):
        span.span(connection, "call-1", id)


def test_the_insides_of_a_few_bars_are_those_of_the_call(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (made.phone_call(turns=2), made.RESOURCE)) as connection:
        body = call.detail(connection, "call-1")
        inside = {row[0]: row[12] for row in body["spans"] if row[4] == "hop"}
        asked = list(inside)[:5]
        found = span.segments_of(connection, "call-1", asked)
        assert found.keys() == {str(row) for row in asked}
        for row in asked:
            assert [step[0] for step in found[str(row)]] == [step[0] for step in inside[row]]
        with pytest.raises(InvalidValue, match="ask for 500 at most"):
            span.segments_of(connection, "call-1", range(501))
