"""What one step computes, in integers alone: the scheduler writes it, each rank's runner reads the same bytes."""

from __future__ import annotations

from array import array
from typing import NamedTuple, Self

from engines.llm.errors import PlanInvalid

MAGIC = 0x434850_01  # "CHP" and the layout's number
_HEAD, _FIXED = 3, 11
_WORD = 8


class Row(NamedTuple):
    """A sequence's part of a step: `count` inputs at positions from `start`, their keys and values go to `slots`.

    `row` >= 1 is the sequence's line in the page table. `tokens` are the inputs; empty: one token, which the
    device has in its token pool under `row`. `sample` trailing positions are sampled: 0 while a prompt is chunked,
    1 normally, 1+k to check k guesses. `fresh`: the line is to be (re)written; `prefix` are then the pages of
    positions below `start`, `settings` is SamplingCode, and with penalties `history` are all tokens so far and
    `prompt` is how many of them are the prompt's (else empty and 0).
    """

    row: int
    start: int
    count: int  # type: ignore[assignment]  # a tuple's count() is of no use here
    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    sample: int
    fresh: bool = False
    prefix: tuple[int, ...] = ()
    settings: tuple[int, ...] = ()
    history: tuple[int, ...] = ()
    prompt: int = 0


class BatchPlan(NamedTuple):
    """Step number `step`. Rows of one input and one sample come first: the plain decodes."""

    step: int
    rows: tuple[Row, ...]

    @property
    def tokens(self) -> int:
        """Inputs of the whole step."""
        return sum(row.count for row in self.rows)

    @property
    def decodes(self) -> int:
        """How many rows at the beginning have exactly one input."""
        for number, row in enumerate(self.rows):
            if row.count != 1:
                return number
        return len(self.rows)

    def encode(self) -> bytes:
        """64-bit integers in the machine's byte order: a plan stays on one machine."""
        words = array("q", (MAGIC, self.step, len(self.rows)))
        body = array("q")
        for row in self.rows:
            parts = (row.tokens, row.slots, row.prefix, row.settings, row.history)
            words.extend((row.row, row.start, row.count, row.sample, row.fresh, row.prompt, *map(len, parts)))
            for part in parts:
                body.extend(part)
        return words.tobytes() + body.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The plan in `data`. Raises PlanInvalid for anything that `encode` cannot have written."""
        if len(data) % _WORD or len(data) < _HEAD * _WORD:
            raise PlanInvalid(f"{len(data)} bytes are no plan")
        words = array("q", data)
        magic, step, count = words[:_HEAD]
        if magic != MAGIC:
            raise PlanInvalid(f"the bytes begin with {magic:#x}, a plan with {MAGIC:#x}")
        at = _HEAD + count * _FIXED
        if step < 0 or count < 0 or at > len(words):
            raise PlanInvalid(f"step {step} with {count} rows in {len(words)} words")
        rows = []
        for number in range(count):
            fixed = words[_HEAD + number * _FIXED : _HEAD + (number + 1) * _FIXED]
            sizes = fixed[6:]
            if min(sizes) < 0 or at + sum(sizes) > len(words):
                raise PlanInvalid(f"row {number} says lengths {list(sizes)}, and {len(words) - at} words are left")
            parts = []
            for size in sizes:
                parts.append(tuple(words[at : at + size]))
                at += size
            rows.append(_row(number, fixed, parts))
        if at != len(words):
            raise PlanInvalid(f"{len(words) - at} words are left over after the last row")
        return cls(step, tuple(rows))


def _row(number: int, fixed: array[int], parts: list[tuple[int, ...]]) -> Row:
    """The row of these words, if it makes sense."""
    row, start, count, sample, fresh, prompt = fixed[:6]
    tokens, slots, prefix, settings, history = parts
    sound = (
        row >= 1
        and start >= 0
        and count >= 1
        and 0 <= sample <= count
        and fresh in (0, 1)
        and len(tokens) in (count, 0 if count == 1 else count)
        and len(slots) == count
        and len(prefix) == (start if fresh else 0)
        and 0 <= prompt <= len(history)
        and (bool(fresh) or not (settings or history))
        and min(tokens, default=0) >= 0
        and min(slots) >= 1
        and min(prefix, default=1) >= 1
        and min(history, default=0) >= 0
    )
    if not sound:
        raise PlanInvalid(f"row {number} contradicts itself: {list(fixed)}")
    return Row(row, start, count, tokens, slots, sample, bool(fresh), prefix, settings, history, prompt)
