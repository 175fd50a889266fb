"""The arithmetic of memory against models whose sizes are known."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from chains.errors import ModelError, SettingError
from engines.llm import commands
from engines.llm.errors import ModelTooLarge
from engines.llm.fit import divided_sizes, fit, require_room, token_bytes, weights_by_part, weights_of_one, would_fit
from engines.llm.fit_report import report
from engines.llm.gpus import Gpus
from engines.llm.models import architecture_of
from tests.engines.llm.checkpoints import DEEPSEEK_V3, LLAMA, write_checkpoint

V3 = architecture_of(dict(DEEPSEEK_V3))
SMALL = architecture_of(dict(LLAMA))


def test_deepseek_v3_has_the_size_that_is_published() -> None:
    """671 billion parameters, nearly all of one byte; embedding, head and routers take two."""
    parts = {line.label: line for line in weights_by_part(V3)}
    assert 671e9 < sum(line.bytes for line in parts.values()) < 675e9
    assert parts["experts"].bytes == 58 * 256 * 3 * 7168 * 2048
    assert parts["embedding"].bytes == parts["head"].bytes == 129280 * 7168 * 2
    assert token_bytes(V3) == 61 * 576 * 2 == 70_272


def test_deepseek_v3_does_not_fit_on_eight_h100_and_does_on_eight_h200() -> None:
    small, large = fit(V3, Gpus("H100", 8)), fit(V3, Gpus("H200", 8))
    assert not small.fits and small.missing > 10e9
    assert large.fits and large.missing == 0 and large.tokens > 163_840
    assert Gpus("H200", 8) in would_fit(V3) and Gpus("H100", 8) not in would_fit(V3)


def test_the_terms_are_all_that_is_counted() -> None:
    found = fit(V3, Gpus("H200", 8), context=4096, batch=32)
    held = sum(line.bytes for line in found.held)
    assert found.usable == int((143771 << 20) * 0.9)
    assert found.tokens == (found.usable - held) // 70_272
    labels = " ".join(line.label for line in found.held)
    assert all(word in labels for word in ("weights", "activations", "graphs", "logits", "kernels", "between GPUs"))


def test_what_is_missing_is_what_more_memory_must_bring() -> None:
    found = fit(SMALL, Gpus("T4"), context=128, batch=10**6)
    assert not found.fits
    enough = (found.usable + found.missing) / Gpus("T4").bytes
    assert fit(SMALL, Gpus("T4"), context=128, batch=10**6, usable=enough + 1e-9).fits
    assert not fit(SMALL, Gpus("T4"), context=128, batch=10**6, usable=enough - 1e-4).fits


def test_the_small_model_s_bytes_are_those_of_its_file(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "small", LLAMA)
    stored = (folder / "model-0.safetensors").stat().st_size
    counted = sum(line.bytes for line in weights_by_part(SMALL))
    assert 0 <= stored - counted < 4096  # the header


def test_heads_are_divided_whole() -> None:
    """4 heads, 2 of keys and values: two GPUs hold half of each, eight a quarter of q and half of k and v."""
    assert token_bytes(SMALL, 1) == 2 * 2 * 2 * 16 * 4
    assert token_bytes(SMALL, 2) == token_bytes(SMALL, 8) == token_bytes(SMALL, 1) // 2
    assert token_bytes(SMALL, 3) == token_bytes(SMALL, 1)
    sizes = divided_sizes(SMALL)
    eighth = sizes["columns"] // 8 + sizes["heads"] // 4 + sizes["kv heads"] // 2 + sizes[""]
    assert weights_of_one(SMALL, 8, sizes) == eighth


def test_float32_is_served_in_bf16_on_gpus() -> None:
    found, half = fit(SMALL, Gpus("L4")), architecture_of({**LLAMA, "dtype": "bfloat16"})
    assert found == fit(half, Gpus("L4"))
    assert found.token_bytes == token_bytes(SMALL) // 2
    text = "\n".join(report("small", SMALL, [found]))
    assert "Weights as stored (float32)" in text and "on GPUs they are bfloat16" in text
    assert "on GPUs they are" not in "\n".join(report("v3", V3, []))


def test_the_report_shows_the_arithmetic() -> None:
    text = "\n".join(report("v3", V3, [fit(V3, Gpus("H100", 8)), fit(V3, Gpus("H200", 8))]))
    assert "61 layers x (512 latent + 64 rotary) x 2 bytes = 70,272 bytes" in text
    assert "8 x H100: no" in text and "8 x H200: yes" in text
    assert re.search(r"missing on each GPU: \d+\.\d\d GB", text)
    assert "it would fit on 8 x H200" in text
    sums = re.findall(r"together +([\d.]+) GB", text)
    terms = re.search(r"it holds\n(.*?)\n +together", text, re.DOTALL)
    assert terms is not None
    assert sum(map(float, re.findall(r"([\d.]+) GB", terms[1]))) == pytest.approx(float(sums[1]), abs=0.01)


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    require_room(SMALL, "fp32", 10**9, where="this machine", tokens=1000)
    with pytest.raises(ModelTooLarge, match=r"the GPU has 700\.00 GB: .* GB are missing; take precision fp8;"):
        require_room(V3, "bf16", 700 * 10**9, where="the GPU", tokens=1000)
    with pytest.raises(ModelTooLarge, match=r"weights 2684\..*; take precision int8 or int4;"):
        require_room(V3, "fp8", 700 * 10**9, where="this machine", tokens=1000, on_cpu=True)  # it is expanded
    with pytest.raises(ModelTooLarge, match="take a larger machine; as stored it would fit on"):
        require_room(V3, "fp32", 10**9, where="this machine", tokens=1000)


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers())
    args = parser.parse_args(["fit", *arguments])
    code: int = args.command(args)
    return code


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(dict(DEEPSEEK_V3)))
    assert run(str(config), "--gpu", "H100x8") == 1
    assert "8 x H100: no" in capsys.readouterr().out
    assert run(str(tmp_path), "--gpu", "8xH200", "--context", "4096", "--batch", "8") == 0
    assert "8 x H200: yes, for 8 x 4,096 tokens" in capsys.readouterr().out
    assert run(str(tmp_path)) == 0
    assert "8 x B200: yes" in capsys.readouterr().out


def test_the_command_s_errors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(dict(LLAMA)))
    with pytest.raises(SettingError, match=r"no GPU 'H9000'.*H100"):
        run(str(tmp_path), "--gpu", "H9000")
    with pytest.raises(SettingError, match="count from 1"):
        run(str(tmp_path), "--batch", "0")
    with pytest.raises(SettingError, match="usable is 2"):
        run(str(tmp_path), "--usable", "2")
    with pytest.raises(SettingError, match="batch to 1000000"):
        run(str(tmp_path), "--batch", str(10**400))
    longer = str(SMALL.context + 1)
    with pytest.raises(SettingError, match=f"the context is {longer}, and the model was made for {SMALL.context}"):
        run(str(tmp_path), "--context", longer)
    with pytest.raises(SettingError, match=f"the context is {longer}"):
        run(str(tmp_path), "--context", longer, "--gpu", "H100")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        run(str(tmp_path / "absent"))
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelError, match="mamba"):
        run(str(tmp_path))
