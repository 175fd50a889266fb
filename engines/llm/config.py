"""Settings of a language model: where its files are, how it is run, how its tokens are picked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from engines.llm.errors import ModelMissing, SettingInvalid

DEFAULT = "default"
DEFAULT_MOE = "default-moe"
DEFAULT_NAME = "smollm2-135m-instruct"
MOE_NAME = "smollm2-135m-instruct-moe-fp8"
EMBEDDING_NAME = "all-minilm-l6-v2"
MODELS_VARIABLE = "CHAINS_MODELS"
COMPLETE_MARK = "config.json"
MOST_REPLIES = 16
MOST_LOGPROBS = 20
MOST_GUESSES = 16
MOST_INTEGER = 2**31 - 1  # what a step's tables hold of a number or a token id
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_ON: dict[str, dict[str, int]] = {
    "cpu": {"cache_tokens": 8192, "max_running": 16, "token_budget": 256, "prefill_chunk": 128},
    "cuda": {"cache_tokens": 0, "max_running": 256, "token_budget": 8192, "prefill_chunk": 2048},
}

Precision = Literal["auto", "fp32", "fp64", "bf16", "fp8", "int8", "int4"]
Kind = Literal["cpu", "cuda"]


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
        """`model` is "default" (the model that is `packaged`), "default-moe", a Hugging Face directory or a .gguf file.

        Raises ModelMissing when it is not there, with the command or the path to write.
        """
        if str(model) in (DEFAULT, DEFAULT_MOE):
            directory = models_directory(environment) / (packaged if str(model) == DEFAULT else MOE_NAME)
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
    """How a model is run. 0 leaves a number to the machine: `on` says what it becomes there.

    device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1".  threads: CPU threads of one step.
    precision: of the products. "auto" is the checkpoint's own. "int8" is twice as fast on a CPU, and its rounding of
      activations is heard: a 135M model counts a dog's legs to 48.
    cache_tokens: tokens whose keys and values are kept, of requests that run and of prompts that are remembered.
    memory_fraction: of the GPU's free memory, for weights, graphs and cache together, when cache_tokens is 0.
    context: longest prompt and reply together, at most the model's own.  max_running: sequences in one step.
    max_waiting: requests of one tenant that may queue behind them; the next is refused.  max_waiting_all: of all.
    token_budget: tokens of one step, prompts and replies together.  prefill_chunk: of one prompt in one step.
    cuda_graph_max_bs: sequences up to which a step of replies alone is replayed as a CUDA graph; 0 is never.
    overlap: plan the next step while a GPU is busy with this one.
    guesses: tokens guessed from what the text says already, and checked in one step. In fp32 they change no greedy
    token; they make answers that repeat their prompt quicker where steps are few and slow (a CPU, one caller).
    jump_forward: what a grammar forces is appended without asking the model.
    process: the model runs in a process of its own, else in a thread of this one.
    """

    device: str = "auto"
    threads: int = 0
    precision: Precision = "auto"
    cache_tokens: int = 0
    memory_fraction: float = 0.85
    context: int = 0
    max_running: int = 0
    max_waiting: int = 256
    max_waiting_all: int = 1024
    token_budget: int = 0
    prefill_chunk: int = 0
    cuda_graph_max_bs: int = 64
    overlap: bool = True
    guesses: int = 0
    jump_forward: bool = False
    process: bool = True

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise SettingInvalid(
                f"there is no precision {self.precision!r}", mend=f"write {', '.join(get_args(Precision))}"
            )
        device: object = self.device
        if not isinstance(device, str) or not _DEVICE.fullmatch(device):
            raise SettingInvalid(f"there is no device {device!r}", mend='write "auto", "cpu", "cuda" or "cuda:1"')
        for name in ("threads", "cache_tokens", "context", "max_running", "token_budget", "prefill_chunk"):
            _check_integer(f"{name} (0 leaves it to the machine)", getattr(self, name), 0)
        _check_integer("max_waiting", self.max_waiting, 1)
        _check_integer("max_waiting_all", self.max_waiting_all, 1)
        _check_integer("cuda_graph_max_bs", self.cuda_graph_max_bs, 0)
        _check_integer("guesses", self.guesses, 0, MOST_GUESSES)
        _check_number("memory_fraction", self.memory_fraction, 0.05, 0.98)
        for name in ("overlap", "jump_forward", "process"):
            if not isinstance(getattr(self, name), bool):
                raise SettingInvalid(f"{name} is {getattr(self, name)!r}", mend="write true or false")
        if self.token_budget and self.max_running > self.token_budget:
            raise SettingInvalid(
                f"max_running is {self.max_running}, token_budget {self.token_budget}",
                mend="a step writes a token of each running sequence: allow at least as many tokens as sequences",
            )

    def on(self, kind: Kind, checkpoint: Precision = "bf16") -> Self:
        """With every number that was left to the machine filled in, for a model stored as `checkpoint`.

        `threads` stays 0 (torch's own number, which OMP_NUM_THREADS sets), and so do `context` (the model's) and, on
        a GPU, `cache_tokens` (what memory_fraction leaves).
        """
        chosen = _ON[kind]
        running = self.max_running or min(chosen["max_running"], self.token_budget or chosen["max_running"])
        return replace(
            self,
            device=self.device if self.device != "auto" else kind,
            precision=self.precision if self.precision != "auto" else checkpoint,
            cache_tokens=self.cache_tokens or chosen["cache_tokens"],
            max_running=running,
            token_budget=self.token_budget or max(chosen["token_budget"], running),
            prefill_chunk=self.prefill_chunk or chosen["prefill_chunk"],
            overlap=self.overlap and kind == "cuda",
            cuda_graph_max_bs=self.cuda_graph_max_bs if kind == "cuda" else 0,
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are picked: `temperature` 0 takes the likeliest; `stop` strings and `stop_ids` end the text.

    A stop string is not part of the text, unless `include_stop` says so. `top_k` 0 is no limit, `logprobs` the
    number of alternatives told with each token (None: none are told), `n` the number of replies.
    `repetition_penalty` divides what the prompt or the reply holds already; presence and frequency penalties are
    subtracted for what the reply holds. In fp32 and fp64 the same `seed` gives the same reply, whatever else
    runs beside it; in int8, FP8 and other coarser precisions near ties can fall either way.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_end: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check_integer("max_tokens", self.max_tokens, 1, MOST_INTEGER)
        _check_integer("top_k", self.top_k, 0, MOST_INTEGER)
        _check_integer("n", self.n, 1, MOST_REPLIES)
        _check_number("temperature", self.temperature, 0.0, 10.0)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        _check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.top_p == 0:
            raise SettingInvalid("top_p is 0", mend="write more than 0; for the likeliest token write temperature=0")
        stop: object = self.stop
        if not isinstance(stop, tuple) or not all(isinstance(text, str) for text in stop):
            raise SettingInvalid(f"stop is {self.stop!r}", mend='write a tuple of strings, e.g. stop=(".",)')
        if "" in self.stop:
            raise SettingInvalid("stop holds an empty string", mend="leave it out; it would end every text at once")
        ids: object = self.stop_ids
        if not isinstance(ids, tuple):
            raise SettingInvalid(
                f"stop_ids is {self.stop_ids!r}", mend="write a tuple of token ids, e.g. stop_ids=(2,)"
            )
        for token in self.stop_ids:
            _check_integer("a token of stop_ids", token, 0, MOST_INTEGER)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, 2**63 - 1)
        if self.logprobs is not None:
            _check_integer("logprobs", self.logprobs, 0, MOST_LOGPROBS)

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> Self:
        """From a mapping, e.g. of a request. Unknown names are refused with the nearest known one."""
        return cls(**known(settings, cls))

    def single(self) -> Self:
        """These, for a reply that is one text. Raises SettingInvalid where several replies are asked for."""
        if self.n != 1:
            raise SettingInvalid(f"n is {self.n} where one text is written", mend="ask once for each reply, or fork")
        return self


def known(settings: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """`settings` as they are, if each names a field of the dataclass `cls`; else SettingInvalid with the names."""
    names = [field.name for field in fields(cls)]
    unknown = [name for name in settings if name not in names]
    if unknown:
        raise SettingInvalid(f"unknown setting {', '.join(unknown)}", mend=f"the settings are {', '.join(names)}")
    return dict(settings)


def _check_integer(name: str, value: object, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise SettingInvalid(f"{name} is {_shown(value)}", mend=f"write a whole number {wanted}")


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise SettingInvalid(f"{name} is {_shown(value)}", mend=f"write a number from {least:g} to {most:g}")


def _shown(value: object) -> str:
    """A value in a message; Python writes no integer of thousands of digits."""
    huge = isinstance(value, int) and value.bit_length() > 128
    return "a number of more than 38 digits" if huge else repr(value)
