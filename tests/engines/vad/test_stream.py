"""Events of a stream: by scripted probabilities where timing matters, by the real detector where hearing
does.
"""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.vad.model import SileroVad
from engines.vad.stream import (
    MaybeEnd,
    Resume,
    Speech,
    SpeechEnd,
    SpeechStart,
    VadEvent,
    VadSettings,
    VadSettingsError,
    VadStream,
)
from tests.speech.sounds import SENTENCES, Say, human_speech, not_speech

FRAME = 512
SETTINGS = VadSettings(min_speech_ms=64, maybe_end_ms=64, end_ms=160, prefix_ms=96)


def scripted(marks: str, settings: VadSettings = SETTINGS) -> VadStream:
    """A stream whose frames are speech where `marks` has #, then silence for ever."""
    probabilities = itertools.chain((0.9 if mark == "#" else 0.05 for mark in marks), itertools.repeat(0.05))
    return VadStream(lambda _: next(probabilities), 16000, settings)


def run(stream: VadStream, frames: int) -> list[VadEvent]:
    return stream.push(np.arange(frames * FRAME, dtype=np.float32) / 1e9) + stream.finish()


def events(found: list[VadEvent]) -> list[VadEvent]:
    return [event for event in found if not isinstance(event, Speech)]


def listen(
    detector: SileroVad, audio: npt.NDArray[Any], rate: int, settings: VadSettings | None = None
) -> list[VadEvent]:
    memory = detector.open(rate)
    stream = VadStream(
        lambda frame: detector.probability(memory, frame),
        rate,
        settings,
        forget=lambda: detector.forget(memory),
    )
    step = rate // 50
    found = [event for at in range(0, len(audio), step) for event in stream.push(audio[at : at + step])]
    return found + stream.finish()


def test_a_segment_starts_may_end_and_ends() -> None:
    assert events(run(scripted("..####......"), 12)) == [
        SpeechStart(1, at_ms=64, seen_ms=128),
        MaybeEnd(1, at_ms=192, seen_ms=256),
        SpeechEnd(1, at_ms=192, seen_ms=352),
    ]


def test_a_pause_inside_a_sentence_resumes_the_same_segment() -> None:
    found = events(run(scripted("####...####......"), 17))
    assert [type(event) for event in found] == [SpeechStart, MaybeEnd, Resume, MaybeEnd, SpeechEnd]
    assert {event.segment for event in found} == {1}
    assert found[2] == Resume(1, at_ms=224, seen_ms=256)


def test_a_click_is_no_speech() -> None:
    assert run(scripted("..#...#.#......."), 16) == []


def test_audio_of_a_segment_has_its_prefix_and_no_gap() -> None:
    pieces = [event for event in run(scripted(".....####......"), 15) if isinstance(event, Speech)]
    audio = np.concatenate([piece.samples for piece in pieces])
    assert pieces[0].at_ms == 64  # 96 ms before the onset at 160
    start = pieces[0].at_ms * 16
    assert np.array_equal(audio, np.arange(start, start + len(audio), dtype=np.float32) / np.float32(1e9))


def test_a_second_segment_takes_nothing_of_the_first() -> None:
    found = run(scripted("####......####......"), 20)
    first = [event for event in found if isinstance(event, Speech) and event.segment == 1]
    second = [event for event in found if isinstance(event, Speech) and event.segment == 2]
    assert first and second
    assert second[0].at_ms >= first[-1].at_ms + 32


def test_a_hang_up_in_the_middle_of_a_word_ends_the_segment() -> None:
    stream = scripted("####")
    found = stream.push(np.zeros(4 * FRAME + 100, np.float32)) + stream.finish()
    last, end = found[-2:]
    assert isinstance(last, Speech) and len(last.samples) == 100
    assert end == SpeechEnd(1, at_ms=128, seen_ms=134)
    assert stream.finish() == []


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
def test_the_length_of_what_is_pushed_does_not_matter(lengths: list[int]) -> None:
    audio = np.zeros(sum(lengths), np.int16)
    pieces, whole = scripted(".###...####.#####"), scripted(".###...####.#####")
    cuts = np.split(audio, np.cumsum(lengths)[:-1])
    found = [event for piece in cuts for event in pieces.push(piece)] + pieces.finish()
    expected = whole.push(audio) + whole.finish()
    assert events(found) == events(expected)
    assert sum(len(e.samples) for e in found if isinstance(e, Speech)) == sum(
        len(e.samples) for e in expected if isinstance(e, Speech)
    )


