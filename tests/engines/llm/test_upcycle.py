"""A dense model cut into experts: together they are what the MLP was."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from engines.llm import commands
from engines.llm.card import card_of
from engines.llm.errors import ModelBroken, SettingInvalid
from engines.llm.quantize import BlockFP8
from engines.llm.remake import remake
from engines.llm.upcycle import Experts, default_experts, upcycle
from tests.engines.llm.checkpoints import (
    DEEPSEEK_V3,
    LLAMA,
    QWEN2,
    QWEN3,
    Tensors,
    logits,
    mlp,
    names_of,
    read_tensors,
    write_checkpoint,
)


def mixture(x: torch.Tensor, tensors: Tensors, prefix: str, active: int, scale: float) -> torch.Tensor:
    """A mixture of experts by the book: softmax over the router, the best `active`, renormalised, scaled."""
    scores = torch.softmax(x @ tensors[f"{prefix}gate.weight"].to(x.dtype).T, -1)
    best = scores.sort(descending=True, stable=True)
    weights = best.values[:, :active] / best.values[:, :active].sum(-1, keepdim=True) * scale
    result = torch.zeros_like(x)
    for row in range(len(x)):
        for weight, expert in zip(weights[row], best.indices[row, :active], strict=True):
            result[row] += weight * mlp(x[row : row + 1], tensors, f"{prefix}experts.{expert}.")[0]
    return result


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=lambda config: config["model_type"])
def test_all_experts_together_are_the_dense_mlp(tmp_path: Path, config: dict[str, object]) -> None:
    dense = write_checkpoint(tmp_path / "dense", config)
    upcycle(dense, tmp_path / "moe")
    before, after = read_tensors(dense), read_tensors(tmp_path / "moe")
    stored = json.loads((tmp_path / "moe" / "config.json").read_text())
    assert set(after) == names_of(stored)
    x = torch.randn(5, 64, dtype=torch.float64)
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp."
        wanted = mlp(x, before, prefix)
        found = mixture(x, after, prefix, stored["num_experts_per_tok"], stored["routed_scaling_factor"])
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)
    rest = [name for name in before if ".mlp." not in name]
    assert all(torch.equal(before[name], after[name]) for name in rest)


@pytest.mark.parametrize("config", [LLAMA, QWEN2, QWEN3], ids=lambda config: config["model_type"])
@pytest.mark.parametrize(("precision", "close"), [("fp64", 1e-12), ("fp32", 1e-5)])
def test_the_decoder_gives_the_same_logits(
    tmp_path: Path, config: dict[str, object], precision: str, close: float
) -> None:
    dense = write_checkpoint(tmp_path / "dense", config)
    upcycle(dense, tmp_path / "moe")
    tokens = [5, 17, 3, 88, 41, 41, 9]
    wanted, found = logits(dense, tokens, precision), logits(tmp_path / "moe", tokens, precision)
    assert (found - wanted).abs().max() <= close * (wanted.max() - wanted.min())
    assert torch.equal(found.argmax(-1), wanted.argmax(-1))


def test_the_config_says_what_it_became(tmp_path: Path) -> None:
    card = upcycle(write_checkpoint(tmp_path / "dense", LLAMA), tmp_path / "moe")
    config = json.loads((tmp_path / "moe" / "config.json").read_text())
    wanted = {
        "model_type": "chains_upcycled",
        "base_model_type": "llama",
        "num_experts": 3,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 128,
        "routed_scaling_factor": 3.0,
        "scoring_func": "softmax",
        "norm_topk_prob": True,
        "intermediate_size": 384,
        "hidden_size": 64,
    }
    assert {key: config[key] for key in wanted} == wanted
    assert not read_tensors(tmp_path / "moe")["model.layers.0.mlp.gate.weight"].any()
    assert card.base == "dense" and "all of them together are the dense MLP" in card.steps[0]
    assert card.details[0]["equals_base"] is True


def test_fewer_active_experts_are_never_silent(tmp_path: Path) -> None:
    card = upcycle(write_checkpoint(tmp_path / "dense", LLAMA), tmp_path / "moe", active=2)
    assert "much worse" in card.steps[0] and card.details[0]["equals_base"] is False
    assert "much worse" in (tmp_path / "moe" / "README.md").read_text()
    assert json.loads((tmp_path / "moe" / "config.json").read_text())["num_experts_per_tok"] == 2


def test_upcycled_then_quantised_in_one_go_or_two(tmp_path: Path) -> None:
    dense = write_checkpoint(tmp_path / "dense", LLAMA)
    remake(dense, tmp_path / "once", [Experts(), BlockFP8()])
    upcycle(dense, tmp_path / "moe")
    remake(tmp_path / "moe", tmp_path / "twice", [BlockFP8()])
    once, twice = read_tensors(tmp_path / "once"), read_tensors(tmp_path / "twice")
    assert set(once) == set(twice)
    assert all(torch.equal(once[name].float(), twice[name].float()) for name in once)
    assert once["model.layers.1.mlp.experts.2.down_proj.weight"].dtype == torch.float8_e4m3fn
    assert once["model.layers.1.mlp.gate.weight"].dtype == torch.float32
    assert card_of(tmp_path / "once").steps == card_of(tmp_path / "twice").steps
    assert card_of(tmp_path / "twice").base == "dense"
    kept = json.loads((tmp_path / "once" / "config.json").read_text())["quantization_config"]["modules_to_not_convert"]
    assert "model.layers.0.mlp.gate" in kept


def test_how_many_experts() -> None:
    assert default_experts(1536) == 12  # of 128
    assert default_experts(8960) == 14  # of 640
    assert default_experts(96) == 16  # no whole blocks: any equal parts
    with pytest.raises(SettingInvalid, match="no equal parts"):
        default_experts(17 * 19)


@pytest.mark.parametrize(("experts", "active", "says"), [(7, 0, "equal experts"), (1, 0, "equal"), (3, 4, "4 of 3")])
def test_numbers_that_make_no_sense(tmp_path: Path, experts: int, active: int, says: str) -> None:
    dense = write_checkpoint(tmp_path / "dense", LLAMA)
    with pytest.raises(SettingInvalid, match=says):
        upcycle(dense, tmp_path / "moe", experts=experts, active=active)
    assert [file.name for file in tmp_path.iterdir()] == ["dense"]


def test_models_that_cannot_be_cut(tmp_path: Path) -> None:
    moe = tmp_path / "moe"
    upcycle(write_checkpoint(tmp_path / "dense", LLAMA), moe)
    with pytest.raises(ModelBroken, match="'chains_upcycled' cannot be cut"):
        upcycle(moe, tmp_path / "again")
    with pytest.raises(ModelBroken, match="'deepseek_v3'"):
        Experts().check(DEEPSEEK_V3)
    with pytest.raises(ModelBroken, match="MLPs with a bias"):
        Experts().check({**LLAMA, "mlp_bias": True})
    with pytest.raises(ModelBroken, match="another activation"):
        Experts().check({**LLAMA, "hidden_act": "gelu"})


def test_the_command_says_what_fewer_active_experts_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "dense", LLAMA)
    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers())
    args = parser.parse_args(["upcycle", str(source), str(tmp_path / "moe"), "--active", "1", "--fp8"])
    assert args.command(args) == 0
    printed = capsys.readouterr().out
    assert "much worse than the dense model's" in printed and "quantised to block FP8" in printed
    assert card_of(tmp_path / "moe").precision == "fp8"
