"""Where the time went. The account of every hop of recent calls is kept in memory; exporting spans is a switch.

A turn is accounted along its critical path: at each moment, the hop that the turn's root was waiting for, followed down
to the one that worked. So the segments of the path add up to the turn's latency exactly.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from chains.call import ENDED, HANG_UP, Call, Turn
from chains.timing import Clock, Timing, Wait, Work

Part = Literal["serialise", "wire", "queue", "compute", "wait"]
CALLS = 256
HOPS = 4_096
TOTAL = 50_000


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a critical path, in monotonic seconds: `label` is the hop, `name` what it did there."""

    label: str
    part: Part
    name: str
    start: float
    end: float
    replica: str = ""

    @property
    def ms(self) -> float:
        return (self.end - self.start) * 1e3


@dataclass(slots=True, eq=False)
class CallRecord:
    """What is known of one call: its hops (the last 4,096 that ended) and its turns. `failed` is the type of the error
    with which a hop of the caller's own ended, if one did.
    """

    call: Call
    hops: deque[Timing] = field(default_factory=lambda: deque(maxlen=HOPS))
    root: Timing | None = None
    failed: str = ""
    closed: float = 0.0
    weight: int = 0

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def turns(self) -> list[Turn]:
        return self.call.turns


class Exporter(Protocol):
    """Who is told of calls as they go on: what it does with them must not hold the caller up, nor raise."""

    def opened(self, record: CallRecord) -> None:
        """A call begins: the last moment to say that its trace is not to be recorded (`call.sampled`)."""
        ...

    def hop(self, record: CallRecord, timing: Timing) -> None:
        """A hop has ended."""
        ...

    def turn(self, record: CallRecord, turn: Turn) -> None:
        """A turn has ended, one that was cancelled too."""
        ...

    def closed(self, record: CallRecord) -> None: ...
    def flush(self) -> object:
        """Pass on what is held back. It may take a moment."""
        ...

    def close(self) -> None:
        """As flush, and nothing more comes."""
        ...


class Recorder:
    """Keeps the accounts of the last `calls` calls (fewer when they have more than 50,000 hops together), and tells
    its exporters.
    """

    def __init__(self, clock: Clock, *, calls: int = CALLS, exporter: Exporter | None = None) -> None:
        self._clock = clock
        self._limit = calls
        self._exporters: tuple[Exporter, ...] = () if exporter is None else (exporter,)
        self._records: OrderedDict[str, CallRecord] = OrderedDict()
        self._hops = 0

    def attach(self, exporter: Exporter) -> None:
        """Tell this one too, from now on."""
        self._exporters += (exporter,)

    def open(self, call: Call) -> None:
        if call.id in self._records:  # an id that is used again: its last call is kept
            self._forget(call.id)
        record = self._records[call.id] = CallRecord(call)
        call.on_turn_over.append(lambda turn: self._turn_over(record, turn))
        while len(self._records) > self._limit:
            self._forget(next(iter(self._records)))
        for exporter in self._exporters:
            exporter.opened(record)

    def _turn_over(self, record: CallRecord, turn: Turn) -> None:
        for exporter in self._exporters:
            exporter.turn(record, turn)

    def _forget(self, id: str) -> None:
        self._hops -= self._records.pop(id).weight

    def _weigh(self, record: CallRecord, hop: Timing, sign: int) -> None:
        weight = sign * hop.weight
        record.weight, self._hops = record.weight + weight, self._hops + weight

    def add(self, timing: Timing) -> None:
        """A hop has ended."""
        record = self._records.get(timing.call)
        if record is None:
            return
        if len(record.hops) == HOPS:
            self._weigh(record, record.hops[0], -1)
        self._weigh(record, timing, 1)
        record.hops.append(timing)
        while self._hops > TOTAL and len(self._records) > 1:
            self._forget(next(iter(self._records)))
        if timing.parent is None:
            record.root = record.root or timing
            record.failed = timing.error or record.failed
        for exporter in self._exporters:
            exporter.hop(record, timing)

    def close(self, call: Call) -> None:
        record = self._records.get(call.id)
        if record is not None:
            record.closed = self._clock.now()
            for exporter in self._exporters:
                exporter.closed(record)

    def flush(self) -> None:
        for exporter in self._exporters:
            exporter.flush()

    @property
    def calls(self) -> Sequence[CallRecord]:
        """Recent calls, the oldest first."""
        return list(self._records.values())

    def find(self, call: str) -> CallRecord | None:
        return self._records.get(call)


