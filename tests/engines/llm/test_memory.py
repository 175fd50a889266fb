"""What memory is there, from the kernel's own files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engines.llm.errors import ModelTooLarge
from engines.llm.memory import available, refuse_what_does_not_fit
from engines.llm.models import architecture_of
from tests.engines.llm.checkpoints import DEEPSEEK_V3, LLAMA

CPU = torch.device("cpu")


def files(folder: Path, limit: str) -> tuple[Path, Path]:
    (folder / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:    50 kB\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text("9000\n")
    (folder / "memory.stat").write_text("anon 5000\ninactive_file 2000\n")
    return folder / "meminfo", folder


def test_the_smaller_of_machine_and_container(tmp_path: Path) -> None:
    assert available(CPU, *files(tmp_path, "10000")) == 3000
    assert available(CPU, *files(tmp_path, "1000000")) == 51200
    assert available(CPU, *files(tmp_path, "max")) == 51200


def test_where_nothing_is_known_nothing_is_refused(tmp_path: Path) -> None:
    assert available(CPU, tmp_path / "absent", tmp_path / "absent") is None


def test_this_machine_holds_a_small_model_and_not_deepseek_v3() -> None:
    refuse_what_does_not_fit(architecture_of(dict(LLAMA)), "fp32", CPU, tokens=1000)
    with pytest.raises(ModelTooLarge, match=r"this machine has .* GB are missing"):
        refuse_what_does_not_fit(architecture_of(dict(DEEPSEEK_V3)), "fp64", CPU, tokens=1000)
