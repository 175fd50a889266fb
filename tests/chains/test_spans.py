"""Where the time went: critical paths, what is kept, how it is shown, and what is exported."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.call import ENDED, HANG_UP, Call, Hop, Turn
from chains.spans import (
    HOPS,
    TOTAL,
    CallRecord,
    Recorder,
    account,
    critical_path,
    hop_rows,
    outcome_of,
    table,
    to_json,
)
from chains.testing import FakeClock
from chains.timing import Timing, Work

T = 100.0  # when the tests' time begins: a moment of 0 is one that has not come
moments = st.floats(T, T + 10.0)


@st.composite
def trees(draw: Any) -> Timing:
    """A hop of any shape, with waits on hops of any shape: nested, overlapping, on one another, on nothing."""
    hops: list[Timing] = []
    for number in range(draw(st.integers(1, 6))):
        parent = draw(st.sampled_from(hops)) if hops else None
        edges = sorted(draw(st.lists(moments, min_size=4, max_size=4)))
        hop = Timing(str(number), parent, "c", 0, f"N{number}", "m", edges[0])
        hop.received, hop.accepted = edges[1], edges[2]
        if draw(st.booleans()):
            hop.ended = hop.closed = edges[3]
        hops.append(hop)
    for hop in hops:
        for _ in range(draw(st.integers(0, 4))):
            start, end = sorted(draw(st.tuples(moments, moments)))
            on = draw(st.none() | st.sampled_from(hops))
            wait = hop.begin_wait(start, draw(st.sampled_from(["hop", "input", "credit"])), on, draw(st.integers(0, 2)))
            if draw(st.booleans()):
                hop.end_wait(wait, end)
        for _ in range(draw(st.integers(0, 2))):
            start, end = sorted(draw(st.tuples(moments, moments)))
            hop.add_work(Work("w", start, end, draw(st.integers(0, 2))))
    return hops[0]


@given(trees(), moments, moments, st.integers(0, 2))
def test_a_path_has_no_gap_and_no_overlap(root: Timing, a: float, b: float, turn: int) -> None:
    start, end = min(a, b), max(a, b)
    path = critical_path(root, start, end, turn)
    assert sum(segment.ms for segment in path) == pytest.approx((end - start) * 1e3, abs=1e-6)
    if path:
        assert (path[0].start, path[-1].end) == (start, end)
    for left, right in itertools.pairwise(path):
        assert left.end == right.start
        assert left.start < left.end
        assert (left.label, left.part, left.name) != (right.label, right.part, right.name), "merged"


def hop(node: str, opened: float, closed: float, parent: Timing | None = None, turn: int = 0) -> Timing:
    timing = Timing(node, parent, "c", turn, node, "m", T + opened)
    timing.received = timing.accepted = T + opened
    timing.ended = timing.closed = T + closed
    return timing


def waiting(on: Timing, start: float, end: float, who: Timing, turn: int = 0) -> None:
    ended, who.ended = who.ended, 0.0
    who.end_wait(who.begin_wait(T + start, "hop", on, turn), T + end)
    who.ended = ended


def steps(root: Timing, start: float, end: float, turn: int = 0) -> list[tuple[str, str, float]]:
    path = critical_path(root, T + start, T + end, turn)
    return [(s.label.partition(".")[0], s.name or s.part, round(s.end - s.start, 6)) for s in path]


def test_a_path_goes_down_to_the_hop_that_works() -> None:
    root = hop("Call", 0.0, 10.0)
    ears = hop("Ears", 1.0, 4.0, root)
    ears.received, ears.accepted = T + 1.5, T + 2.0
    waiting(ears, 1.0, 4.0, root)
    ears.add_work(Work("decode", T + 2.5, T + 3.0, 0))
    assert steps(root, 0.0, 6.0) == [
        ("Call", "compute", 1.0),
        ("Ears", "wire", 0.5),
        ("Ears", "queue", 0.5),
        ("Ears", "compute", 0.5),
        ("Ears", "decode", 0.5),
        ("Ears", "compute", 1.0),
        ("Call", "compute", 2.0),
    ]


def test_of_two_that_are_waited_for_the_slower_is_on_the_path() -> None:
    root = hop("Call", 0.0, 10.0)
    quick, slow = hop("Intent", 1.0, 2.0, root), hop("Reply", 1.0, 5.0, root)
    waiting(quick, 1.0, 2.0, root)
    waiting(slow, 1.0, 5.0, root)
    assert steps(root, 0.0, 5.0) == [("Call", "compute", 1.0), ("Reply", "compute", 4.0)]


def test_a_wait_of_the_turn_goes_before_one_of_the_call() -> None:
    """The conversation always waits for the microphone; a turn's latency is not the microphone's."""
    root = hop("Call", 0.0, 10.0)
    microphone, reply = hop("Mic", 0.0, 10.0, root), hop("Reply", 2.0, 4.0, root, turn=1)
    waiting(microphone, 0.0, 10.0, root)
    waiting(reply, 2.0, 4.0, root, turn=1)
    assert steps(root, 2.0, 5.0, turn=1) == [("Reply", "compute", 2.0), ("Mic", "compute", 1.0)]


def test_a_deep_chain_of_waits_comes_to_an_end() -> None:
    root = below = hop("H0", 0.0, 10.0)
    for depth in range(1, 60):
        above, below = below, hop(f"H{depth}", 0.0, 10.0, below)
        waiting(below, 0.0, 10.0, above)
    assert steps(root, 0.0, 10.0) == [("H59", "compute", 10.0)]


# what is kept


def call_at(clock: FakeClock, id: str) -> Call:
    return Call(clock, id=id)


def test_the_last_calls_are_kept() -> None:
    clock = FakeClock()
    recorder = Recorder(clock, calls=3)
    for n in range(5):
        recorder.open(call_at(clock, f"c{n}"))
    assert [record.id for record in recorder.calls] == ["c2", "c3", "c4"]
    assert recorder.find("c0") is None
    stranger = hop("Late", 0.0, 1.0)
    stranger.call = "c0"
    recorder.add(stranger)  # of a call that was forgotten meanwhile
    recorder.open(call_at(clock, "c2"))  # again: it is now the youngest
    recorder.open(call_at(clock, "c5"))
    assert [record.id for record in recorder.calls] == ["c4", "c2", "c5"]


def test_the_hops_of_a_long_call_are_bounded() -> None:
    clock = FakeClock()
    recorder = Recorder(clock)
    recorder.open(call_at(clock, "c"))
    root = hop("Call", 0.0, 1.0)
    recorder.add(root)
    for n in range(HOPS + 10):
        recorder.add(hop(f"H{n}", 0.0, 1.0, root))
    record = recorder.find("c")
    assert record is not None
    assert len(record.hops) == HOPS
    assert record.root is root, "kept though it is among the oldest"


def test_hops_are_bounded_over_all_calls() -> None:
    clock = FakeClock()
    recorder = Recorder(clock)
    per_call = TOTAL // 14
    one = hop("H", 0.0, 1.0)
    for n in range(20):
        recorder.open(call_at(clock, f"c{n}"))
        one.call = f"c{n}"
        for _ in range(per_call):
            recorder.add(one)
    kept = sum(len(record.hops) for record in recorder.calls)
    assert TOTAL - per_call <= kept <= TOTAL
    assert recorder.calls[-1].id == "c19"


async def test_exporters_are_told_of_a_call_from_its_beginning_to_its_end() -> None:
    told: list[str] = []

    class Tells:
        def __init__(self, name: str) -> None:
            self.name = name

        def opened(self, record: CallRecord) -> None:
            told.append(f"{self.name} opened {record.id}")

        def hop(self, record: CallRecord, timing: Timing) -> None:
            told.append(f"{self.name} {timing.label}")

        def turn(self, record: CallRecord, turn: Turn) -> None:
            assert turn.ended == clock.now() and turn.closed
            told.append(f"{self.name} turn {turn.number} {turn.reason}")

        def closed(self, record: CallRecord) -> None:
            assert record.failed == "ValueError"
            told.append(f"{self.name} closed")

        def flush(self) -> None:
            told.append(f"{self.name} flushed")

        def close(self) -> None: ...

    clock = FakeClock()
    recorder = Recorder(clock, exporter=Tells("a"))
    recorder.attach(Tells("b"))
    call = call_at(clock, "c")
    recorder.open(call)
    async with call.new_turn():
        pass
    async with call.new_turn() as turn:
        turn.cancel("barge-in")
    bad = hop("Call", 0.0, 1.0)
    bad.error = "ValueError"
    recorder.add(bad)
    recorder.close(call)
    recorder.flush()
    mine = [line.removeprefix("a ") for line in told if line.startswith("a ")]
    assert mine == ["opened c", "turn 1 ", "turn 2 barge-in", "Call.m", "closed", "flushed"]
    assert [line.removeprefix("b ") for line in told if line.startswith("b ")] == mine


# how it is shown


@pytest.fixture
def record() -> tuple[CallRecord, Turn]:
    clock = FakeClock(now=100.0, wall=1_700_000_000.0)
    call = Call(clock, id="c")
    turn = call.new_turn()
    turn.mark("speech_end", 101.0)
    turn.mark("first_audio", 103.0)
    turn.ended = 104.0
    call.played.report(1, 240.0)
    recorder = Recorder(clock)
    recorder.open(call)
    root = hop("Call", 0.0, 5.0)
    reply = hop("Reply", 1.5, 2.5, root, turn=1)
    waiting(reply, 1.5, 2.5, root, turn=1)
    reply.outcome, reply.error, reply.items_out = "error", "ValueError", 7
    for timing in (reply, root):
        recorder.add(timing)
    return recorder.calls[0], turn


def test_an_account_runs_from_speech_end_to_first_audio(record: Any) -> None:
    entry = account(*record)
    assert entry is not None
    assert entry.ms == pytest.approx(2_000.0)
    assert entry.by_hop() == [("Call.m compute", 1_000.0), ("Reply.m compute", 1_000.0)]


def test_an_account_without_marks_runs_from_start_to_end(record: Any) -> None:
    found, turn = record
    turn.marks.clear()
    entry = account(found, turn)
    assert entry is not None
    assert (entry.start, entry.end) == (100.0, 104.0)
    turn.ended = 0.0
    assert account(found, turn) is None, "it has not ended"


def test_an_account_finds_the_entry_while_it_runs(record: Any) -> None:
    found, turn = record
    found.hops.pop()
    found.root = None
    entry = account(found, turn)
    assert entry is not None
    assert sum(segment.ms for segment in entry.segments) == pytest.approx(entry.ms)
    found.hops.clear()
    assert account(found, turn) is None


def test_the_table_shows_turns_and_hops(record: Any) -> None:
    text = table(record[0])
    assert "turn 1: 2000 ms from end of speech to first audio" in text
    assert "Reply.m compute" in text
    rows = {row["hop"]: row for row in hop_rows(record[0].hops)}
    assert (rows["Reply.m"]["errors"], rows["Reply.m"]["items"], rows["Call.m"]["errors"]) == (1, 7, 0)
    assert rows["Call.m"]["wait"] == pytest.approx(1_000.0)


def test_json_is_plain_and_its_parts_sum(record: Any) -> None:
    data = json.loads(json.dumps(to_json(record[0])))
    assert (data["call"], data["opened"]) == ("c", 1_700_000_000.0)
    turn = data["turns"][0]
    assert (turn["latency_ms"], turn["played_ms"], turn["marks"]) == (
        2000.0,
        240.0,
        {"speech_end": 1000.0, "first_audio": 3000.0},
    )
    assert sum(step["ms"] for step in turn["critical_path"]) == pytest.approx(2000.0)
    for row in data["hops"]:
        assert sum(row["parts"].values()) == pytest.approx(row["end"] - row["start"], abs=0.01)
    assert data["hops"][0]["parent"] == data["hops"][1]["id"]


def test_hops_with_long_notes_are_kept_for_fewer_calls() -> None:
    recorder, clock = Recorder(FakeClock()), FakeClock()
    for number in range(20):
        call = Call(clock, id=f"c{number}")
        recorder.open(call)
        for _ in range(HOPS + 10 if number == 19 else 60):
            hop = Timing("h", None, call.id, 0, "N", "m", 1.0)
            for note in range(64):
                hop.note(f"n{note}", "x" * 1024)
            recorder.add(hop)
    kept = sum(len(record.hops) for record in recorder.calls)
    assert len(recorder.calls) < 20 and kept == len(recorder.calls[-1].hops) == HOPS, "the call that goes on is kept"
    recorder.open(Call(clock, id="c19"))
    assert recorder._hops == 0, "what was counted is taken back, to the last"


@pytest.mark.parametrize(
    ("reason", "root", "items", "error", "outcome"),
    [
        (ENDED, "done", 0, "", "done"),
        (ENDED, "", 0, "", "done"),
        (ENDED, "cancelled", 3, "", "cancelled"),
        (ENDED, "error", 3, "ValueError", "error"),
        (HANG_UP, "cancelled", 3, "", "done"),
        (HANG_UP, "cancelled", 0, "", "cancelled"),
        (HANG_UP, "done", 0, "", "done"),
        (HANG_UP, "", 0, "", "cancelled"),
        (HANG_UP, "error", 3, "ValueError", "error"),
        ("deadline: the call ran out of time", "cancelled", 3, "", "cancelled"),
        ("the server is shutting down", "cancelled", 3, "", "cancelled"),
    ],
)
def test_what_became_of_a_call(reason: str, root: str, items: int, error: str, outcome: str) -> None:
    record = CallRecord(Call(FakeClock()), failed=error)
    record.call.cancel(reason)
    if root:
        with record.call.activate():
            record.root = Hop(record.call, "Desk", "run", None).timing
        record.root.outcome, record.root.items_out = root, items
    assert outcome_of(record) == outcome
