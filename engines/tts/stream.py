"""Text as it streams in, cut into clauses; audio as it streams out, cut into frames that know their words.
No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

_TITLES = {
    "dr", "mr", "mrs", "ms", "prof", "vs", "e.g", "i.e", "approx", "appt", "apt", "ste", "mt", "gen", "rev",
}  # fmt: skip
# These may also end a sentence: they do if a word follows that likes to begin one.
_MAYBE = {
    "a.m", "p.m", "st", "ave", "rd", "blvd", "ln", "etc", "inc", "ltd", "co", "u.s", "u.k", "ph.d", "m.d", "min",
    "hrs", "jan", "feb", "aug", "sept", "oct", "nov", "dec", "mon", "tue", "tues", "wed", "thu", "thurs", "fri",
}  # fmt: skip
_BEGINNERS = {
    "a", "an", "and", "are", "but", "can", "could", "do", "does", "for", "he",
    "her", "his", "how", "i", "i'd", "i'll", "i'm", "if", "in", "is", "it", "it's", "may", "my", "no", "on",
    "our", "please", "she", "so", "that", "that's", "the", "then", "there", "there's", "they", "this", "to",
    "was", "we", "we'll", "we're", "what", "when", "where", "which", "who", "why", "will", "would", "yes",
    "you", "you'll", "you're", "your",
}  # fmt: skip
_LINKS = {
    "and", "or", "but", "because", "so", "which", "who", "if", "when", "where", "until", "from", "with",
    "for", "in", "at", "on", "next", "while", "than", "before", "after",
}  # fmt: skip
_LONGEST = 600  # characters of a clause, whatever stands in it
_CLOSERS = "\"')]}»”\u2019"


class TtsSettingsError(ValueError):
    """A setting makes no sense; the message names it and its range."""


@dataclass(frozen=True, slots=True)
class ClauseSettings:
    """How soon the first clause may be cut, and how long later ones may get; in words.

    first_words: from here on the first clause ends at a comma, first_break: before a linking word,
    first_limit: anywhere.
    later_words: from here on a later sentence ends at a comma, later_limit: anywhere.
    """

    first_words: int = 3
    first_break: int = 5
    first_limit: int = 9
    later_words: int = 14
    later_limit: int = 36

    def __post_init__(self) -> None:
        if not 1 <= self.first_words <= self.first_break <= self.first_limit <= 100:
            raise TtsSettingsError("it must hold that 1 <= first_words <= first_break <= first_limit <= 100")
        if not 1 <= self.later_words <= self.later_limit <= 200:
            raise TtsSettingsError("it must hold that 1 <= later_words <= later_limit <= 200")


@dataclass(frozen=True, slots=True)
class Clause:
    """A piece of the text: its characters `start` to `end`. Clauses follow each other without gaps or
    overlap.
    """

    index: int
    start: int
    end: int
    text: str

    @property
    def ends_sentence(self) -> bool:
        """Whether a pause for breath follows."""
        return self.text.rstrip().rstrip(_CLOSERS).endswith((".", "!", "?", "…")) or self.text.endswith("\n")


class _NeedMore(Exception):
    """What decides about a cut has not been written yet."""


class ClauseSplitter:
    """Cuts a text that arrives in pieces. However it is pieced, the clauses are the same.

    A place is decided about only when all that the decision reads has come (at most the next word).
    """

    def __init__(self, settings: ClauseSettings | None = None) -> None:
        self.settings = settings or ClauseSettings()
        self._text = ""  # what has not been cut off yet
        self._at = 0
        self._count = 0
        self._first = True

    def push(self, delta: str) -> list[Clause]:
        """Takes the next piece of text."""
        self._text += delta
        return list(self._clauses(finished=False))

    def finish(self) -> list[Clause]:
        """The text is complete: what is left is the last clause."""
        return list(self._clauses(finished=True))

    def _clauses(self, *, finished: bool) -> Iterator[Clause]:
        while self._text:
            try:
                cut = _find_cut(self._text, self.settings, first=self._first, finished=finished)
            except _NeedMore:
                return
            text, self._text = self._text[:cut], self._text[cut:]
            yield Clause(self._count, self._at, self._at + cut, text)
            self._at += cut
            self._count += 1
            self._first = self._first and not any(letter.isalnum() for letter in text)


def _find_cut(text: str, settings: ClauseSettings, *, first: bool, finished: bool) -> int:
    """Length of the first clause of `text`. _NeedMore where it cannot be told yet."""
    comma, link, limit = (
        (settings.first_words, settings.first_break, settings.first_limit)
        if first
        else (settings.later_words, settings.later_limit, settings.later_limit)
    )
    view = _View(text, finished)
    words = 0
    for i, letter in enumerate(text):
        if i == _LONGEST:
            return i
        spoken = words + (i > 0 and text[i - 1].isalnum())
        if letter == "\n" and spoken:
            return i + 1
        if letter in ".!?…" and spoken and view.ends_sentence(i):
            return view.after_closers(i)
        if letter in ",;:—\u2013" and spoken >= comma and view.ends_phrase(i):
            return view.after_closers(i)
        if letter.isspace() and i and not text[i - 1].isspace():
            words += any(c.isalnum() for c in text[view.word_start(i) : i])
            if words >= link and view.may_break(i, anywhere=words >= limit):
                return i
    if not finished:
        raise _NeedMore
    return len(text)


class _View:
    """Questions about places in a text whose end may not be written yet."""

    def __init__(self, text: str, finished: bool) -> None:
        self._text = text
        self._finished = finished

    def _letter(self, i: int) -> str:
        """The character at `i`, "" past the end of a finished text."""
        if i < len(self._text):
            return self._text[i]
        if self._finished:
            return ""
        raise _NeedMore

    def _next_word(self, i: int) -> str:
        """The word after the whitespace at `i`, complete."""
        while self._letter(i).isspace():
            i += 1
        start = i
        while (letter := self._letter(i)) and not letter.isspace():
            i += 1
        return self._text[start:i]

    def word_start(self, i: int) -> int:
        """Where the word that ends before `i` starts."""
        while i > 0 and not self._text[i - 1].isspace():
            i -= 1
        return i

    def after_closers(self, i: int) -> int:
        """The index behind the punctuation at `i` and the quotes or brackets that close with it."""
        while (letter := self._letter(i)) and letter in ".!?…,;:—\u2013" + _CLOSERS:
            i += 1
        return i

    def ends_sentence(self, i: int) -> bool:
        end = self.after_closers(i)
        following = self._letter(end)
        if following and not following.isspace():
            return False  # inside a price, a time, an address of the web
        if self._text[i] != ".":
            return True
        word = self._text[self.word_start(i) : i].lstrip("(\"'“\u2018").lower()
        if word in _TITLES or (len(word) == 1 and word.isalpha()):
            return not following
        if word == "no":
            return not self._next_word(end)[:1].isdigit()
        if word in _MAYBE:
            after = self._next_word(end) if following else "The"
            return after[:1].isupper() and after.rstrip(".,!?").lower() in _BEGINNERS
        # "1. Call us": the number of a list's item
        return not (word.isdigit() and self.word_start(i) == len(self._text) - len(self._text.lstrip()))

    def ends_phrase(self, i: int) -> bool:
        end = self.after_closers(i)
        following = self._letter(end)
        if following and not following.isspace() and self._text[i] not in "—\u2013":
            return False
        number_before = i > 0 and self._text[i - 1].isdigit()
        return not (number_before and self._next_word(end)[:1].isdigit())

    def may_break(self, i: int, *, anywhere: bool) -> bool:
        """Whether a pause may be made in the whitespace at `i`: never inside a number, a name with its
        title, a time.
        """
        before = self._text[self.word_start(i) : i].lower()
        following = self._next_word(i)
        if not following or before[-1:].isdigit() or before.rstrip(".") in _TITLES | _MAYBE:
            return False
        if following[:1].isdigit() or following[:1] in "$€£(+" or re.match(r"[ap]\.?m\b", following.lower()):
            return False
        return anywhere or following.lower().strip(_CLOSERS) in _LINKS


@dataclass(frozen=True, slots=True)
class SoundSettings:
    """frame_ms: length of the frames that come out. silence_db: what is quieter (dBFS) counts as silence.

    lead_ms: silence kept before a clause. sentence_pause_ms, clause_pause_ms: silence left after one, at
    most.
    """

    frame_ms: int = 20
    silence_db: float = -45.0
    lead_ms: int = 10
    sentence_pause_ms: int = 180
    clause_pause_ms: int = 60

    def __post_init__(self) -> None:
        for name, low, high in (
            ("frame_ms", 5, 1000),
            ("silence_db", -90, -20),
            ("lead_ms", 0, 500),
            ("sentence_pause_ms", 0, 2000),
            ("clause_pause_ms", 0, 2000),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise TtsSettingsError(f"{name} is {value!r}; it must be a number from {low} to {high}")


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """int16 audio and the characters `start` to `end` of the text whose words end in it (`text`, often
    empty).
    """

    samples: npt.NDArray[np.int16]
    clause: int
    start: int
    end: int
    text: str


def trimmed(audio: Samples, rate: int, settings: SoundSettings, pause_ms: float) -> Samples:
    """`audio` without its leading silence and with at most `pause_ms` behind it; empty where all of it is
    silence.
    """
    loud = np.flatnonzero(np.abs(audio) > 10 ** (settings.silence_db / 20))
    if not len(loud):
        return audio[:0]
    start = max(0, int(loud[0]) - int(settings.lead_ms * rate / 1000))
    end = min(len(audio), int(loud[-1]) + 1 + int(pause_ms * rate / 1000))
    cut = audio[start:end].copy()
    fade = min(len(cut), rate // 200)  # 5 ms, or the cut clicks
    cut[:fade] *= np.linspace(0, 1, fade, dtype=np.float32)
    cut[len(cut) - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    return cut


def frames(clause: Clause, audio: Samples, rate: int, settings: SoundSettings) -> Iterator[Frame]:
    """`audio` of a clause as int16 frames, the last one shorter. Each word belongs to the frame in which it
    ends, by
    its share of the clause's characters; the texts of all frames together are the clause's text.
    """
    size = max(1, rate * settings.frame_ms // 1000)
    pcm = (np.clip(np.nan_to_num(audio), -1.0, 1.0) * 32767.0).astype(np.int16)
    ends = [match.end() for match in re.finditer(r"\s*\S+", clause.text)] or [0]
    ends[-1] = len(clause.text)
    said = 0
    for start in range(0, len(pcm), size):
        stop = min(start + size, len(pcm))
        reached = len(clause.text) * stop / len(pcm)
        now = max([end for end in ends if end <= reached] or [0])
        yield Frame(pcm[start:stop], clause.index, clause.start + said, clause.start + now, clause.text[said:now])
        said = now


def heard(text: str, alignment: list[tuple[int, float]], played_ms: float) -> str:
    """What of `text` a listener has heard after `played_ms`. `alignment`: per frame, the end of its
    characters and its
    length in ms, in order.
    """
    end = 0
    for upto, length in alignment:
        if played_ms < length:
            break
        played_ms -= length
        end = upto
    return text[:end]


def pause_after(clause: Clause, settings: SoundSettings) -> float:
    """Silence in ms to leave after `clause`."""
    return settings.sentence_pause_ms if clause.ends_sentence else settings.clause_pause_ms


def concatenated(pieces: list[npt.NDArray[Any]]) -> Samples:
    """One float32 array of all `pieces`."""
    return np.concatenate(pieces).astype(np.float32, copy=False) if pieces else np.zeros(0, np.float32)
