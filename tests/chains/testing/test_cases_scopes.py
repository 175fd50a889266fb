"""The cases on what belongs to whom are all in the suite; tests/conformance runs them."""

from __future__ import annotations

import inspect

from chains.testing import cases_scopes, conformance


def test_every_case_of_the_module_is_in_the_suite() -> None:
    functions = {
        name
        for name, value in vars(cases_scopes).items()
        if inspect.iscoroutinefunction(value) and list(inspect.signature(value).parameters) == ["make"]
    }
    assert {case.name for case in cases_scopes.CASES} == functions
    assert {case.room for case in cases_scopes.CASES} == {"scopes"}
    assert set(cases_scopes.CASES) <= set(conformance())
