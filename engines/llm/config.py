"""Settings of a language model: where its files are, how it is run, how its tokens are picked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from engines.llm.errors import ModelMissing, SettingInvalid

DEFAULT = "default"
DEFAULT_NAME = "smollm2-135m-instruct"
EMBEDDING_NAME = "all-minilm-l6-v2"
MODELS_VARIABLE = "CHAINS_MODELS"
COMPLETE_MARK = "config.json"

Precision = Literal["fp32", "bf16", "int8"]


def models_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where fetched models lie: $CHAINS_MODELS, or share/chains/models of the Python environment."""
    chosen = environment.get(MODELS_VARIABLE, "").strip()
    return Path(chosen).expanduser() if chosen else Path(sys.prefix) / "share" / "chains" / "models"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's files: a Hugging Face directory, or one GGUF file in a directory."""

    directory: Path
    gguf: str = ""

    @classmethod
    def resolve(
        cls, model: str | Path, *, packaged: str = DEFAULT_NAME, environment: Mapping[str, str] = os.environ
    ) -> Self:
        """`model` is "default" (the model that is `packaged`), a Hugging Face directory, or a .gguf file.

        Raises ModelMissing when it is not there, with the command or the path to write.
        """
        if str(model) == DEFAULT:
            directory = models_directory(environment) / packaged
            if not (directory / COMPLETE_MARK).is_file():
                raise ModelMissing(
                    f"the packaged model is not in {directory}",
                    mend="run `chains fetch-models` once, or name a model of your own (a directory or a .gguf file)",
                )
            return cls(directory)
        path = Path(model).expanduser()
        if path.suffix == ".gguf":
            if not path.is_file():
                raise ModelMissing(f"there is no file {path}", mend="write the path of a .gguf file that exists")
            return cls(path.parent, path.name)
        if not path.is_dir():
            raise ModelMissing(
                f"there is no model {str(model)!r}",
                mend='write "default", a directory with config.json and *.safetensors, or a .gguf file; '
                "nothing is downloaded at run time",
            )
        _check_directory(path)
        return cls(path)


def _check_directory(path: Path) -> None:
    missing = [name for name in ("config.json", "tokenizer_config.json") if not (path / name).is_file()]
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        missing.append("*.safetensors")
    if missing:
        raise ModelMissing(
            f"{path} lacks {', '.join(missing)}",
            mend="point at the directory that holds the whole Hugging Face model",
        )


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a model is run. `threads` are CPU threads, `cache_tokens` bounds the remembered prefixes' tokens."""

    threads: int = 1
    precision: Precision = "int8"
    cache_tokens: int = 8192
    prefill_chunk: int = 128

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise SettingInvalid(f"there is no precision {self.precision!r}", mend="write fp32, bf16 or int8")
        for name, least in (("threads", 1), ("cache_tokens", 0), ("prefill_chunk", 1)):
            _check_integer(name, getattr(self, name), least)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are picked: `temperature` 0 takes the likeliest; `stop` strings end the text.

    A stop string is not part of the text, unless `include_stop` says so.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_integer("max_tokens", self.max_tokens, 1)
        _check_number("temperature", self.temperature, 0.0, 10.0)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise SettingInvalid("top_p is 0", mend="write more than 0; for the likeliest token write temperature=0")
        stop: object = self.stop
        if not isinstance(stop, tuple) or not all(isinstance(text, str) for text in stop):
            raise SettingInvalid(f"stop is {self.stop!r}", mend='write a tuple of strings, e.g. stop=(".",)')
        if "" in self.stop:
            raise SettingInvalid("stop holds an empty string", mend="leave it out; it would end every text at once")
        if self.seed is not None:
            _check_integer("seed", self.seed, 0)

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Self:
        """From a mapping, e.g. of a request. Unknown names are refused with the nearest known one."""
        return cls(**known(settings, cls))


def known(settings: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """`settings` as they are, if each names a field of the dataclass `cls`; else SettingInvalid with the names."""
    names = [field.name for field in fields(cls)]
    unknown = [name for name in settings if name not in names]
    if unknown:
        raise SettingInvalid(f"unknown setting {', '.join(unknown)}", mend=f"the settings are {', '.join(names)}")
    return dict(settings)


def _check_integer(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingInvalid(f"{name} is {value!r}", mend=f"write a whole number of at least {least}")


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise SettingInvalid(f"{name} is {value!r}", mend=f"write a number from {least:g} to {most:g}")
