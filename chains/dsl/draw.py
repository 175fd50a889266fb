"""A chain drawn: as a tree of text, and as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chains.dsl.nodes import Edge, Graph, Node


_SECRET = re.compile("key|token|secret|passw|credential", re.IGNORECASE)


def brief(name: str, value: object) -> str:
    """An argument's value in a few characters; of a text whose name speaks of a secret nothing but that it is there."""
    if isinstance(value, str | bytes) and _SECRET.search(name):
        return "..."
    try:
        text = repr(value)
    except Exception:  # the user's __repr__
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."


def needs(node: Node) -> str:
    """What a replica needs and how many there are: `cpu 1, 2GiB, 1 L4, 1-8 replicas`."""
    resources, scaling = node.spec.resources, node.spec.scaling
    parts = [f"cpu {resources.cpu:g}"]
    if resources.memory:
        parts.append(resources.memory)
    if resources.gpus:
        parts.append(f"{resources.gpus:g} {resources.gpu or 'gpu'}")
    count = f"{scaling.min}" if scaling.min == scaling.max else f"{scaling.min}-{scaling.max}"
    parts.append(f"{count} replica{'' if count == '1' else 's'}")
    parts += _whereabouts(node)
    return ", ".join(parts)


def _whereabouts(node: Node) -> list[str]:
    """What its placement and environment ask for beyond the defaults: `packed, 2 a node, own pip`."""
    placement, environment = node.spec.placement, node.spec.environment
    return [
        *(["packed"] if placement.prefer == "pack" else []),
        *([f"at most {placement.per_node} a node"] if placement.per_node else []),
        *(["with its caller"] if placement.with_caller else []),
        *([f"pip {' '.join(environment.pip)}"] if environment.pip else []),
        *(
            [f"env {' '.join([*environment.env, *environment.secrets])}"]
            if environment.env or environment.secrets
            else []
        ),
    ]


def _title(node: Node) -> str:
    arguments = ", ".join(f"{name}={brief(name, value)}" for name, value in node.arguments.items())
    return f"{node.name}({arguments})" if arguments else node.name


def _options(edge: Edge) -> str:
    """What of a use's settings differs from the defaults."""
    default = type(edge.options)()
    changed = [
        f"{name} {value:g}" if isinstance(value, int | float) else f"{name} none"
        for name in default.__dataclass_fields__
        if (value := getattr(edge.options, name)) != getattr(default, name)
    ]
    return f"  ({', '.join(changed)})" if changed else ""


def text(graph: Graph) -> str:
    """The tree below the entry. A node that several use is written out once, then named."""
    return "\n".join(_branch(graph, graph.entry, "", "", "", set()))


def _branch(graph: Graph, name: str, lead: str, indent: str, how: str, seen: set[str]) -> Iterator[str]:
    node = graph.nodes[name]
    if name in seen:
        yield f"{lead}{_title(node)}, as above{how}"
        return
    seen.add(name)
    yield f"{lead}{_title(node)}  [{needs(node)}]{how}"
    below = indent + ("|  " if node.edges else "   ")
    for method in node.methods.values():
        yield f"{below}{method.shape}"
    edges = list(node.edges.values())
    for number, edge in enumerate(edges):
        last = number == len(edges) - 1
        lead = f"{indent}{'`' if last else '|'}- {edge.attribute}: "
        yield from _branch(graph, edge.target, lead, indent + ("   " if last else "|  "), _options(edge), seen)


CHAR, LINE, PAD, BEND, GAP_Y, MARGIN = 7.3, 17, 12, 60, 26, 16
"""Measures in SVG units: a character of the 12 px monospaced face, a line, a box's padding, a curve, gaps."""

_STYLE = (
    "svg{color:#1b1f24;font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}"
    "@media(prefers-color-scheme:dark){svg{color:#e6edf3}}"
    "rect{fill:currentColor;fill-opacity:.05;stroke:currentColor;stroke-opacity:.45}"
    ".entry rect{stroke-opacity:1;stroke-width:1.6}text{fill:currentColor}.name{font-weight:700}.dim{opacity:.65}"
    ".edge{fill:none;stroke:currentColor;stroke-opacity:.6}.tip{fill:currentColor;fill-opacity:.7}"
)


@dataclass(slots=True)
class _Box:
    """A node on the drawing; or, with no lines, the room that an arrow takes when it passes a column."""

    column: int
    lines: list[str]
    uses: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(map(len, self.lines), default=0) * CHAR + 2 * PAD

    @property
    def height(self) -> float:
        return max(len(self.lines), self.uses) * LINE + 2 * PAD - 4 if self.lines else LINE


