"""From files to a step loop: settings that become numbers, models that cannot be used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from engines.llm.assembly import _stored, assemble, device_kind
from engines.llm.config import EngineSettings, ModelSource
from engines.llm.errors import ModelBroken, SettingInvalid
from engines.llm.messages import Report

SETTINGS = EngineSettings(device="cpu", precision="fp32", cache_tokens=100, context=300)


def unheard(report: Report) -> None:
    raise AssertionError(report)


def test_the_context_is_no_longer_than_the_cache(tiny_directory: Path) -> None:
    _, facts = assemble(ModelSource(tiny_directory), SETTINGS, unheard)
    assert (facts.slots, facts.context, facts.device, facts.precision) == (101, 101, "cpu", "fp32")
    assert not facts.graphs
    config = json.loads((tiny_directory / "config.json").read_text())
    assert facts.vocabulary == config["vocab_size"]
    assert facts.ends == (config["eos_token_id"],)


def test_ends_of_the_generation_config_count_too(tiny_directory: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    _, facts = assemble(ModelSource(tmp_path), SETTINGS, unheard)
    assert {3, 5} < set(facts.ends)


def test_a_tensor_that_is_missing_is_named(tiny_directory: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_directory, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 4}))
    with pytest.raises(ModelBroken, match=r"model\.layers\.3\."):
        assemble(ModelSource(tmp_path), SETTINGS, unheard)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device_kind(EngineSettings()) == "cpu"
    with pytest.raises(SettingInvalid, match="finds no GPU"):
        device_kind(EngineSettings(device="cuda"))


@pytest.mark.parametrize(
    ("config", "there", "here"),
    [
        ({"quantization_config": {"quant_method": "fp8"}, "dtype": "bfloat16"}, "fp8", "fp8"),
        ({"dtype": "bfloat16"}, "bf16", "bf16"),
        ({"torch_dtype": "float16"}, "bf16", "fp32"),
        ({"dtype": "float32"}, "bf16", "fp32"),
        ({}, "bf16", "fp32"),
    ],
)
def test_a_checkpoint_runs_as_it_is_stored(config: dict[str, object], there: str, here: str) -> None:
    assert (_stored(config, "cuda"), _stored(config, "cpu")) == (there, here)
    assert EngineSettings().on("cpu", _stored(config, "cpu")).precision == here
