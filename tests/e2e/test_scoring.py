"""The scorer knows a right answer however it is written, and is not fooled by a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
import yaml

from engines.asr.model import WhisperModel
from tests.e2e.scoring import answers, normalised
from tests.speech.sounds import error_rate

FOLDER = Path(__file__).parent / "questions"
QUESTIONS: list[dict[str, Any]] = json.loads((FOLDER / "questions.json").read_text())["lines"]
CLINIC = yaml.safe_load((FOLDER.parents[2] / "examples" / "phone_call" / "clinic.yaml").read_text())
FACTS = [fact["say"] for group in ("manners", "facts") for fact in CLINIC[group].values()]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("It costs $60.", "it costs 60 dollars"),
        ("sixty-five dollars", "65 dollars"),
        ("One hundred and twenty dollars!", "120 dollars"),
        ("a hundred dollars", "100 dollars"),
        ("one of our doctors", "one of our doctors"),
        ("From 8 a.m. to 6:00 p.m.", "from 8 am to 6 pm"),
        ("eight in the morning until six in the evening", "8 am until 6 pm"),
        ("8am, nine o'clock", "8 am 9"),
        ("Dr. Carter's here", "doctor carter here"),
        ("We don't, we can't, it isn't", "we do not we can not it is not"),
        ("Call 5 5 5, 0 1 4 2.", "call 5550142"),
        ("555-0142", "5550142"),
        ("five five five, oh one four two", "5550142"),
        ("12 Garden Street", "12 garden street"),
        ("Good-bye!", "goodbye"),
    ],
)
def test_normalised(text: str, plain: str) -> None:
    assert normalised(text) == plain


PRICE = {"right": [["60"]], "wrong": ["do not know"], "numbers": [60]}


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("A checkup is sixty dollars.", True),
        ("That's $60.00.", True),
        ("It costs 160 dollars.", False),
        ("It costs 60 dollars, or 80 with a cleaning.", False),
        ("I don't know. Perhaps 60.", False),
        ("", False),
    ],
)
def test_a_price(reply: str, right: bool) -> None:
    assert answers(reply, PRICE) is right


def test_every_group_has_to_be_said() -> None:
    expected: dict[str, Any] = {"right": [["lopez"], ["carter", "dentist"]], "wrong": []}
    assert answers("Maria Lopez, and a dentist", expected)
    assert not answers("Maria Lopez", expected)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["text"])
def test_few_of_the_clinics_facts_answer_a_question(question: dict[str, Any]) -> None:
    """At least one does; and were any fact an answer, the score would mean nothing."""
    assert 1 <= sum(answers(fact, question) for fact in FACTS) <= 3


def test_thirty_questions_over_all_topics() -> None:
    topics = [question["topic"] for question in QUESTIONS]
    assert len(topics) == len({question["text"] for question in QUESTIONS}) == 30
    assert (topics.count("greeting"), topics.count("goodbye")) == (2, 2)
    assert min(topics.count(topic) for topic in ("hours", "price", "place", "payment", "doctor")) >= 2


def test_no_question_stands_in_the_clinics_facts() -> None:
    known = {
        normalised(way) for group in ("manners", "facts") for fact in CLINIC[group].values() for way in fact["asked"]
    }
    assert not known & {normalised(question["text"]) for question in QUESTIONS}


def test_the_questions_are_understood() -> None:
    whisper = WhisperModel()
    heard = [whisper.transcribe(soundfile.read(FOLDER / q["file"], dtype="float32")[0]).text for q in QUESTIONS]
    assert error_rate([question["text"] for question in QUESTIONS], heard) < 0.05
