"""The kernel's e4m3 and scales are the twin's; the sign of a zero aside, which the interpreter's rounding loses."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.quant import quantize_activations_reference
from tests.engines.kernels.hopper.interpreter import interpreted

quant = interpreted("quant")


@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("columns", [7, 128, 300, 1200])
def test_as_the_twin(columns: int, ue8m0: bool) -> None:
    """Over twelve orders of magnitude, with a group of zeros and one below the floor of the scale."""
    torch.manual_seed(columns)
    x = torch.randn(4, columns) * torch.logspace(-6, 6, columns)
    x[1, :128], x[2, :100] = 0, 1e-7
    found, wanted = quant.quantize_activations(x, ue8m0=ue8m0), quantize_activations_reference(x, ue8m0=ue8m0)
    assert torch.equal(found[0].float(), wanted[0].float())
    assert torch.equal(found[1], wanted[1])


def test_a_slice_of_a_wider_tensor() -> None:
    x = torch.randn(3, 400)[:, 50:250]
    assert torch.equal(quant.quantize_activations(x)[0].float(), quantize_activations_reference(x)[0].float())
