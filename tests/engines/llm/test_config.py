"""Settings: unknown and senseless ones are errors with the mend; models are found where they were said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.llm.config import DEFAULT_NAME, EngineSettings, ModelSource, Sampling, models_directory
from engines.llm.errors import ModelMissing, SettingInvalid


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tokens": 0}, {"max_tokens": 1.5}, {"max_tokens": True}, {"temperature": -1}, {"temperature": "hot"},
        {"top_p": 0}, {"top_p": 2}, {"stop": "."}, {"stop": ("",)}, {"seed": -1},
        *({name: huge} for huge in (2**63, 10**30, 10**5000) for name in
          ("max_tokens", "top_k", "n", "seed", "logprobs", "temperature", "top_p", "min_p", "repetition_penalty",
           "presence_penalty", "frequency_penalty")),
        {"top_k": 2**31}, {"stop_ids": (2**31,)}, {"temperature": float("nan")}, {"temperature": float("inf")},
    ],
    ids=lambda settings: next(iter(settings)),
)  # fmt: skip
def test_senseless_sampling_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingInvalid) as caught:
        Sampling(**settings)
    assert next(iter(settings)) in str(caught.value)
    assert caught.value.mend


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingInvalid, match=r"max_token;.*max_tokens"):
        Sampling.read({"max_token": 3})
    assert Sampling.read({"max_tokens": 3}) == Sampling(max_tokens=3)


def test_senseless_engine_settings_are_refused() -> None:
    senseless: list[dict[str, Any]] = [
        {"precision": "fp4"}, {"threads": -1}, {"prefill_chunk": 1.5}, {"cache_tokens": -1}, {"device": "tpu"},
        {"guesses": 99}, {"memory_fraction": 1.0}, {"process": 1}, {"overlap": "no"},
        {"max_waiting": 0}, {"max_waiting_all": 0},
    ]  # fmt: skip
    for settings in senseless:
        with pytest.raises(SettingInvalid, match=next(iter(settings))):
            EngineSettings(**settings)
    with pytest.raises(SettingInvalid, match="max_running"):
        EngineSettings(max_running=64, token_budget=32)


def test_numbers_left_to_the_machine_are_filled_in_there() -> None:
    here = EngineSettings(max_running=4).on("cpu", "fp8")
    assert (here.device, here.precision, here.max_running) == ("cpu", "fp8", 4)
    assert (here.overlap, here.cuda_graph_max_bs) == (False, 0)
    assert here.cache_tokens > 0 and here.token_budget >= here.max_running and here.prefill_chunk > 0
    there = EngineSettings().on("cuda", "fp8")
    assert (there.device, there.precision, there.cache_tokens, there.overlap) == ("cuda", "fp8", 0, True)
    assert EngineSettings(precision="bf16", device="cuda:1").on("cuda", "fp8").precision == "bf16"
    assert EngineSettings(token_budget=8).on("cpu").max_running == 8


def test_the_packaged_model_is_looked_for_where_the_variable_says(tmp_path: Path) -> None:
    environment = {"CHAINS_MODELS": str(tmp_path)}
    assert models_directory(environment) == tmp_path
    with pytest.raises(ModelMissing, match="chains fetch-models"):
        ModelSource.resolve("default", environment=environment)
    (tmp_path / DEFAULT_NAME).mkdir()
    (tmp_path / DEFAULT_NAME / "config.json").write_text("{}")
    assert ModelSource.resolve("default", environment=environment).directory == tmp_path / DEFAULT_NAME


def test_a_gguf_file_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert ModelSource.resolve(tmp_path / "m.gguf") == ModelSource(tmp_path, "m.gguf")
