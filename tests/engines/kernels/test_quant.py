"""Block FP8: the values come back within half a step of e4m3, group by group, ragged edges and zeros included."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engines.kernels.quant import (
    FP8_MAX,
    blocks,
    dequantize_activations,
    dequantize_blocks,
    power_of_two_above,
    quantize_activations,
    quantize_blocks,
    round_activations,
)

HALF_STEP = 2**-4  # of a value's size: e4m3 has three bits after the point


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def within_half_a_step(found: Tensor, wanted: Tensor, scales: Tensor) -> bool:
    """Whether each value is the nearest of e4m3; below 2^-6 of a scale steps are 2^-9 of it."""
    error = (found.double() - wanted.double()).abs()
    return bool((error <= torch.maximum(wanted.double().abs() * HALF_STEP, scales.double() * 2**-10) * 1.001).all())


@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (3, 576), (2, 704), (5, 10944), (4, 7)])
def test_activations_come_back(rows: int, columns: int, generator: torch.Generator) -> None:
    x = torch.randn(rows, columns, generator=generator) * torch.logspace(-2, 2, columns)
    q, scales = quantize_activations(x)
    assert q.shape == x.shape and q.dtype == torch.float8_e4m3fn
    assert scales.shape == (rows, blocks(columns)) and scales.dtype == torch.float32
    spread = scales.repeat_interleave(128, 1)[:, :columns]
    assert within_half_a_step(dequantize_activations(q, scales, torch.float64), x, spread)
    for group in range(blocks(columns)):
        largest = x[:, group * 128 : (group + 1) * 128].abs().amax(1)
        assert torch.equal(scales[:, group], largest / FP8_MAX)


def test_a_group_of_zeros_is_zeros() -> None:
    q, scales = quantize_activations(torch.zeros(2, 256))
    assert torch.equal(q.float(), torch.zeros(2, 256))
    assert torch.allclose(scales, torch.full((2, 2), 1e-4 / FP8_MAX))


def test_small_values_keep_the_floor() -> None:
    x = torch.full((1, 128), 1e-6)
    q, scales = quantize_activations(x)
    assert scales.item() == pytest.approx(1e-4 / 448)
    assert torch.allclose(dequantize_activations(q, scales, torch.float32), x, rtol=HALF_STEP)


def test_power_of_two_scales(generator: torch.Generator) -> None:
    x = torch.randn(6, 300, generator=generator) * 50
    q, scales = quantize_activations(x, ue8m0=True)
    plain = quantize_activations(x)[1]
    assert torch.equal(scales, torch.tensor([[2.0 ** math.ceil(math.log2(s)) for s in row] for row in plain.tolist()]))
    assert within_half_a_step(
        dequantize_activations(q, scales, torch.float64), x, scales.repeat_interleave(128, 1)[:, :300]
    )


def test_a_power_of_two_stays_one() -> None:
    exact = torch.tensor([2.0**-20, 1.0, 8.0, 2.0**20])
    assert torch.equal(power_of_two_above(exact), exact)
    assert torch.equal(power_of_two_above(torch.nextafter(exact, torch.tensor(torch.inf))), exact * 2)


def test_rounding_is_quantising_and_back(generator: torch.Generator) -> None:
    x = torch.randn(3, 200, dtype=torch.float64, generator=generator)
    assert torch.equal(round_activations(x), dequantize_activations(*quantize_activations(x), torch.float64))
    assert round_activations(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [(128, 128), (576, 256), (130, 704), (1, 1), (3, 200, 140)])
def test_weights_come_back(shape: tuple[int, ...], generator: torch.Generator) -> None:
    w = torch.randn(shape, generator=generator)
    q, scales = quantize_blocks(w)
    assert (
        q.shape == shape and q.is_contiguous() and scales.shape == (*shape[:-2], blocks(shape[-2]), blocks(shape[-1]))
    )
    spread = scales.repeat_interleave(128, -1).repeat_interleave(128, -2)[..., : shape[-2], : shape[-1]]
    found = dequantize_blocks(q, scales, torch.float64)
    assert torch.equal(found, q.double() * spread.double())
    assert within_half_a_step(found, w, spread)
    assert dequantize_blocks(q, scales, torch.bfloat16).dtype == torch.bfloat16


def test_a_block_of_zeros_is_zeros() -> None:
    w = torch.zeros(256, 128)
    w[128:] = 1.0
    assert torch.equal(dequantize_blocks(*quantize_blocks(w), torch.float32), w)
