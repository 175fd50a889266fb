"""The reference engine: models of the transformers library behind the engine's seam, made quick on few cores."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor

from engines.llm import choice, speculative, text
from engines.llm.config import EngineSettings, ModelSource, Sampling
from engines.llm.decoder import Cache, Decoder, build
from engines.llm.errors import ModelBroken, PromptTooLong, SettingInvalid
from engines.llm.loading import load_model
from engines.llm.prefixes import PrefixStore
from engines.llm.seam import FinishEvent, FinishReason, Prompt, TokenEvent, Usage

T = TypeVar("T")

GUESSES = 4  # tokens that are guessed and checked in one step
PRIORS = 64


def never() -> bool:
    """A request that nobody cancels."""
    return False


class Turnstile:
    """A lock that lets waiting threads through in the order they came, so that steps of several requests alternate."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._taken = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        turn.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


class ReferenceEngine:
    """One loaded model, safe from many threads: each step of a request holds the model, then lets others pass.

    Greedy text is the same whether a prefix was remembered or not, alone or beside other requests (in fp32).
    """

    def __init__(self, decoder: Decoder, tokenizer: Any, ends: frozenset[int], settings: EngineSettings) -> None:
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.settings = settings
        self._ends = ends
        self._model = Turnstile()
        self._prefixes = PrefixStore(settings.cache_tokens)
        self._epoch = 0  # threads that prepare stop when it changes
        self._preparing: list[threading.Thread] = []
        self._priors: dict[tuple[tuple[int, ...], choice.ChoiceTree], list[float]] = {}

    @classmethod
    def load(cls, model: str | Path = "default", settings: EngineSettings | None = None) -> ReferenceEngine:
        """Load from local files; sets torch's threads for the process.

        Raises ModelMissing when files are not there, ModelBroken when they cannot be used.
        """
        settings = settings or EngineSettings()
        source = ModelSource.resolve(model)
        torch.set_num_threads(settings.threads)
        loaded, tokenizer = load_model(source, settings.precision)
        ends = _ends(loaded, tokenizer)
        return cls(build(loaded, settings.precision), tokenizer, ends, settings)

    def tokens(self, prompt: Prompt, *, reply: bool = True) -> list[int]:
        """Token ids of a prompt; `reply` opens the assistant's turn behind messages."""
        return text.render(self.tokenizer, prompt, reply=reply)

    def warm(self, prefix: Prompt) -> int:
        """Compute a static prefix (system message, examples) once and keep it. The number of its tokens."""
        ids = self.tokens(prefix, reply=False)
        self._check_length(ids, 0)
        cache, _ = self._begin(ids, 0)
        self._prefill(ids, cache, never)
        self._prefixes.put(ids, cache, pinned=True)
        return len(ids)

    def prepare(self, prefixes: Sequence[Prompt]) -> threading.Thread:
        """`warm` for many, in a thread of its own that takes turns with requests; `close` ends it. For what is likely
        to be needed soon, and merely slower when it is needed sooner. Raises at once for a prefix that is too long.
        """
        for prefix in prefixes:
            self._check_length(self.tokens(prefix, reply=False), 0)
        thread = threading.Thread(target=self._prepare, args=(list(prefixes), self._epoch), daemon=True)
        self._preparing.append(thread)
        thread.start()
        return thread

    def _prepare(self, prefixes: Sequence[Prompt], epoch: int) -> None:
        for prefix in prefixes:
            if self._epoch == epoch:
                self.warm(prefix)

    def generate(
        self, prompt: Prompt, sampling: Sampling | None = None, cancelled: Callable[[], bool] = never
    ) -> Iterator[TokenEvent | FinishEvent]:
        """Token events as the text grows, then one FinishEvent. A cancel is seen before each step of the model."""
        sampling = sampling or Sampling()
        ids = self.tokens(prompt)
        self._check_length(ids, sampling.max_tokens)
        return self._generate(ids, sampling, cancelled)

    def _generate(
        self, ids: list[int], sampling: Sampling, cancelled: Callable[[], bool]
    ) -> Iterator[TokenEvent | FinishEvent]:
        cache, cached = self._begin(ids, sampling.max_tokens + GUESSES)
        pick, writer = Picker(sampling), Writer(self._decode, sampling)
        sequence, guessed, untold = list(ids), list[int](), list[int]()
        reason: FinishReason | None = None
        try:
            logits = self._prefill(ids, cache, cancelled)
            while logits is not None:
                picked = pick.accept(logits, guessed)
                cache.crop(len(sequence) + len(picked) - 1)
                taken, reason = self._take(picked, writer, sampling.max_tokens - (len(sequence) - len(ids)))
                sequence += taken
                untold += taken
                if delta := writer.take():
                    yield TokenEvent(delta, tuple(untold))
                    untold = []
                if reason or cancelled():
                    break
                left = sampling.max_tokens - (len(sequence) - len(ids))
                guessed = speculative.guess(sequence, min(GUESSES, left - 1)) if pick.greedy else []
                logits = self._step([sequence[-1], *guessed], cache, keep=1 + len(guessed))
        finally:
            self._prefixes.put(sequence, cache)
        rest = writer.finish() if reason else ""
        if rest or untold:
            yield TokenEvent(rest, tuple(untold))
        yield FinishEvent(reason or "abort", Usage(len(ids), cached, len(sequence) - len(ids)))

    def _take(self, picked: list[int], writer: Writer, room: int) -> tuple[list[int], FinishReason | None]:
        """Those of the picked tokens that belong to the text, and why it ends there, if it does."""
        taken: list[int] = []
        for token in picked:
            if token in self._ends:
                return taken, "stop"
            taken.append(token)
            writer.push(token)
            if writer.stopped:
                return taken, "stop"
            if len(taken) == room:
                return taken, "length"
        return taken, None

    def score(self, prompt: Prompt, choices: Sequence[str], prior: Prompt | None = None) -> dict[str, float]:
        """Probability of each of `choices` as the reply to `prompt`, in one forward; they sum to 1.

        With `prior`, the same prompt without content, what the model prefers anyway is divided out.
        """
        if len(set(choices)) != len(choices) or len(choices) < 2 or "" in choices:
            raise SettingInvalid(f"choices are {list(choices)!r}", mend="write two or more different, non-empty texts")
        answers = [self.tokenizer.encode(text, add_special_tokens=False) for text in choices]
        tree = choice.ChoiceTree.of(answers, min(self._ends))
        shares = self._score(self.tokens(prompt), tree)
        if prior is not None:
            shares = choice.calibrate(shares, self._prior(self.tokens(prior), tree))
        return dict(zip(choices, shares, strict=True))

    def _prior(self, ids: list[int], tree: choice.ChoiceTree) -> list[float]:
        """The score of a prompt without content, computed once."""
        key = (tuple(ids), tree)
        if key not in self._priors:
            if len(self._priors) >= PRIORS:
                self._priors.clear()
            self._priors[key] = self._score(ids, tree)
        return self._priors[key]

    def _score(self, ids: list[int], tree: choice.ChoiceTree) -> list[float]:
        nodes = tree.nodes()
        self._check_length(ids, len(nodes))
        cache, past = self._begin(ids, len(nodes))
        tail = ids[past:]
        positions, mask = choice.pack(nodes, past, len(tail))
        run = torch.tensor([*tail, *(node[-1] for node in nodes)])
        keep = torch.arange(len(tail) - 1, len(run))
        with self._model, torch.inference_mode():
            logits = self.decoder.forward(run, cache, keep, positions, mask if nodes else None)
        cache.crop(len(ids))
        self._prefixes.put(ids, cache)
        return tree.probabilities(dict(zip([(), *nodes], logits, strict=True)))

    def close(self) -> None:
        """Forget the remembered prefixes; the weights go with the engine."""
        self._epoch += 1
        while self._preparing:
            self._preparing.pop().join()  # a thread inside torch must not meet the end of the process
        self._prefixes.clear()

    def _begin(self, ids: list[int], room: int) -> tuple[Cache, int]:
        """A cache that holds what is known of the prompt's beginning, and how many tokens that is."""
        cache = self._prefixes.take(ids, len(ids) + room)
        if cache is None:
            return self.decoder.new_cache(len(ids) + room), 0
        return cache, cache.length

    def _prefill(self, ids: list[int], cache: Cache, cancelled: Callable[[], bool]) -> Tensor | None:
        """Logits [1, vocabulary] behind the prompt, of which the cache may know a part; None when cancelled."""
        logits = None
        while cache.length < len(ids):
            if cancelled():
                return None
            logits = self._step(ids[cache.length : cache.length + self.settings.prefill_chunk], cache, keep=1)
        return logits

    def _step(self, ids: list[int], cache: Cache, keep: int) -> Tensor:
        """One step of the model; logits [keep, vocabulary] of its last rows."""
        rows = torch.arange(len(ids) - keep, len(ids))
        with self._model, torch.inference_mode():
            return self.decoder.forward(torch.tensor(ids), cache, rows)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _check_length(self, ids: list[int], room: int) -> None:
        if not ids:
            raise SettingInvalid("the prompt is empty", mend="write at least one message")
        if len(ids) + room > self.decoder.context:
            raise PromptTooLong(
                f"{len(ids)} tokens of prompt and {room} to write exceed the model's context of {self.decoder.context}",
                mend="shorten the prompt, ask for fewer tokens, or use a model with a longer context",
            )


