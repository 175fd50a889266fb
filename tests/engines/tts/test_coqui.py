"""Coqui behind the seam: without its files or its library the error says what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engines.tts.coqui import CoquiVoice
from engines.tts.model import TtsModelError, load_voice


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TtsModelError, match=r"model: there is no file .*none\.pth; give"):
        load_voice("coqui", model=tmp_path / "none.pth", config=tmp_path / "config.json")


def test_without_the_library_the_error_has_the_line_to_run(tmp_path: Path) -> None:
    if importlib.util.find_spec("TTS") is not None:
        pytest.skip("coqui-tts is installed here, so its absence cannot be seen")
    for name in ("model.pth", "config.json"):
        (tmp_path / name).touch()
    with pytest.raises(TtsModelError, match="pip install coqui-tts=="):
        CoquiVoice(tmp_path / "model.pth", tmp_path / "config.json")


def test_a_broken_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("TTS", reason="coqui-tts is not installed (the extra `coqui` brings it)")
    for name in ("model.pth", "config.json"):
        (tmp_path / name).touch()
    with pytest.raises(TtsModelError, match="is not a Coqui model"):
        CoquiVoice(tmp_path / "model.pth", tmp_path / "config.json")
