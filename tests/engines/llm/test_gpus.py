"""GPUs by name."""

from __future__ import annotations

import pytest

from engines.llm.errors import SettingInvalid
from engines.llm.gpus import Gpus


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("H100", Gpus("H100", 1)),
        ("h100x8", Gpus("H100", 8)),
        ("8xH200", Gpus("H200", 8)),
        ("4 x A100", Gpus("A100-80", 4)),
        ("A100-40", Gpus("A100-40", 1)),
        ("A100-40GBx2", Gpus("A100-40", 2)),
        ("RTX 4090", Gpus("RTX-4090", 1)),
        ("4090x2", Gpus("RTX-4090", 2)),
        ("RTX 6000 Ada", Gpus("RTX-6000-ADA", 1)),
        ("l40s", Gpus("L40S", 1)),
    ],
)
def test_names(text: str, wanted: Gpus) -> None:
    assert Gpus.read(text) == wanted


@pytest.mark.parametrize("text", ["", "H100x0", "x8", "TPU", "H100x8x8", "H1000", "8"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(SettingInvalid):
        Gpus.read(text)


def test_an_unknown_one_lists_the_known() -> None:
    with pytest.raises(SettingInvalid, match=r"'MI300'.*H100.*B200"):
        Gpus.read("MI300")


def test_memory_is_what_the_device_says() -> None:
    assert 84e9 < Gpus("H100").bytes < 86e9
    assert str(Gpus("H200", 8)) == "8 x H200"
