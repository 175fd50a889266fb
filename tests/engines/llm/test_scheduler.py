"""Many requests at once give what each gives alone, nothing is lost, nobody starves, and every one has one End."""

from __future__ import annotations

import random

import pytest

from engines.llm.errors import QueueFull, Refused, SettingInvalid
from engines.llm.scheduler import Scheduler
from engines.llm.sequence import End, Request, SamplingCode, Token
from tests.engines.llm.simulated import STOP, Loop, alone, model, requests, settings

MODES: dict[str, dict[str, int]] = {
    "in turn": {},
    "overlap": {"overlap": True},
    "guesses": {"guesses": 4},
    "tiny pool": {"slots": 120, "context": 119},
    "tiny pool, overlap": {"slots": 120, "context": 119, "overlap": True},
    "tiny pool, guesses": {"slots": 120, "context": 119, "guesses": 3},
    "budget of one a sequence": {"token_budget": 8, "prefill_chunk": 3, "slots": 150, "overlap": True},
    "one at a time": {"max_running": 1, "overlap": True},
}


def crowd(changes: dict[str, int], seed: int, count: int = 200, faults: bool = False) -> Loop:
    """Random arrivals, aborts at any moment, jump-forward now and then; everything is checked on the way.

    With `faults` also steps that break, and prefixes that are pinned and let go.
    """
    chance, loop = random.Random(seed), Loop(settings(**changes))
    coming, aborted = requests(count, seed, loop.scheduler.settings.context), []
    while coming or not loop.scheduler.idle:
        for _ in range(chance.choice((0, 0, 0, 1, 1, 5))):
            if coming:
                loop.add(coming.pop(0))
        plan = loop.plan()
        assert plan is not None or loop.flying or loop.scheduler.idle, "work waits, and no step is made"
        if chance.random() < 0.1:
            aborted.append(chance.randrange(count))
            loop.abort(aborted[-1])
        if faults and chance.random() < 0.03:
            loop.fail()
        if faults and chance.random() < 0.05 and loop.records:
            loop.scheduler.pin(chance.choice(list(loop.records.values())).request.tokens)
        if faults and chance.random() < 0.01:
            loop.scheduler.unpin_all()
        if loop.flying and (plan is None or len(loop.flying) > loop.overlap):
            loop.commit()
            if chance.random() < 0.3:
                jump(loop, chance)
        if chance.random() < 0.05:
            loop.check()
    loop.scheduler.unpin_all()
    loop.finish()
    loop.compare(aborted)
    return loop


def jump(loop: Loop, chance: random.Random) -> None:
    """Tell the scheduler of a constrained request what will follow."""
    for record in loop.records.values():
        if record.request.constrained and record.tokens and not record.ends:
            known = len(record.tokens)
            loop.extend(record.request.id, alone(record.request)[0][known : known + chance.randint(0, 6)])


@pytest.mark.parametrize("mode", MODES)
def test_two_hundred_requests_give_what_each_gives_alone(mode: str) -> None:
    loop = crowd(MODES[mode], seed=1)
    stats = loop.scheduler.stats()
    assert stats.hit > 0
    if "tiny" in mode:
        assert stats.preemptions > 5
    if "guesses" in mode:
        assert any(row.sample > 1 for plan in loop.plans for row in plan.rows)


def random_settings(chance: random.Random) -> dict[str, int]:
    overlap, running, context = chance.random() < 0.5, chance.randint(1, 10), chance.randint(105, 200)
    return {
        "slots": context + chance.choice((0, 1, 20, 100, 300)),
        "context": context,
        "max_running": running,
        "token_budget": running + chance.choice((0, 1, 10, 50)),
        "prefill_chunk": chance.choice((1, 3, 16, 64)),
        "overlap": overlap,
        "guesses": 0 if overlap else chance.choice((0, 1, 5)),
        "headroom": chance.choice((0, 1, 8, 32)),
    }


