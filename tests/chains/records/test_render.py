"""The WAV: the same bytes whichever range is asked for, and no more decoded than that needs."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

from chains.errors import InvalidValue
from chains.records.recorded import REPLY
from chains.records.recordings import peaks, wav, wav_size
from chains.records.render import HEADER
from tests.chains.records.taped import closed, event, kept, opened, sound, spoken, tone


def test_both_sides_lie_under_one_another(tmp_path: Path) -> None:
    conn, call = kept(
        tmp_path / "t.sqlite",
        [opened(), *spoken(500, tone(1500)), sound(2400, tone(700, hertz=440), side=REPLY, turn=1), closed(4000)],
    )
    both, rate = soundfile.read(io.BytesIO(wav(conn, call, "both").data), dtype="int16")
    assert rate == 16_000 and both.shape == ((16 * 3100), 2)
    assert np.array_equal(both[8000:32000, 0], tone(1500))
    assert not both[:8000].any() and not both[8000:38400, 1].any()
    assert np.array_equal(both[38400:, 1], tone(700, hertz=440))
    caller, _ = soundfile.read(io.BytesIO(wav(conn, call, "caller").data), dtype="int16")
    assert np.array_equal(caller, both[:, 0])
    conn.close()


@pytest.mark.parametrize("side", ["caller", "reply", "both"])
def test_any_range_is_that_of_the_whole(tmp_path: Path, side: str) -> None:
    rows = [
        opened(),
        *spoken(13.3, tone(2500, 8000), 8000),
        sound(1200, tone(2700, 24000, 330), 24000, REPLY, 1),
        event(2600, "clear", turn=1),
        sound(3000, tone(300, 16000), 16000, REPLY, 2),
    ]
    conn, call = kept(tmp_path / "t.sqlite", rows)
    whole = wav(conn, call, side)
    assert len(whole.data) == whole.total == wav_size(conn, call, side)
    rng = np.random.default_rng(7)
    for _ in range(60):
        start, stop = sorted(rng.integers(0, whole.total + 200, 2).tolist())
        part = wav(conn, call, side, start, stop)
        assert part.data == whole.data[start:stop]
        assert (part.start, part.stop) == (min(start, whole.total), min(stop, whole.total))
    assert wav(conn, call, side, 10, 20).data == whole.data[10:20]
    conn.close()


def test_another_rate_is_resampled_without_a_seam(tmp_path: Path) -> None:
    """8 kHz under 24 kHz: the spectrum of the rendered tone has one line, chunk after chunk."""
    rows = [opened(), *spoken(0, tone(4000, 8000), 8000), sound(0, tone(20, 24000), 24000, REPLY, 1)]
    conn, call = kept(tmp_path / "t.sqlite", rows)
    pcm = np.frombuffer(wav(conn, call, "caller").data[HEADER:], "<i2")[2400:-2400].astype(float)
    assert len(pcm) == 4 * 24_000 - 4_800
    power = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)))) ** 2
    peak = int(power.argmax())
    assert peak * 24_000 / len(pcm) == pytest.approx(220, abs=1)
    assert power[np.abs(np.arange(len(power)) - peak) > 400].sum() < 1e-6 * power.sum()
    conn.close()


def test_peaks_follow_the_time_axis(tmp_path: Path) -> None:
    rows = [opened(), *spoken(0, tone(1000, loud=0)), *spoken(1000, tone(1000, loud=16384))]
    conn, call = kept(tmp_path / "t.sqlite", [*rows, sound(3000, tone(1000, loud=32000), side=REPLY, turn=1)])
    assert peaks(conn, call, "caller", 4) == {"ms": 4000.0, "peaks": [0.0, 0.502, 0.0, 0.0]}
    assert peaks(conn, call, "reply", 4)["peaks"][3] > 0.9
    assert len(peaks(conn, call, "both", 333)["peaks"]) == 333
    conn.close()


def test_a_call_without_sound_has_no_wav(tmp_path: Path) -> None:
    conn, call = kept(tmp_path / "t.sqlite", [opened(), closed(10)])
    assert wav_size(conn, call) == 0
    assert peaks(conn, call, "both", 10) == {"ms": 0.0, "peaks": []}
    with pytest.raises(InvalidValue, match="caller, reply or both"):
        wav(conn, call, "left")
    conn.close()


def test_half_an_hour_is_small_and_opens_at_once(tmp_path: Path) -> None:
    """Speech-like sound of both sides for 30 minutes: bytes a minute, and how much a seek reads."""
    rng = np.random.default_rng(1)
    minutes = 30
    words = (tone(60_000) * np.abs(np.sin(np.arange(960_000) / 9000)) + rng.normal(0, 30, 960_000)).astype(np.int16)
    rows = [opened()]
    for minute in range(minutes):
        rows += spoken(minute * 60_000, words)
        rows += [sound(minute * 60_000 + 200 * n, words[: 16 * 400], side=REPLY, turn=minute + 1) for n in range(100)]
    path = tmp_path / "t.sqlite"
    conn, call = kept(path, rows)
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert path.stat().st_size / minutes < 2_600_000  # raw it is 3.2 MB a minute
    (whole,) = conn.execute("SELECT count(*) FROM recordings WHERE kind = 'audio'").fetchone()
    read: list[str] = []
    conn.set_trace_callback(lambda sql: read.append(sql) if "SELECT data" in sql else None)
    assert len(wav(conn, call, "both", 60_000_000, 61_000_000).data) == 1_000_000
    assert 1 < len(read) <= whole / 20, "a part of 16 s of both sides, of half an hour"
    read.clear()
    assert len(peaks(conn, call, "caller", 2000)["peaks"]) == 2000
    assert not read, "peaks are kept, no sound is decoded for them"
    conn.close()
