"""Files that are fine, files that are not, and streams at another rate."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from chains.errors import MediaError
from chains.gateway import audio
from chains.messages import Audio


def tone(hertz: float, rate: int, seconds: float = 1.0) -> NDArray[np.int16]:
    return (np.sin(np.arange(int(rate * seconds)) / rate * 2 * np.pi * hertz) * 10_000).astype(np.int16)


def wav(samples: NDArray[Any], rate: int, **options: Any) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=options.pop("format", "WAV"), **options)
    return buffer.getvalue()


def test_a_wav_at_another_rate_in_stereo_is_converted() -> None:
    left, right = tone(440, 44100), tone(440, 44100) // 2
    got = audio.read(wav(np.stack([left, right], 1), 44100), 16000)
    assert (got.rate, len(got.pcm)) == (16000, 16000)
    expected = tone(440, 16000) * 0.75
    assert np.abs(got.pcm[200:-200] - expected[200:-200]).max() < 60


@pytest.mark.parametrize("options", [{"format": "FLAC"}, {"format": "OGG"}, {"subtype": "PCM_24"}, {"subtype": "ULAW"}])
def test_other_formats_are_read(options: dict[str, str]) -> None:
    got = audio.read(wav(tone(440, 16000), 16000, **options))
    assert got.rate == 16000 and len(got.pcm) == 16000


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"junk that is no sound", "cannot be read as audio"),
        (wav(tone(440, 16000), 16000)[:5000], "cut off"),
        (wav(tone(440, 16000), 16000)[:44], "cut off"),
        (wav(np.zeros(0, np.int16), 16000), "no samples"),
        (wav(tone(440, 16000), 16000)[:36], "without sound"),
        (wav(tone(440, 16000), 16000)[:20], "without sound"),
        (wav(np.full(100, np.nan, np.float32), 16000, subtype="FLOAT"), "no numbers"),
        (wav(tone(440, 16000), 1000), "1000 samples a second"),
    ],
)
def test_a_broken_file_is_refused_with_what_is_wrong(data: bytes, says: str) -> None:
    with pytest.raises(MediaError, match=says) as error:
        audio.read(data)
    assert error.value.mend


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="does not exist"):
        audio.read(tmp_path / "no.wav")
    with pytest.raises(MediaError, match="cannot be opened"):
        audio.read(tmp_path)
    with pytest.raises(MediaError, match="cannot be written"):
        audio.write_wav(tmp_path / "no" / "out.wav", tone(440, 8000), 8000)


def test_a_wav_of_unknown_length_is_read_to_its_end() -> None:
    data = bytearray(wav(tone(440, 16000), 16000))
    data[40:44] = b"\xff\xff\xff\xff"
    assert len(audio.read(bytes(data)).pcm) == 16000


def test_frames_are_20_ms_and_the_last_is_padded() -> None:
    frames = list(audio.frames(Audio(tone(440, 16000, 0.05), 16000)))
    assert [len(frame.pcm) for frame in frames] == [320, 320, 320]
    assert not frames[-1].pcm[160:].any()


def streamed(pcm: NDArray[np.int16], rate: int, to: int) -> tuple[NDArray[np.int16], float]:
    """What the stream gives in 20 ms pieces, and by how many ms it lags before the flush."""
    resampler = audio.Resampler(rate, to)
    step = rate // 50
    out = [resampler.push(pcm[start : start + step]) for start in range(0, len(pcm), step)]
    lag = to * len(pcm) / rate - sum(map(len, out))
    return np.concatenate([*out, resampler.flush()]), 1000 * lag / to


@pytest.mark.parametrize(("rate", "to"), [(24000, 16000), (24000, 8000), (22050, 8000), (44100, 16000), (16000, 24000)])
def test_a_stream_at_another_rate_keeps_its_length_and_shape_with_little_delay(rate: int, to: int) -> None:
    got, lag = streamed(tone(440, rate), rate, to)
    assert len(got) == pytest.approx(to, abs=2)
    assert lag < 3
    assert np.abs(got[100 : to - 100].astype(int) - tone(440, to)[100:-100]).max() < 150


@pytest.mark.parametrize(("rate", "to", "hertz"), [(24000, 8000, 5500), (24000, 16000, 9500), (48000, 8000, 6000)])
def test_what_is_above_the_new_rate_does_not_fold_back(rate: int, to: int, hertz: int) -> None:
    got, _ = streamed(tone(hertz, rate), rate, to)
    assert got[100:-100].std() < tone(hertz, rate).std() / 100


def test_a_flushed_stream_starts_anew() -> None:
    resampler = audio.Resampler(24000, 16000)
    first = np.concatenate([resampler.push(tone(440, 24000)), resampler.flush()])
    second = np.concatenate([resampler.push(tone(440, 24000)), resampler.flush()])
    np.testing.assert_array_equal(first, second)


def test_a_place_that_cannot_be_written_is_told_before_the_call(tmp_path: Path) -> None:
    audio.check_writable(tmp_path / "new.wav")
    with pytest.raises(MediaError, match=r"there is no folder .*mkdir -p"):
        audio.check_writable(tmp_path / "nowhere" / "new.wav")
    with pytest.raises(MediaError, match="is a folder"):
        audio.check_writable(tmp_path)


def test_a_header_that_makes_no_sense_is_told_in_words(tmp_path: Path) -> None:
    path = tmp_path / "odd.wav"
    audio.write_wav(path, np.zeros(800, np.int16), 16000)
    content = bytearray(path.read_bytes())
    content[24:28] = (0).to_bytes(4, "little")  # samples per second
    path.write_bytes(content)
    with pytest.raises(MediaError) as caught:
        audio.read(path)
    assert "SF_INFO" not in str(caught.value)
