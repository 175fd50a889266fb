"""What of graphs can be seen without a GPU; tests/gpu/test_graphs.py replays them."""

from __future__ import annotations

import logging

import pytest
import torch

from engines.llm.graphs import DecodeGraphs, sizes_up_to


def test_sizes_are_powers_of_two_and_the_most() -> None:
    assert sizes_up_to(0) == []
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(12) == [1, 2, 4, 8, 12]
    assert sizes_up_to(64) == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here capture would succeed")
def test_where_nothing_can_be_captured_steps_run_without_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def forward(*_: object) -> torch.Tensor:
        return torch.zeros(1, 4)

    with caplog.at_level(logging.WARNING):
        graphs = DecodeGraphs.attempt([1], forward, forward, torch.zeros(1, 4, dtype=torch.int32), 4)
    assert graphs is None
    assert "run without" in caplog.text
