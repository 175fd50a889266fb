"""MLA's rows in the cache as the twin writes them, from a slice of a wider tensor."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.attention import write_latent_reference
from tests.engines.kernels.hopper.interpreter import interpreted, relative

latent = interpreted("latent")


@pytest.mark.parametrize("interleaved", [True, False])
def test_as_the_twin(interleaved: bool) -> None:
    kv, w, angles = torch.randn(4, 60)[:, 10:50], torch.randn(24), torch.rand(30, 8) * 6
    positions, slots = torch.tensor([0, 29, 4, 4]), torch.tensor([5, 2, 7, 1])
    found, wanted = torch.zeros(9, 40), torch.zeros(9, 40, dtype=torch.float64)
    latent.write_latent(found, kv, w, 1e-6, angles.cos(), angles.sin(), positions, slots, interleaved)
    write_latent_reference(
        wanted, kv.double(), w, 1e-6, angles.cos(), angles.sin(), positions, slots, interleaved=interleaved
    )
    assert relative(found, wanted) < 1e-6
    assert not found[[0, 3, 4, 6, 8]].any()
