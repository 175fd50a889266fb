"""Whatever the stretches, threads and shares: the numbers are those that were written, and no more is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engines.weights import WeightsInvalid, open_checkpoint
from engines.weights.checkpoint import Checkpoint
from engines.weights.headers import checkpoint_entries

KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def written(folder: Path, shards: int = 3) -> dict[str, torch.Tensor]:
    """Random tensors of several types and shapes in a few files, with an odd-sized one that misaligns the next."""
    torch.manual_seed(3)
    everything: dict[str, torch.Tensor] = {}
    for shard in range(shards):
        some = {
            f"shard{shard}.w{number}": torch.randn(5 + number, 3 + shard).to(KINDS[number % 4]) for number in range(8)
        }
        some[f"shard{shard}.fp8"] = torch.randn(3, 5).to(torch.float8_e4m3fn)
        some[f"shard{shard}.number"] = torch.tensor(float(shard))
        save_file(some, folder / f"model-{shard}.safetensors")
        everything |= some
    return everything


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.double().equal(wanted.double())


@pytest.mark.parametrize(("threads", "longest", "ahead"), [(1, 1 << 30, 1 << 30), (8, 100, 0), (4, 300, 500)])
def test_the_numbers_are_those_that_were_written(tmp_path: Path, threads: int, longest: int, ahead: int) -> None:
    wanted = written(tmp_path)
    tensors = Checkpoint(checkpoint_entries(tmp_path), threads=threads, longest=longest, ahead=ahead)
    for name in sorted(wanted, key=lambda name: hash((name, longest))):  # in no particular order
        assert same(tensors.take(name, wanted[name].shape), wanted[name]), name
    tensors.finish()


def test_a_tensor_can_be_taken_again(tmp_path: Path) -> None:
    wanted = written(tmp_path)
    tensors = open_checkpoint(tmp_path)
    for _ in range(2):
        for name, tensor in wanted.items():
            assert same(tensors.take(name, tensor.shape), tensor)
    tensors.finish()


def test_rows_and_columns(tmp_path: Path) -> None:
    wanted = written(tmp_path)["shard1.w4"]
    tensors = open_checkpoint(tmp_path)
    assert same(tensors.take("shard1.w4", wanted.shape, rows=slice(2, 5)), wanted[2:5])
    assert same(tensors.take("shard1.w4", wanted.shape, rows=slice(0, 3), columns=slice(1, 3)), wanted[:3, 1:3])


def test_pieces_of_a_tensor_that_follow_one_another_are_read_once(tmp_path: Path) -> None:
    wanted = torch.arange(48.0).view(6, 8)
    save_file({"gate": wanted, "up": -wanted}, tmp_path / "model.safetensors")
    tensors = open_checkpoint(tmp_path)
    halves = {name: [tensors.take(name, (6, 8), rows=slice(0, 3))] for name in ("gate", "up")}
    (tmp_path / "model.safetensors").unlink()
    for name, half in halves.items():
        half.append(tensors.take(name, (6, 8), rows=slice(3, 6)))
    assert same(torch.cat(halves["gate"]), wanted) and same(torch.cat(halves["up"]), -wanted)


def test_a_rank_reads_its_share_alone(tmp_path: Path) -> None:
    experts = {f"experts.{number}.w": torch.full((256, 512), float(number)) for number in range(4)}
    shared = {"shared.w": torch.arange(1024 * 512.0).view(1024, 512)}
    save_file({**experts, **shared}, tmp_path / "model.safetensors")
    heard: list[tuple[int, int]] = []

    def second_half(name: str, shape: tuple[int, ...]) -> slice | None:
        if name.startswith("experts."):
            return slice(None) if int(name.split(".")[1]) >= 2 else None
        return slice(shape[0] // 2, shape[0])

    tensors = open_checkpoint(tmp_path, lambda done, total: heard.append((done, total)), share=second_half)
    assert set(tensors.names()) == {"experts.2.w", "experts.3.w", "shared.w"}
    assert tensors.shape("shared.w") == (1024, 512)
    with pytest.raises(WeightsInvalid, match="only 512 to 1024 are read"):
        tensors.take("shared.w", (1024, 512))
    assert same(tensors.take("shared.w", (1024, 512), rows=slice(512, 1024)), shared["shared.w"][512:])
    assert same(tensors.take("experts.3.w", (256, 512)), experts["experts.3.w"])
    assert same(tensors.take("experts.2.w", (256, 512)), experts["experts.2.w"])
    tensors.finish()
    assert heard[-1] == (4 << 19, 4 << 19)  # two whole experts and half of the shared one


def test_progress_ends_with_everything(tmp_path: Path) -> None:
    wanted, heard = written(tmp_path), list[tuple[int, int]]()
    tensors = open_checkpoint(tmp_path, lambda done, total: heard.append((done, total)), threads=4)
    for name, tensor in wanted.items():
        tensors.take(name, tensor.shape)
    tensors.finish()
    total = sum(tensor.nbytes for tensor in wanted.values())
    assert heard == sorted(heard)
    assert heard[-1] == (total, total)


def test_no_tensor_keeps_its_neighbours_alive(tmp_path: Path) -> None:
    save_file({"a": torch.ones(8), "b": torch.ones(1000), "c": torch.ones(8)}, tmp_path / "model.safetensors")
    tensors = open_checkpoint(tmp_path)
    taken = {name: tensors.take(name, tensors.shape(name)) for name in "abc"}
    assert {name: tensor.untyped_storage().nbytes() for name, tensor in taken.items()} == {"a": 32, "b": 4000, "c": 32}


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "model.safetensors")
    tensors = open_checkpoint(tmp_path)
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.truncate(500)
    with pytest.raises(WeightsInvalid, match=r"model\.safetensors ended early"):
        tensors.take("a", (1000,))


def test_a_file_that_vanishes(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1000)}, tmp_path / "model.safetensors")
    tensors = open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightsInvalid, match=r"model\.safetensors cannot be read"):
        tensors.take("a", (1000,))


def test_missing_extra_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(2, 3), "b.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    tensors = open_checkpoint(tmp_path)
    with pytest.raises(WeightsInvalid, match=r"c\.weight is missing"):
        tensors.take("c.weight", (1,))
    with pytest.raises(WeightsInvalid, match=r"a\.weight has the shape \[2, 3\], wanted is \[2, 4\]"):
        tensors.take("a.weight", (2, 4))
    tensors.take("a.weight", (2, 3))
    with pytest.raises(WeightsInvalid, match=r"no place for 1 of the tensors: b\.weight"):
        tensors.finish()
