"""The cores of a process are shared out among its chainlets, before their libraries load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chains.dsl.specs import Resources
from chains.runtime.cores import settings, share, share_out


@pytest.mark.parametrize(
    ("cores", "cpus", "threads"), [(2, [1, 1, 1, 0.1], 1), (8, [1, 1, 0.5], 4), (8, [0.1], 8), (1, [], 1)]
)
def test_heavy_chainlets_share_the_cores(cores: int, cpus: list[float], threads: int) -> None:
    assert share(cores, [Resources(cpu=cpu) for cpu in cpus]) == threads


def test_what_the_user_set_stays() -> None:
    found = settings(2, {"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in found
    assert found["MKL_NUM_THREADS"] == "2"
    assert found["OMP_WAIT_POLICY"] == "PASSIVE"


def test_it_fits_the_cores_that_this_process_may_use() -> None:
    environ: dict[str, str] = {}
    share_out([Resources(cpu=1), Resources(cpu=2)], environ)
    assert int(environ["OMP_NUM_THREADS"]) >= 1


def test_it_is_set_before_a_chainlet_loads() -> None:
    code = """
import asyncio, os
from chains import chainlet, Resources
from chains.dsl.graph import build
from chains.runtime.inprocess import InProcess
@chainlet(entry=True, resources=Resources(cpu=64))
class Probe:
    def load(self) -> None:
        self.seen = os.environ.get("OMP_NUM_THREADS", "unset")
    async def run(self) -> str:
        return self.seen
async def main() -> None:
    async with InProcess(build(Probe)) as runtime, runtime.open_call():
        print(await runtime.entry.run())
asyncio.run(main())
"""
    environ = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)}
    found = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert int(found.stdout) >= 1
