"""What lies where in safetensors files: their headers and the index, read and checked before any weight is."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engines.weights.errors import WeightsInvalid

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LONGEST_HEADER = 100_000_000
AGAIN = "fetch or write the model again"
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a file: its bytes are those from `start` to before `end`, counted from the file's first."""

    name: str
    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def row_bytes(self) -> int:
        """Of one row; of a vector or a single number: of one element."""
        return self.dtype.itemsize * math.prod(self.shape[1:])


def checkpoint_entries(directory: Path) -> dict[str, Entry]:
    """Every tensor of a checkpoint's shards, in the order of files and offsets. Raises WeightsInvalid."""
    index = directory / INDEX
    named = _index(index) if index.is_file() else {}
    files = [directory / file for file in sorted(set(named.values()))] if named else _files(directory)
    for file in files:
        if not file.is_file():
            raise WeightsInvalid(f"{index} names {file.name}, which is not in {directory}", mend=AGAIN)
    entries: dict[str, Entry] = {}
    for file in files:
        for entry in read_header(file):
            if entry.name in entries:
                raise WeightsInvalid(
                    f"the tensor {entry.name} is in {entries[entry.name].file.name} and in {file.name}",
                    mend="leave the shards of one checkpoint in the directory",
                )
            entries[entry.name] = entry
    for name, stored in named.items():
        if name not in entries or entries[name].file.name != stored:
            raise WeightsInvalid(f"{index} says that {stored} holds the tensor {name}; it does not", mend=AGAIN)
    return entries


def read_header(file: Path) -> list[Entry]:
    """The tensors of one file, by offset. Raises WeightsInvalid for a file that is truncated or no safetensors."""
    try:
        size = file.stat().st_size
        with open(file, "rb") as stored:
            length = int.from_bytes(stored.read(8), "little")
            if size < 8 or length > min(size - 8, LONGEST_HEADER):
                raise WeightsInvalid(
                    f"{file} holds {size:,} bytes, its header alone would take {length:,}: it is truncated, or no "
                    "safetensors file",
                    mend=AGAIN,
                )
            header = json.loads(stored.read(length))
    except OSError as error:
        raise WeightsInvalid(f"{file} cannot be read ({error.strerror or error})", mend=AGAIN) from error
    except ValueError as error:
        raise WeightsInvalid(f"{file} is no safetensors file: its header is no JSON", mend=AGAIN) from error
    if not isinstance(header, dict):
        raise WeightsInvalid(f"{file} is no safetensors file: its header is no JSON object", mend=AGAIN)
    entries = [_entry(file, name, about, 8 + length) for name, about in header.items() if name != "__metadata__"]
    end = max((entry.end for entry in entries), default=8 + length)
    if size != end:
        what = "truncated" if size < end else "longer than it should be"
        raise WeightsInvalid(f"{file} is {what}: it holds {size:,} bytes, its header describes {end:,}", mend=AGAIN)
    return sorted(entries, key=lambda entry: entry.start)


def _entry(file: Path, name: str, about: Any, base: int) -> Entry:
    try:
        kind, shape, (first, last) = about["dtype"], tuple(map(int, about["shape"])), map(int, about["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsInvalid(f"{file} does not say what the tensor {name} is", mend=AGAIN) from error
    if kind not in TYPES:
        raise WeightsInvalid(
            f"the tensor {name} in {file} is of type {kind}; known are {', '.join(TYPES)}",
            mend="write the checkpoint again in one of these types",
        )
    wanted = TYPES[kind].itemsize * math.prod(shape)
    if first < 0 or last - first != wanted or min(shape, default=0) < 0:
        raise WeightsInvalid(
            f"the tensor {name} in {file} of shape {list(shape)} has {last - first:,} bytes, not {wanted:,}", mend=AGAIN
        )
    return Entry(name, file, TYPES[kind], shape, base + first, base + last)


def _index(index: Path) -> Mapping[str, str]:
    try:
        named = json.loads(index.read_bytes())["weight_map"]
        if not named or not all(isinstance(file, str) and Path(file).name == file for file in named.values()):
            raise ValueError("no map of names to files")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsInvalid(f"{index} is no index of a checkpoint ({error})", mend=AGAIN) from error
    found: Mapping[str, str] = named
    return found


def _files(directory: Path) -> list[Path]:
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        pickled = any(directory.glob("*.bin")) or any(directory.glob("*.pt*"))
        mend = "save it as safetensors (save_pretrained does)" if pickled else "name the directory that has them"
        raise WeightsInvalid(f"{directory} has no *.safetensors", mend=mend)
    return files
