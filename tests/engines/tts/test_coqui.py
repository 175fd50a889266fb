"""Coqui behind the seam: without its files or its library the error says what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from engines.tts.coqui import CoquiVoice
from engines.tts.model import TtsModelError, load_voice, speak
from engines.tts.stream import Clause


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


def test_a_model_from_files_speaks(tmp_path: Path) -> None:
    """A tiny VITS with random weights: noise, but of the library's own making."""
    pytest.importorskip("TTS", reason="coqui-tts is not installed (the extra `coqui` brings it)")
    import torch
    from TTS.tts.configs.vits_config import VitsConfig
    from TTS.tts.models.vits import Vits, VitsArgs

    config = VitsConfig(
        model_args=VitsArgs(
            hidden_channels=32,
            hidden_channels_ffn_text_encoder=64,
            num_layers_text_encoder=1,
            num_layers_posterior_encoder=1,
            num_layers_flow=1,
            upsample_initial_channel_decoder=32,
            init_discriminator=False,
        ),
        use_phonemes=False,
        text_cleaner="english_cleaners",
        run_eval=False,
    )
    torch.save({"model": Vits(config).state_dict()}, tmp_path / "model.pth")
    config.save_json(str(tmp_path / "config.json"))
    voice = load_voice("coqui", model=tmp_path / "model.pth", config=tmp_path / "config.json")
    found = list(speak(voice, Clause(0, 0, 12, "Hello there.")))
    assert voice.rate == 22050
    assert found and "".join(frame.text for frame in found) == "Hello there."