def critical_path(root: Timing, start: float, end: float, turn: int = 0) -> list[Segment]:
    """What the time from `start` to `end` (monotonic seconds) went into, seen from hop `root`.

    Where several waits overlap, one that belongs to `turn` counts before one of the whole call, and of those the one
    that lasted longest. The segments are in order, without gap or overlap.
    """
    walk = _Walk(start, end, turn)
    walk.down(root, start, end, (root,))
    return _merged(walk.segments)


class _Walk:
    """Follows the waits down. What a hop waited for and worked at between `start` and `end` is looked up once: a long
    call has thousands of either. They are copied: an exporter's thread looks while the hop goes on.
    """

    def __init__(self, start: float, end: float, turn: int) -> None:
        self.segments: list[Segment] = []
        self._start, self._end, self._turn = start, end, turn
        self._found: dict[Timing, tuple[list[Wait], list[Work]]] = {}

    def _of(self, hop: Timing) -> tuple[list[Wait], list[Work]]:
        found = self._found.get(hop)
        if found is None:
            start, end, turn = self._start, self._end, self._turn
            going = [Wait(wait.start, end, wait.kind, wait.on, wait.turn) for wait in list(hop.open_waits)]
            waits = [w for w in (*going, *list(hop.waits)) if w.start < end and w.end > start]
            works = [
                w for w in list(hop.works) if w.start < end and w.end > start and (not w.turn or turn in (0, w.turn))
            ]
            found = self._found[hop] = waits, works
        return found

    def down(self, hop: Timing, start: float, end: float, seen: tuple[Timing, ...]) -> None:
        """Split [start, end] of `hop` at the edges of its states and waits."""
        all_waits, all_works = self._of(hop)
        waits = [w for w in all_waits if w.start < end and w.end > start]
        works = [w for w in all_works if w.start < end and w.end > start]
        received, accepted = hop.received or end, hop.accepted or end
        ended = hop.ended or end
        edges = {start, end, hop.opened, received, accepted, ended}
        edges.update(t for w in waits for t in (w.start, w.end))
        edges.update(t for w in works for t in (w.start, w.end))
        points = sorted(t for t in edges if start <= t <= end)
        for left, right in itertools.pairwise(points):
            middle = (left + right) / 2
            if middle < received or middle > ended:
                self._add(hop, "wire", "", left, right)
            elif middle < accepted:
                self._add(hop, "queue", "", left, right)
            elif work := next((w for w in reversed(works) if w.start <= middle < w.end), None):
                self._add(hop, "compute", work.name, left, right)
            else:
                self._idle(hop, [w for w in waits if w.start <= middle < w.end], left, right, seen)

    def _idle(self, hop: Timing, waits: list[Wait], left: float, right: float, seen: tuple[Timing, ...]) -> None:
        """A stretch without named work: on with what was waited for, if anything was."""
        wait = _chosen([w for w in waits if not _closed(w, seen)], self._turn)
        if wait is not None and wait.on is not None:
            self.down(wait.on, left, right, (*seen, wait.on))
        elif waits:
            self._add(hop, "wait", wait.kind if wait is not None else "", left, right)
        else:
            self._add(hop, "compute", "", left, right)

    def _add(self, hop: Timing, part: Part, name: str, left: float, right: float) -> None:
        self.segments.append(Segment(hop.label, part, name, left, right, hop.replica))


def _closed(wait: Wait, seen: tuple[Timing, ...]) -> bool:
    """Whether following this wait would go in a circle. An input leads back to its maker, once: it may wait too."""
    return wait.on is not None and seen.count(wait.on) >= (2 if wait.kind == "input" else 1)


def _chosen(waits: list[Wait], turn: int) -> Wait | None:
    own = [w for w in waits if w.turn == turn] if turn else []
    others = [w for w in waits if not w.turn] or waits
    return max(own or others, key=lambda w: w.end, default=None)


