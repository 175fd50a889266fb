"""Block FP8: what is quantised, how far off it is, and that this is told."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from chains.errors import ModelError, SettingError
from engines.llm import commands
from engines.llm.card import card_of
from engines.llm.errors import ModelBroken
from engines.llm.quantize import REPORT, quantize
from tests.engines.llm.checkpoints import (
    LLAMA,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    SMALL_DEEPSEEK,
    SMALL_V2,
    Tensors,
    logits,
    names_of,
    read_tensors,
    write_checkpoint,
)


def expanded(stored: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Each value times the scale of its block, in float64."""
    rows, columns = stored.shape
    spread = scales.double().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
    return stored.double() * spread


@pytest.mark.parametrize(
    "config", [LLAMA, QWEN2, QWEN3, QWEN3_MOE, SMALL_V2, SMALL_DEEPSEEK], ids=lambda config: config["model_type"]
)
def test_every_projection_becomes_fp8_and_nothing_else(tmp_path: Path, config: dict[str, object]) -> None:
    source = write_checkpoint(tmp_path / "plain", config, shards=2)
    quantize(source, tmp_path / "fp8")
    before, after = read_tensors(source), read_tensors(tmp_path / "fp8")
    assert set(after) == names_of(json.loads((tmp_path / "fp8" / "config.json").read_text()))
    for name, given in before.items():
        small = name.endswith(("_proj.weight", "kv_a_proj_with_mqa.weight"))
        if not small:
            assert after[name].dtype == given.dtype and torch.equal(after[name], given), name
            continue
        assert after[name].dtype == torch.float8_e4m3fn, name
        scales = after[f"{name}_scale_inv"]
        assert scales.dtype == torch.float32
        found = expanded(after[name], scales)
        # e4m3 keeps three bits after the point: half a step of 1/8, or half the smallest step of the block
        bound = (given.double().abs() / 16).clamp(min=given.abs().max().item() / 448 * 2**-10)
        assert ((found - given.double()).abs() <= bound * 1.001).all(), name


def test_the_config_is_that_of_published_block_fp8(tmp_path: Path) -> None:
    quantize(write_checkpoint(tmp_path / "plain", QWEN2), tmp_path / "fp8")
    config = json.loads((tmp_path / "fp8" / "config.json").read_text())
    assert config["quantization_config"] == {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "modules_to_not_convert": ["lm_head"],
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    }
    assert {key: config[key] for key in QWEN2} == QWEN2


def test_errors_are_told_per_layer_the_worst_last(tmp_path: Path) -> None:
    def rough(tensors: Tensors) -> None:
        """One number a thousand times the others takes the precision of its block."""
        tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = 1e4

    source = write_checkpoint(tmp_path / "plain", LLAMA, rough)
    card = quantize(source, tmp_path / "fp8")
    report = json.loads((tmp_path / "fp8" / REPORT).read_text())
    before, after = read_tensors(source), read_tensors(tmp_path / "fp8")
    for told in report["tensors"]:
        given = before[told["name"]].double()
        found = expanded(after[told["name"]], after[f"{told['name']}_scale_inv"])
        assert told["relative_error"] == pytest.approx(((found - given).norm() / given.norm()).item(), abs=2e-6)
    assert [entry["relative_error"] for entry in report["tensors"]] == sorted(
        entry["relative_error"] for entry in report["tensors"]
    )
    assert {entry["layer"] for entry in report["layers"]} == {"layer 0", "layer 1"}
    assert 0.01 < report["layers"][-1]["relative_error"] < 0.05
    assert report["not_quantised"] == ["model.embed_tokens"]
    assert f"relative error {report['relative_error']:.4f}" in card.steps[0]
    assert card == card_of(tmp_path / "fp8")
    assert report["layers"][-1]["layer"] in (tmp_path / "fp8" / "README.md").read_text()


def test_the_decoder_runs_what_was_quantised(tmp_path: Path) -> None:
    every_expert = {**SMALL_DEEPSEEK, "num_experts_per_tok": 4, "topk_group": 2}  # no choice that rounding could turn
    source = write_checkpoint(tmp_path / "plain", every_expert)
    quantize(source, tmp_path / "fp8")
    tokens = [5, 17, 3, 88, 41, 41, 9]
    wanted, found = logits(source, tokens, "fp32"), logits(tmp_path / "fp8", tokens, "fp8")
    assert 1e-4 < (found - wanted).norm() / wanted.norm() < 0.2


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    def spoilt(tensors: Tensors) -> None:
        tensors["model.layers.1.self_attn.k_proj.weight"][3, 3] = float("nan")

    source = write_checkpoint(tmp_path / "plain", LLAMA, spoilt)
    with pytest.raises(ModelBroken, match=r"layers\.1\.self_attn\.k_proj\.weight holds numbers that are not finite"):
        quantize(source, tmp_path / "fp8")
    assert [file.name for file in tmp_path.iterdir()] == ["plain"]


def test_a_quantised_model_is_not_quantised_again(tmp_path: Path) -> None:
    quantize(write_checkpoint(tmp_path / "plain", LLAMA), tmp_path / "fp8")
    with pytest.raises(ModelBroken, match="quantised already"):
        quantize(tmp_path / "fp8", tmp_path / "again")


def test_the_command_prints_the_worst_layers_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_checkpoint(tmp_path / "plain", LLAMA)
    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers())
    args = parser.parse_args(["quantize", str(source), str(tmp_path / "fp8")])
    assert args.command(args) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("fp8: made from plain")
    worst = json.loads((tmp_path / "fp8" / REPORT).read_text())["layers"][-1]
    assert lines[-1].strip() == f"relative error {worst['relative_error']:.4f} in {worst['layer']}"
    with pytest.raises(SettingError, match="there already"):
        args.command(args)
    with pytest.raises(ModelError, match="no directory"):
        args = parser.parse_args(["quantize", str(tmp_path / "absent"), str(tmp_path / "other")])
        args.command(args)
