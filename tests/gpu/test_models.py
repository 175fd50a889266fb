"""Whole decoders with random block-FP8 weights on a CUDA device, judged by the same weights without rounding.

Run with `python -m pytest tests/gpu/test_models.py -m gpu -rP`. Two correct runs of FP8 differ by about as much as FP8
differs from exact numbers (a small difference moves an activation to the next e4m3 value, and so on), and random
weights make nearly tied logits. So hidden states are compared, and the yardstick is the model in float32 with the
FP8 weights expanded: the device must be no farther from it than the CPU's twins are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from engines.layers.architecture import Architecture
from engines.layers.attention import Step
from engines.layers.decoder import Decoder
from engines.layers.inputs import Inputs
from engines.llm.models import architecture_of, build
from engines.weights import random_tensors
from tests.engines.layers.stepping import Sequenced, Stepper

pytestmark = pytest.mark.gpu

FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
SHARED: dict[str, Any] = {
    "vocab_size": 16384,
    "max_position_embeddings": 4096,
    "num_hidden_layers": 4,
    "quantization_config": FP8,
    "dtype": "bfloat16",
}
LATENT: dict[str, Any] = {
    **SHARED,
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MODELS: dict[str, dict[str, Any]] = {
    "moonlight": {
        **LATENT,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 11264,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.446,
        "rope_theta": 50000.0,
        "rms_norm_eps": 1e-5,
    },
    "v2-lite": {
        **LATENT,
        "model_type": "deepseek_v2",
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
        },
    },
    "mini-v3": {
        **LATENT,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "q_lora_rank": 1536,
        "intermediate_size": 10240,
        "moe_intermediate_size": 768,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 2,
        "routed_scaling_factor": 2.5,
        "rope_scaling": {
            "type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    "qwen3-moe": {
        **SHARED,
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "rope_theta": 1000000.0,
    },
}
LENGTHS = (190, 64, 33, 7)
FARTHER = 1.2
"""How much farther from exact numbers than the twins the device may be: bfloat16 between its operations."""


@cache
def decoders(name: str) -> tuple[Decoder, Decoder, Decoder]:
    """The same weights in FP8 on the device, in FP8 on the CPU's twins, and expanded to float32."""
    architecture = architecture_of(MODELS[name])
    device = build(architecture, Copied(architecture), precision="fp8", device="cuda")
    twin, exact = (build(architecture, Copied(architecture), precision=each, device="cpu") for each in ("fp8", "fp32"))
    return device, twin, exact


class Copied:
    """Random weights made on the device, so that both decoders get the same ones."""

    def __init__(self, architecture: Architecture) -> None:
        self._random = random_tensors(architecture, seed=5, device="cuda")

    def has(self, name: str) -> bool:
        return self._random.has(name)

    def take(self, name: str, shape: tuple[int, ...], **ranges: slice) -> Tensor:
        return self._random.take(name, shape, **ranges)


def apart(found: Tensor, wanted: Tensor) -> Tensor:
    """The relative error of each row."""
    found, wanted = found.double().cpu(), wanted.double().cpu()
    return (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)


def states(stepper: Stepper, work: list[Sequenced]) -> tuple[Tensor, Tensor]:
    """Hidden states of prefill (every position), and of two steps that decode all sequences together."""
    inputs = stepper.inputs([(one, len(one.tokens) - 2) for one in work], every=True)
    prefill = stepper.decoder.forward(inputs, stepper.cache)
    decode = [stepper.decoder.forward(stepper.inputs([(one, 1) for one in work]), stepper.cache) for _ in range(2)]
    return prefill, torch.cat(decode)


def sequences() -> list[Sequenced]:
    return [
        Sequenced(torch.randint(16384, (length,), generator=torch.Generator().manual_seed(length)).tolist())
        for length in LENGTHS
    ]


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_of_prefill_and_decode(name: str) -> None:
    found = [states(Stepper(each, 1024), sequences()) for each in decoders(name)]
    for kind, device, twin, exact in zip(("prefill", "decode"), *found, strict=True):
        ours, theirs = (float(apart(each, exact).median()) for each in (device, twin))
        between = float(apart(device, twin).median())
        print(f"{name} {kind}: from exact, device {ours:.3%}, twin {theirs:.3%}; between them {between:.3%}")
        assert ours < FARTHER * theirs


@pytest.mark.parametrize("name", MODELS)
def test_each_layer(name: str) -> None:
    """Each layer is given the same input, so that nothing adds up: what a layer adds, by the median token (a few go
    to other experts near a tie)."""
    steppers = [Stepper(each, 1024) for each in decoders(name)]
    inputs = [
        stepper.inputs([(one, length) for one, length in zip(sequences(), LENGTHS, strict=True)], every=True)
        for stepper in steppers
    ]
    steps = [Step(each, stepper.decoder.rotary) for each, stepper in zip(inputs, steppers, strict=True)]
    with torch.inference_mode():
        x = torch.nn.functional.embedding(inputs[2].ids, steppers[2].decoder.embedding).bfloat16()
        for index in range(steppers[2].decoder.architecture.depth):
            added = []
            for stepper, step in zip(steppers, steps, strict=True):
                numerics = stepper.decoder.numerics
                given = x.to(numerics.device, numerics.activations)
                added.append(stepper.decoder.layers[index](given, None, step, stepper.cache[index]))
            device, twin, exact = (mlp.cpu().float() + residual.cpu().float() - x.float() for mlp, residual in added)
            ours, theirs = (float(apart(each, exact).median()) for each in (device, twin))
            print(f"{name} layer {index}: from exact, device {ours:.3%}, twin {theirs:.3%}")
            assert ours < FARTHER * theirs, f"layer {index}"
            x = (x.float() + exact).bfloat16()


@pytest.mark.parametrize("name", MODELS)
def test_decode_in_a_cuda_graph(name: str) -> None:
    """A captured step gives what the same step gives without a graph, with other tokens and lengths put in."""
    device = decoders(name)[0]
    stepper = Stepper(device, 1024)
    work = sequences()
    stepper.step([(one, length - 3) for one, length in zip(work, LENGTHS, strict=True)])
    first, second = (stepper.inputs([(one, 1) for one in work]) for _ in range(2))
    width = max(first.pages.shape[1], second.pages.shape[1])
    static, second = (_widened(each, width) for each in (first, second))

    def step() -> Tensor:
        return device.logits(device.forward(static, stepper.cache))

    eager = _captured(step, static, second)
    wanted = device.logits(device.forward(second, stepper.cache))
    assert float(apart(eager, wanted).max()) < 1e-5


def _widened(inputs: Inputs, width: int) -> Inputs:
    pages = torch.zeros(len(inputs.pages), width, dtype=torch.int32, device="cuda")
    pages[:, : inputs.pages.shape[1]] = inputs.pages
    return dataclasses.replace(inputs, pages=pages)


def _captured(step: Callable[[], Tensor], static: Inputs, inputs: Inputs) -> Tensor:
    """Capture `step` over the tensors of `static`, replay it with those of `inputs`."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    for name in ("ids", "positions", "slots", "pages", "starts", "lengths", "keep"):
        getattr(static, name).copy_(getattr(inputs, name))
    graph.replay()
    torch.cuda.synchronize()
    return out.clone()
