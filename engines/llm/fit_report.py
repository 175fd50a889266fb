"""The answer of `chains fit`, with its arithmetic, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engines.layers.architecture import MLA, Architecture
from engines.llm.fit import GB, Fit, Line, as_served, divided_sizes, token_bytes, weights_by_part, would_fit
from engines.weights.inventory import dtype_of

CONTEXTS = (2048, 8192, 32768, 131072)
ELSEWHERE = 6


def report(name: str, architecture: Architecture, fits: Sequence[Fit]) -> list[str]:
    """All of it: the weights by part, the cache per token, and for each set of GPUs what it holds and what fits."""
    lines = [f"{name}: {architecture.model_type}, {architecture.depth} layers, hidden {architecture.hidden:,}"]
    served = as_served(architecture)
    lines += ["", f"Weights as stored ({_types(architecture)})", *_table(weights_by_part(architecture))]
    if served != architecture:
        lines += [f"  on GPUs they are {served.dtype}: {sum(divided_sizes(served).values()) / GB:.3f} GB"]
    lines += ["", *_token(served)]
    for fit in fits:
        lines += ["", *_gpus(architecture, fit)]
    return lines


def _types(architecture: Architecture) -> str:
    return f"{architecture.dtype}, projections in block FP8" if architecture.quantised else architecture.dtype


def _table(terms: Sequence[Line]) -> Iterator[str]:
    wide = max(len(term.label) for term in terms)
    for term in terms:
        yield f"  {term.label:<{wide}}  {term.bytes / GB:9.3f} GB  {term.arithmetic}".rstrip()
    yield f"  {'together':<{wide}}  {sum(term.bytes for term in terms) / GB:9.3f} GB"


def _token(architecture: Architecture) -> Iterator[str]:
    attention, size = architecture.attention, dtype_of(architecture.dtype).itemsize
    if isinstance(attention, MLA):
        how = f"{architecture.depth} layers x ({attention.kv_lora} latent + {attention.rope} rotary) x {size} bytes"
    else:
        how = f"{architecture.depth} layers x 2 x {attention.kv_heads} heads x {attention.size} x {size} bytes"
    yield f"Cache per token: {how} = {token_bytes(architecture):,} bytes"


def _gpus(architecture: Architecture, fit: Fit) -> Iterator[str]:
    memory = fit.gpus.bytes
    verdict = "yes" if fit.fits else "no"
    yield f"{fit.gpus}: {verdict}, for {fit.batch} x {fit.context:,} tokens"
    yield f"  of each GPU's {memory / GB:.1f} GB {fit.usable / memory:.0%} are used: {fit.usable / GB:.2f} GB; it holds"
    for line in _table(fit.held):
        yield f"  {line}"
    left = fit.usable - sum(term.bytes for term in fit.held)
    if left < 0:
        yield f"  {-left / GB:.2f} GB on each GPU are missing before the first token of cache"
    else:
        yield f"  left for the cache: {left / GB:.2f} GB / {fit.token_bytes:,} bytes = {fit.tokens:,} tokens"
        yield f"  wanted are {fit.batch} x {fit.context:,} = {fit.batch * fit.context:,} tokens"
        lengths = sorted({length for length in (*CONTEXTS, architecture.context) if length <= architecture.context})
        batches = ", ".join(f"{fit.tokens // length:,} of {length:,}" for length in lengths)
        yield f"  sequences at once: {batches}; one alone: {min(fit.tokens, architecture.context):,} tokens"
    if not fit.fits:
        yield f"  missing on each GPU: {fit.missing / GB:.2f} GB"
        others = [str(gpus) for gpus in would_fit(architecture, fit.context, fit.batch)[:ELSEWHERE]]
        yield f"  it would fit on {'; '.join(others)}" if others else "  it fits on none of the GPUs known here"