def _merged(segments: list[Segment]) -> list[Segment]:
    merged: list[Segment] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if last and _what(last) == _what(segment):
            merged[-1] = Segment(last.label, last.part, last.name, last.start, segment.end, last.replica)
        else:
            merged.append(segment)
    return merged


def _what(segment: Segment) -> tuple[str, ...]:
    return segment.label, segment.part, segment.name, segment.replica


@dataclass(frozen=True, slots=True)
class TurnAccount:
    """One turn's latency: from `speech_end` (or the turn's start) to `first_audio` (or its end), and its path.

    `cancelled` is why it was, "" if it was not; `spoken` says that it began with the end of somebody's speech.
    """

    number: int
    start: float
    end: float
    segments: tuple[Segment, ...]
    cancelled: str
    spoken: bool = False

    @property
    def ms(self) -> float:
        return (self.end - self.start) * 1e3

    def by_hop(self) -> list[tuple[str, float]]:
        """(what, milliseconds) in the order in which each first stood on the path; they sum to `ms`."""
        totals: dict[str, float] = {}
        for s in self.segments:
            name = f"{s.label} {s.name or s.part}"
            totals[name] = totals.get(name, 0.0) + s.ms
        return list(totals.items())


def outcome_of(record: CallRecord) -> str:
    """ "error" when its own hop failed; "done", also when its caller hung up once a reply had begun to come, as those
    on the phone end every call; else "cancelled"."""
    root, reason = record.root, record.call.reason
    if record.failed:
        return "error"
    if reason == HANG_UP:
        return "done" if root is not None and (root.outcome == "done" or root.items_out) else "cancelled"
    return "done" if reason == ENDED and (root is None or root.outcome == "done") else "cancelled"


def state_of(turn: Turn) -> str:
    """What became of a turn: "answered"; "interrupted" while it was heard; "dropped" before anything of it was;
    "failed"."""
    if not turn.reason:
        return "answered"
    if turn.reason == "turn failed" or turn.reason.startswith("deadline"):
        return "failed"
    return "interrupted" if "first_audio" in turn.marks or turn.call.played.of(turn.number) else "dropped"


def account(record: CallRecord, turn: Turn) -> TurnAccount | None:
    """The account of a turn that has begun to be answered; None while there is nothing to account."""
    start = turn.marks.get("speech_end", turn.opened)
    end = turn.marks.get("first_audio", turn.ended)
    root = record.root or next((hop for hop in list(record.hops) if hop.parent is None), None) or _open_root(record)
    if end <= start or (root is None and not turn.path):
        return None
    if turn.path:
        path = _clipped(turn.path, start, end, root)
    else:
        assert root is not None, "there is one, or a path"
        path = critical_path(root, start, end, turn.number)
    return TurnAccount(turn.number, start, end, tuple(path), turn.reason, "speech_end" in turn.marks)


def path_of(root: Timing, turn: Turn, now: float, most: int) -> Sequence[Segment]:
    """What a turn's time until its first audio, or its end, went into, seen from hop `root`: at least the first `most`
    stretches of it, and no more of a long one than that takes.
    """
    if turn.path:
        return turn.path
    at = min(turn.opened, turn.marks.get("speech_end", turn.opened))
    end, step = turn.marks.get("first_audio", turn.ended or now), 1.0
    path: list[Segment] = []
    while at < end and len(path) < most:
        path = _merged([*path, *critical_path(root, at, min(end, at + step), turn.number)])
        at, step = at + step, 2 * step
    return path


def _clipped(path: Sequence[Segment], start: float, end: float, root: Timing | None) -> list[Segment]:
    """The path from `start` to `end`, of a turn that was made in another process; what it leaves open was the way."""
    label, replica = (root.label, root.replica) if root is not None else (path[0].label, path[0].replica)
    segments: list[Segment] = []
    at = start
    for step in path:
        left, right = max(at, step.start), min(end, step.end)
        if right > left:
            if left > at:
                segments.append(Segment(label, "wire", "", at, left, replica))
            segments.append(Segment(step.label, step.part, step.name, left, right, step.replica))
            at = right
    if at < end:
        segments.append(Segment(label, "wire", "", at, end, replica))
    return segments


def _open_root(record: CallRecord) -> Timing | None:
    """The entry's hop while it still runs: it is the parent of hops that have ended."""
    for hop in list(record.hops):
        above = hop
        while above.parent is not None:
            above = above.parent
        return above
    return None


