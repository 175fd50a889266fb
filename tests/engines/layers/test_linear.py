"""Each form of a product: how far from exact, and that a token's result does not depend on the others beside it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from engines.kernels.gemm import block_fp8_gemm_reference
from engines.kernels.quant import dequantize_blocks, quantize_blocks
from engines.layers.linear import Beside, BlockFP8Linear, Int4Linear, Int8Linear, PlainLinear, RoundedLinear, by_inputs

WEIGHT, BIAS = torch.randn(96, 192) * 0.1, torch.randn(96)
X = torch.randn(21, 192)
X[0] *= 1000  # the first token's activations are a thousand times the others' in real models
EXACT = functional.linear(X, WEIGHT, BIAS)


@pytest.mark.parametrize(("kind", "tolerance"), [(Int8Linear, 0.02), (Int4Linear, 0.15)])
def test_small_integers(kind: type[Int8Linear | Int4Linear], tolerance: float) -> None:
    linear = kind(WEIGHT, BIAS)
    errors = (linear(X) - EXACT).norm(dim=1) / EXACT.norm(dim=1)
    assert float(errors.max()) < tolerance
    alone = torch.cat([linear(row[None]) for row in X])
    assert float(((alone - linear(X)).norm(dim=1) / EXACT.norm(dim=1)).max()) < tolerance


ON_ANY_CPU = """
import torch
from engines.layers.linear import Int4Linear, Int8Linear
weight, x = torch.randn(192, 576), torch.randn(40, 576) * torch.rand(40, 1) * 10
exact = torch.nn.functional.linear(x, weight)
for kind, most in (Int8Linear, 0.03), (Int4Linear, 0.2):
    linear = kind(weight)
    for count in (1, 2, 5, 40):
        errors = (linear(x[:count]) - exact[:count]).norm(dim=1) / exact[:count].norm(dim=1)
        assert float(errors.max()) < most, (kind, count, errors)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these are kinds of x86")
@pytest.mark.parametrize(
    ("library", "other"),
    [
        ("AVX2", "AVX2"),
        ("AVX2", "AVX2_VNNI"),
        ("AVX512", "AVX512_CORE"),
        ("AVX512_VNNI", "AVX512_CORE_VNNI"),
        ("AVX512_VNNI", "AVX512_CORE_AMX"),
    ],
)
def test_no_cpu_overflows_or_falls_back_to_plain_loops(library: str, other: str) -> None:
    """As CPUs without the newest instructions compute it: neither library exceeds what this one has."""
    limits = {"FBGEMM_ENABLE_INSTRUCTIONS": library, "ONEDNN_MAX_CPU_ISA": other, "ONEDNN_VERBOSE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ON_ANY_CPU], env=os.environ | limits, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    products = [line for line in done.stdout.splitlines() if ",matmul," in line]
    assert products and not [line for line in products if ",ref" in line]


def test_int4_says_which_shapes_it_takes() -> None:
    assert Int4Linear.takes(16, 64) and not Int4Linear.takes(16, 96) and not Int4Linear.takes(20, 64)


def test_fp8_rounded_is_fp8() -> None:
    q, s = quantize_blocks(WEIGHT)
    fp8, rounded = BlockFP8Linear(q, s, BIAS), RoundedLinear(dequantize_blocks(q, s, torch.float32), BIAS)
    wanted = block_fp8_gemm_reference(X.double(), q, s) + BIAS
    for found in (fp8(X), rounded(X)):
        assert float((found - wanted).norm() / wanted.norm()) < 1e-5


def test_beside() -> None:
    halves = [PlainLinear(part, bias) for part, bias in zip(WEIGHT.chunk(2), BIAS.chunk(2), strict=True)]
    assert torch.allclose(Beside(halves)(X), EXACT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 5, 6, 21])
@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("weight", [WEIGHT, by_inputs(WEIGHT.repeat(3, 1))[:96]])
def test_plain(tokens: int, bias: torch.Tensor | None, weight: torch.Tensor) -> None:
    """However the weight lies in memory."""
    wanted = functional.linear(X[:tokens].double(), WEIGHT.double(), None if bias is None else bias.double())
    assert float((PlainLinear(weight, bias)(X[:tokens]) - wanted).norm() / wanted.norm()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(96, 32), (32, 96)])
def test_a_weight_laid_out_by_inputs_is_the_same(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(shape, dtype=dtype)
    found = by_inputs(weight)
    assert torch.equal(found, weight)
    assert (found.stride() == (1, 96)) == (shape[0] > shape[1] and dtype == torch.float32)
