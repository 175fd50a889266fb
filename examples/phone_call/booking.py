"""What a caller's words say of an appointment: service, day and time, as typed arguments. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from examples.phone_call.clinic import Clinic, Topic

_HOURS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12,
}  # fmt: skip
_MINUTES = {"fifteen": 15, "thirty": 30, "forty-five": 45, "forty five": 45, "o'clock": 0}
_HOUR = "|".join([*_HOURS, r"\d{1,2}"])
_CLOCK = re.compile(
    rf"\b(half past |quarter past |quarter to )?({_HOUR})\b"
    r"(?:[:. ](\d\d)\b| (fifteen|thirty|forty[- ]five|o'clock))?"
    r"\s*(a\.?m\b|p\.?m\b|in the morning|in the afternoon|in the evening)?",
    re.I,
)
_BEFORE = re.compile(r"(\bat|\baround|\babout|\bfor)\s*$", re.I)


@dataclass(frozen=True)
class Request:
    """What is known of an appointment so far; "" is what is not."""

    service: str = ""
    day: str = ""
    time: str = ""
    name: str = ""

    @property
    def missing(self) -> str:
        """What has to be asked for next, "" when nothing has."""
        return next((slot for slot in ("service", "day", "time", "name") if not getattr(self, slot)), "")

    def with_(self, more: Request) -> Request:
        """What the caller says now counts before what was said earlier."""
        return Request(*(getattr(more, s) or getattr(self, s) for s in ("service", "day", "time", "name")))


def read_request(heard: str, clinic: Clinic) -> Request:
    """Service, day and time as far as the words say them; the last one of each counts. No name."""
    return Request(_service(heard, clinic), _day(heard, clinic), _time(heard, clinic))


def candidates(heard: str, clinic: Clinic) -> list[str]:
    """Services that the words may mean, the likeliest first; more than one is for the model to choose from."""
    low = heard.lower()
    scores = {}
    for name, service in clinic.booking.services.items():
        words = [name, *name.split(), *service.words]
        scores[name] = sum(len(w) for w in words if re.search(rf"\b{re.escape(w)}s?\b", low))
        if service.doctor.split()[-1].lower() in low:
            scores[name] += 1
    return sorted((name for name, score in scores.items() if score), key=lambda name: -scores[name])


def _service(heard: str, clinic: Clinic) -> str:
    found = candidates(heard, clinic)
    return found[0] if found else ""


def _day(heard: str, clinic: Clinic) -> str:
    low = heard.lower()
    at = {day: low.rfind(day.lower()) for day in clinic.booking.days}
    day = max(at, key=lambda d: at[d])
    return day if at[day] >= 0 else ""


def _time(heard: str, clinic: Clinic) -> str:
    """The last time of day that is within the bookable hours, as "10:00"."""
    found = ""
    for match in _CLOCK.finditer(heard.replace("-", " ")):
        sure = match[1] or match[3] or match[4] or match[5] or _BEFORE.search(heard.replace("-", " ")[: match.start()])
        if sure and (time := _clock(match, clinic)):
            found = time
    return found


def _clock(match: re.Match[str], clinic: Clinic) -> str:
    hour = _HOURS.get(match[2].lower()) or int(match[2])
    minute = int(match[3]) if match[3] else _MINUTES.get((match[4] or "o'clock").lower().replace("-", " "), 0)
    before = (match[1] or "").lower().strip()
    minute = {"half past": 30, "quarter past": 15, "quarter to": -15}.get(before, minute)
    half = (match[5] or "").lower().replace(".", "")
    if half in ("pm", "in the afternoon", "in the evening") and hour < 12:
        hour += 12
    total = hour * 60 + minute
    first, last = (int(t[:2]) * 60 + int(t[3:]) for t in (clinic.booking.first, clinic.booking.last))
    if not half and total < first:
        total += 12 * 60
    return f"{total // 60:02}:{total % 60:02}" if first <= total <= last else ""


def spoken_time(time: str) -> str:
    """ "10:00" as "10 in the morning"."""
    hour, minute = int(time[:2]), int(time[3:])
    part = "in the morning" if hour < 12 else "in the afternoon" if hour < 17 else "in the evening"
    clock = str((hour - 1) % 12 + 1) + (f":{minute:02}" if minute else "")
    return f"{clock} {part}"


def question(request: Request) -> Topic:
    """What the model is to ask next."""
    service = request.service or "visit"
    asks = {
        "service": ("Which service would you like to book?", ["I want an appointment.", "Can I book something?"]),
        "day": (f"On which day would you like the {service}?", [f"I'd like a {service}.", "Can I come in?"]),
        "time": (f"At what time would you like to come on {request.day}?", [f"On {request.day}, please.", "That day."]),
        "name": ("What name should I book it under?", ["On Monday at nine, please.", "At ten, please."]),
    }
    say, asked = asks[request.missing]
    return Topic(say=say, asked=[*asked, "Please book me in."])


def confirmation(request: Request, doctor: str) -> Topic:
    """What the model is to say when the appointment is made."""
    say = (
        f"I have booked the {request.service} with Doctor {doctor} on {request.day} at {spoken_time(request.time)} "
        f"for {request.name}."
    )
    return Topic(say=say, asked=["Please book it.", f"My name is {request.name}.", "Yes, that is right."])


def taken(request: Request, doctor: str) -> tuple[Topic, Request]:
    """What the model is to say when somebody else has that time, and what is left of the request."""
    say = f"Doctor {doctor} is not free on {request.day} at {spoken_time(request.time)}. What other time suits you?"
    return Topic(say=say, asked=["Please book it.", "At that time, please.", "Yes."]), replace(request, time="")
