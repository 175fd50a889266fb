"""A call drawn in the terminal: its turns, what lay on each one's critical path, and the hops, to one scale.

Each part of a hop's time has a character of its own, so that it reads without colour. Pure: the answer of
/api/calls/ID in, lines out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.text import Text

GLYPHS = {"serialise": "=", "wire": "─", "queue": "░", "compute": "█", "wait": "·", "mixed": "▒"}
STYLES = {"serialise": "magenta", "wire": "cyan", "queue": "yellow", "compute": "green", "wait": "bright_black"}
STATES = {
    "answered": "",
    "interrupted": "interrupted by the caller",
    "dropped": "thrown away unheard",
    "failed": "FAILED",
}
PARTS = ("serialise", "wire", "queue", "compute", "wait")
SAME = ("id", "parent", "name", "replica", "turn", "start", "ms", "status")
"""Columns of the answer that a row has as they are."""
ROWS = 40
"""Hops of a turn that are drawn; beyond, those that took longest."""
LABEL, NARROWEST = 30, 12
FIGURES = 19
"""Columns of the two figures behind a bar."""
BEYOND = 1.1
"""A turn is drawn a little beyond its first audio, so that what goes on then is seen to go on."""


@dataclass(slots=True)
class Row:
    """A span as it is drawn; times in ms since the call began."""

    id: str
    parent: str
    name: str
    replica: str
    turn: int
    start: float
    ms: float
    status: int
    segments: Sequence[Sequence[Any]]
    on_path: float
    depth: int = 0
    children: list[Row] = field(default_factory=list)

    @property
    def end(self) -> float:
        return self.start + self.ms


def rows(detail: Mapping[str, Any]) -> list[Row]:
    """The hops, and spans of others, each behind its parent, in the order of their starts."""
    at = {name: index for index, name in enumerate(detail["columns"])}
    made = []
    for span in detail["spans"]:
        kind = span[at["kind"]]
        if kind in ("call", "turn"):
            continue
        parts = span[at["parts"]] or [0.0, 0.0, 0.0, span[at["ms"]], 0.0]
        told = {name: span[at[name]] for name in SAME}
        made.append(Row(**told, segments=span[at["segments"]] or _in_order(parts), on_path=span[at["on_path"]] or 0.0))
    known = {row.id: row for row in made}
    roots: list[Row] = []
    for row in made:
        above = known.get(row.parent)
        (above.children if above is not None and above is not row else roots).append(row)
    return list(_walk(roots))


def _walk(roots: list[Row]) -> Iterator[Row]:
    stack = sorted(roots, key=lambda row: -row.start)
    while stack:
        row = stack.pop()
        yield row
        for child in sorted(row.children, key=lambda child: -child.start):
            child.depth = row.depth + 1
            stack.append(child)


def _in_order(parts: Sequence[float]) -> list[tuple[str, float, float, str]]:
    out, at = [], 0.0
    for part, ms in zip(PARTS, parts, strict=True):
        out.append((part, at, ms, ""))
        at += ms
    return out


@dataclass(frozen=True, slots=True)
class Scale:
    """From `start` to `end` (ms since the call began) in `width` characters."""

    start: float
    end: float
    width: int

    def bar(self, at: float, segments: Sequence[Sequence[Any]]) -> Text:
        """The stretches of a span that began at `at`: in each column the part that fills most of it; of what is too
        short for one, one all the same. ▸ and ◂ where it goes on outside.
        """
        per = (self.end - self.start) / self.width
        fills: list[dict[str, float]] = [{} for _ in range(self.width)]
        for part, offset, ms, _ in segments:
            left, right = (at + offset - self.start) / per, (at + offset + ms - self.start) / per
            for column in range(max(0, int(left)), min(self.width, int(right) + 1)):
                covered = min(right, column + 1) - max(left, column)
                if covered > 0:
                    fills[column][part] = fills[column].get(part, 0.0) + covered
        parts = [max(fill, key=lambda part: fill[part]) if sum(fill.values()) >= 0.5 else "" for fill in fills]
        if not any(parts) and segments:
            longest = max(segments, key=lambda segment: segment[2])
            column = int((at + longest[1] - self.start) / per)
            if 0 <= column < self.width:
                parts[column] = longest[0]
        bar = Text()
        for part in parts:
            bar.append(GLYPHS.get(part, "·") if part else " ", STYLES.get(part, ""))
        return self._cut(bar, at, segments)

    def _cut(self, bar: Text, at: float, segments: Sequence[Sequence[Any]]) -> Text:
        if not segments:
            return bar
        starts, ends = at + segments[0][1], at + segments[-1][1] + segments[-1][2]
        per = (self.end - self.start) / self.width
        if starts < self.start - per and ends > self.start:
            bar = Text("◂").append_text(bar[1:])
        if ends > self.end + per and starts < self.end:
            bar = bar[:-1].append_text(Text("▸"))
        return bar

    def ruler(self) -> str:
        """Up to four moments, ms since its start: those that find room."""
        line = ""
        for quarter in range(4):
            text = f"{(self.end - self.start) * quarter / 4:.0f}" + (" ms" if not quarter else "")
            at = self.width * quarter // 4
            if (at > len(line) or not line) and at + len(text) <= self.width:
                line = line.ljust(at) + text
        return line.ljust(self.width)


def draw(detail: Mapping[str, Any], width: int, turn: int | None = None) -> list[Text]:
    """The call, or one of its turns, in lines of at most `width` characters."""
    every = rows(detail)
    lines: list[Text | str] = [_head(detail["call"]), *(Text(f"  {one['text']}") for one in detail.get("findings", ()))]
    turns = [one for one in detail["turns"] if turn is None or one["number"] == turn]
    if turn is None and not turns:
        lines += ["", *_hops("the call", every, _whole(every, width), [])]
    for one in turns:
        lines += ["", *_turn(one, every, width)]
    if turn is None:
        lines += ["", _checks(detail["checks"])]
    lines.append(_legend())
    return [line if isinstance(line, Text) else Text(line) for line in lines]


def _head(call: Mapping[str, Any]) -> Text:
    started = datetime.fromtimestamp(call["started_ms"] / 1e3).strftime("%Y-%m-%d %H:%M:%S")
    ended = call["ended_ms"]
    lasted = f", {seconds(ended - call['started_ms'])}" if ended else ""
    version = f" version {call['version']}" if call["version"] else ""
    return Text(f"call {call['id']}  {call['chain']}{version}  {started}{lasted}  {became(call)}", "bold")


def _turn(turn: Mapping[str, Any], every: list[Row], width: int) -> list[Text | str]:
    latency = turn["latency_ms"]
    zero = turn["latency_start"] if latency is not None else turn["start"]
    end = zero + latency if latency is not None else turn["end"] or max((row.end for row in every), default=zero)
    scale = Scale(zero, max(zero + (end - zero) * BEYOND, zero + 0.1), _bar_width(width))
    since = "from end of speech to first audio" if turn["spoken"] else "to first audio"
    told = f"{latency:.0f} ms" + f" {since}" * bool(turn["number"]) if latency is not None else "no answer was heard"
    state = STATES.get(turn["state"], turn["state"] or "")
    why = f" ({turn['reason']})" if turn["reason"] else ""
    name = f"turn {turn['number']}" if turn["number"] else "the trace"
    title = f"{name}: {told}" + (f", {state}{why}" if state else "")
    path = turn["path"] or []
    shown = [row for row in every if _belongs(row, turn, zero, scale.end, path)]
    return [*_hops(title, shown, scale, path), *_sums(path, width)]


def _belongs(row: Row, turn: Mapping[str, Any], start: float, end: float, path: Sequence[Sequence[Any]]) -> bool:
    if row.start >= end or row.end <= start:
        return False
    return row.turn == turn["number"] or any(step[0] == row.name for step in path)


def _hops(title: str, shown: list[Row], scale: Scale, path: Sequence[Sequence[Any]]) -> list[Text | str]:
    left = 0
    if len(shown) > ROWS:
        kept = {id(row) for row in sorted(shown, key=lambda row: (-row.on_path, -row.ms))[:ROWS]}
        left, shown = len(shown) - ROWS, [row for row in shown if id(row) in kept]
    base = min((row.depth for row in shown), default=0)
    lines: list[Text | str] = [Text(title, "bold"), f"{'':{LABEL}}  {scale.ruler()}  {'ms':>8} {'on path':>8}"]
    if path:
        steps = [(step[1], step[4] - scale.start, step[5], step[2]) for step in path]
        total = sum(step[5] for step in path)
        lines.append(_line("critical path", scale.bar(scale.start, steps), f"{total:.1f}", "", "bold"))
    for row in shown:
        label = "  " * min(row.depth - base, 5) + f"{row.name} {short(row.name, row.replica)}".rstrip()
        on_path = (
            row.on_path if row.turn or not path else sum(s[5] for s in path if (s[0], s[3]) == (row.name, row.replica))
        )
        figures = f"{on_path:.1f}" if on_path else ""
        style = "red" if row.status == 2 else ""
        lines.append(_line(label, scale.bar(row.start, row.segments), f"{row.ms:.1f}", figures, style))
    if left:
        lines.append(f"  and {left} shorter ones (--json has all)")
    return lines


def _line(label: str, bar: Text, ms: str, on_path: str, style: str) -> Text:
    short = label if len(label) <= LABEL else label[: LABEL - 1] + "…"
    line = Text(f"{short:{LABEL}}  ", style)
    return line.append_text(bar).append(f"  {ms:>8} {on_path:>8}", style)


def _sums(path: Sequence[Sequence[Any]], width: int) -> list[str]:
    """What the path's time went into, by hop and by part; both add up to the latency."""
    if not path:
        return []
    by_hop: dict[str, float] = {}
    by_part: dict[str, float] = {}
    for hop, part, name, replica, _, ms in path:
        what = " ".join(filter(None, (hop, short(hop, replica), name or part)))
        by_hop[what] = by_hop.get(what, 0.0) + ms
        by_part[part] = by_part.get(part, 0.0) + ms
    named = sorted(by_hop.items(), key=lambda one: -one[1])
    shown = [(what, ms) for what, ms in named if ms >= 1.0][:8] or named[:1]
    total = sum(by_hop.values())
    rest = total - sum(ms for _, ms in shown)
    parts = ", ".join(f"{part} {ms:.1f}" for part, ms in sorted(by_part.items(), key=lambda one: -one[1]) if ms >= 0.05)
    lines = [f"  {what[: width - 16]:<{min(54, width - 16)}} {ms:>9.1f} ms" for what, ms in shown]
    if abs(rest) >= 0.05:
        lines.append(f"  {'everything else':<{min(54, width - 16)}} {rest:>9.1f} ms")
    return [*lines, f"  = {total:.1f} ms: {parts}"]


