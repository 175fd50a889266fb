"""Spans in the shape in which the example phone call sends them: few and rich ones, six a turn.

What a span holds (attributes, how many waits and works, segments of a path) was read off a call of examples/phone_call.
"""

from __future__ import annotations

import json
import random
from typing import Any

from tests.chains.records.made import MS, START, Call, Span

_REPLY = {
    "gen_ai.operation.name": "chat", "gen_ai.provider.name": "chains", "gen_ai.request.model": "default-moe",
    "gen_ai.response.model": "smollm2-135m-instruct-moe-fp8", "gen_ai.request.max_tokens": 48,
    "gen_ai.request.temperature": 0.0, "gen_ai.request.top_p": 1.0,
}  # fmt: skip
_PLACES = [
    ("Vad.listen", "wait", "input"), ("Vad.listen", "compute", ""), ("Asr.transcribe", "compute", ""),
    ("Asr.transcribe", "compute", "decode (speculative)"), ("PhoneCall.run", "compute", ""),
    ("LLM.score", "compute", ""), ("LLM.reply", "wire", ""), ("LLM.reply", "queue", ""),
    ("LLM.reply", "compute", "prefill"), ("Tts.speak", "compute", ""),
]  # fmt: skip


def call(id: str, turns: int = 5, *, start: int = START) -> list[Span]:
    """One call of about 6 spans a turn and 5 more, in the order in which they end."""
    rnd = random.Random(id)
    made = Call(id, rnd, start, rnd.randbytes(16), rnd.randbytes(8))
    run = rnd.randbytes(8)
    at = 0.0
    for number in range(1, turns + 1):
        at = _turn(made, run, number, at, rnd)
    long = (0.1, 0.4, 0.1, 0.05 * at, 0.95 * at)
    listening = {"chains.items_in": 3435, "chains.items_out": 337, "chains.first_item_ms": 2385.231}
    made.hop("Vad.listen", run, 0, 1.0, long, "Vad#0", **listening, **{"chains.waits": _waits(rnd, 48, "input", at)})
    works = json.dumps([[_ms(rnd, at), _ms(rnd, 600), "decode (speculative)", 0] for _ in range(4 * turns)])
    hearing = {"chains.items_in": 337, "chains.items_out": 2 * turns, "chains.works": works}
    made.hop("Asr.transcribe", run, 0, 1.0, long, "Asr#0", **hearing, **{"chains.waits": _waits(rnd, 14, "input", at)})
    waits = _waits(rnd, min(5 * turns, 48), "hop", at)
    root = made.hop("PhoneCall.run", made.root, 0, 0.5, long, "PhoneCall#0", **{"chains.waits": waits})
    root.span = run
    made.close((root.end - start) / MS + 1.0, turns)
    return made.spans


def many(spans: int, *, start: int = START, apart_ms: float = 100.0) -> list[Span]:
    """At least that many spans of calls that began one after the other; call ids are call-0, call-1, ..."""
    found: list[Span] = []
    index = 0
    while len(found) < spans:
        found += call(f"call-{index}", start=start + round(index * apart_ms * MS))
        index += 1
    return found


def _turn(made: Call, run: bytes, number: int, at: float, rnd: random.Random) -> float:
    def hop(name: str, compute: float, **more: Any) -> Span:
        parts = (rnd.uniform(0.01, 0.1), rnd.uniform(0.2, 0.8), rnd.expovariate(1.0), compute, 0.0)
        return made.hop(name, run, number, at + 2_000 + 3 * number, parts, f"{name.partition('.')[0]}#0", **more)

    hop("LLM.score", _ms(rnd, 900))
    hop("Facts.find", _ms(rnd, 5))
    if number % 2:
        hop("LLM.reply", _ms(rnd, 400), **_REPLY, **{"chains.outcome": "cancelled"})
    ttft = _ms(rnd, 3_000)
    tokens = {"gen_ai.usage.input_tokens": 90 * number, "gen_ai.usage.output_tokens": 12, "chains.cached_tokens": 64}
    streamed = {"chains.ttft_ms": ttft, "chains.first_item_ms": ttft, "chains.items_out": 4}
    ended = {"gen_ai.response.finish_reasons": ["stop"]}
    hop("LLM.reply", _ms(rnd, 6_000), **_REPLY, **tokens, **streamed, **ended)
    spoken = {"chains.items_in": 4, "chains.items_out": 130, "chains.waits": _waits(rnd, 1, "input", 900)}
    hop("Tts.speak", _ms(rnd, 1_800), **spoken, **{"chains.first_item_ms": _ms(rnd, 200)})
    segments: list[list[Any]] = []
    reached = 0.0
    for _ in range(36):
        hop_name, part, name = rnd.choice(_PLACES)
        ms = round(rnd.expovariate(1 / 40.0) if rnd.random() < 0.3 else rnd.uniform(0.01, 0.3), 3)
        segments.append([hop_name, part, name, f"{hop_name.partition('.')[0]}#0", round(reached, 3), ms])
        reached += ms
    made.turn(number, at, at + 12_000, round(reached, 3), segments)
    return at + 12_500


def _ms(rnd: random.Random, most: float) -> float:
    return round(rnd.uniform(0.0, most), 3)


def _waits(rnd: random.Random, count: int, kind: str, until: float) -> str:
    starts = sorted(_ms(rnd, until) for _ in range(count))
    return json.dumps(
        [[start, _ms(rnd, 90), kind, rnd.randbytes(8).hex() if kind == "hop" else "", 1] for start in starts]
    )
