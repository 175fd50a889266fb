"""The contract, between processes: each replica in one of its own, every hop over the wire."""

from __future__ import annotations

from functools import partial

import pytest

from chains.runtime.processes import Processes
from chains.testing import Case, conformance


@pytest.mark.parametrize("case", conformance(), ids=str)
async def test_between_processes(case: Case) -> None:
    await case.run(partial(Processes, grace=0.0))
