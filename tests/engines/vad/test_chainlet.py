"""The detector on the in-process runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import numpy as np
import pytest

from chains import Audio, Control
from chains.dsl.graph import build
from chains.errors import ChainsError, MediaError, ModelError, SettingError
from chains.runtime.inprocess import InProcess
from engines.vad.chainlet import Vad
from tests.speech.sounds import SENTENCES, Samples, Say


async def in_frames(audio: Samples, rate: int) -> AsyncIterator[Audio]:
    for at in range(0, len(audio), rate // 50):
        yield Audio.from_float(audio[at : at + rate // 50], rate)


async def one_after_another(items: Iterable[Audio]) -> AsyncIterator[Audio]:
    for item in items:
        yield item


async def listened(audio: AsyncIterator[Audio]) -> list[Audio | Control]:
    async with InProcess(build(Vad)) as runtime, runtime.open_call():
        return [item async for item in runtime.entry.listen(audio)]


@pytest.mark.parametrize(("rate", "out"), [(8000, 8000), (16000, 16000), (24000, 16000), (48000, 16000)])
async def test_speech_comes_out_between_its_marks(say: Say, rate: int, out: int) -> None:
    quiet = np.zeros(rate // 2, np.float32)
    found = await listened(in_frames(np.concatenate((quiet, say(SENTENCES[3], rate), quiet)), rate))
    marks = [item for item in found if isinstance(item, Control)]
    assert [mark.kind for mark in (marks[0], marks[-1])] == ["speech_started", "speech_ended"]
    assert isinstance(found[0], Control) and isinstance(found[-1], Control)
    assert all(mark.data["segment"] == 1 for mark in marks)
    assert 500 < marks[0].data["at_ms"] < 1000
    speech = [item for item in found if isinstance(item, Audio)]
    assert {piece.rate for piece in speech} == {out}
    assert sum(piece.seconds for piece in speech) > (marks[-1].data["at_ms"] - marks[0].data["at_ms"]) / 1000


async def test_a_rate_that_changes_is_refused(say: Say) -> None:
    with pytest.raises(MediaError, match="changed from 16000 to 8000 Hz"):
        await listened(one_after_another(Audio.from_float(say(SENTENCES[3], rate), rate) for rate in (16000, 8000)))


def test_nonsense_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="threshold is 2"):
        Vad(threshold=2)


async def test_a_missing_file_is_told_at_the_start() -> None:
    vad = Vad(weights="/no/such/file.onnx")
    with pytest.raises(ModelError, match="no file at") as caught:
        vad.load()
    assert isinstance(caught.value, ChainsError)
