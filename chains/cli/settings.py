"""`--set Node.argument=value`: a chain's graph with other settings of its chainlets."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chains.dsl.graph import Graph, Node
from chains.errors import SettingError


def changed(graph: Graph, pairs: Sequence[str]) -> Graph:
    """The graph with these constructor arguments; a value is JSON where it can be read as such, else text.

    Raises SettingError for a chainlet or an argument that is not there.
    """
    nodes = dict(graph.nodes)
    for pair in pairs:
        place, equals, text = pair.partition("=")
        name, dot, argument = place.rpartition(".")
        if not (equals and dot and argument.isidentifier()):
            raise SettingError(f"--set {pair} is no setting", mend="write --set Node.argument=value")
        node = nodes.get(name)
        if node is None:
            raise SettingError(f"--set {pair}: there is no chainlet {name}", mend=_nearest(name, list(nodes)))
        nodes[name] = replace(node, arguments={**node.arguments, argument: _value(node, pair, argument, text)})
    return replace(graph, nodes=nodes)


def _value(node: Node, pair: str, argument: str, text: str) -> Any:
    known = [name for name in inspect.signature(node.cls).parameters if name not in node.edges]
    if argument not in known:
        found = f"--set {pair}: {node.name} takes no argument {argument}"
        raise SettingError(found, mend=_nearest(argument, known) if known else f"{node.name} has no settings")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
