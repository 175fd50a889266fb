"""Kernels on a real device: skipped without one. Nothing of the other tests' fixtures is needed here.

python -m pytest -c /dev/null --rootdir . --confcutdir tests/gpu tests/gpu
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a kernel's wrapper allocates is full of NaN (or of -77): what is left unwritten shows."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device; run it on a machine that has one")
    empty = torch.empty

    def poison(*args: object, **kwargs: object) -> torch.Tensor:
        found: torch.Tensor = empty(*args, **kwargs)  # type: ignore[call-overload]
        if found.dtype == torch.float8_e4m3fn:
            found.view(torch.uint8).fill_(0x7F)
        else:
            found.fill_(float("nan") if found.is_floating_point() else -77)
        return found

    torch.manual_seed(11)
    monkeypatch.setattr(torch, "empty", poison)
    yield
