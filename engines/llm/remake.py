"""Makes a checkpoint of another: its tensors flow through one or more changes into a directory that appears whole.

Tokenizer, chat template and generation settings come along; the card says what was done.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import torch

from engines.llm.card import CARD, README, Card, card_of, precision_of, read_json, readme
from engines.llm.errors import ModelBroken, ModelMissing, SettingInvalid
from engines.weights import Progress, WeightsInvalid, open_checkpoint
from engines.weights.inventory import check_inventory
from engines.weights.writing import ShardWriter

PARTIAL = ".partial-"
COMPANIONS = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
    "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE",
)  # fmt: skip
BESIDE = ("*.inv_freq",)
"""Tensors of old checkpoints that no model needs; they are carried along."""
Named = tuple[str, torch.Tensor]


class Change(Protocol):
    """One thing that is done to a model. `config` and what follows it are asked after all tensors have passed."""

    def check(self, config: Mapping[str, Any]) -> None:
        """Raises SettingInvalid or ModelBroken when this cannot be done to such a model; before anything is read."""

    def tensors(self, name: str, tensor: torch.Tensor) -> Iterable[Named]:
        """What is stored instead of this tensor."""

    def config(self, config: dict[str, Any]) -> dict[str, Any]:
        """config.json of the result."""

    def step(self) -> str:
        """What was done, in a sentence."""

    def details(self) -> Mapping[str, Any]:
        """The same in figures; `what` names the change."""

    def files(self) -> Mapping[str, str]:
        """Further files of the result, by name."""

    def table(self) -> str:
        """A part of README.md, or nothing."""


def remake(source: Path, target: Path, changes: Sequence[Change], progress: Progress | None = None) -> Card:
    """Write `source` with its changes to `target`, which appears whole or not at all, and is never overwritten.

    `progress` is told the bytes read and the bytes in all. Raises ModelMissing, ModelBroken or SettingInvalid.
    """
    config, origin = _checked(source, target), card_of(source)
    made = config
    for change in changes:
        change.check(made)
        made = change.config(made)
    _check_space(source, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}{PARTIAL}", dir=target.parent) as folder:
            work = Path(folder) / "whole"
            work.mkdir()
            _write_weights(source, work, config, changes, progress)
            card = _write_rest(source, work, target.name, config, changes, origin)
            for file in work.iterdir():
                file.chmod(0o644)  # safetensors gives its files to their owner alone
            os.rename(work, target)
    except WeightsInvalid as error:
        raise ModelBroken(error.message, mend=error.mend) from error
    except OSError as error:
        raise SettingInvalid(
            f"{target} cannot be written ({error.strerror or error})", mend="name a directory on a disk with space"
        ) from error
    return card


def _checked(source: Path, target: Path) -> dict[str, Any]:
    if not source.is_dir():
        raise ModelMissing(f"there is no directory {source}", mend="name one with config.json and *.safetensors")
    if target.exists() or target.is_symlink():
        raise SettingInvalid(f"{target} is there already", mend="name a directory that is not; nothing is overwritten")
    config = read_json(source / "config.json")
    if "quantization_config" in config:
        raise ModelBroken(
            f"{source} is quantised already ({precision_of(config)})", mend="start from the model before it was"
        )
    return config


def _check_space(source: Path, target: Path) -> None:
    needed = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    place = next(folder for folder in target.absolute().parents if folder.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise SettingInvalid(
            f"{place} has {free / 1e9:.2f} GB free, up to {needed / 1e9:.2f} GB are needed",
            mend="free some space, or name a directory on a larger disk",
        )


def _write_weights(
    source: Path, work: Path, config: Mapping[str, Any], changes: Sequence[Change], progress: Progress | None
) -> None:
    from engines.llm.models import architecture_of

    tensors = open_checkpoint(source, progress)
    check_inventory(tensors, architecture_of(dict(config)), BESIDE)
    stream: Iterator[Named] = ((name, tensors.take(name, tensors.shape(name))) for name in tensors.names())
    for change in changes:
        stream = _through(change, stream)
    writer = ShardWriter(work)
    for name, tensor in stream:
        writer.add(name, tensor)
    tensors.finish()
    writer.close()


def _through(change: Change, stream: Iterator[Named]) -> Iterator[Named]:
    for name, tensor in stream:
        yield from change.tensors(name, tensor)


def _write_rest(
    source: Path, work: Path, name: str, config: dict[str, Any], changes: Sequence[Change], origin: Card
) -> Card:
    for companion in COMPANIONS:
        if (source / companion).is_file():
            shutil.copyfile(source / companion, work / companion)
    details, tables = list(origin.details), []
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for change in changes:
        config = change.config(config)
        details.append({**change.details(), "when": now, "version": _version()})
        tables.append(change.table())
        for file, text in change.files().items():
            (work / file).write_text(text)
    card = Card(
        name,
        origin.base or origin.name,
        str(config.get("model_type", "")),
        precision_of(config),
        (*origin.steps, *(change.step() for change in changes)),
        tuple(details),
    )
    (work / CARD).write_text(json.dumps(card.json(), indent=1) + "\n")
    (work / README).write_text(readme(card, "\n".join(filter(None, tables))))
    (work / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return card


def _version() -> str:
    try:
        return f"chains-serve {version('chains-serve')}"
    except PackageNotFoundError:
        return "chains-serve (not installed)"
