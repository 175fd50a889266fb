"""Making one checkpoint of another: whole or not at all, nothing overwritten, spoilt sources named."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engines.llm import remake as remaking
from engines.llm.errors import ModelBroken, ModelMissing, SettingInvalid
from engines.llm.remake import remake
from engines.llm.upcycle import Experts
from tests.engines.llm.checkpoints import LLAMA, QWEN2, Tensors, read_tensors, write_checkpoint


def drop(tensors: Tensors) -> None:
    del tensors["model.layers.1.self_attn.k_proj.weight"]


def extra(tensors: Tensors) -> None:
    tensors["model.layers.1.self_attn.sinks"] = torch.zeros(4)


def misshape(tensors: Tensors) -> None:
    tensors["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(64, 64)


def integers(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = torch.ones(64, dtype=torch.int32)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (drop, r"layers\.1\.self_attn\.k_proj\.weight is missing"),
        (extra, r"no place for 1 of the tensors: model\.layers\.1\.self_attn\.sinks"),
        (misshape, r"layers\.0\.self_attn\.k_proj\.weight has the shape \[64, 64\], wanted is \[32, 64\]"),
        (integers, r"model\.norm\.weight is of type torch\.int32"),
    ],
    ids=["missing", "extra", "misshapen", "integers"],
)
def test_a_spoilt_source_is_named_and_nothing_is_made(
    tmp_path: Path, spoil: Callable[[Tensors], None], says: str
) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA, spoil)
    with pytest.raises(ModelBroken, match=says):
        remake(source, tmp_path / "made", [Experts()])
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_a_truncated_shard_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA, shards=2)
    file = source / "model-1.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelBroken, match=r"model-1\.safetensors is truncated"):
        remake(source, tmp_path / "made", [Experts()])
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_what_belongs_to_the_model_comes_along_and_can_be_read_by_all(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    remake(source, tmp_path / "deep" / "made", [])
    made = {file.name for file in (tmp_path / "deep" / "made").iterdir()}
    told = {"README.md", "card.json", "config.json", "generation_config.json", "model.safetensors"}
    assert made == told | {"tokenizer.json", "tokenizer_config.json"}
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "deep" / "made").iterdir()}
    assert modes == {0o644}
    before, after = read_tensors(source), read_tensors(tmp_path / "deep" / "made")
    assert set(before) == set(after) and all(torch.equal(before[name], after[name]) for name in before)


def test_layers_that_guess_further_tokens_and_old_buffers_come_along(tmp_path: Path) -> None:
    def more(tensors: Tensors) -> None:
        tensors["model.layers.2.eh_proj.weight"] = torch.ones(64, 128)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)

    remake(write_checkpoint(tmp_path / "source", QWEN2, more), tmp_path / "made", [])
    assert "model.layers.2.eh_proj.weight" in read_tensors(tmp_path / "made")


def test_shards_are_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.weights.writing.ShardWriter.__init__.__defaults__", (50_000,))
    source, told = write_checkpoint(tmp_path / "source", LLAMA, shards=3), list[tuple[int, int]]()
    remake(source, tmp_path / "made", [], lambda done, total: told.append((done, total)))
    assert (tmp_path / "made" / "model.safetensors.index.json").is_file()
    before, after = read_tensors(source), read_tensors(tmp_path / "made")
    assert set(before) == set(after) and all(torch.equal(before[name], after[name]) for name in before)
    assert told[-1][0] == told[-1][1] == sum(tensor.nbytes for tensor in before.values())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    (tmp_path / "made").mkdir()
    with pytest.raises(SettingInvalid, match="there already"):
        remake(source, tmp_path / "made", [Experts()])
    with pytest.raises(SettingInvalid, match="there already"):
        remake(source, source, [Experts()])


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="no directory"):
        remake(tmp_path / "absent", tmp_path / "made", [Experts()])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelBroken, match=r"config\.json cannot be read"):
        remake(tmp_path / "empty", tmp_path / "made", [Experts()])
    (tmp_path / "empty" / "config.json").write_text("[]")
    with pytest.raises(ModelBroken, match="no JSON object"):
        remake(tmp_path / "empty", tmp_path / "made", [Experts()])


def test_an_interrupted_run_leaves_nothing_that_looks_like_a_model(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)

    class Interrupted(Experts):
        def tensors(self, name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
            if name == "model.norm.weight":
                raise KeyboardInterrupt
            return [(name, tensor)]

    with pytest.raises(KeyboardInterrupt):
        remake(source, tmp_path / "made", [Interrupted()])
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_too_little_space_is_told_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    free = os.statvfs(tmp_path)
    assert free.f_bavail
    monkeypatch.setattr(remaking.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 1000}))
    with pytest.raises(SettingInvalid, match=r"0\.00 GB free"):
        remake(source, tmp_path / "made", [Experts()])


def test_a_target_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", LLAMA)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SettingInvalid, match="cannot be written"):
        remake(source, tmp_path / "file" / "made", [Experts()])
