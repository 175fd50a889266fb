"""The suite's own chainlets stand as a graph, and have a method of each shape."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from chains.dsl.graph import build
from chains.testing.probes import FOREIGN, Entry

ROOT = Path(__file__).parents[3]


def test_the_probes_are_a_sound_chain() -> None:
    graph = build(Entry)
    assert (graph.entry, set(graph.nodes)) == ("Entry", {"Entry", "Relay", "Probe"})
    shapes = {
        (method.streams_in, method.streams_out, method.blocking) for method in graph.nodes["Probe"].methods.values()
    }
    assert shapes >= {
        (False, False, False),
        (False, False, True),
        (False, True, False),
        (False, True, True),
        (True, False, False),
        (True, False, True),
        (True, True, False),
    }


def test_each_use_of_the_probe_is_one_node() -> None:
    edges = build(Entry).nodes["Entry"].edges
    assert {edge.target for edge in edges.values()} == {"Relay", "Probe"}
    assert edges["impatient"].options.timeout == 0.08


def test_the_foreign_module_is_one_that_nobody_imports() -> None:
    assert FOREIGN in sys.stdlib_module_names
    code = f"import chains.testing.probes, sys; sys.exit({FOREIGN!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
