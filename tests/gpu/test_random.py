"""Random weights made on the device: the same for the same seed, in range, and quickly enough to measure with."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from engines.llm.models import architecture_of  # noqa: E402
from engines.weights import random_tensors  # noqa: E402

pytestmark = pytest.mark.gpu

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 1408,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
}
UP = "model.layers.0.mlp.up_proj.weight"


def test_weights_are_made_on_the_device() -> None:
    architecture = architecture_of(CONFIG)
    first, second = random_tensors(architecture, 3, "cuda"), random_tensors(architecture, 3, "cuda")
    stored = first.take(UP, (1408, 2048))
    assert stored.device.type == "cuda" and stored.dtype == torch.float8_e4m3fn
    assert torch.equal(stored.float(), second.take(UP, (1408, 2048)).float())
    scales = first.take(f"{UP}_scale_inv", (11, 16))
    assert (stored.float().std() * scales[0, 0]).item() == pytest.approx(2048**-0.5, rel=0.02)
    embedding = first.take("model.embed_tokens.weight", (1024, 2048))
    assert embedding.dtype == torch.bfloat16 and embedding.isfinite().all()
