"""The microphone: without its package or a sound card a clear word; with a card its streams.

No build machine has a sound card, so the card here is a small module of the same interface as sounddevice.
"""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType
from typing import Any, Self

import numpy as np
import pytest

from chains.cli.main import main
from chains.cli.microphone import Microphone
from chains.errors import MediaError
from chains.messages import Audio


class PortAudioError(Exception):
    pass


def card(monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> list[Any]:
    """Install a sound card whose streams the test drives through their callbacks: [input, output]."""
    opened: list[Any] = []

    class Stream:
        def __init__(self, callback: Any, **options: Any) -> None:
            self.callback, self.options = callback, options
            if fails:
                raise PortAudioError("no device")
            opened.append(self)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            opened.remove(self)

    module = ModuleType("sounddevice")
    module.InputStream = module.OutputStream = Stream  # type: ignore[attr-defined]
    module.PortAudioError = PortAudioError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    return opened


def test_without_its_package_it_names_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)  # as if it were not installed
    assert main(["dial", "ws://127.0.0.1:1", "--mic"]) == 2
    assert "pip install sounddevice" in capsys.readouterr().err


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    card(monkeypatch, fails=True)
    with pytest.raises(MediaError, match=r"no device.*--wav"), Microphone(16000):
        pass


async def test_what_is_heard_is_spoken_in_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = card(monkeypatch)
    with Microphone(16000) as microphone:
        listening = opened[0]
        listening.callback(np.ones((320, 1), np.int16))  # nobody listens yet
        frames = microphone.frames()
        first = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(0)
        listening.callback(np.full((320, 1), 2, np.int16))
        frame = await first
        assert (frame.rate, len(frame.pcm), frame.pcm[0]) == (16000, 320, 2)
        assert microphone.spoken.tolist() == [2] * 320
    assert not opened


def test_what_comes_back_is_played_until_it_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = card(monkeypatch)
    with Microphone(8000) as microphone:
        speaking, out = opened[1], np.zeros((160, 1), np.int16)
        microphone.play(Audio(np.full(200, 3, np.int16), 8000))
        speaking.callback(out, 160)
        assert (out == 3).all()
        speaking.callback(out, 160)
        assert np.count_nonzero(out) == 40
        microphone.play(Audio(np.full(200, 3, np.int16), 8000))
        microphone.clear()
        speaking.callback(out, 160)
        assert not out.any()
