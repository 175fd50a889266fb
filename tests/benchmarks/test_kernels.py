"""The benchmark of kernels on a machine without a GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import kernels


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: the benchmark would run")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main(["--quick"])
    assert "run this on a machine with an NVIDIA GPU" in capsys.readouterr().out


def test_only_known_models_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernels.main(["--model", "unheard-of"])
    assert "moonlight-16b-a3b" in capsys.readouterr().err
