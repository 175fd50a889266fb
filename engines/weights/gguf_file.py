"""GGUF files of small models: their tensors under the names of Hugging Face checkpoints, and their config.json.

Quantised tensors become float32. Llama's converter reorders the rows of q and k for its own rotary embedding; here
they are put back.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import torch

from engines.weights.errors import WeightsInvalid
from engines.weights.reading import Progress
from engines.weights.tensors import NamedTensors

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
QUANTISED = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
OTHER_FILE = "use the model's safetensors"
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GGUFTensors(NamedTensors):
    """The tensors of one GGUF file, each made when it is taken. `config` is what config.json would say."""

    def __init__(self, file: Path, progress: Progress | None = None) -> None:
        super().__init__()
        self.file = file
        reader = _open(file)
        self._fields = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
        self._ends = {
            name: reader.fields[key].contents()
            for name in ("bos", "eos", "unknown", "padding")
            if (key := f"tokenizer.ggml.{name}_token_id") in reader.fields
        }
        self._tensors: dict[str, Any] = {self._name(tensor.name): tensor for tensor in reader.tensors}
        self.config = self._config()
        self._lock, self._progress, self._done = threading.Lock(), progress, 0
        self._total = sum(int(tensor.n_bytes) for tensor in self._tensors.values())

    def names(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._found(name).shape))

    def dtype(self, name: str) -> torch.dtype:
        kind = self._found(name).tensor_type.name
        if kind not in PLAIN and kind not in QUANTISED:
            raise WeightsInvalid(
                f"the tensor {name} of {self.file} is of type {kind}; read are {', '.join((*PLAIN, *QUANTISED))}",
                mend=OTHER_FILE,
            )
        return PLAIN.get(kind, torch.float32)

    def _rows(self, name: str, first: int, end: int) -> torch.Tensor:
        from gguf.quants import dequantize

        stored, kind = self._found(name), self.dtype(name)
        if stored.tensor_type.name in PLAIN:
            tensor = torch.from_numpy(stored.data.copy()).view(kind).view(self.shape(name))
        else:
            tensor = torch.from_numpy(dequantize(stored.data, stored.tensor_type)).view(self.shape(name))
        if self._kind == "llama" and ".q_proj." in name:
            tensor = _unpermuted(tensor, int(self.config["num_attention_heads"]))
        if self._kind == "llama" and ".k_proj." in name:
            tensor = _unpermuted(tensor, int(self.config["num_key_value_heads"]))
        with self._lock:
            self._done = min(self._done + int(stored.n_bytes), self._total)
            if self._progress is not None:
                self._progress(self._done, self._total)
        return tensor[first:end]

    def _found(self, name: str) -> Any:
        if name not in self._tensors:
            raise self._missing(name)
        return self._tensors[name]

    @property
    def _kind(self) -> str:
        kind = self._fields.get("general.architecture")
        if kind not in ARCHITECTURES:
            raise WeightsInvalid(
                f"{self.file} holds the architecture {kind!r}; read from GGUF are {', '.join(ARCHITECTURES)}",
                mend=OTHER_FILE,
            )
        return str(kind)

    def _name(self, stored: str) -> str:
        """The tensor's name in a Hugging Face checkpoint."""
        block = _BLOCK.fullmatch(stored)
        if block and block[2] in _PARTS:
            return f"model.layers.{block[1]}.{_PARTS[block[2]]}.{block[3]}"
        stem, _, kind = stored.rpartition(".")
        if stem in _ENDS:
            return f"{_ENDS[stem]}.{kind}"
        raise WeightsInvalid(f"{self.file} holds the tensor {stored}, which is not known here", mend=OTHER_FILE)

    def _field(self, name: str, default: Any = None) -> Any:
        value = self._fields.get(f"{self._kind}.{name}", default)
        if value is None:
            raise WeightsInvalid(f"{self.file} does not say {self._kind}.{name}", mend=OTHER_FILE)
        return value

    def _config(self) -> dict[str, Any]:
        kind = self._kind
        if self._fields.get(f"{kind}.rope.scaling.type", "none") != "none":
            raise WeightsInvalid(
                f"{self.file} scales its rotary embedding, which is not read from GGUF", mend=OTHER_FILE
            )
        heads, hidden = self._field("attention.head_count"), self._field("embedding_length")
        settings: dict[str, Any] = {
            "architectures": [ARCHITECTURES[kind]],
            "attention_bias": self.has("model.layers.0.self_attn.q_proj.bias"),
            "dtype": "float32",
            "head_dim": self._field("attention.key_length", hidden // heads),
            "hidden_act": "silu",
            "hidden_size": hidden,
            "intermediate_size": self._field("feed_forward_length"),
            "max_position_embeddings": self._field("context_length"),
            "mlp_bias": False,
            "model_type": kind,
            "num_attention_heads": heads,
            "num_hidden_layers": self._field("block_count"),
            "num_key_value_heads": self._field("attention.head_count_kv", heads),
            "rms_norm_eps": self._field("attention.layer_norm_rms_epsilon"),
            "rope_parameters": {"rope_theta": self._field("rope.freq_base", 10000.0), "rope_type": "default"},
            "tie_word_embeddings": not self.has("lm_head.weight"),
            "vocab_size": self.shape("model.embed_tokens.weight")[0],
        }
        names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}
        return settings | {names[end]: token for end, token in self._ends.items() if end in names}


def _open(file: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise WeightsInvalid(f"{file} needs the package gguf", mend='pip install "chains-serve[llm]"') from error
    try:
        return GGUFReader(file)
    except OSError as error:
        raise WeightsInvalid(f"{file} cannot be read ({error.strerror or error})", mend="check the path") from error
    except Exception as error:  # the library raises whatever its parsing met, IndexError included
        reason = str(error).strip() or type(error).__name__
        raise WeightsInvalid(f"{file} is truncated or no GGUF file ({reason})", mend="fetch it again") from error


def _unpermuted(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Pairs of neighbouring rows within a head become halves again."""
    rows = tensor.shape[0]
    return tensor.view(heads, rows // heads // 2, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
