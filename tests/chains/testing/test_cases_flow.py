"""The cases on how values and streams flow are all in the suite; tests/conformance runs them."""

from __future__ import annotations

import inspect

from chains.testing import cases_flow, conformance


def test_every_case_of_the_module_is_in_the_suite() -> None:
    functions = {
        name
        for name, value in vars(cases_flow).items()
        if inspect.iscoroutinefunction(value) and list(inspect.signature(value).parameters) == ["make"]
    }
    assert {case.name for case in cases_flow.CASES} == functions
    assert {case.room for case in cases_flow.CASES} == {"flow"}
    assert set(cases_flow.CASES) <= set(conformance())
