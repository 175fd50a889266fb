"""Figures of a served model in Prometheus' text format: counted here, or read from the engine when asked."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Counter:
    """A number that only grows, one for each set of labels."""

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self._values: defaultdict[tuple[tuple[str, str], ...], float] = defaultdict(float)

    def add(self, amount: float = 1, **labels: str) -> None:
        self._values[tuple(labels.items())] += amount

    def lines(self) -> list[str]:
        return _described(self.name, self.text, "counter") + [
            f"{self.name}{_labels(labels)} {value:g}" for labels, value in sorted(self._values.items())
        ]


class Histogram:
    """How often a duration in seconds fell under each bound."""

    def __init__(self, name: str, text: str, bounds: Sequence[float] = SECONDS) -> None:
        self.name, self.text = name, text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def lines(self) -> list[str]:
        lines, total = _described(self.name, self.text, "histogram"), 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            total += count
            shown = "+Inf" if bound == float("inf") else f"{bound:g}"
            lines.append(f'{self.name}_bucket{{le="{shown}"}} {total}')
        return [*lines, f"{self.name}_sum {self._sum:g}", f"{self.name}_count {total}"]


class Metrics:
    """What a served model counts. Used from the event loop alone."""

    def __init__(self) -> None:
        self.requests = Counter("chains_llm_requests_total", "Requests by path and HTTP status.")
        self.finished = Counter("chains_llm_finished_total", "Replies by the reason of their end.")
        self.prompt_tokens = Counter("chains_llm_prompt_tokens_total", "Tokens of prompts.")
        self.cached_tokens = Counter("chains_llm_cached_tokens_total", "Tokens of prompts found in the cache.")
        self.completion_tokens = Counter("chains_llm_completion_tokens_total", "Tokens of replies.")
        self.tool_calls = Counter("chains_llm_tool_calls_total", "Calls of tools, by whether their arguments fit.")
        self.first_token = Histogram("chains_llm_first_token_seconds", "From a request's arrival to its first text.")
        self.token = Histogram("chains_llm_token_seconds", "Per token of a reply after its first text.", TOKEN_SECONDS)
        self.request = Histogram("chains_llm_request_seconds", "From a request's arrival to its end.")

    def text(self, gauges: Mapping[str, float]) -> str:
        """All of it; `gauges` are what the engine says of itself at this moment."""
        lines = [line for one in vars(self).values() for line in one.lines()]
        for name, value in gauges.items():
            full = f"chains_llm_engine_{name}"
            lines += [*_described(full, f"The engine's {name.replace('_', ' ')}.", "gauge"), f"{full} {value:g}"]
        return "\n".join(lines) + "\n"


def _described(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    escaped = ((name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels)
    inner = ",".join(f'{name}="{value}"' for name, value in escaped)
    return f"{{{inner}}}" if inner else ""
