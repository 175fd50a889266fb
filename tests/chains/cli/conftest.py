"""A recording to speak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile


@pytest.fixture
def tone(tmp_path: Path) -> Path:
    """Half a second of 440 Hz in stereo at 44.1 kHz."""
    mono = np.sin(np.arange(22050) / 44100 * 2 * np.pi * 440) * 0.3
    soundfile.write(tmp_path / "tone.wav", np.stack([mono, mono], 1), 44100)
    return tmp_path / "tone.wav"
