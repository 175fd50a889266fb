"""What goes between the engine's front and its step loop: requests one way, a report of each step the other."""

from __future__ import annotations

from typing import NamedTuple

from engines.llm.scheduler import Stats
from engines.llm.sequence import End, Reason, Request, Token


class Submit(NamedTuple):
    """A request; `grammar` is (kind, source) of what its reply is held to."""

    request: Request
    grammar: tuple[str, str] | None = None


class Abort(NamedTuple):
    id: int
    reason: Reason = "abort"


class Pin(NamedTuple):
    """Keep what is known of this prefix from eviction."""

    tokens: tuple[int, ...]
    namespace: str = ""


class Close(NamedTuple):
    """End everything."""


class Probed(NamedTuple):
    """Log-probabilities of a request's probe; its End follows."""

    id: int
    logprobs: tuple[float, ...]


class Failure(NamedTuple):
    """The request fails by what its caller asked: its one terminal event. `kind` names the error."""

    id: int
    kind: str
    message: str
    mend: str = ""


class Beat(NamedTuple):
    """A step is over, or there are but grammars to wait for. `failures` are the steps in a row that raised; `dead`
    says why no step will follow, if so.
    """

    step: int
    stats: Stats
    failures: int = 0
    dead: str = ""


class Report(NamedTuple):
    """What a step gave, in this order: tokens, probes, ends, failures."""

    tokens: list[Token]
    probed: list[Probed]
    ends: list[End]
    failures: list[Failure]
    beat: Beat


Message = Submit | Abort | Pin | Close
