"""What every test relies on: one thread per library, no downloads, no OTEL_ settings of the machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before numpy, torch or onnxruntime load: two libraries that take all cores each slow one another down.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Models come from packages or the model cache; a test that would download one fails at once instead.
os.environ["HF_HUB_OFFLINE"] = "1"

# Exporting spans is asked for by the tests that look at it, never by the machine's environment.
for name in [name for name in os.environ if name.startswith("OTEL_")]:
    del os.environ[name]

# What a test starts with a tracing page keeps its calls in a store of its own, never in the user's.
_TRACES = tempfile.TemporaryDirectory(prefix="traces-", ignore_cleanup_errors=True)
os.environ["CHAINS_TRACES"] = f"{_TRACES.name}/traces.sqlite"
for name in ("CHAINS_VIEWER", "CHAINS_VIEWER_KEY"):
    os.environ.pop(name, None)

# No deadline an example: the machine may be busy. The tests' own timeout ends what hangs.
settings.register_profile("chains", deadline=None, max_examples=50, print_blob=True)
settings.load_profile("chains")


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray of this machine alone, for as long as the tests run; what it wrote is removed."""
    ray = pytest.importorskip("ray")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a busy machine is no broken one
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # not pytest's: the path of a socket is short
    ray.init(num_cpus=64, include_dashboard=False, logging_level="WARNING", log_to_driver=False, _temp_dir=folder)
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With what fails on Ray comes what Serve's controller did meanwhile: it goes away with the cluster."""
    report = yield
    if report.failed and "ray_cluster" in getattr(item, "fixturenames", ()):
        import ray

        for log in sorted(Path(ray._private.worker._global_node.get_logs_dir_path()).glob("serve/controller_*.log")):
            report.sections.append((log.name, "\n".join(log.read_text(errors="replace").splitlines()[-80:])))
    return report
