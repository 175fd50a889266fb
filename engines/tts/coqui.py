"""Coqui voices (the TTS API) behind the same seam. An extra: the library is imported when a voice is made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.tts.model import TtsModelError

_INSTALL = "pip install coqui-tts==0.28.0 torchaudio==2.11.1 torchcodec==0.17.0 six"


class CoquiVoice:
    """A Coqui model from files on this machine: `model` (.pth) and `config` (.json), with its speaker and
    language.

    TtsModelError where the library or a file is missing; nothing is downloaded.
    """

    def __init__(
        self,
        model: str | Path,
        config: str | Path,
        *,
        speaker: str | None = None,
        language: str | None = None,
        speed: float = 1.0,
    ) -> None:
        for name, path in (("model", model), ("config", config)):
            if not Path(path).is_file():
                raise TtsModelError(f"{name}: there is no file {path}; give a Coqui model's .pth and its config.json")
        try:
            from TTS.api import TTS
        except ImportError as error:
            raise TtsModelError(f"Coqui's library does not import ({error}); run: {_INSTALL}") from error
        except OSError as error:
            # torchaudio on PyPI is built for CUDA; its one compiled file is not needed here.
            raise TtsModelError(
                f"a part of Coqui's library does not load ({error}); beside a torch for CPUs, delete the file it names"
            ) from error
        try:
            self._tts: Any = TTS(model_path=str(model), config_path=str(config), progress_bar=False)
        except Exception as error:
            # The library's own words would advise to load the file without its safety checks.
            raise TtsModelError(
                f"{model} is not a Coqui model that fits {config} ({type(error).__name__}); "
                "give the .pth and the config.json that were saved together"
            ) from error
        if self._tts.is_multi_speaker and speaker not in self._tts.speakers:
            raise TtsModelError(f"speaker is {speaker!r}; {model} knows: {', '.join(self._tts.speakers)}")
        if self._tts.is_multi_lingual and language not in self._tts.languages:
            raise TtsModelError(f"language is {language!r}; {model} knows: {', '.join(self._tts.languages)}")
        self._options = {
            key: value for key, value in (("speaker", speaker), ("language", language)) if value is not None
        }
        self._speed = speed
        self.rate: int = int(self._tts.synthesizer.output_sample_rate)

    def synthesize(self, text: str) -> Iterator[npt.NDArray[np.float32]]:
        """One array per clause."""
        audio = self._tts.tts(text=text, speed=self._speed, split_sentences=False, **self._options)
        yield np.asarray(audio, np.float32)
