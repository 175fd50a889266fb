"""When what is transcribed: scripted for timing, with the real detector and recogniser for the whole way."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.asr.model import RATE, WhisperModel
from engines.asr.stream import AsrSettings, AsrSettingsError, Request, SegmentTranscriber, Transcript, to_16k
from engines.vad.model import SileroVad
from engines.vad.stream import MaybeEnd, Resume, Speech, SpeechEnd, SpeechStart, VadStream
from tests.speech.sounds import SENTENCES, Samples, Say, error_rate, not_speech, over_the_telephone, resampled

SECOND = np.full(RATE, 0.1, np.float32)
QUIET = AsrSettings(partial_ms=0)


def only(found: list[Request | Transcript] | list[Request]) -> Request:
    assert len(found) == 1 and isinstance(found[0], Request), found
    return found[0]


def started(settings: AsrSettings = QUIET) -> SegmentTranscriber:
    stream = SegmentTranscriber(RATE, settings)
    assert stream.start(1, 500) == []
    assert stream.push(SECOND) == []
    return stream


def test_the_guess_is_the_final_text_if_nothing_followed() -> None:
    stream = started()
    guess = only(stream.maybe_end(1500))
    assert guess.kind == "speculative" and len(guess.samples) == RATE
    assert stream.take(guess, "hello") == [Transcript(1, "speculative", "hello", 500, 1500)]
    assert stream.push(SECOND[:3200]) == []
    assert stream.end(1500) == [Transcript(1, "final", "hello", 500, 1500)]
    assert stream.waiting == 0


def test_a_guess_that_comes_late_is_still_the_final_text() -> None:
    stream = started()
    guess = only(stream.maybe_end(1500))
    assert stream.end(1500) == []
    assert stream.take(guess, "hello") == [Transcript(1, "final", "hello", 500, 1500)]


def test_a_guess_is_stale_once_speech_went_on() -> None:
    stream = started()
    guess = only(stream.maybe_end(1500))
    stream.resume()
    stream.push(SECOND)
    assert stream.take(guess, "hello") == []
    again = only(stream.maybe_end(2600))
    assert len(again.samples) == 2 * RATE
    assert stream.end(2600) == []
    assert stream.take(again, "hello there") == [Transcript(1, "final", "hello there", 500, 2600)]
    assert stream.take(guess, "hello") == []


def test_without_a_guess_the_end_asks() -> None:
    stream = started()
    request = only(stream.end(1500))
    assert request.kind == "final"
    assert stream.take(request, "hi") == [Transcript(1, "final", "hi", 500, 1500)]


def test_a_late_text_belongs_to_its_own_segment() -> None:
    stream = started()
    first = only(stream.end(1500))
    stream.start(2, 2000)
    stream.push(SECOND)
    second = only(stream.maybe_end(3000))
    assert stream.take(second, "two") == [Transcript(2, "speculative", "two", 2000, 3000)]
    assert stream.take(first, "one") == [Transcript(1, "final", "one", 500, 1500)]
    assert stream.end(3000) == [Transcript(2, "final", "two", 2000, 3000)]


def test_a_short_segment_waits_for_the_longer_one_before_it() -> None:
    stream = started()
    first = only(stream.end(1500))
    stream.start(2, 2000)
    stream.push(SECOND[:3200])
    second = only(stream.end(2200))
    assert stream.take(second, "yes") == []
    assert stream.take(first, "hello") == [
        Transcript(1, "final", "hello", 500, 1500),
        Transcript(2, "final", "yes", 2000, 2200),
    ]
    assert stream.waiting == 0


def test_a_cough_ends_with_an_empty_text() -> None:
    stream = started()
    guess = only(stream.maybe_end(1500))
    assert stream.take(guess, "") == []
    assert stream.end(1500) == [Transcript(1, "final", "", 500, 1500)]


def test_partials_come_while_speech_goes_on_and_not_after_the_guess() -> None:
    stream = SegmentTranscriber(RATE, AsrSettings(partial_ms=500))
    stream.start(1, 0)
    assert stream.push(SECOND[:7000]) == []
    partial = only(stream.push(SECOND[:1000]))
    assert partial.kind == "partial" and len(partial.samples) == 8000
    assert stream.take(partial, "hel") == [Transcript(1, "partial", "hel", 0, 0)]
    late = only(stream.push(SECOND[:8000]))
    guess = only(stream.maybe_end(1000))
    assert stream.push(SECOND) == []
    stream.take(guess, "hello")
    assert stream.take(late, "hell") == []


def test_a_long_segment_is_cut_and_has_one_final_text() -> None:
    stream = SegmentTranscriber(RATE, AsrSettings(partial_ms=0, max_segment_ms=10_000))
    stream.start(1, 0)
    requests = [request for _ in range(25) for request in stream.push(SECOND)]
    last = only(stream.end(25_000))
    assert [request.part for request in requests] == list(range(len(requests)))
    assert sum(len(request.samples) for request in [*requests, last]) == 25 * RATE
    assert stream.take(last, "end") == []
    texts = [stream.take(request, f"part{request.part}") for request in reversed(requests)]
    assert texts[:-1] == [[]] * (len(requests) - 1)
    expected = " ".join([f"part{number}" for number in range(len(requests))] + ["end"])
    assert texts[-1] == [Transcript(1, "final", expected, 0, 25_000)]


def test_speech_without_a_segment_is_not_heard() -> None:
    stream = SegmentTranscriber(RATE, QUIET)
    assert stream.push(SECOND) == [] == stream.maybe_end(0)
    assert stream.end(0) == []


@pytest.mark.parametrize("bad", [{"partial_ms": 50}, {"partial_ms": -1}, {"max_segment_ms": 60_000}])
def test_settings_that_make_no_sense_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(AsrSettingsError, match="it must be"):
        AsrSettings(**bad)


@given(st.integers(1, 30_000), st.sampled_from([8000, 11_025, 24_000, 44_100, 48_000]))
def test_resampling_loses_nothing(count: int, rate: int) -> None:
    assert abs(len(to_16k(np.zeros(count, np.float32), rate)) - count * RATE / rate) <= 1


def test_resampling_keeps_the_tail() -> None:
    audio = np.zeros(8000, np.float32)
    audio[-80:] = np.sin(np.arange(80) * 2 * np.pi * 500 / 8000)
    assert np.abs(to_16k(audio, 8000)[-100:]).max() > 0.8


def test_half_an_hour_of_speech_takes_no_memory() -> None:
    stream = SegmentTranscriber(8000, AsrSettings(partial_ms=2000, max_segment_ms=10_000))
    stream.start(1, 0)
    frame = np.zeros(160, np.int16)

    def hear(seconds: int) -> None:
        for _ in range(seconds * 50):
            for request in stream.push(frame):
                stream.take(request, "")

    hear(60)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    hear(30 * 60)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1_000_000  # the audio of half an hour would be 57 MB


def conversation(detector: SileroVad, whisper: WhisperModel, audio: Samples, rate: int) -> list[Transcript]:
    """The whole way of one caller, each request answered at once."""
    memory = detector.open(rate)
    vad = VadStream(lambda frame: detector.probability(memory, frame), rate)
    asr = SegmentTranscriber(rate, QUIET)
    texts: list[Transcript] = []
    ends = [*range(0, len(audio), rate // 50), len(audio)]
    for event in itertools.chain.from_iterable(
        vad.push(audio[at : at + rate // 50]) if at < len(audio) else vad.finish() for at in ends
    ):
        found: list[Request | Transcript] = []
        match event:
            case SpeechStart(segment, at_ms):
                found += asr.start(segment, at_ms)
            case Speech():
                found += asr.push(event.samples)
            case MaybeEnd(_, at_ms):
                found += asr.maybe_end(at_ms)
            case Resume():
                asr.resume()
            case SpeechEnd(_, at_ms):
                found += asr.end(at_ms)
        for item in found:
            if isinstance(item, Transcript):
                texts.append(item)
            else:
                texts += asr.take(item, whisper.transcribe(item.samples).text)
    return texts


@pytest.mark.parametrize("rate", [8000, 16000])
def test_a_conversation_is_heard_segment_by_segment(
    detector: SileroVad, whisper: WhisperModel, say: Say, rate: int
) -> None:
    said = list(SENTENCES[:4])
    pause = np.zeros(rate, np.float32)
    audio = np.concatenate([pause] + [piece for text in said for piece in (say(text, rate), pause)])
    audio += np.random.default_rng(0).normal(0, 0.003, len(audio)).astype(np.float32)
    if rate == 8000:
        audio = over_the_telephone(audio, rate)
    finals = [text for text in conversation(detector, whisper, audio, rate) if text.kind == "final"]
    assert [text.segment for text in finals] == [1, 2, 3, 4]
    assert error_rate(said, [text.text for text in finals]) < 0.1


def test_a_pause_inside_a_sentence_is_one_segment(detector: SileroVad, whisper: WhisperModel, say: Say) -> None:
    first, second = say("I'd like to book a cleaning", RATE), say("on Tuesday at ten.", RATE)
    short = np.concatenate((first[: -int(0.35 * RATE)], second[int(0.1 * RATE) :], np.zeros(RATE, np.float32)))
    texts = conversation(detector, whisper, short, RATE)
    finals = [text for text in texts if text.kind == "final"]
    assert len(finals) == 1
    assert error_rate(["I'd like to book a cleaning on Tuesday at ten."], [finals[0].text]) < 0.2


def test_what_is_not_speech_gives_no_text(detector: SileroVad, whisper: WhisperModel) -> None:
    for name, sound in not_speech(8000, 6).items():
        assert conversation(detector, whisper, sound, 8000) == [], name


def test_a_hang_up_in_the_middle_of_a_word_still_gives_what_was_said(
    detector: SileroVad, whisper: WhisperModel, say: Say
) -> None:
    audio = say(SENTENCES[1], RATE)
    texts = conversation(detector, whisper, audio[: int(len(audio) * 0.6)], RATE)
    assert texts[-1].kind == "final"
    assert "how much" in texts[-1].text.lower()


def test_resampled_speech_is_as_long_as_it_was(say: Say) -> None:
    audio = say(SENTENCES[0], 24_000)
    assert abs(len(resampled(audio, 24_000, RATE)) / RATE - len(audio) / 24_000) < 0.001
