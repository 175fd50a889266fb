"""The voice on the in-process runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from chains import Text
from chains.dsl.graph import build
from chains.errors import ModelError, SettingError
from chains.runtime.inprocess import InProcess
from engines.tts.chainlet import Tts

TEXT = "Well of course, we can do that. Dr. Lopez is here at 9:30 a.m. on Monday."


async def letters(text: str, turn: int = 0) -> AsyncIterator[str | Text]:
    for letter in text:
        yield Text(letter, final=False, turn=turn)


async def test_text_comes_in_and_its_audio_comes_out() -> None:
    async with InProcess(build(Tts)) as runtime, runtime.open_call() as call:
        spoken = [audio async for audio in runtime.entry.speak(letters(TEXT, turn=3))]
        said = [audio async for audio in runtime.entry.say(TEXT)]
    record = runtime.recorder.find(call.id)
    assert record is not None
    for hop in record.hops:
        seconds = round(sum(audio.seconds for audio in spoken), 3)
        assert hop.notes == {"chains.characters": len(TEXT), "chains.audio_s": seconds}
    assert "".join(audio.text for audio in spoken) == TEXT
    assert {audio.rate for audio in spoken} == {24000}
    assert {audio.turn for audio in spoken} == {3}
    assert max(len(audio.pcm) for audio in spoken) == 480
    assert [len(audio.pcm) for audio in said] == [len(audio.pcm) for audio in spoken]


async def test_the_first_clause_is_heard_while_the_rest_is_not_written_yet() -> None:
    heard = asyncio.Event()

    async def writer() -> AsyncIterator[str | Text]:
        yield "Well of course, we "
        await heard.wait()
        yield "can do that."

    text = ""
    async with InProcess(build(Tts)) as runtime, runtime.open_call():
        async for audio in runtime.entry.speak(writer()):
            heard.set()
            text += audio.text
    assert text == "Well of course, we can do that."


async def test_the_rate_can_be_the_telephones() -> None:
    async with InProcess(build(Tts)) as runtime, runtime.open_call():
        own = [audio async for audio in runtime.entry.say("Good morning.")]
    tts = Tts(rate=8000, frame_ms=40)
    tts.load()
    narrow = [audio async for audio in tts.say("Good morning.")]
    assert {audio.rate for audio in narrow} == {8000}
    assert len(narrow[0].pcm) == 320
    assert abs(sum(audio.seconds for audio in narrow) - sum(audio.seconds for audio in own)) < 0.01
    assert np.concatenate([audio.pcm for audio in narrow]).any()


@pytest.mark.parametrize("text", ["", "  ", "😀"])
async def test_nothing_to_say_gives_nothing(text: str) -> None:
    tts = Tts()
    tts.load()
    assert [audio async for audio in tts.say(text)] == []


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SettingError, match="frame_ms is 0"):
        Tts(frame_ms=0)
    with pytest.raises(SettingError, match="sound settings do not fit"):
        Tts(sound={"loudness": 3})
    with pytest.raises(SettingError, match="options do not fit the backend 'hibari'"):
        Tts(voice_options={"pitch": 2}).load()
    with pytest.raises(ModelError, match="there are: hibari, coqui"):
        Tts("festival").load()
