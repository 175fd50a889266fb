"""The contract, on the in-process runtime: by reference, and with every value through the codec."""

from __future__ import annotations

from functools import partial

import pytest

from chains.runtime.inprocess import InProcess
from chains.testing import Case, conformance


@pytest.mark.parametrize("case", conformance(), ids=str)
async def test_in_process(case: Case) -> None:
    await case.run(partial(InProcess, grace=0.0))


@pytest.mark.parametrize("case", conformance(), ids=str)
async def test_through_the_codec(case: Case) -> None:
    await case.run(partial(InProcess, grace=0.0, codec=True))
