"""The suite notices each runtime that breaks the contract, on the cases that are about the broken sentence.

A case that hangs on a broken runtime has noticed it too: each is given a few seconds at most.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chains.dsl.graph import build
from chains.testing import Case, conformance
from chains.testing.probes import Entry
from tests.conformance import broken

CASES = {str(case): case for case in conformance()}

CAUGHT: dict[type[broken.Breaking], list[str]] = {
    broken.DropsCancels: [
        "ends.break_stops_every_producer",
        "ends.hang_up_stops_the_call",
        "ends.cancelled_task_stops_its_hop",
        "scopes.cancelled_turn_stops_its_own",
        "scopes.spawned_tasks_end_with_the_turn",
        "flow.cancelled_calls_leave_nothing",
    ],
    broken.KeepsTheDropped: ["ends.dropped_result_is_cancelled", "ends.break_stops_every_producer"],
    broken.IgnoresCredit: ["flow.queue_is_bounded_in_bytes"],
    broken.IgnoresCreditOfInputs: ["flow.input_has_credit_too"],
    broken.OneStreamAtATime: ["flow.slow_reader_holds_up_nobody_else"],
    broken.EndsBare: ["ends.error_in_mid_stream", "scopes.ends_stand", "flow.results_are_checked"],
    broken.LosesTheLast: ["ends.done_after_the_last_item"],
    broken.HidesErrors: ["ends.errors_keep_their_type", "ends.errors_tell_the_way"],
    broken.LeaksTasks: ["flow.cancelled_calls_leave_nothing"],
    broken.RepeatsAccepted: [
        "ends.accepted_is_not_repeated",
        "ends.delivered_is_not_repeated",
        "replicas.consumed_is_not_repeated",
    ],
    broken.NeverRetries: ["ends.idempotent_is_answered_elsewhere", "replicas.queued_is_answered_elsewhere"],
    broken.ChecksNothing: [
        "flow.arguments_are_checked",
        "flow.results_are_checked",
        "flow.arrays_arrive_read_only",
        "scopes.input_items_are_checked",
    ],
    broken.CopiesValues: ["flow.arrays_arrive_read_only"],
    broken.IgnoresDeadlines: [
        "ends.unary_deadline",
        "ends.stream_first_and_idle",
        "ends.turn_and_call_deadlines",
        "scopes.passed_deadline_is_prompt",
    ],
    broken.ClosesWhatItBorrows: ["flow.callee_only_stops_reading", "flow.cancelled_turn_keeps_the_call"],
    broken.NeverHolds: ["ends.hold_pauses_and_loses_nothing"],
    broken.NeverResumes: ["ends.hold_pauses_and_loses_nothing"],
    broken.HoldLoses: ["ends.hold_pauses_and_loses_nothing"],
    broken.BlocksTheLoop: ["ends.blocking_code_does_not_block_the_loop"],
    broken.LosesTheQueueCap: ["flow.caps_are_hard"],
    broken.LosesTheRunningCap: ["flow.caps_are_hard", "ends.checked_before_work"],
    broken.TreatsAllAlike: ["flow.interactive_before_batch", "replicas.hops_know_their_call"],
    broken.ReportsNoLoad: ["flow.load_counts_streams", "replicas.load_counts_turns_and_wait"],
    broken.KeepsNoAccount: ["flow.critical_path_sums_to_the_latency", "replicas.queue_wait_is_accounted"],
    broken.MiscountsTime: ["flow.parts_sum_to_the_whole"],
}
SECONDS = 1.0  # a case takes well under one where the contract is kept


async def notices(case: Case, runtime: Any) -> bool:
    task = asyncio.ensure_future(case.run(runtime))
    await asyncio.wait([task], timeout=SECONDS)
    hangs = not task.done()
    while not task.done():  # more than once: a wait_for that has its result may swallow a cancel
        task.cancel()
        await asyncio.wait([task], timeout=0.2)
    if hangs or task.cancelled():
        return True
    error = task.exception()
    # Broken, or what the broken runtime raised in the middle of the case; but nothing of the tests' own making.
    return error is not None and not isinstance(error, TypeError | AttributeError | NameError)


@pytest.mark.parametrize("runtime", CAUGHT, ids=lambda value: value.__name__)
async def test_is_noticed(runtime: type[broken.Breaking]) -> None:
    """By each of its cases. They wait side by side, but for the one that counts the tasks of the whole loop."""
    alone = [name for name in CAUGHT[runtime] if name.endswith("leave_nothing")]
    beside = [name for name in CAUGHT[runtime] if name not in alone]
    noticed = dict(zip(beside, await asyncio.gather(*(notices(CASES[name], runtime) for name in beside)), strict=True))
    for name in alone:
        noticed[name] = await notices(CASES[name], runtime)
    assert [name for name, found in noticed.items() if not found] == [], f"passes on {runtime.__name__}"


@pytest.mark.parametrize("runtime", CAUGHT, ids=lambda value: value.__name__)
async def test_runs_otherwise(runtime: type[broken.Breaking]) -> None:
    """What is broken is that sentence: the runtime starts, answers and stops. So it was not noticed by accident."""
    await CASES["flow.played_is_reported"].run(runtime)
    async with runtime(build(Entry)) as started, started.open_call():
        assert await started.handle("Probe").echo(7) == 7


def test_every_breakage_is_tried() -> None:
    kinds = {kind for kind in vars(broken).values() if isinstance(kind, type) and issubclass(kind, broken.Breaking)}
    assert kinds - {broken.Breaking} == set(CAUGHT)
