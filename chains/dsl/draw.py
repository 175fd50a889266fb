"""A chain drawn: as a tree of text, and as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chains.dsl.nodes import Edge, Graph, Node


def brief(value: object) -> str:
    """A value in a few characters."""
    text = repr(value)
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
    return ", ".join(parts)


def _title(node: Node) -> str:
    arguments = ", ".join(f"{name}={brief(value)}" for name, value in node.arguments.items())
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


CHAR, LINE, PAD, GAP_X, GAP_Y, MARGIN = 7.3, 17, 12, 90, 28, 16
"""Measures in SVG units: a character of the 12 px monospaced face, a line, a box's padding, gaps between boxes."""


@dataclass(slots=True)
class _Box:
    """One node on the drawing."""

    node: Node
    lines: list[str]
    column: int
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * CHAR + 2 * PAD

    @property
    def height(self) -> float:
        return len(self.lines) * LINE + 2 * PAD - 4


def svg(graph: Graph) -> str:
    """Boxes in columns, callers left of what they call, arrows named by the attribute. Colours follow the page."""
    boxes = _laid_out(graph)
    width = max(box.x + box.width for box in boxes.values()) + MARGIN
    height = max(box.y + box.height for box in boxes.values()) + MARGIN
    edges = [
        _arrow(boxes[node.name], boxes[edge.target], edge, number)
        for node in graph.nodes.values()
        for number, edge in enumerate(node.edges.values())
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" aria-label="chain {escape(graph.entry)}">',
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
        *edges,
        *(_drawn(box, box.node.name == graph.entry) for box in boxes.values()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


_STYLE = (
    "svg{color:#1b1f24;font:12px ui-monospace,Menlo,Consolas,monospace}"
    "@media(prefers-color-scheme:dark){svg{color:#e6edf3}}"
    "rect{fill:currentColor;fill-opacity:.05;stroke:currentColor;stroke-opacity:.45}"
    ".entry rect{stroke-opacity:1;stroke-width:1.6}text{fill:currentColor}.name{font-weight:700}.dim{opacity:.65}"
    ".edge{fill:none;stroke:currentColor;stroke-opacity:.6}.tip{fill:currentColor;fill-opacity:.7}"
)


def _laid_out(graph: Graph) -> dict[str, _Box]:
    """Each node one column right of the last of its callers; rows in the order in which callers name them."""
    columns = {graph.entry: 0}
    for node in reversed(graph.nodes.values()):  # callers before what they call
        for edge in node.edges.values():
            columns[edge.target] = max(columns.get(edge.target, 0), columns.get(node.name, 0) + 1)
    boxes = {
        node.name: _Box(node, [_title(node), needs(node), *(method.shape for method in node.methods.values())], column)
        for node in reversed(graph.nodes.values())
        if (column := columns.get(node.name, 0)) is not None
    }
    x = float(MARGIN)
    for column in range(max(columns.values()) + 1):
        inside = [box for box in boxes.values() if box.column == column]
        y = float(MARGIN)
        for box in sorted(inside, key=lambda box: _height_of_callers(box, boxes)):
            box.x, box.y = x, y
            y += box.height + GAP_Y
        longest = max((len(one) for box in inside for one in box.node.edges), default=0)
        x += max(box.width for box in inside) + max(GAP_X, longest * CHAR + 40)
    return boxes


def _height_of_callers(box: _Box, boxes: dict[str, _Box]) -> tuple[float, int]:
    callers = [(one.y, place) for one in boxes.values() for place, edge in enumerate(one.node.edges.values())
               if edge.target == box.node.name]  # fmt: skip
    return min(callers, default=(0.0, 0))


def _arrow(source: _Box, target: _Box, edge: Edge, number: int) -> str:
    """From the caller's right side to the callee's left one; its name stands where it leaves."""
    step = min(LINE, (source.height - 8) / max(len(source.node.edges), 1))
    x1, y1 = source.x + source.width, source.y + PAD + step * number + 4
    x2, y2 = target.x, target.y + PAD + 4
    bend = max((x2 - x1) / 2, 30)
    label = f'<text class="dim" x="{x1 + 6:.1f}" y="{y1 - 3:.1f}">{escape(edge.attribute)}</text>'
    path = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="edge" marker-end="url(#tip)" d="{path}"/>{label}'


def _drawn(box: _Box, entry: bool) -> str:
    lines = "".join(
        f'<text class="{"name" if index == 0 else "dim" if index == 1 else "method"}" x="{box.x + PAD:.1f}" '
        f'y="{box.y + PAD + LINE * index + 8:.1f}">{escape(line)}</text>'
        for index, line in enumerate(box.lines)
    )
    size = f'width="{box.width:.1f}" height="{box.height:.1f}"'
    return f'<g class="{"entry" if entry else "node"}"><rect x="{box.x:.1f}" y="{box.y:.1f}" {size} rx="6"/>{lines}</g>'