def _whole(every: list[Row], width: int) -> Scale:
    start = min((row.start for row in every), default=0.0)
    end = max((row.end for row in every), default=1.0)
    return Scale(start, max(end, start + 0.1), _bar_width(width))


def _bar_width(width: int) -> int:
    return max(NARROWEST, width - LABEL - 2 - FIGURES)


def _checks(checks: Mapping[str, Any]) -> str:
    hops, turns = (f"{checks[name]} {name[:-1]}{'s' * (checks[name] != 1)}" for name in ("hops", "turns"))
    return (
        f"the parts of {hops} add up to their time within {checks['worst_hop_ms']:.3f} ms, "
        f"the paths of {turns} to their latency within {checks['worst_turn_ms']:.3f} ms"
    )


def _legend() -> Text:
    line = Text()
    for part in PARTS:
        line.append(GLYPHS[part] * 2, STYLES[part]).append(f" {part}   ")
    return line.append("▸ goes on")


def became(call: Mapping[str, Any]) -> str:
    """What came of a call. That the caller hung up is how a phone call ends, and no fault."""
    if call["live"]:
        return "goes on"
    if call["outcome"] == "cancelled" and call["reason"] == "hang-up":
        return "the caller hung up"
    outcome = {"lost": "lost sight of"}.get(call["outcome"], str(call["outcome"]))
    return outcome + (f": {call['reason']}" if call["reason"] and call["outcome"] != "done" else "")


def short(hop: str, replica: str) -> str:
    """A replica beside its hop: of `Ears#1` the `#1`."""
    node = hop.partition(".")[0]
    return replica.removeprefix(node) if replica != node else ""


def seconds(ms: float) -> str:
    return f"{ms:.0f} ms" if ms < 1e3 else f"{ms / 1e3:.1f} s" if ms < 120e3 else f"{ms / 60e3:.1f} min"
