"""A reply as the caller hears it: each piece after the one before, never earlier than it came.

For clients that report what they have played, with or without a loudspeaker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chains.messages import Audio


@dataclass
class Playback:
    """The reply on the caller's clock (monotonic seconds): `pieces` are (start, sound), `end` is when all is heard.

    Give `on_event` to `ClientCall.watch`: a cleared turn is cut at once, a held one waits until it is resumed.
    """

    now: Callable[[], float] = time.monotonic
    began: float = 0.0
    end: float = 0.0
    pieces: list[tuple[float, Audio]] = field(default_factory=list)
    held_since: float | None = None

    def add(self, piece: Audio) -> None:
        start = max(self.end, self.now())
        self.pieces.append((start, piece))
        self.end = start + piece.seconds

    def on_event(self, event: str, turn: int) -> None:
        """What the server says of a turn: "clear", "held", "resumed"; anything else changes nothing here."""
        if event == "clear":
            self.clear(turn)
        elif event == "held":
            self.hold()
        elif event == "resumed":
            self.resume()

    def clear(self, turn: int) -> None:
        """What of the turn has not been heard yet never will be."""
        now = self.now() if self.held_since is None else self.held_since
        kept, self.end = [], 0.0
        for start, piece in self.pieces:
            if piece.turn == turn and start + piece.seconds > now:
                piece = Audio(piece.pcm[: max(0, round((now - start) * piece.rate))], piece.rate, turn, piece.text)
            if len(piece.pcm):
                kept.append((start, piece))
                self.end = start + piece.seconds
        self.pieces = kept
        self.held_since = None

    def hold(self) -> None:
        """Stop playing; what comes meanwhile is kept."""
        if self.held_since is None:
            self.held_since = self.now()

    def resume(self) -> None:
        """Play on where it stopped."""
        if self.held_since is None:
            return
        since, pause = self.held_since, self.now() - self.held_since
        self.held_since = None
        moved: list[tuple[float, Audio]] = []
        for start, piece in self.pieces:
            split = round((since - start) * piece.rate)
            if start >= since:
                moved.append((start + pause, piece))
            elif split >= len(piece.pcm):
                moved.append((start, piece))
            else:
                moved.append((start, Audio(piece.pcm[:split], piece.rate, piece.turn)))
                moved.append((since + pause, Audio(piece.pcm[split:], piece.rate, piece.turn, piece.text)))
        self.pieces = moved
        self.end = max((start + piece.seconds for start, piece in moved), default=0.0)

    async def quiet(self) -> None:
        """Return once all that has come was heard (real time: for the default `now`)."""
        while (left := self.end - self.now()) > 0:  # noqa: ASYNC110 - the end moves while more comes
            await asyncio.sleep(left)

    def played(self) -> dict[int, float]:
        """Milliseconds heard of each turn so far."""
        now = self.now() if self.held_since is None else self.held_since
        heard = dict[int, float]()
        for start, piece in self.pieces:
            ms = 1000 * min(max(0.0, now - start), piece.seconds)
            heard[piece.turn] = heard.get(piece.turn, 0.0) + ms
        return heard

    def track(self, rate: int) -> NDArray[np.int16]:
        """All that was heard, silence included, int16 of shape (samples,) at `rate`, from `began` on.

        Pieces of another rate are resampled.
        """
        length = max((start - self.began + piece.seconds for start, piece in self.pieces), default=0.0)
        out = np.zeros(int(length * rate) + rate // 10, np.int16)
        for start, pcm in self._joined(rate):
            at = max(0, int((start - self.began) * rate))
            out[at : at + len(pcm)] = pcm[: len(out) - at]
        return out

    def _joined(self, rate: int) -> list[tuple[float, NDArray[np.int16]]]:
        """Runs of pieces that follow each other, each resampled whole so that no seam is heard."""
        runs: list[tuple[float, float, int, list[NDArray[np.int16]]]] = []
        for start, piece in self.pieces:
            if runs and abs(runs[-1][1] - start) < 1e-6 and runs[-1][2] == piece.rate:
                first, _, same, parts = runs[-1]
                parts.append(piece.pcm)
                runs[-1] = (first, start + piece.seconds, same, parts)
            else:
                runs.append((start, start + piece.seconds, piece.rate, [piece.pcm]))
        return [(start, _resampled(np.concatenate(parts), had, rate)) for start, _, had, parts in runs]


def _resampled(pcm: NDArray[np.int16], had: int, rate: int) -> NDArray[np.int16]:
    if had == rate:
        return pcm
    import soxr

    return np.asarray(soxr.resample(pcm, had, rate), np.int16)