def test_int16_and_float_are_heard_alike(detector: SileroVad, say: Say) -> None:
    audio = say(SENTENCES[3], 16000)
    as_int = (audio * 32767).astype(np.int16)
    assert events(listen(detector, as_int, 16000)) == events(listen(detector, audio, 16000))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"treshold": 0.5}, "no setting is called treshold; there are: threshold"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"threshold": "high"}, "threshold"),
        ({"end_ms": 0}, "end_ms is 0"),
        ({"maybe_end_ms": 500, "end_ms": 300}, "maybe_end_ms is 500; it must be a number from 0 to 300"),
        ({"prefix_ms": float("nan")}, "prefix_ms is nan"),
        ({"min_speech_ms": True}, "min_speech_ms is True"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(VadSettingsError, match=message):
        VadSettings.of(settings)


def test_audio_that_is_not_mono_samples_is_refused() -> None:
    with pytest.raises(TypeError, match="mix the channels"):
        scripted("").push(np.zeros((160, 2), np.int16))
    with pytest.raises(TypeError, match="int16 or float32 samples, not int32"):
        scripted("").push(np.zeros(160, np.int32))


@pytest.mark.parametrize("rate", [8000, 16000])
def test_two_sentences_are_two_segments(detector: SileroVad, say: Say, rate: int) -> None:
    pause = np.zeros(rate, np.float32)
    audio = np.concatenate((pause, say(SENTENCES[3], rate), pause, say(SENTENCES[4], rate), pause))
    found = events(listen(detector, audio, rate))
    starts = [event.at_ms for event in found if isinstance(event, SpeechStart)]
    ends = [event.at_ms for event in found if isinstance(event, SpeechEnd)]
    assert len(starts) == len(ends) == 2
    assert 1000 < starts[0] < 1500
    assert ends[0] < starts[1] - 900


@pytest.mark.parametrize("rate", [8000, 16000])
def test_what_is_not_speech_gives_no_event(detector: SileroVad, rate: int) -> None:
    for name, sound in not_speech(rate, 5).items():
        assert listen(detector, sound, rate) == [], name


@pytest.mark.parametrize("before", ["silence", "faint noise", "white noise"])
def test_speech_after_minutes_of_anything_is_still_heard(detector: SileroVad, say: Say, before: str) -> None:
    """The detector's confidence is known to decay in long streams: its memory is cleared in silence."""
    rate = 8000
    audio = np.concatenate((not_speech(rate, 120)[before], say(SENTENCES[0], rate), np.zeros(rate, np.float32)))
    found = [event for event in listen(detector, audio, rate) if isinstance(event, SpeechStart | SpeechEnd)]
    assert [type(event) for event in found] == [SpeechStart, SpeechEnd]
    assert found[0].at_ms > 120_000


def test_a_minute_of_talk_keeps_its_confidence(detector: SileroVad, say: Say) -> None:
    rate = 16000
    audio = np.concatenate([say(text, rate) for text in SENTENCES * 2])
    spoken = [event for event in listen(detector, audio, rate) if isinstance(event, Speech)]
    heard = sum(len(piece.samples) for piece in spoken)
    late = sum(len(piece.samples) for piece in spoken if piece.at_ms > 30_000)
    assert heard > 0.8 * len(audio)
    assert late / (len(audio) - 30 * rate) > 0.8


def test_half_an_hour_takes_no_memory() -> None:
    chatter = itertools.cycle([0.9] * 40 + [0.05] * 30)
    stream = VadStream(lambda _: next(chatter), 8000, SETTINGS)
    frame = np.zeros(160, np.int16)
    for _ in range(1000):
        stream.push(frame)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(30 * 60 * 50):
        stream.push(frame)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 50_000


def test_human_speech_is_heard(detector: SileroVad) -> None:
    import soundfile

    for path in sorted((human_speech() / "librivox").glob("*.wav")):
        audio, rate = soundfile.read(path, dtype="float32")
        spoken = sum(len(event.samples) for event in listen(detector, audio, rate) if isinstance(event, Speech))
        assert spoken > 0.7 * len(audio), path.name
