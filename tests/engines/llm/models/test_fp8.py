"""Block FP8 against transformers in float64 whose products see the same quantised weights and activations.

What is not quantised in the products with W_UK and W_UV: their activations; the reference does as we do there.
Against the unquantised model the difference is printed, not judged.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from engines.kernels.quant import dequantize_activations, dequantize_blocks, quantize_activations, quantize_blocks
from engines.layers.attention import Step
from engines.llm.models import architecture_of, build
from engines.weights import MemoryTensors
from tests.engines.layers.stepping import Sequenced, Stepper
from tests.engines.llm.models.families import LATENT, SMALL, modelled

WIDE: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 352,
    "num_attention_heads": 4,
    "initializer_range": 0.06,
    "vocab_size": 500,
    "tie_word_embeddings": True,
}
PEAK = {"llama": 5.0, "qwen3-moe": 4.0, "deepseek-v3": 6.0}
"""Random weights give logits that are nearly tied, whose order says nothing. Embeddings, which are the head too, are
made larger by this, until the top choice is about as sure as that of a trained model."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**SMALL, **WIDE, "num_key_value_heads": 2}),
    "qwen3-moe": (
        "qwen3_moe",
        {
            **SMALL,
            **WIDE,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 176,
            "norm_topk_prob": True,
        },
    ),
    "deepseek-v3": (
        "deepseek_v3",
        {
            **LATENT,
            **WIDE,
            "q_lora_rank": 160,
            "kv_lora_rank": 128,
            "num_key_value_heads": 4,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 32,
            "moe_intermediate_size": 176,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
}
CONFIG = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
KEPT = ("embed_tokens", "lm_head", "norm", "mlp.gate.")
ABSORBED = "kv_b_proj"


def quantised(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint in block FP8 of these tensors."""
    found = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or any(kept in name for kept in KEPT):
            found[name] = tensor
            continue
        found[name], found[f"{name}_scale_inv"] = quantize_blocks(tensor)
    return found


def rounded(x: Tensor) -> Tensor:
    """Activations as FP8 products see them, in float64."""
    q, s = quantize_activations(x.reshape(-1, x.shape[-1]).float())
    return dequantize_activations(q, s, torch.float64).view(x.shape)


def reference(model: Any, held: dict[str, Tensor]) -> Any:
    """The model in float64 with the quantised weights expanded and activations rounded before each product."""
    model = model.double()

    def expanded(name: str) -> Tensor:
        return dequantize_blocks(held[f"{name}.weight"], held[f"{name}.weight_scale_inv"], torch.float64)

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and f"{name}.weight_scale_inv" in held:
            module.weight.data = expanded(name)
            if ABSORBED not in name:
                module.register_forward_pre_hook(lambda _, args: (rounded(args[0]),))
        elif name.endswith("mlp.experts"):
            three = [
                tuple(expanded(f"{name}.{expert}.{part}_proj") for part in ("gate", "up", "down"))
                for expert in range(module.num_experts)
            ]
            module.forward = _experts(three)
    return model


def _experts(three: list[tuple[Tensor, ...]]) -> Any:
    def forward(x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        out, seen = torch.zeros_like(x), rounded(x)
        for expert, (gate, up, down) in enumerate(three):
            tokens, places = torch.where(ids == expert)
            if not len(tokens):
                continue
            hidden = functional.silu(seen[tokens] @ gate.T) * (seen[tokens] @ up.T)
            out.index_add_(0, tokens, rounded(hidden) @ down.T * weights[tokens, places, None].double())
        return out

    return forward


@pytest.mark.parametrize("case", CASES)
def test_layers_and_choices(case: str) -> None:
    kind, settings = CASES[case]
    model, config, tensors = modelled(kind, settings)
    tensors["model.embed_tokens.weight"].mul_(PEAK[case])
    held = quantised(tensors)
    weights = MemoryTensors(held)
    decoder = build(architecture_of({**config, "quantization_config": CONFIG}), weights, precision="fp8", device="cpu")
    weights.finish()
    ids = [torch.randint(500, (250,), generator=torch.Generator().manual_seed(seed)).tolist() for seed in range(8)]
    with torch.inference_mode():
        plain = model(torch.tensor(ids)).logits
        output = reference(model, held)(torch.tensor(ids), output_hidden_states=True)
    stepper = Stepper(decoder)
    work = [(Sequenced(row), 250) for row in ids]
    inputs = stepper.inputs(work, every=True)
    with torch.inference_mode():
        found = decoder.logits(decoder.forward(inputs, stepper.cache)).view(8, 250, -1)
        step = Step(inputs, decoder.rotary)
        for index, layer in enumerate(decoder.layers[:-1]):  # the last one's output is given normed alone
            before, after = (states.reshape(2000, -1) for states in output.hidden_states[index : index + 2])
            added, residual = layer(before.float(), None, step, stepper.cache[index])
            error = (added + residual - after).norm() / after.norm()
            assert float(error) < 2e-3, f"layer {index}"
    wanted = output.logits
    same = (found.argmax(-1) == wanted.argmax(-1)).double().mean()
    apart = (found - plain).norm() / plain.norm()
    agree = (found.argmax(-1) == plain.argmax(-1)).double().mean()
    print(f"{case}: top-1 as the reference {same:.2%}; to the unquantised model {apart:.2%} apart, top-1 {agree:.1%}")
    assert float(same) >= 0.99


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_an_fp8_checkpoint_in_other_precisions(case: str, precision: str) -> None:
    """Weights are expanded first; what is lost then is what the precision loses."""
    _, config, tensors = modelled(*CASES[case])
    held = quantised(tensors)
    architecture = architecture_of({**config, "quantization_config": CONFIG})
    expanded = {
        name: dequantize_blocks(tensor, held[f"{name}_scale_inv"], torch.float32)
        if f"{name}_scale_inv" in held
        else tensor
        for name, tensor in held.items()
        if not name.endswith("_scale_inv")
    }
    exact = build(architecture_of(config), MemoryTensors(expanded), precision="fp32", device="cpu")
    decoder = build(architecture, MemoryTensors(held), precision=precision, device="cpu")
    ids = torch.randint(500, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    found, wanted = (Stepper(each).step([(Sequenced(ids), 60)], every=True) for each in (decoder, exact))
    error = float((found - wanted).norm() / wanted.norm())
    print(f"{case} in {precision}: {error:.2%} apart")
    # A token near the edge between two experts goes to the other one: that is most of what a mixture differs by.
    assert error < {"fp32": 1e-5, "bf16": 0.15, "int8": 0.25, "int4": 0.6}[precision]
