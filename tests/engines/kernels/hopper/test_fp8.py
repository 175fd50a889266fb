"""Rounding to e4m3: every value that lies halfway between two, and those beside it."""

from __future__ import annotations

import torch

from engines.kernels.quant import quantize_activations_reference
from tests.engines.kernels.hopper.interpreter import interpreted

quant = interpreted("quant")


def test_halfway_values_go_to_even() -> None:
    """One group a row, whose largest value is 448, so that the scale is 1."""
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middle = (every[1:] + every[:-1]) / 2
    for values in (middle, torch.nextafter(middle, every[1:]), torch.nextafter(middle, every[:-1]), -middle):
        x = torch.cat((values, torch.tensor([448.0, 0.0]))).unsqueeze(0)
        q, scales = quant.quantize_activations(x)
        assert scales.item() == 1.0
        assert torch.equal(q.float(), quantize_activations_reference(x)[0].float())