def test_random_settings_pins_and_steps_that_break() -> None:
    for seed in range(5):
        crowd(random_settings(random.Random(seed)), seed, count=100, faults=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_other_crowds(seed: int) -> None:
    crowd(random_settings(random.Random(seed)), seed, faults=seed % 2 == 0)


def ask(id: int, size: int = 10, max_tokens: int = 10, **more: object) -> Request:
    """A request whose prompt nobody shares, without an end token."""
    return Request(id, tuple(random.Random(id).choices(range(1, 12), k=size)), max_tokens, **more)  # type: ignore[arg-type]


def ending(count: int) -> Request:
    """A request that stops after `count` tokens by its end token, far from max_tokens."""
    for id in range(1000, 100_000):
        request = ask(id, max_tokens=100, ends=frozenset([STOP]))
        if len(alone(request)[0]) == count:
            return request
    raise AssertionError("no such prompt")


def turns(loop: Loop, count: int) -> None:
    for _ in range(count):
        loop.turn()
        loop.check()


# ---- refused at once


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ask(1, 150, 51), "a prompt of 150 tokens with max_tokens=51 exceeds the context of 200"),
        (ask(1, 100, 21), "a prompt of 100 tokens with max_tokens=21 exceeds the cache of 120"),
        (ask(1, 0, 5), "a prompt of 0 tokens"),
        (ask(1, 5, 0), "max_tokens=0"),
    ],
)
def test_what_can_never_fit_is_refused_at_once(request_: Request, words: str) -> None:
    scheduler = Scheduler(settings(slots=120))
    with pytest.raises(Refused, match=words) as refused:
        scheduler.add(request_)
    assert not isinstance(refused.value, QueueFull) and refused.value.mend
    assert scheduler.idle and scheduler.schedule() is None


def test_what_just_fits_is_served_and_fills_the_cache() -> None:
    loop = Loop(settings(slots=120, context=120))
    loop.add(ask(1, 100, 20))
    loop.finish()
    loop.compare()
    assert loop.scheduler.stats().free == 0


def test_a_queue_full_of_names_refuses_the_next() -> None:
    loop = Loop(settings(max_waiting=3, max_waiting_all=4))
    for id in range(4):
        loop.add(ask(id, tenant=f"name {id}"))
    with pytest.raises(QueueFull, match="4 requests of all callers wait already"):
        loop.scheduler.add(ask(4, tenant="name 4"))
    loop.finish()
    loop.compare()


def test_a_full_queue_refuses_one_tenant_and_takes_the_other() -> None:
    loop = Loop(settings(max_waiting=3))
    for id in range(3):
        loop.add(ask(id, tenant="flood"))
    with pytest.raises(QueueFull, match="3 requests wait already"):
        loop.scheduler.add(ask(3, tenant="flood"))
    loop.add(ask(4, tenant="other"))
    loop.turn()
    loop.add(ask(5, tenant="flood"))
    loop.finish()
    loop.compare()


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"slots": 1}, "slots is 1"), ({"guesses": -1}, "guesses is -1"), ({"token_budget": 7}, "token_budget is 7")],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(SettingInvalid, match=words):
        settings(**changes)


def test_plans_are_committed_in_order_and_not_too_many_are_made() -> None:
    for overlap in (False, True):
        scheduler = Scheduler(settings(overlap=overlap))
        scheduler.add(ask(1))
        plans = [scheduler.schedule() for _ in range(1 + overlap)]
        with pytest.raises(ValueError, match="commit the plan in flight"):
            scheduler.schedule()
        first, last = plans[0], plans[-1]
        assert first is not None and last is not None
        with pytest.raises(ValueError, match="samples 1 rows, and 0 answers came"):
            scheduler.commit(first, [])
        scheduler.commit(first, [(5,)])
        with pytest.raises(ValueError, match="not the earliest in flight"):
            scheduler.commit(first, [(5,)])
        with pytest.raises(ValueError, match="a request 1 already"):
            scheduler.add(ask(1))


def test_a_live_row_without_its_tokens_is_an_error() -> None:
    scheduler = Scheduler(settings())
    scheduler.add(ask(1))
    plan = scheduler.schedule()
    assert plan is not None
    with pytest.raises(ValueError, match="row 1 samples 1 positions, and 0 tokens came"):
        scheduler.commit(plan, [()])


