"""Every package that is installed with this one, extras included, has a licence on the list."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.shape.tree import ROOT

EXTRAS = ("speech", "llm", "dev")  # coqui (MPL-2.0) is looked at by hand: it is not installed with the others

ALLOWED = (
    r"MIT(-CMU|-0)?|BSD(-[0-3]-Clause)?|0BSD|Apache-2\.0|MPL-2\.0|ISC|PSF-2\.0|Python-2\.0(\.1)?|Unlicense|Zlib|"
    r"CNRI-Python|HPND|CC0-1\.0|BSL-1\.0"
)
# How packages name these licences where they use no SPDX expression.
SPELLINGS = {
    "MIT License": "MIT",
    "The MIT License (MIT)": "MIT",
    "BSD License": "BSD",
    "BSD 3-Clause License": "BSD-3-Clause",
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache": "Apache-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "ISC License (ISCL)": "ISC",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
# Looked at one by one: what the metadata does not say, and the one LGPL library, used unmodified.
REVIEWED = {
    "soxr": "LGPL-2.1-or-later, a library used unmodified and exchangeable by the user",
}
# The CUDA build of torch pins these itself; NVIDIA's licence, and only on machines that take that build.
BY_TORCH = ("nvidia-", "cuda-", "triton", "setuptools")


def licence(package: Distribution) -> str:
    """An SPDX expression, or the best that the metadata has."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = [
        entry.split(" :: ")[-1] for entry in metadata.get_all("Classifier", []) if entry.startswith("License ::")
    ]
    named = [entry for entry in classifiers if entry not in ("OSI Approved", "DFSG approved")] or [
        (metadata.get("License") or "").split("\n")[0]
    ]
    return " AND ".join(SPELLINGS.get(entry.strip(), entry.strip()) for entry in named)


def allowed(expression: str) -> bool:
    """True when every part of an AND, and one part of an OR, is on the list."""
    flat = re.sub(r"[()]", " ", expression)
    return all(
        any(re.fullmatch(ALLOWED, part.split(" WITH ")[0].strip()) for part in clause.split(" OR "))
        for clause in flat.split(" AND ")
    )


def installed(requirements: list[str]) -> Iterator[Distribution]:
    """The distributions behind these requirements and all that they need, each once."""
    queue, seen = [(Requirement(line), "") for line in requirements], set()
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in (*requirement.extras, ""):
            key = (canonicalize_name(requirement.name), wanted)
            if key in seen:
                continue
            seen.add(key)
            try:
                found = distribution(requirement.name)
            except PackageNotFoundError:
                raise AssertionError(f"{requirement.name} is not installed; run `make setup-dev`") from None
            queue += [(Requirement(line), wanted) for line in found.requires or []]
            if wanted == "":
                yield found


def test_allowed_reads_expressions() -> None:
    assert allowed("MIT") and allowed("Apache-2.0 OR BSD-2-Clause") and allowed("MPL-2.0 AND (MIT OR GPL-3.0-only)")
    assert not allowed("GPL-3.0-or-later") and not allowed("MIT AND LGPL-2.1") and not allowed("")


def ours() -> dict[str, Distribution]:
    """What is installed with this package and its extras, by name; without what a CUDA torch brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    packages = {canonicalize_name(found.name): found for found in installed(project["dependencies"] + extras)}
    return {name: found for name, found in packages.items() if not name.startswith(BY_TORCH)}


def test_every_licence_is_allowed() -> None:
    refused = {name: licence(found) for name, found in ours().items() if not allowed(licence(found))}
    unknown = {name: found for name, found in refused.items() if name not in REVIEWED}
    assert not unknown, "look at these, then allow the licence, note them in REVIEWED, or do without them"
    assert not set(REVIEWED) - set(refused), "take these off REVIEWED"


def test_lock_holds_every_package() -> None:
    lines = (ROOT / "requirements" / "lock.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    locked = {canonicalize_name(name): pinned for name, pinned in pairs}
    assert not set(ours()) - set(locked), "run `make lock`"
    other = {name: found.version for name, found in ours().items() if locked[name] != found.version.split("+")[0]}
    assert not other, "installed in other versions than the lock says; run `make setup-dev`"
