"""llama.cpp through xllamacpp: rates of decoding, of the .gguf file that CHAINS_GGUF names."""

from __future__ import annotations

import os
import sys
from typing import Any


def decode_rates(prompt: str, count: int, rounds: int, threads: int) -> list[float]:
    """Tokens a second, as its own server counts them; [] when no file is named."""
    import xllamacpp

    file = os.environ.get("CHAINS_GGUF", "")
    if not file:
        print("llama.cpp is left out: name a .gguf file of the same model in CHAINS_GGUF", file=sys.stderr)
        return []
    params: Any = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx = 1024
    params.n_parallel = 1
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.verbosity = -1
    server: Any = xllamacpp.Server(params)
    asked = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True}
    answers = [server.handle_completions(dict(asked)) for _ in range(rounds + 1)]
    return [float(answer["timings"]["predicted_per_second"]) for answer in answers[1:]]
