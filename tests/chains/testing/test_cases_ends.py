"""The cases on how hops end are all in the suite; tests/conformance runs them."""

from __future__ import annotations

import inspect

from chains.testing import cases_ends, conformance


def test_every_case_of_the_module_is_in_the_suite() -> None:
    functions = {
        name
        for name, value in vars(cases_ends).items()
        if inspect.iscoroutinefunction(value) and list(inspect.signature(value).parameters) == ["make"]
    }
    assert {case.name for case in cases_ends.CASES} == functions
    assert {case.room for case in cases_ends.CASES} == {"ends"}
    assert set(cases_ends.CASES) <= set(conformance())
