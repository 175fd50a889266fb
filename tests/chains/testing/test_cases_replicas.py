"""The cases on how replicas share the work are all in the suite; tests/conformance runs them."""

from __future__ import annotations

import inspect

from chains.testing import cases_replicas, conformance


def test_every_case_of_the_module_is_in_the_suite() -> None:
    functions = {
        name
        for name, value in vars(cases_replicas).items()
        if inspect.iscoroutinefunction(value) and list(inspect.signature(value).parameters) == ["make"]
    }
    assert {case.name for case in cases_replicas.CASES} == functions
    assert {case.room for case in cases_replicas.CASES} == {"replicas"}
    assert set(cases_replicas.CASES) <= set(conformance())
