"""Which topic the caller's words are about: by meaning (sentence embeddings) and by words, rare ones weighing more."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chains import Limits, Resources, chainlet
from chains.errors import ModelError
from engines.llm.errors import EngineError
from examples.phone_call.clinic import Clinic, read_clinic

QUESTION = "question"
_WORDS = 0.45
_COMMON = {
    "a", "an", "the", "is", "are", "do", "does", "did", "you", "your", "i", "me", "my", "we", "us", "it", "to",
    "of", "for", "in", "on", "at", "and", "or", "can", "could", "would", "what", "which", "whose", "how",
    "there", "be", "have", "has", "with", "please", "tell", "say", "so",
    "this", "that", "will", "get",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """`fact` is the one nearest to what was said, `topic` the nearest of facts and manners together; `nearness` is how
    near the words come to what callers say for each intent, from -1 to 1.
    """

    fact: str
    topic: str
    nearness: dict[str, float]


def stems(text: str) -> list[str]:
    """The words that carry meaning, without common endings."""
    found = []
    for word in re.findall(r"[a-z0-9]+", text.lower()):
        if word in _COMMON:
            continue
        ending = next((e for e in ("ings", "ing", "ed", "es", "s") if word.endswith(e) and len(word) - len(e) >= 3), "")
        found.append(word[: len(word) - len(ending)])
    return found


class WordIndex:
    """Likeness by words: the share of the caller's words (misheard or not) that a topic has, rare ones first."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._bags = [set(stems(text)) for text in texts]
        count = len(self._bags)
        self._weight = {
            word: math.log((count + 1) / (sum(word in bag for bag in self._bags) + 0.5))
            for word in set().union(*self._bags)
        }

    def _near(self, word: str) -> dict[str, float]:
        if word in self._weight:
            return {word: 1.0}
        if len(word) < 3:
            return {}
        ratios = ((known, difflib.SequenceMatcher(None, word, known).ratio()) for known in self._weight)
        return {known: ratio for known, ratio in ratios if ratio > 0.78}

    def likeness(self, text: str) -> NDArray[np.float64]:
        """A number from 0 to 1 for each topic."""
        hits = [self._near(word) for word in stems(text)]
        total = sum(max((self._weight[w] for w in hit), default=3.0) for hit in hits) or 1.0
        return np.array(
            [
                sum(max((self._weight[w] * r for w, r in hit.items() if w in bag), default=0.0) for hit in hits) / total
                for bag in self._bags
            ]
        )


@chainlet(resources=Resources(cpu=0.2), limits=Limits(running=4))
class Facts:
    """Finds the one fact that matters. `embedder`: "default" (the packaged one) or a Hugging Face directory."""

    def __init__(self, embedder: str = "default") -> None:
        self._model = embedder

    def load(self) -> None:
        from engines.llm.embedding import Embedder  # brings torch: not before it is needed

        clinic = read_clinic()
        try:
            self._embedder = Embedder.load(self._model)
        except EngineError as error:
            raise ModelError(str(error)) from error
        topics = topics_of(clinic)
        rows = [
            (place, text)
            for place, (_, intent, say, asked) in enumerate(topics)
            for text in ([*asked, say] if intent == QUESTION else asked)
        ]
        self._topics = topics
        self._owner = np.array([place for place, _ in rows])
        self._vectors = self._embedder.embed([text for _, text in rows])
        self._words = WordIndex([" ".join((*asked, say)) for _, _, say, asked in topics])

    def find(self, text: str) -> Found:
        """What of the clinic's topics `text` is about."""
        alike = self._vectors @ self._embedder.embed([text])[0]
        best = np.full(len(self._topics), -1.0)
        np.maximum.at(best, self._owner, alike)
        total = best + _WORDS * self._words.likeness(text)
        nearness: dict[str, float] = {}
        for (_, intent, _, _), near in zip(self._topics, best, strict=True):
            nearness[intent] = max(nearness.get(intent, -1.0), float(near))
        ranked = sorted(zip(total, self._topics, strict=True), key=lambda pair: -pair[0])
        fact = next(key for _, (key, intent, _, _) in ranked if intent == QUESTION)
        return Found(fact, ranked[0][1][0], nearness)


def topics_of(clinic: Clinic) -> list[tuple[str, str, str, list[str]]]:
    """(key, intent, say, asked) of every fact, whose intent is "question", and of every manner, which is its own."""
    facts = [(key, QUESTION, topic.say, topic.asked) for key, topic in clinic.facts.items()]
    return facts + [(str(key), str(key), topic.say, topic.asked) for key, topic in clinic.manners.items()]
