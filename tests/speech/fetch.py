"""Fetches recordings of human speech for the tests, from Debian's packages, without root.

python tests/speech/fetch.py [FOLDER]   (default: .venv/share/chains/speech)

Prints one line and leaves with 0 whatever happens: where apt is not at hand, the tests that need these are
skipped.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Package -> folders taken out of it. Licences: CC-BY-SA-3.0 (telephone prompts), BSD (readings of
# LibriVox).
PACKAGES = {
    "asterisk-core-sounds-en-wav": ["usr/share/asterisk/sounds/en_US_f_Allison"],
    "asterisk-core-sounds-en": ["usr/share/doc/asterisk-core-sounds-en"],
    "pocketsphinx-testdata": ["usr/share/pocketsphinx/test/data/librivox"],
}
_DEFAULT = Path(__file__).resolve().parents[2] / ".venv" / "share" / "chains" / "speech"
_TIMEOUT_S = 120


def fetch(folder: Path) -> str:
    """Fills `folder` where something is missing; says what came of it."""
    if all((folder / Path(inside).name).is_dir() for folders in PACKAGES.values() for inside in folders):
        return f"human speech for the tests is in {folder}"
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        return "no apt-get here: tests on human speech will be skipped (the others hear synthetic speech)"
    try:
        with tempfile.TemporaryDirectory() as name:
            for package, folders in PACKAGES.items():
                _take(package, folders, Path(name), folder)
    except (OSError, subprocess.SubprocessError) as error:
        return f"human speech could not be fetched ({_short(error)}): the tests on it will be skipped"
    return f"human speech for the tests was fetched to {folder}"


def _take(package: str, folders: list[str], work: Path, folder: Path) -> None:
    _run(["apt-get", "-q", "download", package], work)
    archive = next(work.glob(f"{package}_*.deb"))
    unpacked = work / package
    _run(["dpkg", "-x", str(archive), str(unpacked)], work)
    for inside in folders:
        target = folder / Path(inside).name
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked / inside, target)


def _run(command: list[str], work: Path) -> None:
    subprocess.run(command, cwd=work, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)


def _short(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return f"{error.cmd[0]}: {lines[-1] if lines else error.returncode}; apt-get update may help"
    return f"{type(error).__name__}"


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1]) if len(sys.argv) > 1 else _DEFAULT))
