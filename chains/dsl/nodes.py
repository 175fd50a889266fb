"""A chain that stands: its nodes, each with its settings and methods, and who uses whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from chains.dsl import draw
from chains.dsl.chainlet import ChainletSpec
from chains.dsl.signature import Method
from chains.dsl.specs import CallOptions


@dataclass(frozen=True, slots=True)
class Edge:
    """One use of a node by another. `via` says how the user's code holds it: "attribute" of the class or
    "init" parameter; a "fallback" is not held, it answers for the use whose attribute it is named after.
    """

    attribute: str
    target: str
    options: CallOptions
    via: str


@dataclass(frozen=True, slots=True)
class Node:
    """One chainlet with its settings: what becomes one deployment. `arguments` are what its constructor is
    given.
    """

    name: str
    cls: type
    spec: ChainletSpec
    arguments: dict[str, Any]
    edges: dict[str, Edge]
    methods: dict[str, Method]

    def construct(self, handles: Mapping[str, Any]) -> Any:
        """A new instance, with the handles of its edges by attribute. Those of the class stand before
        __init__ runs.
        """
        made: Any = self.cls
        instance = made.__new__(made)
        for edge in self.edges.values():
            if edge.via == "attribute":
                object.__setattr__(instance, edge.attribute, handles[edge.attribute])
        given = {name: handles[name] for name, edge in self.edges.items() if edge.via == "init"}
        instance.__init__(**{**self.arguments, **given})
        return instance


@dataclass(frozen=True, slots=True)
class Graph:
    """A chain without faults. `nodes` by name, those that others depend on first; `entry` is the name of the
    last.
    """

    entry: str
    nodes: dict[str, Node]

    def changed(self, settings: Mapping[str, Mapping[str, Any]]) -> Graph:
        """The same chain with other settings of some nodes: {"Ears": {"resources": Resources(cpu=2)}}."""
        nodes = {
            name: replace(node, spec=replace(node.spec, **settings[name])) if name in settings else node
            for name, node in self.nodes.items()
        }
        return Graph(self.entry, nodes)

    def text(self) -> str:
        """The chain as a tree, with each node's resources, scaling and methods."""
        return draw.text(self)

    def svg(self) -> str:
        """The chain as one SVG document that needs nothing else; it follows a light or dark surrounding."""
        return draw.svg(self)

    def to_json(self) -> dict[str, Any]:
        """The chain as plain data: {"entry", "nodes": {name: {"class", "resources", "edges", "methods",
        ...}}}.
        """
        return {"entry": self.entry, "nodes": {name: _node_json(node) for name, node in self.nodes.items()}}


def _node_json(node: Node) -> dict[str, Any]:
    return {
        "class": f"{node.cls.__module__}.{node.cls.__qualname__}",
        "resources": asdict(node.spec.resources),
        "scaling": asdict(node.spec.scaling),
        "limits": asdict(node.spec.limits),
        "placement": asdict(node.spec.placement),
        "environment": _environment_json(node),
        "arguments": {name: draw.brief(name, value) for name, value in node.arguments.items()},
        "edges": {
            name: {"target": edge.target, "via": edge.via, "options": asdict(edge.options)}
            for name, edge in node.edges.items()
        },
        "methods": {name: {**method.schema(), "where": method.where} for name, method in node.methods.items()},
    }


def _environment_json(node: Node) -> dict[str, Any]:
    environment = node.spec.environment
    return {
        "pip": list(environment.pip),
        "env": {name: draw.brief(name, value) for name, value in environment.env.items()},
        "secrets": list(environment.secrets),
    }
