"""The engine on a CPU with the packaged model: rates of decoding beside peers, of the precisions, of eight at once."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.report import Options, Row, bounded, interleave
from engines.llm.config import EngineSettings, ModelSource, Precision, Sampling
from engines.llm.engine import LLMEngine
from engines.llm.errors import EngineError
from engines.llm.seam import FinishEvent

PROMPT = "The clinic opens at eight in the morning and closes at six. The doctor said that"
WORDS = """time person year way day thing man world life hand part child eye woman place work week case point""".split()  # noqa: SIM905
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")


def opened(model: str, precision: Precision, threads: int) -> LLMEngine:
    settings = EngineSettings(
        device="cpu", precision=precision, threads=threads, cache_tokens=16384, max_running=8, token_budget=256,
        prefill_chunk=256,
    )  # fmt: skip
    return LLMEngine.load(model, settings)


def decode(engine: LLMEngine, count: int) -> float:
    """Tokens a second behind the first."""
    began, tokens = 0.0, 0
    for event in engine.generate(PROMPT, Sampling(max_tokens=count, ignore_end=True)):
        if isinstance(event, FinishEvent):
            return (event.usage.completion - tokens) / (time.perf_counter() - began)
        if not began:
            began, tokens = time.perf_counter(), len(event.tokens)
    raise RuntimeError("no end came")


def together(engine: LLMEngine, callers: int, count: int) -> float:
    """Tokens a second of several callers, prompts included."""

    def ask(number: int) -> None:
        for _ in engine.generate(f"{number}. {PROMPT}", Sampling(max_tokens=count, ignore_end=True)):
            pass

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(callers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return callers * count / (time.perf_counter() - began)


def first_token(engine: LLMEngine, prompt: Sequence[int]) -> float:
    """Seconds."""
    began = time.perf_counter()
    for _ in engine.generate(prompt, Sampling(max_tokens=1, ignore_end=True)):
        return time.perf_counter() - began
    raise RuntimeError("no token came")


def prefix_hit(engine: LLMEngine, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds to the first token behind 300 tokens and 20 more: the 300 known, and nothing known."""
    chance, hit, cold = random.Random(0), list[float](), list[float]()
    for _ in range(rounds):
        prefix = engine.tokenizer.encode(" ".join(chance.choice(WORDS) for _ in range(400)))[:300]
        tails = [engine.tokenizer.encode(" ".join(chance.choice(WORDS) for _ in range(40)))[:20] for _ in range(2)]
        cold.append(first_token(engine, [*prefix, *tails[0]]))
        hit.append(first_token(engine, [*prefix, *tails[1]]))
    return hit, cold


class Transformers:
    """generate() of the transformers library, the same model in fp32."""

    def __init__(self, model: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.set_num_threads(threads)
        directory = str(ModelSource.resolve(model).directory)
        self._torch: Any = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self._model.eval()
        self._ids: Any = AutoTokenizer.from_pretrained(directory)(PROMPT, return_tensors="pt").input_ids

    def decode(self, count: int) -> float:
        """Tokens a second behind the first: a run of `count` less a run of one."""
        took = []
        for most in (1, count):
            began = time.perf_counter()
            with self._torch.inference_mode():
                self._model.generate(self._ids, max_new_tokens=most, min_new_tokens=most, do_sample=False)
            took.append(time.perf_counter() - began)
        return (count - 1) / (took[1] - took[0])


def rows(options: Options, model: str, threads: int) -> list[Row]:
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of what loads after this
    count, rounds = (16, 2) if options.quick else (48, 5)
    found: list[Row] = []
    engine = opened(model, "fp32", threads)
    kept = _beside_transformers(engine, Transformers(model, threads), count, rounds, options.seed)
    name = "decode, fp32 / transformers' generate, tokens/s"
    found.append(bounded(name, kept["ours"], kept["peer"], 1.3, higher_is_better=True))
    gc.collect()
    found.append(_eight("fp32", engine, count, rounds, options.seed))
    hit, cold = prefix_hit(engine, rounds)
    found.append(bounded("first token after 300 known tokens / cold, s", hit, cold, 0.25))
    engine.close()
    for precision in PRECISIONS:
        found += _precision(model, precision, threads, count, rounds)
    found += _llama(count, rounds, threads)
    return found


def _beside_transformers(
    engine: LLMEngine, peer: Transformers, count: int, rounds: int, seed: int
) -> dict[str, list[float]]:
    sides = {"ours": lambda: decode(engine, count), "peer": lambda: peer.decode(count)}
    return interleave(rounds, sides, seed=seed)


def _eight(precision: str, engine: LLMEngine, count: int, rounds: int, seed: int) -> Row:
    sides = {"eight": lambda: together(engine, 8, count), "one": lambda: together(engine, 1, count)}
    kept = interleave(max(2, rounds // 2), sides, seed=seed)
    name = f"8 at once / one alone, {precision}, tokens/s"
    return bounded(name, kept["eight"], kept["one"], 3.0, higher_is_better=True)


def _precision(model: str, precision: Precision, threads: int, count: int, rounds: int) -> list[Row]:
    try:
        engine = opened(model, precision, threads)
    except EngineError as error:
        print(f"{precision}: {error}", file=sys.stderr)
        return []
    try:
        decode(engine, 4)
        alone = [decode(engine, count) for _ in range(rounds)]
        return [_rate(f"decode, {precision}", alone), _eight(precision, engine, count, rounds, 0)]
    finally:
        engine.close()


def _llama(count: int, rounds: int, threads: int) -> list[Row]:
    if find_spec("xllamacpp") is None:
        print("llama.cpp is left out: pip install xllamacpp, and name a file in CHAINS_GGUF", file=sys.stderr)
        return []
    from benchmarks.peers import llama

    rate = llama.decode_rates(PROMPT, count, rounds, threads)
    return [_rate("decode, llama.cpp, 4 bits", rate)] if rate else []


def _rate(name: str, samples: list[float]) -> Row:
    ordered = sorted(samples)
    return Row(f"{name}, tokens/s", ordered[len(ordered) // 2], p50=ordered[len(ordered) // 2], n=len(samples))
