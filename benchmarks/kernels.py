"""Kernels on one GPU: time, bytes and arithmetic a second, and the share of what the machine can.

python benchmarks/kernels.py [--quick] [--eager] [--only gemm,experts] [--model mini-v3] [--json FILE]

Times are medians by CUDA events over inputs that are more than the cache holds, of 20 calls captured in one graph;
`--eager` times single calls, the cost of launching them included. Needs torch and triton alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, where nothing is installed

from engines.kernels import attention, experts, gemm, norm, quant

READ, TENSOR_FP8, TENSOR_BF16 = 4.56e12, 1.4e15, 0.79e15  # bytes and operations a second measured on an H200
ROTATED = 200e6  # bytes of inputs to rotate over: well past the 50 MB of cache
CALLS = 20


class Model(NamedTuple):
    """Sizes that decide the shapes; `q_latent` is 0 where q is projected at once."""

    hidden: int
    heads: int
    q_latent: int
    dense: int
    inner: int
    experts: int
    active: int


MODELS = {
    "moonlight-16b-a3b": Model(2048, 16, 0, 11264, 1408, 64, 6),
    "mini-v3": Model(2560, 32, 1536, 10240, 768, 256, 8),
    "v3-slice-8": Model(7168, 128, 1536, 18432, 2048, 256, 8),
}


class Case(NamedTuple):
    """One op in one shape. `make` gives fresh inputs; `moved` bytes and `operations` are what it cannot do without."""

    op: str
    shape: str
    rows: int
    make: Callable[[], Sequence[Tensor]]
    run: Callable[..., object]
    moved: float
    operations: float = 0.0
    peak: float = TENSOR_FP8


@dataclass(frozen=True)
class Row:
    """What was measured; `share` is of the time that the machine's ceilings allow at best."""

    op: str
    shape: str
    rows: int
    us: float
    tb_per_s: float
    tflop_per_s: float
    share: float


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def weights(*shape: int) -> tuple[Tensor, Tensor]:
    scales = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    return bf16(*shape).to(torch.float8_e4m3fn), torch.rand(scales, device="cuda") * 0.01


def linear_cases(model: Model, rows: Sequence[int]) -> Iterator[Case]:
    q_input = model.q_latent or model.hidden
    shapes = {
        "q": (model.heads * 192, q_input), "kv_a": (576, model.hidden), "o": (model.hidden, model.heads * 128),
        "dense gate_up": (2 * model.dense, model.hidden), "dense down": (model.hidden, model.dense),
    }  # fmt: skip
    if model.q_latent:
        shapes["q_a"] = (model.q_latent, model.hidden)

    for name, (n, k) in shapes.items():
        for m in rows:

            def make(m: int = m, n: int = n, k: int = k) -> Sequence[Tensor]:
                return (*quant.quantize_activations(bf16(m, k)), *weights(n, k))

            moved = n * k + m * k + 2 * m * n
            yield Case("gemm", f"{name} {n}x{k}", m, make, product, moved, 2 * m * n * k)


def product(q: Tensor, s: Tensor, w: Tensor, scales: Tensor) -> Tensor:
    return gemm.block_fp8_product(q, s, w, scales, out_dtype=torch.bfloat16)


def expert_cases(model: Model, rows: Sequence[int]) -> Iterator[Case]:
    """Weights are made once: all of them are far more than the cache holds; the tokens' experts rotate."""
    gate_up = weights(model.experts, 2 * model.inner, model.hidden)
    down = weights(model.experts, model.hidden, model.inner)
    size = 3 * model.inner * model.hidden

    def run(x: Tensor, ids: Tensor, shares: Tensor) -> Tensor:
        return experts.fused_experts(x, ids, shares, *gate_up, *down)

    for m in rows:

        def make(m: int = m) -> Sequence[Tensor]:
            scores = torch.randn(m, model.experts, device="cuda")
            return (bf16(m, model.hidden), *routed(model, scores))

        hit = model.experts * (1 - (1 - model.active / model.experts) ** m)
        moved = hit * size + 4 * m * model.hidden
        shape = f"E{model.experts} top{model.active} {model.inner}x{model.hidden}"
        yield Case("experts", shape, m, make, run, moved, 2 * m * model.active * size)


def routed(model: Model, scores: Tensor) -> tuple[Tensor, Tensor]:
    return experts.route(
        scores, None, scoring="sigmoid", groups=1, active_groups=1, active=model.active, normalise=True, scale=2.5
    )


def small_cases(model: Model, rows: Sequence[int]) -> Iterator[Case]:
    w = bf16(model.hidden)

    def normed(x: Tensor, residual: Tensor) -> object:
        return norm.rms_norm_quant(x, w, 1e-6, residual)

    for m in rows:
        wide, inner = m * model.hidden, m * model.active * model.inner
        pair, gates = partial(several, (m, model.hidden), 2), partial(several, (m * model.active, 2 * model.inner), 1)
        yield Case("rms_norm_quant", f"{model.hidden} + residual", m, pair, normed, 9 * wide)
        yield Case("silu_mul_quant", f"{model.inner} x top{model.active}", m, gates, norm.silu_mul_quant, 5 * inner)
        scores, moved = partial(several, (m, model.experts), 1), m * (4 * model.experts + 12 * model.active)
        shape = f"E{model.experts} top{model.active}"
        yield Case("route", shape, m, scores, lambda x: routed(model, x.float()), moved)


