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
    "engines/layers/attention.py": "test_decoder.py: ranks; llm/models/test_parity.py: each family",
    "engines/layers/errors.py": "test_precision.py",
    "engines/layers/inputs.py": "numbers alone",
    "engines/layers/loading.py": "test_decoder.py: ranks, what is missing; llm/models/test_fp8.py: every precision",
    "engines/layers/moe.py": "tests/engines/llm/models/test_parity.py, test_fp8.py, test_chains_upcycled.py",
    "engines/layers/tensors.py": "types alone",
    "engines/llm/commands.py": "test_fetch.py",
    "engines/llm/errors.py": "test_chainlet.py, test_config.py, test_fetch.py",
    "engines/llm/fit_report.py": "test_fit.py",
    "engines/llm/link.py": "test_engine.py: the loop in a thread; test_process.py: in a process",
    "engines/llm/messages.py": "test_process.py: each crosses the wire as it is",
    "engines/llm/models/deepseek_v2.py": "test_parity.py",
    "engines/llm/models/deepseek_v3.py": "test_parity.py",
    "engines/llm/models/llama.py": "test_parity.py",
    "engines/llm/models/qwen2.py": "test_parity.py",
    "engines/llm/models/qwen3.py": "test_parity.py",
    "engines/llm/models/qwen3_moe.py": "test_parity.py",
    "engines/llm/openai.py": "test_server.py: every request as clients send it",
    "engines/llm/replies.py": "test_server.py: answers and chunks as the official client reads them",
    "engines/llm/seam.py": "types alone",
    "engines/llm/streaming.py": "test_server.py: streams, several prompts, clients that leave",
    "engines/weights/errors.py": "every test file beside where it would be",
}


def test_each_module_has_its_test_file() -> None:
    files = [name(path) for path in modules("chains", "engines") if path.stem not in ("__init__", "__main__")]
    expected = {file: f"tests/{file.rpartition('/')[0]}/test_{file.rpartition('/')[2]}" for file in files}
    missing = {file for file, test in expected.items() if not (ROOT / test).exists()}
    assert not missing - set(UNMIRRORED), "write the test file, tests/.../test_NAME.py"
    assert not set(UNMIRRORED) - missing, "take these off UNMIRRORED"


def test_only_the_conftest_at_the_root_decides_over_the_whole_session() -> None:
    """Such a hook in a folder is given every test of the session, and could skip them all."""
    below = [path for path in (ROOT / "tests").rglob("conftest.py") if path.parent != ROOT / "tests"]
    hooks = ("def pytest_collection", "def pytest_itemcollected", "def pytest_runtest", "def pytest_ignore_collect")
    assert below and not [name(path) for path in below if any(hook in path.read_text() for hook in hooks)]