class Picker:
    """Picks tokens by the settings: the likeliest, or drawn from the most likely `top_p` of the mass."""

    def __init__(self, sampling: Sampling) -> None:
        self.greedy = sampling.temperature == 0
        self._sampling = sampling
        self._random = torch.Generator()
        if sampling.seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(sampling.seed)

    def accept(self, logits: Tensor, guessed: Sequence[int]) -> list[int]:
        """The tokens that follow: each guess that the model would have written too, and one more of its own."""
        if not self.greedy:
            return [self._draw(logits[-1])]
        picked: list[int] = []
        for place, token in enumerate(logits.argmax(dim=-1).tolist()):
            picked.append(token)
            if place == len(guessed) or guessed[place] != token:
                break
        return picked

    def _draw(self, logits: Tensor) -> int:
        shares = torch.softmax(logits / self._sampling.temperature, dim=-1)
        if self._sampling.top_p < 1:
            ranked, order = shares.sort(descending=True)
            ranked[ranked.cumsum(0) - ranked >= self._sampling.top_p] = 0
            return int(order[torch.multinomial(ranked, 1, generator=self._random)])
        return int(torch.multinomial(shares, 1, generator=self._random))


class Writer:
    """Tokens in, text that is safe to show out: whole characters, no part of a stop string."""

    def __init__(self, decode: Callable[[Sequence[int]], str], sampling: Sampling) -> None:
        self._characters = text.Detokenizer(decode)
        self._stops = text.StopStrings(sampling.stop, include=sampling.include_stop)
        self._ready = ""

    @property
    def stopped(self) -> bool:
        return self._stops.stopped

    def push(self, token: int) -> None:
        self._ready += self._stops.push(self._characters.push(token))

    def take(self) -> str:
        """The text since the last time."""
        ready, self._ready = self._ready, ""
        return ready

    def finish(self) -> str:
        """What was held back, when the text ended without a stop string."""
        if self.stopped:
            return ""
        return self._stops.push(self._characters.flush()) + self._stops.flush()


def _ends(model: Any, tokenizer: Any) -> frozenset[int]:
    """Tokens that end a reply: the model's and the tokenizer's."""
    ends: set[int] = set()
    for end in (getattr(model.generation_config, "eos_token_id", None), tokenizer.eos_token_id):
        ends.update([end] if isinstance(end, int) else end or [])
    if not ends:
        raise ModelBroken("this model names no end token", mend="add eos_token_id to its generation_config.json")
    return frozenset(ends)
