"""What the cases are written with: each of it can say no."""

from __future__ import annotations

import asyncio

import pytest

from chains.testing import Broken, Case, conformance
from chains.testing.harness import PROMPT, expect, promptly, raises, until


async def gives(value: int) -> int:
    return value


async def fails(error: BaseException) -> int:
    raise error


def test_expect_says_what_does_not_hold() -> None:
    expect(True, "fine")
    with pytest.raises(Broken, match="seven of nine"):
        expect(False, "seven of nine")


async def test_raises_wants_that_error_and_no_other() -> None:
    assert isinstance(await raises(ValueError, fails(ValueError("x"))), ValueError)
    with pytest.raises(Broken, match="gave 7; expected ValueError"):
        await raises(ValueError, gives(7))
    with pytest.raises(Broken, match="raised KeyError: 'x'; expected ValueError"):
        await raises(ValueError, fails(KeyError("x")))


async def test_a_cancelled_case_is_not_taken_for_an_answer() -> None:
    task = asyncio.ensure_future(raises(ValueError, asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_until_gives_up() -> None:
    answers = iter([False, False, True])

    async def check() -> bool:
        return next(answers)

    async def never() -> bool:
        return False

    assert await until(check, "the third") < 1.0
    with pytest.raises(Broken, match=r"not within 0.01 s: the end"):
        await until(never, "the end", 0.01)
    with pytest.raises(Broken, match=r"not within 0.01 s: three asks, \[\] left"):
        await until(never, lambda: f"three asks, {list(answers)} left", 0.01)


async def test_promptly_takes_the_best_of_a_few() -> None:
    def tries(*seconds: float) -> tuple[list[float], object]:
        left = list(seconds)

        async def attempt() -> float:
            return left.pop(0)

        return left, attempt

    left, attempt = tries(1.0, 0.01, 9.0)
    await promptly(attempt, "it")  # type: ignore[arg-type]
    assert left == [9.0], "it stops at the first that is good"
    _, attempt = tries(1.0, 0.9, 0.8, 0.2, 0.3)
    with pytest.raises(Broken, match="it took 200 ms; at most 50 ms"):
        await promptly(attempt, "it")  # type: ignore[arg-type]
    assert PROMPT == 0.05


def test_cases_have_names_of_their_own_and_say_what_they_are_about() -> None:
    cases = conformance()
    assert len({str(case) for case in cases}) == len(cases) > 50
    for case in cases:
        assert isinstance(case, Case)
        assert case.sentence
        assert str(case) == f"{case.room}.{case.name}"
