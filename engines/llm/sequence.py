"""One request to the engine core, in integers: what is asked, what comes back, and how far it has got."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from engines.llm.config import Sampling
from engines.llm.kvcache import Lease
from engines.llm.speculative import Lookup

MILLION = 1_000_000

Reason = Literal["stop", "length", "abort", "error"]


class SamplingCode(NamedTuple):
    """How tokens are picked, as integers: `tuple(code)` goes into a Row, `SamplingCode(*row.settings)` reads it.

    Temperature, top_p, min_p and the penalties are in millionths. `temperature` 0 is greedy, `top_k` 0 no limit,
    `logprobs` -1 none.
    """

    temperature: int = 0
    top_k: int = 0
    top_p: int = MILLION
    min_p: int = 0
    repetition_penalty: int = MILLION
    presence_penalty: int = 0
    frequency_penalty: int = 0
    seed: int = 0
    logprobs: int = -1

    @classmethod
    def of(cls, sampling: Sampling, *, unseeded: int = 0) -> Self:
        """`unseeded` is the seed of a request that named none (the caller draws it).

        A temperature or top_p above zero stays above zero: it is never rounded to greedy.
        """

        def millionths(value: float) -> int:
            return round(value * MILLION) or (1 if value > 0 else 0)

        return cls(
            millionths(sampling.temperature),
            sampling.top_k,
            millionths(sampling.top_p),
            millionths(sampling.min_p),
            millionths(sampling.repetition_penalty),
            round(sampling.presence_penalty * MILLION),
            round(sampling.frequency_penalty * MILLION),
            unseeded if sampling.seed is None else sampling.seed,
            -1 if sampling.logprobs is None else sampling.logprobs,
        )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """True when what was said before changes what is picked: the runner then needs the tokens so far."""
        return self.repetition_penalty != MILLION or self.presence_penalty != 0 or self.frequency_penalty != 0


GREEDY = SamplingCode()


@dataclass(frozen=True, slots=True)
class Request:
    """What one sequence asks. `tokens` is the prompt; a token of `ends` ends the reply.

    `tenant` is who is served fairly, `namespace` whose prefixes may be shared, `batch` what gives way to the
    interactive. `leader` is the id of a request whose prompt is computed first (this one then finds it in the
    cache). `constrained`: a mask decides which tokens may come, so none are guessed. `probe`: token ids whose
    log-probabilities at the first new position are wanted, with max_tokens=1.
    """

    id: int
    tokens: tuple[int, ...]
    max_tokens: int
    ends: frozenset[int] = frozenset()
    sampling: SamplingCode = GREEDY
    tenant: str = ""
    namespace: str = ""
    batch: bool = False
    leader: int | None = None
    constrained: bool = False
    probe: tuple[int, ...] = ()

    @property
    def guessable(self) -> bool:
        """True when the next token is the likeliest of unchanged logits, so that guesses can be checked together."""
        return self.sampling.greedy and not self.sampling.penalised and not self.constrained


class Token(NamedTuple):
    """A new token of a request, the `index`-th of its reply (from 0). The token that ends a reply comes too."""

    id: int
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    index: int = 0  # type: ignore[assignment]  # a tuple's index() is of no use here


class End(NamedTuple):
    """The last word on a request, exactly one for each that was accepted. Counts are tokens.

    `cached` is the part of the prompt that was found computed when the request was first admitted; of `guessed` tokens
    that were checked beside the next one, `right` held.
    """

    id: int
    reason: Reason
    prompt: int
    cached: int
    completion: int
    message: str = ""
    guessed: int = 0
    right: int = 0


Event = Token | End


class Tenant:
    """Who is served: `served` tokens so far (prompts computed and replies made), `active` requests under way."""

    __slots__ = ("active", "name", "served")

    def __init__(self, name: str, served: int = 0) -> None:
        self.name, self.served, self.active = name, served, 0


class Sequence:
    """A request under way. Positions below `committed` are computed; those from there to `scheduled` are in flight.

    `tokens` holds what is known: the prompt and every committed token of the reply. It may be one behind
    `scheduled`, when a step in flight takes its input from the step before it.
    """

    __slots__ = (
        "arrival", "batch", "cached", "committed", "ended", "ends", "flights", "followers", "fresh", "guessed",
        "guesses", "id", "lease", "limit", "prefilled", "prompt", "request", "right", "row", "scheduled", "tenant",
        "tokens", "yielding",
    )  # fmt: skip

    def __init__(self, request: Request, arrival: int, tenant: Tenant) -> None:
        self.request, self.arrival, self.tenant = request, arrival, tenant
        self.id, self.batch, self.ends = request.id, request.batch, request.ends
        self.tokens = list(request.tokens)
        self.prompt = len(request.tokens)
        self.limit = self.prompt + request.max_tokens - 1
        """Positions that are computed at the most: the last token of a reply is never an input."""
        self.committed = self.scheduled = 0
        self.flights = 0
        """Plans that this sequence is part of and that are not committed."""
        self.row = 0
        self.fresh = False
        self.lease: Lease | None = None
        self.cached = -1
        self.prefilled = self.ended = self.yielding = False
        self.followers: list[Sequence] = []
        self.guesses: Lookup | None = None
        self.guessed = self.right = 0

    def end(self, reason: Reason, message: str = "") -> End:
        made = len(self.tokens) - self.prompt
        return End(self.id, reason, self.prompt, max(self.cached, 0), made, message, self.guessed, self.right)
