"""GGUF files, written by the gguf library as llama.cpp's converter does, read under Hugging Face's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from engines.weights import WeightsInvalid, open_checkpoint
from engines.weights.gguf_file import GGUFTensors

HIDDEN, HEADS, KV, SIZE, MLP, VOCAB = 64, 4, 2, 16, 96, 32
Kind = gguf.GGMLQuantizationType


def permuted(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """What llama.cpp's converter does to q and k of the architecture llama: halves of a head become pairs."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def weights(kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """One layer's tensors under Hugging Face's names."""
    make, layer = np.random.default_rng(5), "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        layer + "input_layernorm.weight": (HIDDEN,),
        layer + "self_attn.q_proj.weight": (HEADS * SIZE, HIDDEN),
        layer + "self_attn.k_proj.weight": (KV * SIZE, HIDDEN),
        layer + "self_attn.v_proj.weight": (KV * SIZE, HIDDEN),
        layer + "self_attn.o_proj.weight": (HIDDEN, HEADS * SIZE),
        layer + "post_attention_layernorm.weight": (HIDDEN,),
        layer + "mlp.gate_proj.weight": (MLP, HIDDEN),
        layer + "mlp.up_proj.weight": (MLP, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, MLP),
        "model.norm.weight": (HIDDEN,),
    }
    if kind == "qwen2":
        rows = {"q": HEADS * SIZE, "k": KV * SIZE, "v": KV * SIZE}
        shapes |= {f"{layer}self_attn.{name}_proj.bias": (size,) for name, size in rows.items()}
    if kind == "qwen3":
        shapes |= {f"{layer}self_attn.{name}_norm.weight": (SIZE,) for name in "qk"}
    return {name: make.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


STORED = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "blk.0.attn_norm",
    "self_attn.q_proj": "blk.0.attn_q",
    "self_attn.k_proj": "blk.0.attn_k",
    "self_attn.v_proj": "blk.0.attn_v",
    "self_attn.o_proj": "blk.0.attn_output",
    "self_attn.q_norm": "blk.0.attn_q_norm",
    "self_attn.k_norm": "blk.0.attn_k_norm",
    "post_attention_layernorm": "blk.0.ffn_norm",
    "mlp.gate_proj": "blk.0.ffn_gate",
    "mlp.up_proj": "blk.0.ffn_up",
    "mlp.down_proj": "blk.0.ffn_down",
}


def write(file: Path, kind: str, tensors: dict[str, np.ndarray[Any, Any]], quantised: Any = None, **extra: Any) -> Path:
    writer = gguf.GGUFWriter(file, kind)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV)
    writer.add_key_length(SIZE)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_eos_token_id(3)
    if extra.get("scaling"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    for name, tensor in tensors.items():
        stem, _, ending = name.removeprefix("model.layers.0.").rpartition(".")
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = permuted(tensor, HEADS if "q_proj" in name else KV)
        stored = f"{STORED.get(stem, stem)}.{ending}"
        if quantised is not None and tensor.ndim == 2:
            writer.add_tensor(stored, quantize(tensor, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(stored, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_names_and_numbers_are_those_of_the_checkpoint_it_came_from(tmp_path: Path, kind: str) -> None:
    wanted = weights(kind)
    told = list[tuple[int, int]]()
    tensors = open_checkpoint(write(tmp_path / "m.gguf", kind, wanted), lambda done, total: told.append((done, total)))
    assert set(tensors.names()) == set(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(tensors.take(name, tensor.shape), torch.from_numpy(tensor)), name
    tensors.finish()
    assert told[-1][0] == told[-1][1] == sum(tensor.nbytes for tensor in wanted.values())


@pytest.mark.parametrize("quantised", [Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.F16, Kind.BF16])
def test_quantised_tensors_are_within_their_steps(tmp_path: Path, quantised: Any) -> None:
    wanted = weights("llama")
    tensors = open_checkpoint(write(tmp_path / "m.gguf", "llama", wanted, quantised))
    worst = {"Q4_0": 0.16, "Q4_1": 0.12, "Q8_0": 0.01, "F16": 1e-3, "BF16": 5e-3}[quantised.name]
    for name, tensor in wanted.items():
        found = tensors.take(name, tensor.shape).float()
        error = (found - torch.from_numpy(tensor)).norm() / torch.from_numpy(tensor).norm()
        assert error < worst, name
    tensors.finish()


@pytest.mark.parametrize(("quantised", "bytes_a_block"), [(Kind.Q4_K, 144), (Kind.Q6_K, 210)])
def test_k_quants_are_read(tmp_path: Path, quantised: Any, bytes_a_block: int) -> None:
    make, wanted = np.random.default_rng(1), weights("llama")
    raw = make.integers(0, 60, (HIDDEN, bytes_a_block), dtype=np.uint8)  # small enough for finite half floats
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    for name, value in (("embedding_length", HIDDEN), ("feed_forward_length", 256), ("context_length", 9)):
        writer.add_uint32(f"llama.{name}", value)
    writer.add_block_count(1)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", wanted["model.embed_tokens.weight"])
    writer.add_tensor("blk.0.ffn_down.weight", raw, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = open_checkpoint(tmp_path / "k.gguf").take("model.layers.0.mlp.down_proj.weight", (HIDDEN, 256))
    assert torch.equal(found, torch.from_numpy(dequantize(raw, quantised)))
    assert found.isfinite().all() and found.std() > 0


def test_the_config_is_that_of_hugging_face(tmp_path: Path) -> None:
    config = GGUFTensors(write(tmp_path / "m.gguf", "llama", weights("llama"))).config
    assert config["model_type"] == "llama"
    assert (config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]) == (HIDDEN, HEADS, KV)
    assert (config["head_dim"], config["intermediate_size"], config["vocab_size"]) == (SIZE, MLP, VOCAB)
    assert config["rope_parameters"] == {"rope_theta": 5000.0, "rope_type": "default"}
    assert config["tie_word_embeddings"] is True and config["eos_token_id"] == 3
    head = {"lm_head.weight": np.ones((VOCAB, HIDDEN), np.float32)}
    untied = GGUFTensors(write(tmp_path / "u.gguf", "qwen2", {**weights("qwen2"), **head})).config
    assert untied["tie_word_embeddings"] is False and untied["attention_bias"] is True


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    with pytest.raises(WeightsInvalid, match="cannot be read"):
        open_checkpoint(tmp_path / "absent.gguf")
    file = write(tmp_path / "m.gguf", "llama", weights("llama"))
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(WeightsInvalid, match="truncated or no GGUF"):
        open_checkpoint(file)
    (tmp_path / "junk.gguf").write_bytes(b"junk" * 100)
    with pytest.raises(WeightsInvalid, match="truncated or no GGUF"):
        open_checkpoint(tmp_path / "junk.gguf")
    with pytest.raises(WeightsInvalid, match="architecture 'gemma'"):
        open_checkpoint(write(tmp_path / "g.gguf", "gemma", weights("llama")))
    with pytest.raises(WeightsInvalid, match="rotary"):
        open_checkpoint(write(tmp_path / "s.gguf", "llama", weights("llama"), scaling=True))
    with pytest.raises(WeightsInvalid, match=r"rope_freqs\.weight, which is not known"):
        open_checkpoint(
            write(tmp_path / "r.gguf", "llama", {**weights("llama"), "rope_freqs.weight": np.ones(8, "f4")})
        )
