"""Counts as they are written on the command line. That scaling restarts nobody: test_operate.py, on a real cluster."""

from __future__ import annotations

import pytest

from chains.errors import SettingError

pytest.importorskip("ray")

from chains.runtime.ray_serve.scaling import Count


@pytest.mark.parametrize(("text", "count"), [("3", Count(3, 3)), ("1-8", Count(1, 8)), ("0-4", Count(0, 4))])
def test_counts(text: str, count: Count) -> None:
    assert Count.read(text) == count
    assert str(count) == text


@pytest.mark.parametrize("text", ["", "x", "-1", "3-", "8-1", "0", "1.5", "1--2"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(SettingError, match="; write"):
        Count.read(text)
