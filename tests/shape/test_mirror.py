"""Each module has its test file: chains/dsl/specs.py is tested in tests/chains/dsl/test_specs.py.

Without a file of their own go the modules that UNMIRRORED names, each with where it is tested. The list only
shrinks: a name on it that has a file by now, or no module any more, fails too.
"""

from __future__ import annotations

from tests.shape.tree import ROOT, modules, name

UNMIRRORED: dict[str, str] = {
    "chains/dsl/annotations.py": "test_signature.py: which annotations may cross a hop; test_faults.py: which not",
    "chains/dsl/arrays.py": "test_signature.py",
    "chains/dsl/draw.py": "test_graph.py",
    "chains/dsl/kind.py": "test_signature.py",
    "chains/dsl/loading.py": "test_graph.py, test_faults.py",
    "chains/dsl/nodes.py": "test_graph.py",
    "chains/dsl/plan.py": "test_faults.py, test_graph.py",
    "chains/dsl/reader.py": "test_faults.py, test_signature.py",
    "chains/dsl/source.py": "test_faults.py: every fault's file and line",
    "chains/dsl/structures.py": "test_signature.py",
    "chains/dsl/values.py": "test_signature.py",
    "chains/runtime/host.py": "test_processes.py: what it is for; tests/chains/wire/hosted.py is made of it",
    "chains/wire/link.py": "test_stub.py, test_server.py: both ends of it on real sockets",
    "engines/llm/choice.py": "test_reference.py: shares of choices are those of running each alone",
    "engines/llm/commands.py": "test_fetch.py",
    "engines/llm/decoder.py": "test_reference.py: the fused forward computes what the library computes",
    "engines/llm/errors.py": "test_chainlet.py, test_config.py, test_fetch.py",
    "engines/llm/loading.py": "test_reference.py: missing and broken files",
    "engines/llm/prefixes.py": "test_speculative.py, test_reference.py",
    "engines/llm/seam.py": "types alone",
}


def test_each_module_has_its_test_file() -> None:
    files = [name(path) for path in modules("chains", "engines") if path.stem not in ("__init__", "__main__")]
    expected = {file: f"tests/{file.rpartition('/')[0]}/test_{file.rpartition('/')[2]}" for file in files}
    missing = {file for file, test in expected.items() if not (ROOT / test).exists()}
    assert not missing - set(UNMIRRORED), "write the test file, tests/.../test_NAME.py"
    assert not set(UNMIRRORED) - missing, "take these off UNMIRRORED"