# ---- ends and aborts


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("moment", range(12))
def test_an_abort_at_any_moment_frees_the_pages_once(overlap: bool, moment: int) -> None:
    """Waiting, half-way through its prompt, in flight, decoding: one End, and all pages are there in the end."""
    loop = Loop(settings(overlap=overlap, prefill_chunk=4, token_budget=8))
    loop.add(ask(1, 14))
    loop.add(ask(2, 14))
    for _ in range(moment // 2):
        loop.turn()
    if moment % 2:
        loop.plan()
    loop.abort(2)
    assert loop.scheduler.abort(2) == []
    while loop.flying:
        loop.commit()
        loop.check()
    loop.finish()
    loop.compare([2])
    stats = loop.scheduler.stats()
    assert stats.free + stats.cached == 399


def test_pages_of_what_the_device_still_writes_to_are_freed_after_the_commit() -> None:
    loop = Loop(settings())
    loop.add(ask(1))
    loop.plan()
    held = loop.scheduler.stats().held
    loop.abort(1)
    assert loop.scheduler.stats().held == held == 10
    assert loop.scheduler.owner(loop.plans[0].rows[0].row) == 1
    loop.commit()
    assert loop.scheduler.stats().held == 0 and loop.scheduler.idle
    with pytest.raises(ValueError, match="in no uncommitted plan"):
        loop.scheduler.owner(loop.plans[0].rows[0].row)


def test_a_sequence_that_ends_in_flight_drops_the_token_that_came_too_much() -> None:
    loop, request = Loop(settings(overlap=True)), ending(3)
    loop.add(request)
    for _ in range(4):
        loop.plan()
        if len(loop.flying) > 1:
            loop.commit()
    record = loop.records[request.id]
    assert [end.reason for end in record.ends] == ["stop"] and len(record.tokens) == 3
    assert len(loop.flying) == 1 and len(loop.plans) == 4, "the fourth token is in flight"
    assert loop.scheduler.stats().held > 0
    loop.check()
    loop.commit()
    loop.check()
    assert len(record.tokens) == 3 and loop.scheduler.stats().held == 0 and loop.scheduler.idle


def test_a_sequence_that_is_known_to_end_is_not_scheduled_again() -> None:
    loop = Loop(settings(overlap=True))
    loop.add(ask(1, max_tokens=3))
    loop.finish()
    assert [row.count for plan in loop.plans for row in plan.rows] == [10, 1, 1]
    assert [row.tokens for plan in loop.plans[1:] for row in plan.rows] == [(), ()]


def test_in_turn_every_input_is_told() -> None:
    loop = Loop(settings())
    loop.add(ask(1, max_tokens=3))
    loop.finish()
    tokens = alone(ask(1, max_tokens=3))[0]
    assert [row.tokens for plan in loop.plans[1:] for row in plan.rows] == [(tokens[0],), (tokens[1],)]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_step_that_broke_ends_its_requests_and_puts_nothing_into_the_cache(overlap: bool) -> None:
    loop = Loop(settings(overlap=overlap, max_running=2))
    for id in range(3):
        loop.add(ask(id))
    for _ in range(4):
        loop.turn()
    while len(loop.flying) <= overlap:
        loop.plan()
    loop.abort(0)
    loop.fail()
    assert [end.reason for id in range(2) for end in loop.records[id].ends] == ["abort", "error"]
    assert loop.records[1].ends[0].message == "out of memory" and not loop.records[2].ends
    kept = len(loop.records[0].tokens) - 1  # of the aborted one: its last token was not computed
    assert loop.scheduler.stats().cached == 10 + 10 + kept
    loop.finish()
    assert loop.records[2].tokens == alone(ask(2))[0]


def test_a_probe_is_one_token() -> None:
    loop = Loop(settings())
    loop.add(ask(1, max_tokens=1, probe=(3, 4)))
    loop.finish()
    assert len(loop.plans) == 1 and loop.records[1].ends[0].reason == "length"


# ---- the cache


def test_usage_says_what_was_found_computed() -> None:
    """A second turn finds the first prompt and its reply, short of the reply's last token, which was never an input."""
    loop, first = Loop(settings()), ask(1, 20, 10)
    loop.add(first)
    loop.finish()
    reply = tuple(loop.records[1].tokens)
    loop.add(Request(2, (*first.tokens, *reply, 5, 6), 3))
    loop.add(Request(3, (*first.tokens, *reply, 5, 6), 3, namespace="other"))
    loop.finish()
    loop.compare()
    assert [loop.records[id].ends[0].cached for id in (1, 2, 3)] == [0, 29, 0]
    assert loop.scheduler.stats()[5:7] == (20 + 32 + 32, 29)


def test_the_same_prompt_again_computes_one_token() -> None:
    loop = Loop(settings())
    for id in (1, 2):
        loop.add(Request(id, ask(1).tokens, 4))
        loop.finish()
    row = loop.plans[4].rows[0]
    assert (row.fresh, row.start, row.count, len(row.prefix)) == (True, 9, 1, 9)
    assert loop.plans[4].decodes == 1
    loop.compare()


@pytest.mark.parametrize("overlap", [False, True])
def test_followers_wait_for_their_leader_and_share_its_prompt(overlap: bool) -> None:
    loop = Loop(settings(overlap=overlap, prefill_chunk=16, token_budget=16))
    loop.add(ask(1, 40, 6))
    for id in (2, 3, 4):
        loop.add(Request(id, ask(1, 40).tokens, 6, leader=1 if id < 4 else 3))
    turns(loop, 2)
    assert loop.scheduler.stats().waiting == 3
    loop.finish()
    loop.compare()
    assert [loop.records[id].ends[0].cached for id in (1, 2, 3, 4)] == [0, 39, 39, 39]


def test_followers_of_one_that_is_gone_go_on_alone() -> None:
    loop = Loop(settings())
    loop.add(ask(1, 40))
    for id in (2, 3):
        loop.add(Request(id, ask(1, 40).tokens, 6, leader=1))
    loop.add(Request(4, ask(1, 40).tokens, 6, leader=77))
    loop.abort(3)
    loop.abort(1)
    loop.finish()
    loop.compare([1, 3])


def test_a_preempted_request_finds_most_of_its_work_again() -> None:
    loop = Loop(settings(slots=60, context=60))
    loop.add(ask(1, 10, 40))
    loop.add(ask(2, 10, 40))
    loop.finish()
    loop.compare()
    assert loop.scheduler.stats().preemptions >= 1
    resumed = [row for plan in loop.plans[1:] for row in plan.rows if row.fresh]
    assert resumed and all(row.start >= 10 for row in resumed)
    assert loop.records[2].ends[0].cached == 0, "its own work is not the cache's merit"
    assert loop.records[1].done < loop.records[2].done


def test_a_pinned_prefix_outlives_a_flood_and_gives_way_when_nothing_else_can() -> None:
    loop, prefix = Loop(settings(slots=120)), ask(1, 50, 1)
    loop.add(prefix)
    loop.finish()
    loop.scheduler.pin(prefix.tokens)
    for id in range(10, 20):
        loop.add(ask(id, 30, 5))
    loop.finish()
    loop.add(Request(2, (*prefix.tokens, 3), 1))
    loop.finish()
    assert loop.records[2].ends[0].cached == 50
    loop.add(ask(3, 100, 20))
    loop.finish()
    loop.compare()
    loop.scheduler.unpin_all()
    loop.check()


# ---- who comes first


def test_the_interactive_goes_before_batch_and_takes_its_row() -> None:
    loop = Loop(settings(max_running=2))
    for id in range(4):
        loop.add(ask(id, 20, 30, batch=True))
    turns(loop, 3)
    loop.add(ask(9, 20, 5))
    loop.finish()
    loop.compare()
    assert loop.records[9].first <= 3 + 3, "its prompt takes two steps, one more for the row"
    assert loop.records[9].done < min(loop.records[id].done for id in range(4))
    assert loop.scheduler.stats().preemptions == 1


def test_batch_does_not_slip_in_before_an_interactive_one_that_does_not_fit_yet() -> None:
    loop = Loop(settings(slots=100, context=100))
    loop.add(ask(1, 40, 20))
    turns(loop, 4)
    loop.add(ask(2, 60, 10))
    loop.add(ask(3, 10, 10, batch=True))
    turns(loop, 4)
    assert loop.scheduler.stats()[:2] == (1, 2)
    loop.finish()
    loop.compare()
    assert loop.records[3].first > loop.records[1].done


def test_prompts_are_computed_beside_decodes_within_the_budget() -> None:
    loop = Loop(settings(token_budget=8, prefill_chunk=6, max_running=4))
    loop.add(ask(1, 5, 40))
    turns(loop, 2)
    loop.add(ask(2, 30, 5))
    loop.add(ask(3, 30, 5))
    loop.finish()
    loop.compare()
    mixed = [plan for plan in loop.plans if plan.decodes and plan.decodes < len(plan.rows)]
    assert mixed and max(plan.tokens for plan in mixed) == 8
    assert len(loop.records[1].tokens) == 40 and loop.records[1].done == 40, "no step passed the decode by"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_flood_of_one_tenant_does_not_starve_another(overlap: bool) -> None:
    """The other waits for at most two ends of running requests (20 steps each here) and its own prompt."""
    loop = Loop(settings(overlap=overlap, max_running=4, token_budget=32))
    for id in range(300):
        loop.add(ask(id, 12, 20, tenant="flood"))
    id = 1000
    while loop.records[299].done < 0:
        if loop.steps % 25 == 0 and loop.steps // 25 > id - 1000:
            loop.add(ask(id, 12, 20, tenant="calm"))
            id += 1
        loop.turn()
    loop.finish()
    waits = [record.first - record.added for record in loop.records.values() if record.request.tenant == "calm"]
    floods = [record.first - record.added for record in loop.records.values() if record.request.tenant == "flood"]
    assert len(waits) > 30 and max(waits) <= 2 * 20 + 5
    assert max(floods) > 1000


def test_two_tenants_that_always_wait_are_served_alike() -> None:
    """Long prompts against long replies: the difference is at most what the running requests hold, and one more."""
    loop = Loop(settings(max_running=4, slots=600))
    for id in range(150):
        loop.add(ask(id, 60, 5, tenant="reads"))
        loop.add(ask(1000 + id, 5, 30, tenant="writes"))
    gaps = []
    while any(loop.records[id].first < 0 for id in (149, 1149)):
        loop.turn()
        if all(loop.records[id].first < 0 for id in (149, 1149)):
            served = {"reads": 0, "writes": 0}
            for record in loop.records.values():
                if record.first >= 0:
                    served[record.request.tenant] += len(record.request.tokens) + len(record.tokens)
            gaps.append(abs(served["reads"] - served["writes"]))
    assert len(gaps) > 300 and max(gaps) <= (4 + 1) * 65
    loop.finish()


def test_a_large_request_is_not_passed_by_small_ones_for_ever() -> None:
    loop, id = Loop(settings(slots=150, context=149)), 100
    for _ in range(200):
        if id < 108 or loop.steps % 3 == 0:
            loop.add(ask(id, 10, 10))
            id += 1
        if loop.steps == 10 and 1 not in loop.records:
            loop.add(ask(1, 120, 20))
        loop.turn()
    assert 0 < loop.records[1].done < 80
    loop.finish()
    loop.compare()


# ---- guesses and jump-forward


def parrot(id: int, max_tokens: int, **more: object) -> Request:
    """A prompt that holds its own continuation twice, so that guesses are right for a while."""
    text = list(ask(id, 12).tokens)
    for _ in range(30):
        text.append(1 + (text[-1] * 7) % 11)
    return Request(id, tuple(text), max_tokens, **more)  # type: ignore[arg-type]


def test_right_guesses_save_steps_and_wrong_ones_leave_no_pages() -> None:
    with_guesses, without = Loop(settings(guesses=4)), Loop(settings())
    for loop in (with_guesses, without):
        loop.add(parrot(1, 40))
        while not loop.scheduler.idle:
            loop.turn()
            loop.check()
        loop.compare()
    assert with_guesses.steps < 0.8 * without.steps
    checked = [row for plan in with_guesses.plans for row in plan.rows if row.sample > 1]
    assert checked and all(row.count == row.sample == len(row.tokens) == len(row.slots) for row in checked)
    (end,), (plain,) = with_guesses.records[1].ends, without.records[1].ends
    assert end.guessed == sum(row.sample - 1 for row in checked) > end.right == without.steps - with_guesses.steps > 0
    assert (plain.guessed, plain.right) == (0, 0)
    with_guesses.scheduler.check()


def test_guesses_lose_no_prefix_hits() -> None:
    """The cache holds the same after a reply with guesses as without."""
    hits = []
    for guesses in (0, 4):
        loop = Loop(settings(guesses=guesses))
        loop.add(parrot(1, 40))
        loop.finish()
        loop.add(Request(2, (*parrot(1, 40).tokens, *loop.records[1].tokens, 3), 10))
        loop.finish()
        hits.append(loop.records[2].ends[0].cached)
    assert hits == [42 + 39] * 2


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_the_last_request_ends_with_guesses_whatever_is_left(max_tokens: int) -> None:
    loop = Loop(settings(guesses=8))
    loop.add(parrot(1, max_tokens))
    loop.add(parrot(2, max_tokens, ends=frozenset(alone(parrot(2, 12))[0][4:5])))
    loop.finish(turns=50)
    loop.compare()


DECIDED: list[dict[str, object]] = [
    {"constrained": True},
    {"sampling": SamplingCode(temperature=1)},
    {"sampling": SamplingCode(presence_penalty=1)},
]


@pytest.mark.parametrize("more", DECIDED, ids=str)
def test_nothing_is_guessed_where_more_than_the_likeliest_decides(more: dict[str, object]) -> None:
    loop = Loop(settings(guesses=4))
    loop.add(parrot(1, 20, **more))
    loop.finish()
    assert all(row.sample <= 1 for plan in loop.plans for row in plan.rows)


def test_guesses_leave_half_of_the_spare_budget_to_prompts() -> None:
    loop = Loop(settings(guesses=8, token_budget=12, max_running=4))
    for id in (1, 2, 3):
        loop.add(parrot(id, 60))
    turns(loop, 15)
    loop.add(ask(9, 40, 5))
    loop.finish()
    loop.compare()
    assert loop.records[9].first - loop.records[9].added <= 40 / 4 + 2


@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_that_are_certain_are_computed_together(overlap: bool) -> None:
    loop, request = Loop(settings(overlap=overlap)), ask(1, 10, 20, constrained=True)
    expected = alone(request)[0]
    loop.add(request)
    while not loop.records[1].tokens:
        loop.turn()
    loop.extend(1, expected[1:9])
    loop.check()
    assert loop.records[1].tokens == expected[:9]
    loop.finish()
    loop.compare()
    assert loop.steps <= 20 - 8 + 1 + overlap


def test_an_extension_stops_at_an_end_or_at_max_tokens() -> None:
    scheduler = Scheduler(settings())
    scheduler.add(ask(1, max_tokens=4, ends=frozenset([STOP])))
    scheduler.add(ask(2, max_tokens=4))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.commit(plan, [(3,), (3,)])
    events = scheduler.extend(1, [5, STOP, 7])
    assert events == [Token(1, 5, index=1), Token(1, STOP, index=2), End(1, "stop", 10, 0, 3)]
    assert scheduler.extend(2, [5, 6, 7, 8])[-1] == End(2, "length", 10, 0, 4)
    assert scheduler.extend(1, [5]) == [] and scheduler.idle
    scheduler.check()


def test_an_extension_past_a_token_that_is_not_committed_is_refused() -> None:
    scheduler = Scheduler(settings(overlap=True))
    scheduler.add(ask(1))
    scheduler.schedule()
    scheduler.schedule()
    with pytest.raises(ValueError, match="extend it after the commit"):
        scheduler.extend(1, [3])


def test_the_model_of_these_tests_says_what_its_whole_text_decides() -> None:
    texts = [[1, 2, 3, 4], [1, 2, 9, 4], [2, 2, 3, 4]]
    assert len({tuple(model([*text, n]) for n in range(50)) for text in texts}) == 3
