"""docs/contract.md and the suite name the same cases: no promise without a case, no case without a promise."""

from __future__ import annotations

import re
from pathlib import Path

from chains.testing import conformance

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contract.md").read_text()
PROMISES = re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", PAGE, re.MULTILINE)


def test_each_case_has_its_promise_and_each_promise_its_case() -> None:
    cases = {str(case) for case in conformance()}
    elsewhere = {promise for promise in PROMISES if promise.startswith("tests/")}
    assert set(PROMISES) - elsewhere == cases
    assert len(PROMISES) == len(set(PROMISES)), "each stands once"
    assert all((ROOT / file).exists() for file in elsewhere)


def test_each_case_is_a_sentence() -> None:
    for case in conformance():
        assert case.sentence.endswith("."), f"{case}: {case.sentence!r}"
