"""A plan comes back from its bytes as it was, and bytes that are none are refused."""

from __future__ import annotations

import random
from array import array

import pytest

from engines.llm.batch import BatchPlan, Row
from engines.llm.errors import PlanInvalid
from engines.llm.sequence import GREEDY

DECODE = Row(1, 7, 1, (), (9,), 1)
CHUNK = Row(2, 3, 2, (5, 6), (4, 8), 0, True, (1, 2, 3), tuple(GREEDY), (7, 7, 7, 5, 6), 4)


def random_row(chance: random.Random) -> Row:
    count, start, fresh = chance.randint(1, 5), chance.randint(0, 6), chance.random() < 0.5
    tokens = () if count == 1 and chance.random() < 0.5 else tuple(chance.randrange(200_000) for _ in range(count))
    history = tuple(chance.randrange(9) for _ in range(chance.randint(0, 5))) if fresh else ()
    return Row(
        row=chance.randint(1, 300),
        start=start,
        count=count,
        tokens=tokens,
        slots=tuple(chance.randint(1, 2**31) for _ in range(count)),
        sample=chance.randint(0, count),
        fresh=fresh,
        prefix=tuple(chance.randint(1, 99) for _ in range(start)) if fresh else (),
        settings=tuple(GREEDY._replace(seed=2**63 - 1)) if fresh else (),
        history=history,
        prompt=len(history),
    )


def test_random_plans_come_back_as_they_were() -> None:
    chance = random.Random(1)
    for step in range(300):
        plan = BatchPlan(step, tuple(random_row(chance) for _ in range(chance.randint(0, 6))))
        back = BatchPlan.decode(plan.encode())
        assert back == plan
        assert all(type(row) is Row and type(row.fresh) is bool for row in back.rows)


def test_what_a_plan_counts() -> None:
    plan = BatchPlan(1, (DECODE, DECODE, CHUNK))
    assert (plan.tokens, plan.decodes) == (4, 2)
    assert BatchPlan(1, (DECODE,)).decodes == 1


@pytest.mark.parametrize("data", [b"", b"junk", b"x" * 24, b"\0" * 24, BatchPlan(1, (DECODE,)).encode()[:-8]])
def test_junk_is_refused(data: bytes) -> None:
    with pytest.raises(PlanInvalid):
        BatchPlan.decode(data)


def test_words_left_over_are_refused() -> None:
    with pytest.raises(PlanInvalid, match="1 words are left over"):
        BatchPlan.decode(BatchPlan(1, (DECODE,)).encode() + b"\0" * 8)


@pytest.mark.parametrize(
    "row",
    [
        DECODE._replace(row=0),
        DECODE._replace(start=-1),
        DECODE._replace(slots=(0,)),
        DECODE._replace(slots=(3, 4)),
        DECODE._replace(sample=2),
        DECODE._replace(count=0, slots=()),
        DECODE._replace(tokens=(-1,)),
        DECODE._replace(settings=tuple(GREEDY)),
        CHUNK._replace(tokens=(5,)),
        CHUNK._replace(tokens=()),
        CHUNK._replace(prefix=(1, 2)),
        CHUNK._replace(prefix=(1, 0, 3)),
        CHUNK._replace(prompt=6),
    ],
    ids=str,
)
def test_a_row_that_contradicts_itself_is_refused(row: Row) -> None:
    with pytest.raises(PlanInvalid, match="row 0 contradicts itself"):
        BatchPlan.decode(BatchPlan(1, (row,)).encode())


def test_no_change_of_a_word_passes_as_another_layout() -> None:
    """Whatever word is broken, the answer is a plan or PlanInvalid, never another error and never a hang."""
    sound = array("q", BatchPlan(3, (DECODE, CHUNK)).encode())
    for at in range(len(sound)):
        for value in (-1, 0, 1, 2, 1 << 40, -(1 << 62)):
            broken = array("q", sound)
            broken[at] = value
            try:
                BatchPlan.decode(broken.tobytes())
            except PlanInvalid:
                pass
