"""What one decoder promises whatever the family: batching changes nothing, ranks add up, all that is loaded is used."""

from __future__ import annotations

import pytest
import torch

from engines.llm.errors import SettingInvalid
from engines.llm.models import architecture_of, build
from engines.parallel import Ranks
from engines.weights import MemoryTensors, WeightsInvalid
from tests.engines.layers.stepping import Sequenced, Stepper
from tests.engines.llm.models.families import made

CASES = ("llama", "qwen3-moe", "deepseek-v3")


@pytest.mark.parametrize("case", CASES)
def test_tokens_in_a_batch_are_those_alone(case: str) -> None:
    """In float64: 12 sequences at once, and each alone, 16 greedy steps."""
    _, config, tensors = made(case)
    decoder = build(architecture_of(config), MemoryTensors(tensors), precision="fp64", device="cpu")
    prompts = [[(7 * index + 3 * place) % 320 for place in range(5 + index)] for index in range(12)]
    stepper = Stepper(decoder)
    together = [Sequenced(list(prompt)) for prompt in prompts]
    last = stepper.step([(one, len(one.tokens)) for one in together])
    for _ in range(16):
        for one, token in zip(together, last.argmax(-1).tolist(), strict=True):
            one.tokens.append(token)
        last = stepper.step([(one, 1) for one in together])
    assert last.dtype == torch.float64
    for prompt, one in zip(prompts, together, strict=True):
        assert one.tokens[len(prompt) :] == Stepper(decoder).greedy(Sequenced(list(prompt)), 16)


@pytest.mark.parametrize("case", CASES)
def test_a_missing_and_an_extra_tensor_are_named(case: str) -> None:
    _, config, tensors = made(case)
    name = "model.layers.1.self_attn.o_proj.weight"
    with pytest.raises(WeightsInvalid, match=name):
        less = MemoryTensors({key: tensor for key, tensor in tensors.items() if key != name})
        build(architecture_of(config), less, precision="fp32", device="cpu")
    more = MemoryTensors({**tensors, "model.layers.0.extra.weight": torch.zeros(2, 2)})
    build(architecture_of(config), more, precision="fp32", device="cpu")
    with pytest.raises(WeightsInvalid, match=r"model\.layers\.0\.extra\.weight"):
        more.finish()


def test_a_precision_that_does_not_go_is_a_setting() -> None:
    _, config, tensors = made("llama")
    with pytest.raises(SettingInvalid, match="fp8 needs a checkpoint in block FP8"):
        build(architecture_of(config), MemoryTensors(tensors), precision="fp8", device="cpu")


@pytest.mark.parametrize("case", ["llama", "qwen3-moe", "deepseek-v2-lite", "deepseek-v3"])
def test_shares_of_two_ranks_add_up(case: str) -> None:
    """A layer's attention and MLP, halved over two ranks: the halves sum to the whole."""
    _, config, tensors = made(case)
    architecture = architecture_of(config)
    whole, *halves = (
        build(architecture, MemoryTensors(tensors), precision="fp64", device="cpu", ranks=ranks)
        for ranks in (Ranks(), Ranks(0, 2), Ranks(1, 2))
    )
    from engines.layers.attention import Step

    results = []
    for decoder in (whole, *halves):
        stepper = Stepper(decoder)
        inputs = stepper.inputs([(Sequenced(list(range(9))), 9)])
        x = torch.randn(9, architecture.hidden, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        layer = decoder.layers[1]
        step = Step(inputs, decoder.rotary)
        results.append((layer.attention(x, step, stepper.cache[1]), layer.mlp(x)))
    for full, first, second in zip(*results, strict=True):
        assert torch.allclose(first + second, full, rtol=1e-9, atol=1e-9)