def several(shape: tuple[int, ...], count: int) -> Sequence[Tensor]:
    return [bf16(*shape) for _ in range(count)]


def decode_cases(model: Model, batches: Sequence[tuple[int, int]]) -> Iterator[Case]:
    for batch, context in batches:

        def make(batch: int = batch, context: int = context) -> Sequence[Tensor]:
            slots = batch * context + 1
            pages = (torch.randperm(slots - 1, device="cuda") + 1).int().view(batch, context)
            lengths = torch.full((batch,), context, dtype=torch.int32, device="cuda")
            return bf16(batch, model.heads, 512), bf16(batch, model.heads, 64), bf16(slots, 576), pages, lengths

        moved = batch * (context * 1152 + model.heads * 2176)
        shape, operations = f"{model.heads} heads, context {context}", 2 * batch * model.heads * context * (576 + 512)
        yield Case("mla_decode", shape, batch, make, decoded, moved, operations, TENSOR_BF16)


def decoded(latent: Tensor, rope: Tensor, cache: Tensor, pages: Tensor, lengths: Tensor) -> Tensor:
    return attention.mla_decode(latent, rope, cache, pages, lengths, 0.1147)


def prefill_cases(model: Model, lengths: Sequence[int]) -> Iterator[Case]:
    for length in lengths:
        starts = torch.tensor([0, length], dtype=torch.int32, device="cuda")

        def run(q: Tensor, k: Tensor, v: Tensor, starts: Tensor = starts, length: int = length) -> Tensor:
            return attention.mla_prefill(q, k, v, starts, starts, 0.1147, length)

        def make(length: int = length) -> Sequence[Tensor]:
            return bf16(length, model.heads, 192), bf16(length, model.heads, 192), bf16(length, model.heads, 128)

        moved = 2 * length * model.heads * (192 + 192 + 128 + 128)
        operations = length * length * model.heads * (192 + 128)
        yield Case("mla_prefill", f"{model.heads} heads", length, make, run, moved, operations, TENSOR_BF16)


def timed(case: Case, rounds: int, graph: bool) -> float:
    """The median of a call, in us."""
    first = case.make()
    each = sum(value.numel() * value.element_size() for value in first)
    inputs = [first, *(case.make() for _ in range(min(7, int(ROTATED / each))))]
    for values in inputs[:3]:
        case.run(*values)
    torch.cuda.synchronize()
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for call in range(CALLS):
                case.run(*inputs[call % len(inputs)])
        calls = cast("list[Callable[[], object]]", [captured.replay] * max(3, rounds // 4))
    else:
        calls = [partial(case.run, *inputs[call % len(inputs)]) for call in range(rounds)]
    calls[0]()
    times = [elapsed(call) for call in calls]
    return statistics.median(times) / (CALLS if graph else 1)


def elapsed(call: Callable[[], object]) -> float:
    """On the device, in us."""
    start, end = (cast("Any", torch.cuda.Event)(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def measured(case: Case, rounds: int, graph: bool) -> Row:
    us = timed(case, rounds, graph)
    best = max(case.moved / READ, case.operations / case.peak) * 1e6
    return Row(
        case.op, case.shape, case.rows, round(us, 2), round(case.moved / us / 1e6, 3),
        round(case.operations / us / 1e6, 1), round(best / us, 3),
    )  # fmt: skip


def cases(model: Model, quick: bool) -> Iterator[Case]:
    rows = (1, 128, 1024) if quick else (1, 8, 32, 64, 128, 1024, 4096)
    yield from small_cases(model, rows)
    yield from linear_cases(model, rows)
    yield from decode_cases(
        model, [(1, 256), (32, 256)] if quick else [(1, 256), (1, 8192), (32, 256), (32, 4096), (128, 256)]
    )
    yield from prefill_cases(model, (2048,) if quick else (128, 2048, 8192))
    yield from expert_cases(model, rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Kernels against a GPU's ceilings", allow_abbrev=False)
    parser.add_argument("--quick", action="store_true", help="fewer shapes and rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--model", choices=[*MODELS], default="moonlight-16b-a3b", help="whose shapes")
    parser.add_argument("--only", default="", metavar="OPS", help="these ops alone, with commas between")
    parser.add_argument("--eager", action="store_true", help="one call at a time, launches included")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("no CUDA device here; run this on a machine with an NVIDIA GPU and torch built for CUDA")
        return
    wanted = {name for name in options.only.split(",") if name}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.model}, shares of a measured H200")
    print(f"{'op':<16}{'shape':<28}{'M':>6}{'us':>10}{'TB/s':>8}{'TFLOP/s':>9}{'share':>7}")
    rows = []
    for case in cases(MODELS[options.model], options.quick):
        if wanted and case.op not in wanted:
            continue
        row = measured(case, 20 if options.quick else 40, not options.eager)
        rows.append(row)
        figures = f"{row.us:>10.2f}{row.tb_per_s:>8.2f}{row.tflop_per_s:>9.1f}{row.share:>7.2f}"
        print(f"{row.op:<16}{row.shape:<28}{row.rows:>6}{figures}", flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
