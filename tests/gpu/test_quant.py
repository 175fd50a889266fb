"""Activations on the device: bit for bit what the twin gives."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.quant import quantize_activations, quantize_activations_reference
from tests.gpu.shapes import DEVICE, bits, replayed

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("columns", [512, 576, 704, 1408, 2048, 2560, 7168, 10944, 18432])
def test_as_the_twin(columns: int, ue8m0: bool, dtype: torch.dtype) -> None:
    x = (torch.randn(37, columns, device=DEVICE) * torch.logspace(-4, 3, columns, device=DEVICE)).to(dtype)
    x[1] = 0
    x[2, :64] = 1e-7
    for found, wanted in zip(
        quantize_activations(x, ue8m0=ue8m0), quantize_activations_reference(x, ue8m0=ue8m0), strict=True
    ):
        assert torch.equal(bits(found), bits(wanted))


def test_a_slice_of_a_wider_tensor() -> None:
    x = torch.randn(8, 3648, device=DEVICE).bfloat16()[:, 64:2112]
    for found, wanted in zip(quantize_activations(x), quantize_activations_reference(x.contiguous()), strict=True):
        assert torch.equal(bits(found), bits(wanted))


def test_in_a_graph() -> None:
    replayed(quantize_activations, [torch.randn(8, 2048, device=DEVICE)], [torch.randn(8, 2048, device=DEVICE)])
