"""Triton's interpreter, which runs the kernels on the CPU; without it the tests here are skipped and say why.

It multiplies bf16 wrongly and rounds to e4m3 wrongly: the tests give it float32, and the kernels round beforehand
where it runs them. With a CUDA device the kernels are compiled: tests/gpu looks at those.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.metadata import version
from typing import Any

import pytest
import torch
from torch import Tensor


def interpreted(module: str) -> Any:
    """The module of kernels, to be run by the interpreter; or the calling test module is skipped."""
    if why := _hindrance():
        pytest.skip(why, allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton and the kernels are imported, and as they run
    return importlib.import_module(f"engines.kernels.hopper.{module}")


def _hindrance() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "needs triton: pip install 'triton>=3.7'"
    if torch.cuda.is_available():
        return "this machine has a CUDA device, where the kernels are compiled: run tests/gpu"
    if tuple(map(int, version("triton").split(".")[:2])) < (3, 7):
        return "the interpreter of triton before 3.7 fails with numpy 2.4: pip install 'triton>=3.7'"
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        return "triton was imported before, without its interpreter; set TRITON_INTERPRET=1 for all tests"
    return None


def relative(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted| by norm, in float64; infinite where anything is not finite."""
    found, wanted = found.double(), wanted.double()
    if not bool(found.isfinite().all()):
        return float("inf")
    return float((found - wanted).norm() / wanted.norm())