@dataclass(slots=True)
class _Arrow:
    """One use: from its caller's box, by the rooms between, to the box of what it calls."""

    label: str
    number: int
    stops: list[_Box]


def svg(graph: Graph) -> str:
    """Boxes in columns, callers left of what they call, arrows named by the attribute. Colours follow the page."""
    boxes, arrows = _boxes(graph)
    ends = _laid_out([*boxes.values(), *(stop for arrow in arrows for stop in arrow.stops[1:-1])], arrows)
    width = max(box.x + box.width for box in boxes.values()) + MARGIN
    height = max(box.y + box.height for box in boxes.values()) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="chain {escape(graph.entry)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
        *(_drawn_arrow(arrow, ends) for arrow in arrows),
        *(_drawn(box, name == graph.entry) for name, box in boxes.items()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _boxes(graph: Graph) -> tuple[dict[str, _Box], list[_Arrow]]:
    """Each node one column right of the last of its callers, and the arrows, with a stop in each column they pass."""
    columns = {graph.entry: 0}
    callers_first = list(reversed(graph.nodes.values()))
    for node in callers_first:
        for edge in node.edges.values():
            columns[edge.target] = max(columns.get(edge.target, 0), columns[node.name] + 1)
    boxes = {}
    for node in callers_first:
        lines = [_title(node), needs(node), *(method.shape for method in node.methods.values())]
        boxes[node.name] = _Box(columns[node.name], lines, len(node.edges))
    arrows = []
    for node in callers_first:
        for number, edge in enumerate(node.edges.values()):
            between = [_Box(column, []) for column in range(columns[node.name] + 1, columns[edge.target])]
            arrows.append(_Arrow(edge.attribute, number, [boxes[node.name], *between, boxes[edge.target]]))
    return boxes, arrows


def _laid_out(boxes: list[_Box], arrows: list[_Arrow]) -> list[float]:
    """Place the boxes, column by column, in the order in which callers name them. The right end of each column."""
    ends, x = [], float(MARGIN)
    for column in range(max(box.column for box in boxes) + 1):
        inside = [box for box in boxes if box.column == column]
        y = float(MARGIN)
        for box in sorted(inside, key=lambda box: _place_of_callers(box, arrows)):
            box.x, box.y = x, y
            y += box.height + GAP_Y
        ends.append(x + max(box.width for box in inside))
        labels = [len(arrow.label) for arrow in arrows if arrow.stops[0].column == column]
        x = ends[-1] + max(labels, default=0) * CHAR + BEND
    return ends


def _place_of_callers(box: _Box, arrows: list[_Arrow]) -> tuple[float, int]:
    before = [
        (arrow.stops[index - 1].y, arrow.number)
        for arrow in arrows
        for index, stop in enumerate(arrow.stops)
        if index and stop is box
    ]
    return min(before, default=(0.0, 0))


def _drawn_arrow(arrow: _Arrow, ends: list[float]) -> str:
    """Its name stands on the line where it leaves; then it curves from column to column."""
    first, last = arrow.stops[0], arrow.stops[-1]
    x, y = first.x + first.width, first.y + PAD + LINE * arrow.number + 6
    after = max(ends[first.column], x) + len(arrow.label) * CHAR + 10
    path = [f"M{x:.1f} {y:.1f}H{after:.1f}"]
    label = f'<text class="dim" x="{x + 6:.1f}" y="{y - 3:.1f}">{escape(arrow.label)}</text>'
    x = after
    for stop in arrow.stops[1:]:
        to = stop.y + (PAD + 4 if stop is last else stop.height / 2)
        middle = (x + stop.x) / 2
        path.append(f"C{middle:.1f} {y:.1f} {middle:.1f} {to:.1f} {stop.x:.1f} {to:.1f}")
        x, y = ends[stop.column], to
        if stop is not last:
            path.append(f"H{x:.1f}")
    return f'<path class="edge" marker-end="url(#tip)" d="{"".join(path)}"/>{label}'


def _drawn(box: _Box, entry: bool) -> str:
    lines = "".join(
        f'<text class="{"name" if index == 0 else "dim" if index == 1 else "method"}" x="{box.x + PAD:.1f}" '
        f'y="{box.y + PAD + LINE * index + 8:.1f}">{escape(line)}</text>'
        for index, line in enumerate(box.lines)
    )
    size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<g class="{"entry" if entry else "node"}"><rect x="{box.x:.1f}" y="{box.y:.1f}" {size} rx="6"/>{lines}</g>'
