"""The caller's own microphone and speaker, where the sounddevice package and a sound card are there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from chains.errors import MediaError, SettingError
from chains.gateway.audio import FRAME_MS
from chains.messages import Audio


class Microphone:
    """Speaks what the microphone hears and plays what comes back, both mono at `rate`.

    Raises SettingError where sounddevice is not installed, MediaError where there is no device.
    """

    ended_at: float | None = None  # a caller at a microphone ends the call with Ctrl-C

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._devices = _library()
        self._frame = rate * FRAME_MS // 1000
        self._heard: list[NDArray[np.int16]] = []
        self._queue: asyncio.Queue[Audio] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._playing = np.zeros(0, np.int16)
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        options: dict[str, Any] = {
            "samplerate": self.rate, "channels": 1, "dtype": "int16", "blocksize": self._frame,
        }  # fmt: skip
        try:
            self._stack.enter_context(self._devices.InputStream(callback=self._on_sound, **options))
            self._stack.enter_context(self._devices.OutputStream(callback=self._on_need, **options))
        except self._devices.PortAudioError as error:
            self._stack.close()
            raise MediaError(
                f"no sound device can be opened: {error}", mend="plug one in, or speak a file: --wav"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def spoken(self) -> NDArray[np.int16]:
        return np.concatenate(self._heard) if self._heard else np.zeros(0, np.int16)

    async def frames(self) -> AsyncIterator[Audio]:
        self._loop = asyncio.get_running_loop()
        while True:
            yield await self._queue.get()

    def play(self, piece: Audio) -> None:
        with self._lock:
            self._playing = np.concatenate((self._playing, piece.pcm))

    def clear(self) -> None:
        with self._lock:
            self._playing = self._playing[:0]

    def _on_sound(self, data: NDArray[np.int16], *_: object) -> None:
        if self._loop is not None:  # before the call is open nobody listens
            pcm = data[:, 0].copy()
            self._heard.append(pcm)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, Audio(pcm, self.rate))

    def _on_need(self, out: NDArray[np.int16], count: int, *_: object) -> None:
        with self._lock:
            now, self._playing = self._playing[:count], self._playing[count:]
        out[:] = 0
        out[: len(now), 0] = now


def _library() -> Any:
    try:
        import sounddevice
    except ModuleNotFoundError:
        raise SettingError("a microphone needs the package sounddevice", mend="pip install sounddevice") from None
    except OSError:
        raise SettingError(
            "sounddevice finds no PortAudio library", mend="install it, e.g. apt-get install libportaudio2"
        ) from None
    return sounddevice