def hop_rows(hops: Iterable[Timing]) -> list[dict[str, Any]]:
    """One row for each (node, method): calls, errors, and milliseconds by part, summed."""
    rows: dict[str, dict[str, Any]] = {}
    for hop in hops:
        row = rows.setdefault(hop.label, {"hop": hop.label, "calls": 0, "errors": 0, "items": 0})
        row["calls"] += 1
        row["errors"] += hop.outcome == "error"
        row["items"] += hop.items_out
        for part, seconds in hop.parts().items():
            row[part] = row.get(part, 0.0) + seconds * 1e3
    return sorted(rows.values(), key=lambda row: -row["compute"])


def table(record: CallRecord) -> str:
    """The call in plain text: each turn's latency and what it went into, then every hop's parts in milliseconds."""
    lines = [f"call {record.id}"]
    accounts = [a for turn in record.turns if (a := account(record, turn)) is not None]
    for entry in accounts:
        note = f" (cancelled: {entry.cancelled})" if entry.cancelled else ""
        since = "from end of speech " if entry.spoken else ""
        lines.append(f"  turn {entry.number}: {entry.ms:.0f} ms {since}to first audio{note}")
        if not entry.cancelled:
            lines.extend(_path_lines(entry))
    parts = ("serialise", "wire", "queue", "compute", "wait")
    head = f"  {'hop':<32}{'calls':>6}{'errors':>7}" + "".join(f"{part:>11}" for part in parts)
    lines.append(head + "   (ms; wait is for other hops, for input and for slow readers)")
    for row in hop_rows(record.hops):
        figures = "".join(f"{row[part]:>11.1f}" for part in parts)
        lines.append(f"  {row['hop']:<32}{row['calls']:>6}{row['errors']:>7}{figures}")
    return "\n".join(lines)


def _path_lines(entry: TurnAccount) -> list[str]:
    """What the turn's time went into; what took less than a millisecond stands together in the last line."""
    named = [(name, ms) for name, ms in entry.by_hop() if ms >= 1.0]
    rest = entry.ms - sum(ms for _, ms in named)
    return [f"    {name:<44} {ms:8.1f} ms" for name, ms in [*named, ("everything else", rest)]]


def to_json(record: CallRecord) -> dict[str, Any]:
    """The call as plain data; times are milliseconds since the call was opened."""
    zero = record.call.opened

    def ms(t: float) -> float:
        return round((t - zero) * 1e3, 3)

    return {
        "call": record.id,
        "trace_id": record.call.trace_id,
        "opened": record.call.opened_wall,
        "turns": [_turn_json(record, turn, ms) for turn in record.turns],
        "hops": [
            {
                "id": hop.id,
                "parent": hop.parent.id if hop.parent else None,
                "turn": hop.turn,
                "node": hop.node,
                "method": hop.method,
                "replica": hop.replica,
                "start": ms(hop.opened),
                "end": ms(hop.closed or hop.opened),
                "first_item": ms(hop.first_item) if hop.first_item else None,
                "outcome": hop.outcome,
                "error": hop.error,
                "attempts": hop.attempts,
                "items_in": hop.items_in,
                "items_out": hop.items_out,
                "parts": {part: round(seconds * 1e3, 3) for part, seconds in hop.parts().items()},
                "work": [{"name": w.name, "start": ms(w.start), "end": ms(w.end)} for w in hop.works],
            }
            for hop in record.hops
        ],
    }


def _turn_json(record: CallRecord, turn: Turn, ms: Callable[[float], float]) -> dict[str, Any]:
    entry = account(record, turn)
    return {
        "number": turn.number,
        "start": ms(turn.opened),
        "end": ms(turn.ended) if turn.ended else None,
        "cancelled": turn.cancelled,
        "marks": {name: ms(at) for name, at in turn.marks.items()},
        "played_ms": record.call.played.of(turn.number),
        "latency_ms": round(entry.ms, 3) if entry else None,
        "critical_path": [
            {"hop": s.label, "part": s.part, "name": s.name, "start": ms(s.start), "ms": round(s.ms, 3)}
            for s in (entry.segments if entry else ())
        ],
    }
