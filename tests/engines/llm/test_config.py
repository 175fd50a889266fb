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
    ],
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
    for settings in ({"precision": "fp4"}, {"threads": 0}, {"prefill_chunk": 0}, {"cache_tokens": -1}):
        with pytest.raises(SettingInvalid):
            EngineSettings(**settings)


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
