"""The contract, on a real Ray: each replica an actor of Serve's, every hop over the wire past Serve.

`make test` takes a few cases of each kind along; the others are slow for the processes that each of them starts.
"""

from __future__ import annotations

from functools import partial

import pytest

from chains.testing import Case, conformance

pytest.importorskip("ray")

from chains.runtime.ray_serve import RayServe, RaySettings

QUICK = {
    "ends.break_stops_every_producer",
    "ends.idempotent_is_answered_elsewhere",
    "flow.streams_pass_as_arguments",
    "scopes.passed_deadline_is_prompt",
}


def _marked(case: Case) -> object:
    return pytest.param(case, id=str(case), marks=[] if str(case) in QUICK else [pytest.mark.slow])


@pytest.mark.timeout(300)  # processes start slowly where others work
@pytest.mark.parametrize("case", [_marked(case) for case in conformance()])
async def test_on_ray(case: Case, ray_cluster: None) -> None:
    await case.run(partial(RayServe, settings=RaySettings(grace=0.0, bind="127.0.0.1")))
