"""A chain drawn: as a tree of text, and as SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chains.dsl.nodes import Graph


def brief(value: object) -> str:
    """A value in a few characters."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def text(graph: Graph) -> str:
    return graph.entry


def svg(graph: Graph) -> str:
    return graph.entry
