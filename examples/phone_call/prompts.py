"""What the language model is asked: short prompts, one fact at a time, examples before the question. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Literal

from examples.phone_call.clinic import Clinic, Topic

Intent = Literal["question", "book", "greeting", "goodbye", "unknown"]
Prompt = list[dict[str, str]]

LABELS: dict[str, Intent] = {
    " question": "question",
    " booking": "book",
    " greeting": "greeting",
    " goodbye": "goodbye",
}
STOPS = ("\n", ". We", ". I", ". The", ". You", "? I", "? The")
_MODEL, _SHARP = 0.5, 0.08  # how much the model's label weighs beside nearness, and how sharply that decides
_SYSTEM = "You are the receptionist. Answer the caller with the fact, in one short sentence."
_SHOTS = (
    ("What time do you open?", " question"),
    ("I would like to book a visit on Monday at ten.", " booking"),
    ("Hello, good morning.", " greeting"),
    ("Thank you, that was all. Goodbye.", " goodbye"),
    ("How much is a massage?", " question"),
    ("Can I make an appointment for a massage?", " booking"),
    ("Who is the therapist?", " question"),
    ("Hi there, how are you?", " greeting"),
    ("No, that's everything. Bye.", " goodbye"),
    ("Please put me down for Thursday at three.", " booking"),
    ("Can I come on Sunday evening?", " question"),
    ("Good evening, is this the spa?", " greeting"),
    ("Can I book a massage for Friday at six?", " booking"),
    ("How late are you open?", " question"),
    ("I need to see the therapist on Tuesday morning.", " booking"),
    ("Could you give me your number?", " question"),
    ("Great, see you then.", " goodbye"),
    ("Do you take credit cards?", " question"),
)
_NAMES = (
    ("My name is Anna Bell.", "Anna Bell"),
    ("It's for Robert Stone, please.", "Robert Stone"),
    ("Yes, this is Lucy Gray speaking.", "Lucy Gray"),
    ("Sure. I'm Tom Hill.", "Tom Hill"),
)
_CALL = (
    "Caller: How much is a massage?\nClinic: A massage costs 70 dollars.\n"
    "Caller: I'd like to book one on Monday at nine. My name is Anna Bell.\n"
    "Clinic: I have booked a massage on Monday at 9:00 for Anna Bell.\n"
    "Summary: Anna Bell asked for the price of a massage and booked one on Monday at 9:00.\n\n"
    "Caller: Are you open on Sunday?\nClinic: We are closed on Sunday.\n"
    "Summary: The caller asked whether the clinic is open on Sunday; it is closed.\n\n"
)


def reply(topic: Topic, heard: str) -> Prompt:
    """Say the topic's fact to a caller who said `heard`. What stands before the last message is the same every time."""
    messages = [{"role": "system", "content": _SYSTEM}]
    for asked in topic.asked[:3]:
        messages.append({"role": "user", "content": f"Caller: {asked}\nFact: {topic.say}"})
        messages.append({"role": "assistant", "content": topic.say})
    messages.append({"role": "user", "content": f"Caller: {heard}\nFact: {topic.say}"})
    return messages


def intent(heard: str) -> str:
    """Label the caller's line: its continuation is one of LABELS."""
    shots = "".join(f"Caller: {said}\nLabel:{label}\n\n" for said, label in _SHOTS)
    return f"Each caller's line is labelled question, booking, greeting or goodbye.\n\n{shots}Caller: {heard}\nLabel:"


def name(heard: str) -> str:
    """The caller's name in what was said: the continuation up to the line's end."""
    return "".join(f"Caller: {said}\nName: {who}\n\n" for said, who in _NAMES) + f"Caller: {heard}\nName:"


def summary(lines: Sequence[tuple[str, str]]) -> str:
    """What the call was about: the continuation up to the line's end. Lines are (role, text); the last 12 count."""
    who = {"user": "Caller", "assistant": "Clinic"}
    return _CALL + "".join(f"{who[role]}: {text}\n" for role, text in lines[-12:]) + "Summary:"


def intent_prefix() -> str:
    """What every intent prompt begins with: to be computed once."""
    return intent("")[: -len("\nLabel:")].rstrip()


def reply_prefixes(clinic: Clinic) -> list[Prompt | str]:
    """What the replies' prompts begin with, each topic's examples: to be computed once."""
    return [reply(topic, "")[:-1] for topic in [*clinic.manners.values(), *clinic.facts.values()]]


def decide(labels: Mapping[str, float], nearness: Mapping[str, float]) -> Intent:
    """The intent: how likely the model finds each label, and how near the words come to what callers say for it."""
    if max(nearness.values()) < 0.25:
        return "unknown"
    scores: dict[Intent, float] = {
        kind: _MODEL * log(max(labels.get(label, 0.0), 1e-4)) + nearness.get(kind, -1.0) / _SHARP
        for label, kind in LABELS.items()
    }
    scores["unknown"] = _MODEL * log(0.25) + nearness.get("unknown", -1.0) / _SHARP
    return max(scores, key=lambda kind: scores[kind])
