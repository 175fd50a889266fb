"""What flows between chainlets: audio, text, tokens, tensors, control. Frozen, cheap to make, never copied in-process.

Every message may carry the `turn` that it belongs to, so that what comes late can be dropped at the way out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chains.errors import InvalidValue

RATES = range(4_000, 192_001)


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """A piece of mono sound: `pcm` int16 of shape (samples,), read-only, at `rate` samples a second.

    `text` is what is spoken in it where that is known (a synthesiser says so), `turn` the turn that it answers in.
    Raises InvalidValue for another dtype, another shape or a rate outside 4-192 kHz.
    """

    pcm: NDArray[np.int16]
    rate: int
    turn: int = 0
    text: str = ""

    def __post_init__(self) -> None:
        pcm: Any = self.pcm
        if not isinstance(pcm, np.ndarray) or pcm.dtype != np.int16 or pcm.ndim != 1:
            found = f"{pcm.dtype} of shape {pcm.shape}" if isinstance(pcm, np.ndarray) else type(pcm).__name__
            raise InvalidValue(
                f"Audio.pcm is {found}", mend="give a one-dimensional int16 array, or use Audio.from_float"
            )
        if self.rate not in RATES:
            raise InvalidValue(f"Audio.rate is {self.rate!r}", mend="give samples per second, e.g. 16000")
        if pcm.flags.writeable:
            view = pcm.view()
            view.flags.writeable = False
            object.__setattr__(self, "pcm", view)

    @classmethod
    def from_float(cls, samples: NDArray[np.floating[Any]], rate: int, *, turn: int = 0, text: str = "") -> Audio:
        """From float samples in [-1, 1], shape (samples,); what lies outside is clipped, NaN becomes silence."""
        scaled = np.nan_to_num(np.asarray(samples, np.float32), posinf=1.0, neginf=-1.0) * 32767.0
        return cls(np.clip(scaled, -32768, 32767).astype(np.int16), rate, turn, text)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, rate: int, *, turn: int = 0) -> Audio:
        """From little-endian 16-bit PCM; shares the buffer. Raises InvalidValue when a byte is left over."""
        if len(data) % 2:
            raise InvalidValue(
                f"{len(data)} bytes are no whole number of 16-bit samples",
                mend="send an even number of bytes",
            )
        return cls(np.frombuffer(data, "<i2"), rate, turn)

    @property
    def seconds(self) -> float:
        return len(self.pcm) / self.rate

    def to_float(self) -> NDArray[np.float32]:
        """Samples in [-1, 1), float32, shape (samples,)."""
        return self.pcm.astype(np.float32) / 32768.0

    def to_bytes(self) -> bytes:
        """Little-endian 16-bit PCM."""
        return self.pcm.astype("<i2", copy=False).tobytes()


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text. `final` is False while a recogniser may still change its mind, or a model goes on writing.

    `role` is who speaks ("user", "assistant", or empty), `start_ms`/`end_ms` where in the caller's audio it was heard.
    """

    text: str
    final: bool = True
    turn: int = 0
    role: str = ""
    start_ms: float = 0.0
    end_ms: float = 0.0

    def __post_init__(self) -> None:
        if type(self.text) is not str or type(self.role) is not str:
            raise _not_text("Text", self.text if type(self.text) is not str else self.role)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids as a model emits them, with the text that became certain by them (may be empty)."""

    ids: tuple[int, ...]
    text: str = ""
    turn: int = 0

    def __post_init__(self) -> None:
        if type(self.text) is not str:
            raise _not_text("Tokens", self.text)
        if type(self.ids) is not tuple:
            raise InvalidValue(f"Tokens.ids is {type(self.ids).__name__}", mend="give a tuple of ints")


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A named array: `data` is a numpy array (read-only) of any shape and dtype without objects."""

    data: NDArray[Any]
    name: str = ""
    turn: int = 0

    def __post_init__(self) -> None:
        data: Any = self.data
        if not isinstance(data, np.ndarray) or data.dtype.hasobject:
            raise InvalidValue(
                f"Tensor.data is {type(self.data).__name__}", mend="give a numpy array without Python objects"
            )
        if self.data.flags.writeable:
            view = self.data.view()
            view.flags.writeable = False
            object.__setattr__(self, "data", view)


@dataclass(frozen=True, slots=True)
class Control:
    """Something that happened and is neither sound nor text: "speech_started", "hang_up", a tool's result.

    `data` is plain JSON: str, numbers, bool, None, lists and dicts with str keys.
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    turn: int = 0

    def __post_init__(self) -> None:
        if type(self.kind) is not str:
            raise _not_text("Control", self.kind)
        if type(self.data) is not dict:
            raise InvalidValue(f"Control.data is {type(self.data).__name__}", mend="give a dict of plain JSON")


def _not_text(message: str, found: object) -> InvalidValue:
    return InvalidValue(f"{message} was given {type(found).__name__} for text", mend="give a str")
