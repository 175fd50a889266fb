"""Where the tests' shared memory lies."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chains.wire.segments import FOLDER, available


@pytest.fixture
def folder() -> Iterator[Path]:
    """Real shared memory where there is some: a pool takes nothing from a file system that is nearly full, as a disk
    may be."""
    made = Path(tempfile.mkdtemp(prefix="chains-test-", dir=FOLDER if available(least=0) else None))
    yield made
    shutil.rmtree(made, ignore_errors=True)
