"""GSM8K, few-shot, against any OpenAI-compatible endpoint: the share of problems that a model solves.

python benchmarks/gsm8k.py --url http://127.0.0.1:8000/v1 --model default --data test.jsonl --train train.jsonl
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from benchmarks.report import Row, arguments, report

SAMPLE = Path(__file__).parent / "data" / "problems.jsonl"
STOP = ["\nQuestion:", "\n\nQuestion", "<|im_end|>"]
OPTIONS: dict[str, dict[str, Any]] = {
    "url": {"default": "http://127.0.0.1:8000/v1", "help": "the endpoint, with /v1"},
    "model": {"default": "default", "help": "the model's name there"},
    "data": {"type": Path, "default": SAMPLE, "help": "problems: JSON lines with question and answer (#### NUMBER)"},
    "train": {"type": Path, "default": None, "help": "where the examples are from (default: the first of the data)"},
    "n": {"type": int, "default": 0, "help": "problems to ask (default: all; with --quick 4)"},
    "shots": {"type": int, "default": 5, "help": "examples before each problem"},
    "concurrency": {"type": int, "default": 16, "help": "problems asked at once"},
    "max_tokens": {"type": int, "default": 512, "help": "of an answer"},
    "chat": {"action": "store_true", "help": "ask as a chat instead of a text that goes on"},
    "key_env": {"default": "OPENAI_API_KEY", "help": "variable with the API key"},
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, its worked answer and the number it ends with."""

    question: str
    answer: str
    number: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one problem came to; `number` is None when the model named none."""

    right: bool
    number: float | None
    seconds: float
    tokens: int


def read_problems(file: Path) -> list[Problem]:
    """Problems from JSON lines. ValueError names the line that is none."""
    problems = []
    for at, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            number = number_in(entry["answer"].rpartition("####")[2])
            problems.append(Problem(entry["question"], entry["answer"], number if number is not None else math.nan))
        except (ValueError, KeyError, TypeError, AttributeError):
            why = "is no problem; write question and answer, which ends with #### NUMBER"
            raise ValueError(f"{file}:{at} {why}") from None
        if math.isnan(problems[-1].number):
            raise ValueError(f"{file}:{at} has no number behind ####")
    return problems


def number_in(text: str, *, last: bool = False) -> float | None:
    """The first (or the last) number of a text: 1,250 and $18.50 are numbers."""
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(found[-1 if last else 0].replace(",", "")) if found else None


def answered(text: str) -> float | None:
    """The number that an answer comes to: behind ####, or the last one."""
    head, mark, tail = text.partition("####")
    number = number_in(tail.split("\n", 1)[0]) if mark else None
    return number if number is not None else number_in(head, last=True)


def examples(problems: Sequence[Problem], shots: int) -> str:
    """Worked problems, as a text that goes on."""
    return "".join(f"Question: {one.question}\nAnswer: {without_sums(one.answer)}\n\n" for one in problems[:shots])


def without_sums(answer: str) -> str:
    """A worked answer without the calculator's marks (<<3*8=24>>)."""
    return re.sub(r"<<[^>]*>>", "", answer)


def interval(right: int, asked: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share, at 95%."""
    if not asked:
        return 0.0, 1.0
    share, weight = right / asked, 1 + z * z / asked
    middle = (share + z * z / (2 * asked)) / weight
    half = z * math.sqrt(share * (1 - share) / asked + z * z / (4 * asked * asked)) / weight
    return max(0.0, middle - half), min(1.0, middle + half)


class Endpoint:
    """An OpenAI-compatible endpoint that problems are put to."""

    def __init__(self, client: httpx.AsyncClient, model: str, *, chat: bool, max_tokens: int) -> None:
        self._client, self._model, self._chat, self._max_tokens = client, model, chat, max_tokens

    async def solve(self, shots: str, problem: Problem) -> Outcome:
        """Ask once, greedily. Raises RuntimeError with the endpoint's own words when it refuses."""
        started = time.perf_counter()
        text = f"{shots}Question: {problem.question}\nAnswer:"
        body: dict[str, Any] = {"model": self._model, "temperature": 0, "max_tokens": self._max_tokens, "stop": STOP}
        if self._chat:
            path, body["messages"] = "chat/completions", [{"role": "user", "content": text}]
        else:
            path, body["prompt"] = "completions", text
        response = await self._client.post(path, json=body)
        if response.status_code != 200:
            raise RuntimeError(f"the endpoint answered {response.status_code}: {response.text[:300]}")
        answer = response.json()
        choice = answer["choices"][0]
        number = answered(choice["message"]["content"] if self._chat else choice["text"])
        right = number is not None and abs(number - problem.number) < 1e-6
        tokens = (answer.get("usage") or {}).get("completion_tokens", 0)
        return Outcome(right, number, time.perf_counter() - started, tokens)


async def run(endpoint: Endpoint, shots: str, problems: Sequence[Problem], concurrency: int) -> list[Outcome]:
    """All problems, so many at once, in their order."""
    free = asyncio.Semaphore(concurrency)

    async def one(problem: Problem) -> Outcome:
        async with free:
            return await endpoint.solve(shots, problem)

    return list(await asyncio.gather(*map(one, problems)))


async def measure(more: Any, quick: bool) -> list[Row]:
    """The rows of the report: the share that was right with its interval, and how fast it went."""
    problems = read_problems(more["data"])
    worked = read_problems(more["train"]) if more["train"] else problems[: more["shots"]]
    asked = problems if more["train"] else problems[more["shots"] :]
    asked = asked[: more["n"] or (4 if quick else None)]
    if not asked:
        raise ValueError(f"{more['data']} has {len(problems)} problems, which {more['shots']} examples use up")
    key = os.environ.get(more["key_env"], "none")
    headers = {"Authorization": f"Bearer {key}"}
    base = more["url"].rstrip("/") + "/"
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=600) as client:
        endpoint = Endpoint(client, more["model"], chat=more["chat"], max_tokens=more["max_tokens"])
        started = time.perf_counter()
        outcomes = await run(endpoint, examples(worked, more["shots"]), asked, more["concurrency"])
        seconds = time.perf_counter() - started
    right = sum(outcome.right for outcome in outcomes)
    low, high = interval(right, len(outcomes))
    waits = sorted(outcome.seconds for outcome in outcomes)
    return [
        Row("right share", right / len(outcomes), n=len(outcomes)),
        Row("95% from share", low, n=len(outcomes)),
        Row("95% to share", high, n=len(outcomes)),
        Row("no number share", sum(one.number is None for one in outcomes) / len(outcomes), n=len(outcomes)),
        Row("a problem s", sum(waits) / len(waits), p50=waits[len(waits) // 2], p99=waits[-1], n=len(waits)),
        Row("all together tokens/s", sum(one.tokens for one in outcomes) / seconds, n=len(outcomes)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments("GSM8K, few-shot, against an OpenAI-compatible endpoint", argv, OPTIONS)
    try:
        rows = asyncio.run(measure(options.more, options.quick))
    except (OSError, ValueError, RuntimeError, httpx.HTTPError) as error:
        print(f"gsm8k: {str(error) or type(error).__name__}", file=sys.stderr)
        return 2
    report(rows, options.json, "GSM8K")
    return 0


if __name__ == "__main__":
    sys.exit(main())
