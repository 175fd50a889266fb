"""The shapes of three models, and what the tests of all kernels do: relative errors and graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

DEVICE = "cuda"


class Shape(NamedTuple):
    """One model's sizes; `dense` its dense MLP, `inner` one expert's, `latent` the ranks of q (0: none)."""

    name: str
    hidden: int
    heads: int
    q_latent: int
    dense: int
    inner: int
    experts: int
    active: int
    shared: int
    groups: int
    active_groups: int


MOONLIGHT = Shape("moonlight-16b-a3b", 2048, 16, 0, 11264, 1408, 64, 6, 2, 1, 1)
MINI = Shape("mini-v3", 2560, 32, 1536, 10240, 768, 256, 8, 1, 8, 4)
V3 = Shape("v3-slice-8", 7168, 128, 1536, 18432, 2048, 256, 8, 1, 8, 4)
MODELS = (MOONLIGHT, MINI, V3)


def linears(shape: Shape) -> list[tuple[int, int]]:
    """(N, K) of every block-FP8 product of one layer."""
    queries = [(shape.q_latent, shape.hidden)] if shape.q_latent else []
    return [
        *queries,
        (shape.heads * 192, shape.q_latent or shape.hidden),
        (576, shape.hidden),
        (shape.heads * 256, 512),
        (shape.hidden, shape.heads * 128),
        (2 * shape.dense, shape.hidden),
        (shape.hidden, shape.dense),
        (2 * shape.shared * shape.inner, shape.hidden),
        (shape.hidden, shape.shared * shape.inner),
    ]


LINEARS = sorted({pair for shape in MODELS for pair in linears(shape)})
RAGGED = [(576, 704), (704, 2048), (2048, 10944), (21888, 2048), (1408, 2048), (2048, 704), (130, 48)]


def relative(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted| by norm, in float64; infinite where anything is not finite."""
    found, wanted = found.double(), wanted.double()
    if not bool(found.isfinite().all()):
        return float("inf")
    return float((found - wanted).norm() / wanted.norm().clamp(min=1e-300))


def replayed(op: Callable[..., Tensor | Sequence[Tensor]], before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """Capture op(*before) in a CUDA graph, put `after` in the inputs' place, replay: bit for bit what op gives."""
    wanted = _several(op(*[value.clone() for value in after]))
    wanted = [value.clone() for value in wanted]
    inputs = [value.clone() for value in before]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            op(*inputs)
    torch.cuda.current_stream().wait_stream(stream)
    for place, value in zip(inputs, before, strict=True):
        place.copy_(value)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _several(op(*inputs))
    for place, value in zip(inputs, after, strict=True):
        place.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(bits(one), bits(other))


def bits(x: Tensor) -> Tensor:
    """The same memory as integers: equal bits are equal, NaN included."""
    x = x.contiguous()
    return x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def _several(found: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else list(found)


def fp8_weights(*shape: int) -> tuple[Tensor, Tensor]:
    """Random e4m3 [..., N, K] and the scales of its blocks, without the memory of a float32 copy."""
    w = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16).to(torch.float8_e4m3fn)
    blocks = (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    return w, torch.rand(blocks, device=DEVICE) * 0.02 + 0.005
