"""Sampling settings survive as integers, and nothing that was asked for is rounded away."""

from __future__ import annotations

from engines.llm.config import Sampling
from engines.llm.sequence import GREEDY, MILLION, SamplingCode


def test_settings_are_integers_in_the_order_of_the_code() -> None:
    sampling = Sampling(
        temperature=0.7, top_k=40, top_p=0.95, min_p=0.05, repetition_penalty=1.1, presence_penalty=-0.5,
        frequency_penalty=0.25, seed=2**63 - 1, logprobs=5,
    )  # fmt: skip
    code = SamplingCode.of(sampling)
    assert tuple(code) == (700_000, 40, 950_000, 50_000, 1_100_000, -500_000, 250_000, 2**63 - 1, 5)
    assert all(type(value) is int for value in code)
    assert SamplingCode(*tuple(code)) == code
    assert code.penalised and not code.greedy


def test_the_default_is_greedy_without_penalties() -> None:
    assert SamplingCode.of(Sampling()) == GREEDY
    assert GREEDY.greedy and not GREEDY.penalised and GREEDY.logprobs == -1


def test_a_small_temperature_or_top_p_is_not_rounded_to_zero() -> None:
    code = SamplingCode.of(Sampling(temperature=1e-9, top_p=1e-9))
    assert (code.temperature, code.top_p) == (1, 1)
    assert not code.greedy


def test_each_penalty_alone_counts_as_one() -> None:
    for name, value in (("repetition_penalty", 0.9), ("presence_penalty", -0.1), ("frequency_penalty", 0.1)):
        assert SamplingCode.of(Sampling.read({name: value})).penalised, name


def test_the_callers_seed_stands_in_for_one_that_was_not_named() -> None:
    assert SamplingCode.of(Sampling(), unseeded=7).seed == 7
    assert SamplingCode.of(Sampling(seed=0), unseeded=7).seed == 0
    assert MILLION == 1_000_000
