"""The contract, between processes: each replica in one of its own, every hop over the wire."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from chains.runtime.processes import Processes
from chains.testing import Case, conformance
from chains.wire.settings import WireSettings, new_token

PASSED_ON = {"streams_pass_as_arguments", "error_of_a_lent_stream_arrives", "a_hops_stream_is_read_in_parts"}


@pytest.mark.parametrize("case", conformance(), ids=str)
async def test_between_processes(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "chains")
    await case.run(partial(Processes, grace=0.0))
    if case.name == "a_hops_stream_is_read_in_parts":  # the others may end before the way is agreed on
        assert any("goes straight to" in record.message for record in caplog.records), "past this process"


@pytest.mark.parametrize("case", [case for case in conformance() if case.name in PASSED_ON], ids=str)
async def test_between_processes_that_relay(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "chains")
    await case.run(partial(Processes, grace=0.0, wire=WireSettings(new_token(), direct=False)))
    assert not any("goes straight to" in record.message for record in caplog.records)
