"""How many replicas: bounds, delays, no flapping, spares, from zero and to zero, and a chain scaled together."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated.scaling import CHAIN, Chain, burst, step
from chains.dsl.specs import Autoscaling
from chains.errors import SettingError
from chains.policy.autoscaling import ChainScaler, Demand, Scaler, needed

SPEC = Autoscaling(min=1, max=10, target_streams=4, target_wait_ms=100, up_delay=2, down_delay=30)

specs = st.builds(
    lambda least, more, **rest: Autoscaling(min=least, max=max(1, least + more), **rest),
    st.integers(0, 5),
    st.integers(0, 20),
    target_streams=st.floats(0.5, 20),
    target_wait_ms=st.floats(1, 500),
    up_delay=st.floats(0, 5),
    down_delay=st.floats(0, 60),
    spares=st.integers(0, 3),
)
demands = st.builds(
    Demand,
    active=st.floats(0, 200),
    streams=st.floats(0, 200),
    waiting=st.integers(0, 50),
    wait_ms=st.floats(0, 5000),
    ready=st.integers(0, 20),
)


def over(scaler: Scaler, demand: Demand, begin: float, end: float, tick: float = 0.5) -> list[int]:
    """Decisions while the demand stays as it is."""
    ticks = int((end - begin) / tick)
    return [scaler.decide(demand, begin + number * tick) for number in range(ticks)]


def changes(decided: list[int]) -> int:
    return sum(earlier != later for earlier, later in pairwise(decided))


# how many are needed


@pytest.mark.parametrize(
    ("demand", "forecast", "count"),
    [
        (Demand(), 0, 1),
        (Demand(active=4), 0, 1),
        (Demand(active=4.1), 0, 2),
        (Demand(active=3, waiting=2), 0, 2),
        (Demand(active=4, streams=40), 0, 1),  # silent calls are streams, not work
        (Demand(active=4), 17, 5),
        (Demand(active=400), 0, 10),
        (Demand(active=8, wait_ms=99, ready=2), 0, 2),
        (Demand(active=8, wait_ms=101, ready=2), 0, 3),
        (Demand(active=8, wait_ms=150, ready=4), 0, 6),
        (Demand(active=8, wait_ms=9000, ready=4), 0, 8),  # at most twice those that serve
    ],
)
def test_needed(demand: Demand, forecast: float, count: int) -> None:
    assert needed(SPEC, demand, forecast=forecast) == count


def test_spares_stand_beyond_the_need() -> None:
    spec = replace(SPEC, spares=2)
    assert [needed(spec, Demand(active=active)) for active in (0, 4, 5, 100)] == [2, 3, 4, 10]


@pytest.mark.parametrize("demand", [Demand(streams=1), Demand(waiting=1), Demand(active=0.1)])
def test_an_open_stream_keeps_one(demand: Demand) -> None:
    spec = replace(SPEC, min=0)
    assert needed(spec, demand) == 1
    assert needed(spec, Demand()) == 0


@given(specs, demands, st.floats(0, 100))
def test_never_below_min_or_above_max(spec: Autoscaling, demand: Demand, forecast: float) -> None:
    assert spec.min <= needed(spec, demand, forecast=forecast) <= spec.max


@given(specs, demands, demands, st.floats(0, 100))
def test_more_of_anything_never_needs_fewer(spec: Autoscaling, one: Demand, other: Demand, forecast: float) -> None:
    names = ("active", "streams", "waiting", "wait_ms", "ready")
    more = Demand(**{name: max(getattr(one, name), getattr(other, name)) for name in names})
    assert needed(spec, one) <= needed(spec, more) <= needed(spec, more, forecast=forecast)


# over time


@given(specs, st.lists(st.tuples(demands, st.floats(0, 20)), max_size=40))
def test_decisions_keep_the_bounds(spec: Autoscaling, steps: list[tuple[Demand, float]]) -> None:
    scaler, now = Scaler(spec), 0.0
    for demand, seconds in steps:
        now += seconds
        assert spec.min <= scaler.decide(demand, now) <= spec.max


def test_up_after_its_delay_and_not_before() -> None:
    scaler = Scaler(SPEC)
    over(scaler, Demand(active=2), 0, 10)
    assert over(scaler, Demand(active=20), 10, 13) == [1, 1, 1, 1, 5, 5]


def test_down_after_its_delay_and_not_before() -> None:
    scaler = Scaler(SPEC)
    over(scaler, Demand(active=20), 0, 10)
    decided = over(scaler, Demand(active=4), 10, 45)
    assert decided[:60] == [5] * 60 and decided[60:] == [1] * 10


def test_a_peak_shorter_than_the_delay_moves_nothing() -> None:
    scaler = Scaler(SPEC)
    over(scaler, Demand(active=2), 0, 10)
    decided = over(scaler, Demand(active=40), 10, 11.5) + over(scaler, Demand(active=2), 11.5, 20)
    assert set(decided) == {1}


def test_up_to_what_lasted_not_to_the_peak() -> None:
    scaler = Scaler(SPEC)
    over(scaler, Demand(active=2), 0, 10)
    decided = [scaler.decide(Demand(active=active), 10 + number) for number, active in enumerate((12, 40, 16, 40))]
    assert decided == [1, 1, 3, 4]


def test_without_delays_at_once() -> None:
    scaler = Scaler(replace(SPEC, up_delay=0, down_delay=0))
    assert [scaler.decide(Demand(active=active), now) for now, active in enumerate((0, 20, 4, 40))] == [1, 5, 1, 10]


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_flap(seed: int) -> None:
    chance, scaler = Random(seed), Scaler(SPEC)
    decided = [scaler.decide(Demand(active=max(0, chance.gauss(16, 3))), number * 0.5) for number in range(2400)]
    settled = decided[240:]
    assert changes(settled) <= 4  # in 18 minutes
    assert set(settled) <= {4, 5, 6}


def test_replicas_that_bear_less_are_learnt_and_tried_again() -> None:
    """They bear 2 of the 4 that the setting says, then calls wait: no swing between too few and enough."""
    scaler, decided = Scaler(replace(SPEC, up_delay=1, down_delay=10)), list[int]()
    for number in range(1200):
        count = decided[-1] if decided else 1
        waits = count * 2 < 16
        demand = Demand(min(16, count * 2), 16, max(0, 16 - count * 2), 500.0 if waits else 0.0, count)
        decided.append(scaler.decide(demand, number * 0.5))
    settled = decided[100:]
    assert set(settled) <= {7, 8, 9, 10}
    assert changes(settled) <= 16  # in 9 minutes; each try and its end are a few
    for number in range(2400):
        scaler.decide(Demand(active=2, ready=1), 600 + number * 0.5)
    assert scaler.capacity > 3.5


def test_slow_calls_alone_do_not_make_a_replica_bear_nothing() -> None:
    scaler = Scaler(SPEC)
    over(scaler, Demand(active=1, wait_ms=5000, ready=5), 0, 60)
    assert scaler.capacity == 1.0


# zero


def test_to_zero_and_back_at_once() -> None:
    spec = Autoscaling(min=0, max=4, target_streams=4, up_delay=2, down_delay=30)
    scaler = Scaler(spec)
    assert scaler.decide(Demand(), 0) == 0
    assert scaler.decide(Demand(waiting=1), 0.1) == 1  # no delay: somebody waits
    assert scaler.decide(Demand(waiting=9), 0.2) == 1  # it comes up; what it cannot bear must last
    over(scaler, Demand(active=1, streams=1, ready=1), 1, 5)
    silent = over(scaler, Demand(streams=1, ready=1), 5, 100)
    assert set(silent) == {1}  # half an hour of silence is still a call
    decided = over(scaler, Demand(ready=1), 100, 132)
    assert decided[:59] == [1] * 59 and decided[-1] == 0


def test_a_burst_wakes_as_many_as_it_needs() -> None:
    scaler = Scaler(Autoscaling(min=0, max=9, target_streams=4))
    assert scaler.decide(Demand(waiting=11), 0) == 3


def test_a_spare_is_never_scaled_away() -> None:
    scaler = Scaler(Autoscaling(min=0, max=4, spares=1))
    assert scaler.desired == 1
    assert set(over(scaler, Demand(), 0, 100)) == {1}


# a chain


def chain(**changes: Any) -> ChainScaler:
    spec = Autoscaling(min=1, max=50, target_streams=4, up_delay=1, down_delay=30)
    return ChainScaler({"Entry": spec, "Ears": replace(spec, **changes), "Never": spec}, "Entry")


def settle(scaler: ChainScaler, begin: float = 0.0, seconds: float = 60.0) -> None:
    for number in range(int(seconds * 2)):
        demands = {"Entry": Demand(4, 4, ready=1), "Ears": Demand(6, 6, ready=2)}
        scaler.decide(demands, begin + number * 0.5)


def test_shares_are_measured() -> None:
    scaler = chain()
    assert scaler.shares == {"Ears": 0.0, "Never": 0.0}
    settle(scaler)
    assert scaler.shares == {"Ears": pytest.approx(1.5), "Never": 0.0}


def test_what_stands_behind_the_entry_is_scaled_along() -> None:
    scaler = chain()
    settle(scaler)
    decided: dict[str, int] = {}
    for number in range(4):  # calls wait at the entry; the ears have not heard of them
        demands = {"Entry": Demand(4, 4, 36, ready=1), "Ears": Demand(6, 6, ready=2)}
        decided = scaler.decide(demands, 60 + number * 0.5)
    assert decided["Entry"] == 10
    assert decided["Ears"] >= 0.9 * 15  # the share fades a little while the entry is ahead
    assert decided["Never"] == 1


def test_a_rise_is_thought_on_for_as_long_as_a_replica_takes_to_start() -> None:
    slow, quick = chain(), chain()
    for scaler, seconds in ((slow, 10.0), (quick, 0.0)):
        settle(scaler)
        for number in range(16):
            demands = {"Entry": Demand(4, 4 + number, ready=1), "Ears": Demand(6, 6, ready=2)}
            scaler.decide(demands, 60 + number * 0.5, {"Ears": seconds})
    assert slow.scalers["Ears"].desired > 1.5 * quick.scalers["Ears"].desired
    assert slow.scalers["Ears"].desired <= 2 * quick.scalers["Ears"].desired + 1


def test_shares_outlast_the_night() -> None:
    scaler = chain()
    settle(scaler)
    for number in range(1000):
        scaler.decide({"Entry": Demand(ready=1)}, 60 + number * 30.0)
    assert scaler.shares["Ears"] == pytest.approx(1.5)
    assert scaler.decide({}, 40_000.0) == {"Entry": 1, "Ears": 1, "Never": 1}


def test_the_entry_needs_a_spec() -> None:
    with pytest.raises(SettingError, match="name one of Ears"):
        ChainScaler({"Ears": SPEC}, "Entry")


# a chain under load


def test_a_step_reaches_the_chain_before_its_queues() -> None:
    """From 0.5 to 10 calls a second. The brain is asked 15 s into a call and takes 12 s to come up."""
    together = Chain(step(0.5, 10, 180), seconds=300).run()
    alone = Chain(step(0.5, 10, 180), seconds=300, together=False).run()
    assert together.made == alone.made > 900
    assert together.fleets["Brain"].worst(180, 300) < 1.0 < 3.0 < alone.fleets["Brain"].worst(180, 300)
    assert together.fleets["Ears"].worst(180, 300) < 0.75 * alone.fleets["Ears"].worst(180, 300)
    entry = together.fleets["PhoneCall"]
    reacted = next(when for when, count in entry.history if when > 180 and count > entry.replicas(180))
    assert reacted <= 186  # two seconds until calls exceed what two replicas bear, and the delay


def test_a_burst_of_five_seconds() -> None:
    together = Chain(burst(0.5, 20, 180, 5), seconds=300).run()
    alone = Chain(burst(0.5, 20, 180, 5), seconds=300, together=False).run()
    for name in ("Ears", "Brain"):
        assert together.fleets[name].worst(180, 300) < 0.5 < alone.fleets[name].worst(180, 300)
        most = max(count for when, count in together.fleets[name].history if when > 180)
        assert most <= 2 * max(count for when, count in alone.fleets[name].history if when > 180)


def test_steady_load_is_left_alone() -> None:
    chain = Chain(lambda now: 2.0, seconds=900).run()
    for name, fleet in chain.fleets.items():
        assert fleet.changes(300, 900) <= 15, name  # in ten minutes of Poisson noise
        work = 2.0 * {"PhoneCall": 60, "Ears": 60, "Brain": 60 * 0.2}[name]
        floor = work / CHAIN[name].spec.target_streams
        assert max(count for when, count in fleet.history if when > 300) <= 1.5 * floor + 2
