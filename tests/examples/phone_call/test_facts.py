"""Which fact the words are about: the likeness by words, and the real embeddings together with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.errors import ModelError
from examples.phone_call.clinic import read_clinic
from examples.phone_call.facts import QUESTION, Facts, WordIndex, stems, topics_of

CLINIC = read_clinic()


@pytest.fixture(scope="module")
def facts() -> Facts:
    found = Facts()
    found.load()
    return found


def test_stems_leave_out_what_every_question_has() -> None:
    assert stems("Could you please tell me what the fillings cost?") == ["fill", "cost"]
    assert stems("Is it?") == []
    assert stems("gas glass") == ["gas", "glas"]  # short words keep their ending


def test_rare_words_weigh_more_and_misheard_ones_count() -> None:
    index = WordIndex(["the price of a filling", "the price of a checkup", "the price of parking"])
    exact = index.likeness("filling price")
    assert exact.argmax() == 0
    assert exact[0] == pytest.approx(1.0)
    assert exact[0] > exact[1] > 0
    misheard = index.likeness("a chekup")
    assert misheard.argmax() == 1
    assert not index.likeness("zebra").any()
    assert not index.likeness("").any()


@given(st.text(max_size=60))
def test_likeness_is_a_share(text: str) -> None:
    likeness = WordIndex(["price of a filling", "parking"]).likeness(text)
    assert np.all((likeness >= 0) & (likeness <= 1 + 1e-9))


def test_topics_are_facts_and_manners() -> None:
    topics = topics_of(CLINIC)
    assert [key for key, intent, _, _ in topics if intent == QUESTION] == list(CLINIC.facts)
    assert {key for key, intent, _, _ in topics if intent != QUESTION} == set(CLINIC.manners)


@pytest.mark.parametrize(
    ("said", "fact"),
    [
        ("Where can I put my car?", "parking"),
        ("How much do you want for a flu jab?", "price_flu_shot"),
        ("What would the filling of a tooth cost me?", "price_filling"),
        ("May I pay with my card?", "payment"),
        ("Which doctor could look at my little boy?", "doctor_children"),
        ("Are you there on a Sunday?", "hours_sunday"),
        ("Where do I find you?", "address"),
    ],
)
def test_questions_in_other_words_find_their_fact(facts: Facts, said: str, fact: str) -> None:
    found = facts.find(said)
    assert found.fact == found.topic == fact
    assert max(found.nearness, key=lambda kind: found.nearness[kind]) == QUESTION


@pytest.mark.parametrize(
    ("said", "kind"),
    [("Thanks a lot, bye bye.", "goodbye"), ("I want to make an appointment for a filling.", "book"),
     ("Hello, good morning to you.", "greeting")],
)  # fmt: skip
def test_manners_are_told_from_questions(facts: Facts, said: str, kind: str) -> None:
    found = facts.find(said)
    assert max(found.nearness, key=lambda k: found.nearness[k]) == kind
    assert found.fact in CLINIC.facts


def test_a_model_that_is_not_there_is_told() -> None:
    with pytest.raises(ModelError):
        Facts("/no/such/model").load()
