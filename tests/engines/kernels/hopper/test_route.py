"""The choice of experts as the twin makes it, ties and dropped groups included."""

from __future__ import annotations

import pytest
import torch

from engines.kernels.experts import route_reference
from tests.engines.kernels.hopper.interpreter import interpreted, relative

routing = interpreted("route")


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(
    ("experts", "groups", "kept", "active"), [(64, 1, 1, 6), (60, 1, 1, 4), (32, 4, 2, 4), (32, 8, 4, 8)]
)
def test_as_the_twin(experts: int, groups: int, kept: int, active: int, biased: bool, scoring: str) -> None:
    torch.manual_seed(experts + groups)
    scores, bias = torch.randn(6, experts), torch.randn(experts) if biased else None
    scores[0] = 0
    if bias is not None:
        bias[: experts // 2] = -3.0  # negative, and equal, also where groups are kept
    found = routing.route(scores, bias, scoring, groups, kept, active, True, 2.5)
    wanted = route_reference(
        scores, bias, scoring=scoring, groups=groups, active_groups=kept, active=active, normalise=True, scale=2.5
    )
    assert torch.equal(found[0], wanted[0])
    assert relative(found[1], wanted[1]) < 1e-6


def test_further_experts_stand_behind() -> None:
    scores = torch.randn(3, 60)
    ids, weights = routing.route(scores, None, "softmax", 1, 1, 3, True, 2.5, 2)
    wanted = route_reference(
        scores, None, scoring="softmax", groups=1, active_groups=1, active=3, normalise=True, scale=2.5, further=2
    )
    assert torch.equal(ids, wanted[0]) and ids[:, 3:].tolist() == [[60, 61]] * 3
    assert relative(weights, wanted[1]) < 1e-6


def test_what_fits() -> None:
    assert routing.fits(64, 1) and routing.fits(60, 1) and routing.fits(256, 8)
    assert not routing.fits(160, 8) and not routing.fits(8, 8) and not routing.fits(2048, 1)
