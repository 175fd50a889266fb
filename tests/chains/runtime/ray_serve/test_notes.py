"""What a deployment writes down in the cluster, and that it can be forgotten."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from chains.runtime.ray_serve.notes import (
    Step,
    claim_port,
    forget,
    forget_step,
    forget_steps,
    read_steps,
    secrets_of,
    take_port,
    token_of,
    write_secrets,
    write_step,
)

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]


def test_the_token_is_drawn_once() -> None:
    assert token_of("a") == token_of("a") != token_of("ab")
    before = token_of("a")
    forget("a")
    assert token_of("a") != before
    forget("a")
    forget("ab")


def test_steps_are_those_of_one_deployment() -> None:
    loading, failed = Step("Ears", "Ears#1", "loading"), Step("Ears", "Ears#2", "failed", "no weights", "fetch them")
    write_step("a", Step("Ears", "Ears#1", "starting"))
    write_step("a", loading)
    write_step("a", failed)
    write_step("ab", loading)
    assert sorted(read_steps("a"), key=lambda step: step.replica) == [loading, failed]
    forget_step("a", "Ears#1")
    forget_step("a", "Ears#2")
    assert read_steps("a") == [failed]  # why outlives the replica
    again = Step("Ears", "Ears#3", "failed", "no weights", "fetch them")
    write_step("a", Step("Ears", "Ears#3", "loading"))
    write_step("a", again)
    assert read_steps("a") == [again]
    forget_steps("a")
    assert read_steps("a") == [] and read_steps("ab") == [loading]
    forget("ab")


def test_secrets_are_those_that_were_given_last() -> None:
    assert write_secrets("a", {"CHAINS_KEYS": "sesame", "CRM": "x"}) == {}
    write_secrets("ab", {"CRM": "y"})
    assert write_secrets("a", {"CHAINS_KEYS": "", "NEW": "z"}) == {"CHAINS_KEYS": "sesame", "CRM": "x"}
    assert secrets_of("a", ["CHAINS_KEYS", "CRM", "NEW"]) == {"CHAINS_KEYS": "", "NEW": "z"}
    assert secrets_of("ab", ["CRM"]) == {"CRM": "y"}
    forget("a")
    forget("ab")
    assert secrets_of("a", ["NEW"]) == {}


def test_a_port_is_whose_it_was_first_until_that_is_forgotten() -> None:
    assert (claim_port(8000, "a"), claim_port(8000, "b"), claim_port(8001, "b")) == ("a", "a", "b")
    forget("a")
    assert claim_port(8000, "b") == "b"
    take_port(8000, "c")
    assert claim_port(8000, "b") == "c"
    forget("b")
    forget("c")
