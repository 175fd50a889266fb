"""What is written can be read, in one shard or several."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from engines.weights import open_checkpoint
from engines.weights.headers import INDEX
from engines.weights.writing import ShardWriter

TENSORS = {f"w{number}": torch.randn(10, 10) for number in range(7)}


def test_one_shard_needs_no_index(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path)
    for name, tensor in TENSORS.items():
        writer.add(name, tensor)
    assert list(tmp_path.iterdir()) == []
    writer.close()
    assert [file.name for file in tmp_path.iterdir()] == ["model.safetensors"]
    found = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def test_shards_with_their_index(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, shard_bytes=1000)
    for name, tensor in TENSORS.items():
        writer.add(name, tensor)
    writer.close()
    assert len(list(tmp_path.glob("model-0000?-of-00004.safetensors"))) == 4
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["metadata"]["total_size"] == 2800
    assert index["weight_map"]["w6"] == "model-00004-of-00004.safetensors"
    tensors = open_checkpoint(tmp_path)
    assert all(torch.equal(tensors.take(name, (10, 10)), tensor) for name, tensor in TENSORS.items())
    tensors.finish()


def test_views_of_one_tensor_are_stored_apart(tmp_path: Path) -> None:
    whole = torch.arange(24.0).view(4, 6)
    writer = ShardWriter(tmp_path)
    writer.add("left", whole[:, :3])
    writer.add("top", whole[:2])
    writer.close()
    found = load_file(tmp_path / "model.safetensors")
    assert torch.equal(found["left"], whole[:, :3]) and torch.equal(found["top"], whole[:2])
