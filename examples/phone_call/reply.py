"""One reply of the reception: what it answers, what follows from it, and how much of it the caller has heard."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from chains import Audio
from chains.call import Turn
from examples.phone_call.booking import Request
from examples.phone_call.records import Booking


@dataclass(eq=False)
class Said:
    """One line of the dialogue, as far as it was heard. `role` is "user" or "assistant"."""

    role: str
    text: str


@dataclass(frozen=True)
class Plan:
    """What a reply does once it is heard: the appointment that is asked for from then on, and one that is made."""

    request: Request | None
    booking: Booking | None = None


@dataclass(eq=False)
class Reply:
    """A reply under way. `heard` are the caller's words that it answers, "" when the reception speaks by itself.

    Times are seconds of the call's clock. What was sent is played in real time, one piece after the other, except
    while the reply is held.
    """

    heard: str
    turn: Turn | None = None
    task: asyncio.Task[None] | None = None
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)  # the caller has certainly finished
    ended_at: float | None = None  # when the caller had
    line: Said | None = None  # the caller's words in the dialogue, once they are certain
    text: str = ""  # the whole of it, once all has gone out
    plan: Plan | None = None
    hang_up: bool = False
    begun: bool = False  # it is being let out: from now on it can be cut, no longer withdrawn
    sent_ms: float = 0.0
    ends_at: float = 0.0
    held_at: float | None = None
    _words: list[tuple[float, str]] = field(default_factory=list)  # (milliseconds so far, words that end there)

    def send(self, piece: Audio, now: float) -> None:
        """The piece goes out."""
        self.sent_ms += piece.seconds * 1e3
        self._words.append((self.sent_ms, piece.text))
        self.ends_at = max(self.ends_at, self._playing(now)) + piece.seconds

    def hold(self, now: float) -> None:
        if self.held_at is None:
            self.held_at = now
            if self.turn is not None:
                self.turn.hold()

    def resume(self, now: float) -> None:
        """Play on where it stopped: all that was left ends later by as long as it was held."""
        if self.held_at is None:
            return
        if self.ends_at > self.held_at:
            self.ends_at += now - self.held_at
        self.held_at = None
        if self.turn is not None:
            self.turn.resume()

    def played_ms(self, now: float) -> float:
        """How much has been played by the clock."""
        return max(0.0, self.sent_ms - max(0.0, self.ends_at - self._playing(now)) * 1e3)

    def heard_until(self, played_ms: float) -> str:
        """The words that have been heard when so much was played."""
        return "".join(words for end, words in self._words if end <= played_ms + 1e-6).strip()

    def _playing(self, now: float) -> float:
        return now if self.held_at is None else self.held_at
