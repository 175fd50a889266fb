"""Files that are not whole are refused before any weight is read, with the file and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engines.weights import WeightsInvalid
from engines.weights.headers import INDEX, checkpoint_entries, read_header

FIRST = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
SECOND = {"c": torch.zeros(2, 2)}


def shards(folder: Path, **changed: str) -> Path:
    save_file(FIRST, folder / "model-1.safetensors")
    save_file(SECOND, folder / "model-2.safetensors")
    weights = {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors", **changed}
    (folder / INDEX).write_text(json.dumps({"weight_map": weights}))
    return folder


def with_header(file: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return file


def test_entries_tell_where_each_tensor_lies(tmp_path: Path) -> None:
    entries = checkpoint_entries(shards(tmp_path))
    assert set(entries) == {"a", "b", "c"}
    a = entries["a"]
    assert (a.shape, a.dtype, a.row_bytes, a.end - a.start) == ((2, 3), torch.float32, 12, 24)
    assert a.file.read_bytes()[a.start : a.end] == FIRST["a"].numpy().tobytes()


def test_a_stray_file_beside_the_index_is_no_part_of_it(tmp_path: Path) -> None:
    save_file({"stray": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    assert "stray" not in checkpoint_entries(shards(tmp_path))


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_a_truncated_shard_is_named(tmp_path: Path, cut: int) -> None:
    file = shards(tmp_path) / "model-2.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(WeightsInvalid, match=r"model-2\.safetensors.*truncated"):
        checkpoint_entries(tmp_path)


def test_a_file_that_is_too_long_is_named(tmp_path: Path) -> None:
    file = shards(tmp_path) / "model-1.safetensors"
    file.write_bytes(file.read_bytes() + b"xx")
    with pytest.raises(WeightsInvalid, match=r"model-1\.safetensors is longer"):
        checkpoint_entries(tmp_path)


def test_an_index_that_names_a_file_or_tensor_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsInvalid, match=r"names model-3\.safetensors, which is not in"):
        checkpoint_entries(shards(tmp_path, d="model-3.safetensors"))
    with pytest.raises(WeightsInvalid, match=r"model-2\.safetensors holds the tensor d; it does not"):
        checkpoint_entries(shards(tmp_path, d="model-2.safetensors"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": {"a": "../b"}}'])
def test_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    (shards(tmp_path) / INDEX).write_text(text)
    with pytest.raises(WeightsInvalid, match="no index"):
        checkpoint_entries(tmp_path)


def test_the_same_tensor_in_two_files(tmp_path: Path) -> None:
    (shards(tmp_path) / INDEX).unlink()
    save_file({"c": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsInvalid, match=r"c is in model-2\.safetensors and in other\.safetensors"):
        checkpoint_entries(tmp_path)


def test_a_directory_without_weights_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(WeightsInvalid, match=r"no \*\.safetensors"):
        checkpoint_entries(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(WeightsInvalid, match="save it as safetensors"):
        checkpoint_entries(tmp_path)


def test_headers_that_lie(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    with pytest.raises(WeightsInvalid, match="no JSON"):
        read_header(with_header(file, b"\xff\xff"))
    with pytest.raises(WeightsInvalid, match="no JSON object"):
        read_header(with_header(file, [1]))
    with pytest.raises(WeightsInvalid, match=r"tensor w in .* is of type F4"):
        read_header(with_header(file, {"w": {**entry, "dtype": "F4"}}, bytes(8)))
    with pytest.raises(WeightsInvalid, match="has 8 bytes, not 12"):
        read_header(with_header(file, {"w": {**entry, "shape": [3]}}, bytes(8)))
    with pytest.raises(WeightsInvalid, match="does not say what the tensor w is"):
        read_header(with_header(file, {"w": {"dtype": "F32"}}, bytes(8)))
    with pytest.raises(WeightsInvalid, match="cannot be read"):
        read_header(tmp_path / "absent.safetensors")
    assert [found.shape for found in read_header(with_header(file, {"w": entry}, bytes(8)))] == [(2,)]
