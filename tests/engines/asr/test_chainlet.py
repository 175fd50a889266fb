"""The recogniser on the in-process runtime, fed by the detector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from chains import Audio, Control, Text, chainlet, depends
from chains.dsl.graph import build
from chains.errors import ModelError, SettingError
from chains.runtime.inprocess import InProcess
from engines.asr.chainlet import Asr
from engines.vad.chainlet import Vad
from tests.speech.sounds import SENTENCES, Samples, Say, error_rate, over_the_telephone


@chainlet(entry=True)
class Ears:
    vad: Vad = depends(Vad)
    asr: Asr = depends(Asr, partial_ms=400)

    async def hear(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Text | Control]:
        async for item in self.asr.transcribe(self.vad.listen(audio)):
            yield item

    async def read(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Text | Control]:
        async for item in self.asr.transcribe(audio):
            yield item

    async def once(self, audio: Audio) -> Text:
        return await self.asr.recognise(audio)


async def in_frames(audio: Samples, rate: int) -> AsyncIterator[Audio]:
    for at in range(0, len(audio), rate // 50):
        yield Audio.from_float(audio[at : at + rate // 50], rate)


async def test_two_callers_at_once_are_each_understood_by_segment(say: Say) -> None:
    rate = 8000
    pause = np.zeros(rate, np.float32)
    said = [list(SENTENCES[3:5]), list(SENTENCES[1:3])]
    audio = [
        over_the_telephone(np.concatenate([piece for text in texts for piece in (say(text, rate), pause)]), rate)
        for texts in said
    ]
    async with InProcess(build(Ears)) as runtime, runtime.open_call(), runtime.open_call():
        streams = [runtime.entry.hear(in_frames(sound, rate)) for sound in audio]
        found = [[item async for item in stream] for stream in streams]
    for texts, items in zip(said, found, strict=True):
        finals = [item for item in items if isinstance(item, Text) and item.final]
        starts = [item.data["at_ms"] for item in items if isinstance(item, Control) and item.kind == "speech_started"]
        assert [final.start_ms for final in finals] == starts
        assert error_rate(texts, [final.text for final in finals]) < 0.1


async def test_the_guess_comes_before_the_end_and_is_the_final_text(say: Say) -> None:
    guessed = asyncio.Event()

    async def speech() -> AsyncIterator[Audio | Control]:
        yield Control("speech_started", {"segment": 1, "at_ms": 40})
        yield Audio.from_float(say(SENTENCES[3], 16000), 16000)
        yield Control("speech_maybe_ended", {"segment": 1, "at_ms": 1800})
        await guessed.wait()
        yield Control("speech_ended", {"segment": 1, "at_ms": 1800})

    asr = Asr(partial_ms=0)
    asr.load()
    found = []
    async for item in asr.transcribe(speech()):
        found.append(item)
        if isinstance(item, Control) and item.kind == "transcript_guess":
            guessed.set()
    guess, final = found[2], found[4]
    assert isinstance(guess, Control) and isinstance(final, Text)
    assert guess.data == {"segment": 1, "text": final.text, "start_ms": 40.0, "end_ms": 1800.0}
    assert final.final and final.start_ms == 40


async def test_audio_without_marks_is_one_segment(say: Say) -> None:
    async with InProcess(build(Ears)) as runtime, runtime.open_call() as call:
        found = [item async for item in runtime.entry.read(in_frames(say(SENTENCES[0], 16000), 16000))]
        whole = await runtime.entry.once(Audio.from_float(say(SENTENCES[1], 24000), 24000))
    record = runtime.recorder.find(call.id)
    assert record is not None
    heard = [hop.notes["chains.audio_s"] for hop in record.hops if hop.node == "Asr"]
    assert [round(float(seconds), 1) for seconds in heard] == [  # type: ignore[arg-type]
        round(len(say(SENTENCES[0], 16000)) / 16000, 1), round(len(say(SENTENCES[1], 24000)) / 24000, 1)
    ]  # fmt: skip
    assert isinstance(found[-1], Text) and found[-1].final
    assert error_rate([SENTENCES[0], SENTENCES[1]], [found[-1].text, whole.text]) < 0.1
    assert len([item for item in found if isinstance(item, Text) and item.final]) == 1


async def test_silence_gives_nothing_at_all() -> None:
    async with InProcess(build(Ears)) as runtime, runtime.open_call():
        assert [item async for item in runtime.entry.hear(in_frames(np.zeros(24000, np.float32), 8000))] == []


async def test_a_caller_who_hangs_up_leaves_no_task_behind(say: Say) -> None:
    before = asyncio.all_tasks()
    async with InProcess(build(Ears)) as runtime, runtime.open_call():
        async for item in runtime.entry.hear(in_frames(say(SENTENCES[0], 8000), 8000)):
            assert isinstance(item, Control)
            break
    assert asyncio.all_tasks() == before


async def test_an_error_of_the_model_reaches_the_consumer() -> None:
    never = asyncio.Event()

    async def speech() -> AsyncIterator[Audio | Control]:
        yield Control("speech_started", {"segment": 1, "at_ms": 0})
        yield Audio.from_float(np.full(16000, 0.1, np.float32), 16000)
        yield Control("speech_maybe_ended", {"segment": 1, "at_ms": 1000})
        await never.wait()

    asr = Asr(partial_ms=0)
    asr.load()
    del asr._model._whisper  # as if the weights were gone
    with pytest.raises(AttributeError):
        async for _ in asr.transcribe(speech()):
            pass


async def test_a_long_recording_pushed_at_once_is_held_up(say: Say) -> None:
    """Segments that wait for the model hold their audio: only a few may."""
    one = Audio.from_float(say("Yes.", 16000), 16000)
    asr = Asr(partial_ms=0)
    asr.load()
    ahead, finals, most = 0, 0, 0

    async def speech() -> AsyncIterator[Audio | Control]:
        nonlocal ahead, most
        for segment in range(1, 31):
            yield Control("speech_started", {"segment": segment, "at_ms": segment})
            yield one
            yield Control("speech_ended", {"segment": segment, "at_ms": segment + 1})
            ahead += 1
            most = max(most, ahead - finals)

    async for item in asr.transcribe(speech()):
        finals += isinstance(item, Text) and item.final
    assert finals == 30
    assert most <= 10


async def test_a_model_that_is_not_here_is_told_at_the_start() -> None:
    with pytest.raises(ModelError, match=r"models at hand: tiny\.en"):
        Asr("no-such-model").load()
    with pytest.raises(SettingError, match="partial_ms is 5"):
        Asr(partial_ms=5)
