"""What a caller's words say of an appointment: service, day and time, as typed arguments. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from examples.phone_call.clinic import Clinic, Topic

Slot = Literal["service", "day", "time", "name"]
SLOTS: tuple[Slot, ...] = ("service", "day", "time", "name")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_HOURS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "noon": 12, "midday": 12,
}  # fmt: skip
_MINUTES = {
    "five": 5, "ten": 10, "fifteen": 15, "quarter": 15, "twenty": 20, "twenty five": 25, "thirty": 30, "half": 30,
    "forty": 40, "forty five": 45, "fifty": 50, "o'clock": 0,
}  # fmt: skip
_CLOCK = re.compile(
    rf"""\b(?:(?P<part>half|quarter|five|ten|twenty\ five|twenty)\ (?P<way>past|to)\ )?
    (?P<hour>{"|".join(_HOURS)}|\d{{1,2}})\b
    (?:[:.](?P<digits>\d\d)\b|\ (?P<minutes>fifteen|twenty\ five|twenty|thirty|forty\ five|forty|fifty|o'clock)\b)?
    \s*(?P<half>a\.?m\b|p\.?m\b|in\ the\ morning|in\ the\ afternoon|in\ the\ evening)?""",
    re.I | re.X,
)
_BEFORE = re.compile(r"\b(at|around|about|for|by)\s*$", re.I)
_EXCLUDED = re.compile(r"\b(not|instead of|rather than)\s+((at|on)\s+)?$", re.I)
_NEVER_MIND = re.compile(r"\b(never mind|forget (about )?it|leave it|don't book|do not book|cancel (it|that))\b", re.I)
_COUNTED = re.compile(  # what follows a number that is no time of day
    r"\s*(\d|%|(dollars?|euros?|pounds|bucks|cents|percent|minutes?|mins?|hours?|days?|weeks?|months?|years?|times|"
    r"people|persons?|patients?|adults|children|kids|teeth|fillings?|of|\w+ (street|road|avenue|lane))\b)",
    re.I,
)


@dataclass(frozen=True)
class Request:
    """What is known of an appointment so far; "" is what is not."""

    service: str = ""
    day: str = ""
    time: str = ""
    name: str = ""

    @property
    def missing(self) -> Slot | Literal[""]:
        """What has to be asked for next, "" when nothing has."""
        return next((slot for slot in SLOTS if not getattr(self, slot)), "")

    def with_(self, more: Request) -> Request:
        """What the caller says now counts before what was said earlier."""
        return Request(*(getattr(more, slot) or getattr(self, slot) for slot in SLOTS))


def read_request(heard: str, clinic: Clinic, asked: str = "") -> Request:
    """Service, day and time as far as the words say them; the last day and time count. No name.

    A service that could be several is left to `candidates`. `asked` is the slot that the caller was asked for: only
    an answer to "time" may be a bare number. Day and time may be ones at which nobody is there: see `refused`.
    """
    plain = heard.replace("-", " ")
    services = candidates(heard, clinic)
    return Request(services[0] if len(services) == 1 else "", _day(plain), _time(plain, clinic, bare=asked == "time"))


def given_up(heard: str) -> bool:
    """Whether the caller does not want the appointment any more."""
    return _NEVER_MIND.search(heard) is not None


def candidates(heard: str, clinic: Clinic) -> list[str]:
    """The services that the words fit best; more than one is for the model to choose from."""
    low = heard.lower().replace("-", " ")
    scores = {}
    for name, service in clinic.booking.services.items():
        words = [name, *name.split(), *service.words]
        scores[name] = sum(len(w) for w in words if re.search(rf"\b{re.escape(w.lower())}s?\b", low))
        if re.search(rf"\b{re.escape(service.doctor.split()[-1].lower())}\b", low):
            scores[name] += 1
    best = max(scores.values(), default=0)
    return [name for name, score in scores.items() if score == best] if best else []


def _day(plain: str) -> str:
    found = ""
    for match in re.finditer(rf"\b({'|'.join(WEEKDAYS)})\b", plain, re.I):
        if not _EXCLUDED.search(plain[: match.start()]):
            found = match[1].capitalize()
    return found


def _time(plain: str, clinic: Clinic, *, bare: bool) -> str:
    """The last time of day in the words, as "10:00"; where neither half of the day is said, the one that is bookable.

    A number is a time when something beside it says so ("at", "o'clock", "in the morning"), or when `bare` numbers are.
    """
    found = ""
    for match in _CLOCK.finditer(plain):
        before = plain[: match.start()]
        named = match["hour"].lower() in ("noon", "midday")
        certain = match["way"] or match["digits"] or match["minutes"] or match["half"] or named
        likely = bare or ((m := _BEFORE.search(before)) and not (m[1].lower() == "for" and match["hour"] == "one"))
        counted = _COUNTED.match(plain[match.end() :]) or before.endswith(("$", "€", "£"))
        if (certain or likely) and not counted and not _EXCLUDED.search(before):
            found = _clock(match, clinic) or found
    return found


def _clock(match: re.Match[str], clinic: Clinic) -> str:
    """ "14:30", or "" for what is no time of day."""
    hour = _HOURS.get(match["hour"].lower()) or int(match["hour"])
    minute = int(match["digits"]) if match["digits"] else _MINUTES[(match["minutes"] or "o'clock").lower()]
    if match["way"]:
        minute = _MINUTES[match["part"].lower()] * (1 if match["way"].lower() == "past" else -1)
    if hour > 23 or minute > 59:
        return ""
    half = (match["half"] or "").lower().replace(".", "")
    if half in ("am", "in the morning"):
        hour %= 12
    elif half:
        hour = hour % 12 + 12
    total = hour * 60 + minute
    if not half and hour <= 12 and total < min(_minutes(hours.first) for hours in clinic.booking.days.values()):
        total += 12 * 60
    return f"{total // 60:02}:{total % 60:02}" if total >= 0 else ""


def _minutes(time: str) -> int:
    return int(time[:2]) * 60 + int(time[3:])


def spoken_time(time: str) -> str:
    """ "10:00" as "10 in the morning"."""
    hour, minute = int(time[:2]), int(time[3:])
    part = "in the morning" if hour < 12 else "in the afternoon" if hour < 17 else "in the evening"
    clock = str((hour - 1) % 12 + 1) + (f":{minute:02}" if minute else "")
    return f"{clock} {part}"


def refused(request: Request, clinic: Clinic) -> tuple[Topic, Request] | None:
    """What to say when nobody is there on that day or at that time, and what is left of the request; None if all fits.

    Without a day, the time has to fit one of the days.
    """
    days = clinic.booking.days
    if request.day and request.day not in days:
        say = f"We are closed on {request.day}. Which other day suits you?"
        return _refusal(say), replace(request, day="")
    asked = [days[request.day]] if request.day else list(days.values())
    if not request.time or any(hours.first <= request.time <= hours.last for hours in asked):
        return None
    first, last = min(hours.first for hours in asked), max(hours.last for hours in asked)
    on = f" on {request.day}" if request.day else ""
    say = f"We have appointments{on} from {spoken_time(first)} until {spoken_time(last)}. What time suits you?"
    return _refusal(say), replace(request, time="")


def taken(request: Request, doctor: str) -> tuple[Topic, Request]:
    """What the model is to say when somebody else has that time, and what is left of the request."""
    say = f"Doctor {doctor} is not free on {request.day} at {spoken_time(request.time)}. What other time suits you?"
    return _refusal(say), replace(request, time="")


def let_go() -> Topic:
    """What to say when the caller does not want the appointment any more."""
    say = "All right, I have not booked anything. What else can I do for you?"
    return Topic(say=say, asked=["Never mind.", "Forget it, please.", "Can you leave it?"])


def _refusal(say: str) -> Topic:
    return Topic(say=say, asked=["Please book it.", "At that time, please.", "Yes."])


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
