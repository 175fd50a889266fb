"""For tests: a clock that one moves by hand, and the contract as a suite that any runtime can be put through.

from chains.testing import conformance
@pytest.mark.parametrize("case", conformance(), ids=str)
async def test_my_runtime(case): await case.run(MyRuntime)
"""

from __future__ import annotations

from chains.testing.cases_ends import CASES as _ENDS
from chains.testing.cases_flow import CASES as _FLOW
from chains.testing.cases_replicas import CASES as _REPLICAS
from chains.testing.cases_scopes import CASES as _SCOPES
from chains.testing.clock import FakeClock, settle
from chains.testing.harness import Broken, Case, Make


def conformance() -> tuple[Case, ...]:
    """Every case of the contract. `await case.run(make)` raises Broken when the runtime does not keep it."""
    return _SCOPES + _ENDS + _FLOW + _REPLICAS


__all__ = ["Broken", "Case", "FakeClock", "Make", "conformance", "settle"]
