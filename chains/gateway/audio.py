"""Sound at the edge: reading files, stereo to mono, other rates, streams that are resampled without delay."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from chains.errors import MediaError
from chains.messages import RATES, Audio

FRAME_MS = 20
READABLE = "wav, flac, ogg or mp3"


def read(source: str | Path | bytes, rate: int | None = None) -> Audio:
    """A whole file (its path, or its bytes) as mono audio, at its own rate or at `rate`.

    Several channels become their mean. Raises MediaError for what is missing, broken, empty or no audio.
    """
    name = "the audio" if isinstance(source, bytes) else str(source)
    if isinstance(source, bytes):
        _refuse_truncated(source, name)
    else:
        source = _file_bytes(Path(source), name)
        _refuse_truncated(source, name)
    try:
        samples, own_rate = soundfile.read(io.BytesIO(source), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        found = _words(str(error.error_string))
        raise MediaError(f"{name} cannot be read as audio: {found}", mend=f"give a {READABLE} file") from None
    if not len(samples):
        raise MediaError(f"{name} holds no samples", mend="record again; the file has a header and nothing in it")
    if not np.isfinite(samples).all():
        raise MediaError(f"{name} holds samples that are no numbers", mend="export it again as 16-bit PCM")
    if own_rate not in RATES:
        raise MediaError(f"{name} is at {own_rate} samples a second", mend="export it at a rate from 8000 to 192000")
    mono = samples.mean(axis=1)
    return Audio.from_float(_resampled(mono, own_rate, rate or own_rate), rate or own_rate)


def _file_bytes(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MediaError(f"{name} does not exist", mend=f"give the path of a {READABLE} file") from None
    except OSError as error:
        raise MediaError(f"{name} cannot be opened: {error.strerror}", mend="check its path and rights") from None


def _refuse_truncated(data: bytes, name: str) -> None:
    """libsndfile reads a cut-off wav without a word; the header says how much should be there."""
    if not data:
        raise MediaError(f"{name} is empty", mend=f"give a {READABLE} file")
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        return
    position = 12
    while position + 8 <= len(data):
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        if data[position : position + 4] == b"data":
            there = len(data) - position - 8
            # 0 and 0xFFFFFFFF (and what streaming writers leave) mean "until the end"
            if there < length < 0x7FFF_0000:
                raise MediaError(
                    f"{name} is cut off: its header says {length} bytes of sound, {there} are there",
                    mend="copy or record it again",
                )
            return
        position += 8 + length + length % 2
    raise MediaError(f"{name} is a wav file without sound in it", mend="record or export it again")


def write_wav(path: str | Path, pcm: NDArray[np.int16], rate: int) -> None:
    """16-bit wav; `pcm` of shape (samples,) or (samples, channels). MediaError if it cannot be written."""
    try:
        soundfile.write(str(path), pcm, rate, format="WAV", subtype="PCM_16")
    except (soundfile.LibsndfileError, OSError) as error:
        raise MediaError(f"{path} cannot be written: {error}", mend="check its folder and rights") from None


def check_writable(path: str | Path) -> None:
    """Raises MediaError now for a file that could not be written later, when what goes into it would be lost."""
    place = Path(path)
    folder = place.parent
    if place.is_dir():
        raise MediaError(f"{place} is a folder", mend="give the name of a file in it")
    if not folder.is_dir():
        raise MediaError(f"{place} cannot be written: there is no folder {folder}", mend=f"mkdir -p {folder}")
    if not os.access(place if place.exists() else folder, os.W_OK):
        raise MediaError(f"{place} cannot be written: no right to", mend="choose another file, or change its rights")


def _words(reason: str) -> str:
    """What the library says, without its internals."""
    return "its header makes no sense" if "internal error" in reason.lower() else reason.rstrip(".")


def resample(audio: Audio, rate: int) -> Audio:
    """A whole recording at another rate, in high quality; the same object if it has that rate."""
    if audio.rate == rate:
        return audio
    return Audio.from_float(_resampled(audio.to_float(), audio.rate, rate), rate, turn=audio.turn, text=audio.text)


def _resampled(samples: NDArray[np.float32], rate: int, to: int) -> NDArray[np.float32]:
    if rate == to:
        return samples
    result: NDArray[np.float32] = soxr.resample(samples, rate, to, quality="HQ")
    return result


def frames(audio: Audio, ms: int = FRAME_MS) -> Iterator[Audio]:
    """The audio in pieces of `ms`, the last one padded with silence to the full length."""
    step = audio.rate * ms // 1000
    for start in range(0, len(audio.pcm), step):
        piece = audio.pcm[start : start + step]
        if len(piece) < step:
            piece = np.pad(piece, (0, step - len(piece)))
        yield Audio(piece, audio.rate, audio.turn, audio.text)


class Resampler:
    """A stream of audio at another rate, with about 2 ms of delay; `flush` gives what is still held back.

    soxr's filters of better quality hold back 17 to 60 ms; here a short low-pass in front of its fastest one
    keeps aliases 40 dB down.
    """

    def __init__(self, rate: int, to: int) -> None:
        self.rate, self.to = rate, to
        self._taps = _low_pass(rate, to)
        self._start()

    def _start(self) -> None:
        self._stream = soxr.ResampleStream(self.rate, self.to, 1, dtype="float32", quality="QQ")
        self._tail = np.zeros(max(0, len(self._taps) - 1), np.float32)
        self._skip = len(self._taps) // 2

    def push(self, pcm: NDArray[np.int16]) -> NDArray[np.int16]:
        """int16 samples at `rate` -> int16 samples at `to` (as many as are certain by now)."""
        return self._convert(pcm.astype(np.float32), last=False)

    def flush(self) -> NDArray[np.int16]:
        """The end of the stream; a next `push` starts a new one."""
        rest = self._convert(np.zeros(len(self._taps) // 2, np.float32), last=True)
        self._start()
        return rest

    def _convert(self, samples: NDArray[np.float32], last: bool) -> NDArray[np.int16]:
        if len(self._taps) and len(samples):
            joined = np.concatenate((self._tail, samples))
            self._tail = joined[len(joined) - len(self._tail) :]
            samples = np.convolve(joined, self._taps, "valid").astype(np.float32)
            skipped = min(self._skip, len(samples))  # the filter's own delay, so that nothing shifts in time
            self._skip -= skipped
            samples = samples[skipped:]
        out = self._stream.resample_chunk(samples, last=last)
        clipped: NDArray[np.int16] = np.clip(np.rint(out), -32768, 32767).astype(np.int16)
        return clipped


class AtRate:
    """A stream of Audio at the rates that somebody wants: `wanted(rate)` is what a piece at `rate` is to become."""

    def __init__(self, wanted: Callable[[int], int]) -> None:
        self._wanted = wanted
        self._resampler: Resampler | None = None
        self.turn = 0

    def push(self, piece: Audio) -> Audio:
        """The piece, converted as far as it is certain by now; the same object if its rate is wanted."""
        to = self._wanted(piece.rate)
        if to == piece.rate:
            return piece
        if self._resampler is None or (self._resampler.rate, self._resampler.to) != (piece.rate, to):
            self._resampler = Resampler(piece.rate, to)
        self.turn = piece.turn
        return Audio(self._resampler.push(piece.pcm), to, piece.turn, piece.text)

    def flush(self) -> Audio | None:
        """What is still held back at the end of a turn or of the stream, None if nothing is."""
        resampler, self._resampler = self._resampler, None
        if resampler is None:
            return None
        rest = resampler.flush()
        return Audio(rest, resampler.to, self.turn) if len(rest) else None


def _low_pass(rate: int, to: int) -> NDArray[np.float32]:
    """Taps of a windowed sinc that ends at the new Nyquist frequency; none when going up."""
    if to >= rate:
        return np.zeros(0, np.float32)
    half = 16 * math.ceil(rate / to)
    at = np.arange(-half, half + 1)
    cutoff = 0.86 * to / rate
    taps = np.sinc(cutoff * at) * np.hamming(len(at))
    normed: NDArray[np.float32] = (taps / taps.sum()).astype(np.float32)
    return normed
