"""What a gateway counts for Prometheus: calls, turns, hops and their parts, tokens, queues and streams.

A hop is added in microseconds to plain sums; the library's families are made of them when somebody scrapes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from chains.call import DEADLINE, HANG_UP, Turn
from chains.spans import CallRecord, outcome_of, state_of
from chains.timing import Timing

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
LATENCY = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
PARTS = ("serialise", "wire", "queue", "compute", "wait")
MODELS = 64
"""Of so many models tokens are counted apart; what a caller names beyond that counts as "other"."""


class Load(Protocol):
    """What a replica has to do now; see `ReplicaLoad`."""

    @property
    def node(self) -> str: ...
    @property
    def replica(self) -> str: ...
    @property
    def running(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def streams(self) -> int: ...
    @property
    def turns(self) -> int: ...
    @property
    def draining(self) -> int: ...
    @property
    def queue_wait_ms(self) -> float: ...


@dataclass(slots=True)
class Spread:
    """How often a duration in seconds fell under each bound."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, how many were at or under it), as Prometheus wants them."""
        total, made = 0, []
        for bound, count in zip([*self.bounds, float("inf")], self.counts, strict=True):
            total += count
            made.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return made


@dataclass(slots=True)
class _Hops:
    """The hops of one method so far."""

    seconds: dict[str, Spread] = field(default_factory=dict)
    first_item: Spread = field(default_factory=lambda: Spread(SECONDS))
    parts: list[float] = field(default_factory=lambda: [0.0] * len(PARTS))
    items_in: int = 0
    items_out: int = 0
    retries: int = 0


class Metrics:
    """Counts what the gateway's recorder tells (it is one of its exporters); `text()` is the answer to a scrape.

    `gateway` tells one of several gateways from another: callers, and Prometheus, reach any of them on the same port.
    `load` gives the replicas' load at that moment, `open_calls` how many calls are open here.
    """

    def __init__(
        self, gateway: str, load: Callable[[], Sequence[Load]], open_calls: Callable[[], int] = lambda: 0
    ) -> None:
        self._gateway = gateway
        self._load = load
        self._open_calls = open_calls
        self._hops: dict[tuple[str, str], _Hops] = {}
        self._calls: dict[str, Spread] = {}
        self._turns: dict[str, int] = {}
        self._latency = {True: Spread(LATENCY), False: Spread(LATENCY)}
        self._tokens: dict[tuple[str, str, str], int] = {}
        self._ttft: dict[tuple[str, str], Spread] = {}
        self._models: set[str] = set()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)

    # what the recorder tells

    def opened(self, record: CallRecord) -> None: ...

    def hop(self, record: CallRecord, timing: Timing) -> None:
        key = (timing.node, timing.method)
        hops = self._hops.get(key)
        if hops is None:
            hops = self._hops[key] = _Hops()
        spread = hops.seconds.get(timing.outcome)
        if spread is None:
            spread = hops.seconds[timing.outcome] = Spread(SECONDS)
        spread.add(timing.closed - timing.opened)
        for index, seconds in enumerate(timing.parts().values()):
            hops.parts[index] += seconds
        hops.items_in += timing.items_in
        hops.items_out += timing.items_out
        hops.retries += timing.attempts - 1
        if timing.first_item:
            hops.first_item.add(timing.first_item - timing.opened)
        if timing.notes:
            self._note(timing.node, timing.notes)

    def _note(self, node: str, notes: Mapping[str, object]) -> None:
        model = self._model(str(notes.get("gen_ai.request.model", "")))
        kinds = (
            ("input", "gen_ai.usage.input_tokens"),
            ("output", "gen_ai.usage.output_tokens"),
            ("cached", "chains.cached_tokens"),
        )
        for kind, name in kinds:
            count = notes.get(name)
            if isinstance(count, int) and count > 0:
                key = (node, model, kind)
                self._tokens[key] = self._tokens.get(key, 0) + count
        first = notes.get("chains.ttft_ms")
        if isinstance(first, int | float) and first >= 0:
            self._ttft.setdefault((node, model), Spread(SECONDS)).add(first / 1e3)

    def _model(self, name: str) -> str:
        if name not in self._models:
            if len(self._models) >= MODELS:
                return "other"
            self._models.add(name)
        return name

    def turn(self, record: CallRecord, turn: Turn) -> None:
        state = state_of(turn)
        self._turns[state] = self._turns.get(state, 0) + 1
        start, end = turn.marks.get("speech_end", turn.opened), turn.marks.get("first_audio", turn.ended)
        if state in ("answered", "interrupted") and end > start:
            self._latency["speech_end" in turn.marks].add(end - start)

    def closed(self, record: CallRecord) -> None:
        reason, outcome = record.call.reason, outcome_of(record)
        if outcome != "error":
            outcome = next((why for why in (HANG_UP, DEADLINE) if reason.startswith(why)), outcome)
        self._calls.setdefault(outcome, Spread(SECONDS)).add(record.closed - record.call.opened)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    # what a scrape asks

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for family in (*self._of_hops(), *self._of_calls(), *self._of_tokens(), *self._of_load()):
            for index, sample in enumerate(family.samples):
                family.samples[index] = sample._replace(labels={"gateway": self._gateway, **sample.labels})
            yield family

    def _of_hops(self) -> Iterator[Metric]:
        names = ["node", "method"]
        took = HistogramMetricFamily(
            "chains_hop_duration_seconds", "A hop, from its caller's call to its end.", labels=[*names, "outcome"]
        )
        first = HistogramMetricFamily(
            "chains_hop_first_item_seconds", "From a streaming hop's call to its first item.", labels=names
        )
        parts = CounterMetricFamily(
            "chains_hop_part_seconds", "What the hops' time went into.", labels=[*names, "part"]
        )
        items = CounterMetricFamily("chains_hop_items", "Items that streams carried.", labels=[*names, "direction"])
        retries = CounterMetricFamily("chains_hop_retries", "Attempts beyond a hop's first.", labels=names)
        for key, hops in self._hops.items():
            for outcome, spread in hops.seconds.items():
                took.add_metric([*key, outcome], spread.buckets(), spread.sum)
            if any(hops.first_item.counts):
                first.add_metric(key, hops.first_item.buckets(), hops.first_item.sum)
            for part, seconds in zip(PARTS, hops.parts, strict=True):
                parts.add_metric([*key, part], seconds)
            items.add_metric([*key, "in"], hops.items_in)
            items.add_metric([*key, "out"], hops.items_out)
            retries.add_metric(key, hops.retries)
        return iter((took, first, parts, items, retries))

    def _of_calls(self) -> Iterator[Metric]:
        calls = HistogramMetricFamily("chains_call_duration_seconds", "Calls that have ended.", labels=["outcome"])
        for outcome, spread in self._calls.items():
            calls.add_metric([outcome], spread.buckets(), spread.sum)
        turns = CounterMetricFamily("chains_turns", "Turns by what became of them.", labels=["state"])
        for state, count in self._turns.items():
            turns.add_metric([state], count)
        latency = HistogramMetricFamily(
            "chains_turn_latency_seconds",
            "From the end of the caller's speech (spoken), or the turn's start, to the reply's first audio.",
            labels=["spoken"],
        )
        for spoken, spread in self._latency.items():
            latency.add_metric(["true" if spoken else "false"], spread.buckets(), spread.sum)
        opened = GaugeMetricFamily("chains_calls_open", "Calls that are open here.", labels=[])
        opened.add_metric([], self._open_calls())
        return iter((calls, turns, latency, opened))

    def _of_tokens(self) -> Iterator[Metric]:
        tokens = CounterMetricFamily(
            "chains_llm_hop_tokens",
            "Tokens of prompts, of those found in a cache, of replies.",
            labels=["node", "model", "kind"],
        )
        for key, count in self._tokens.items():
            tokens.add_metric(key, count)
        first = HistogramMetricFamily(
            "chains_llm_hop_ttft_seconds", "From a request's start to its first token.", labels=["node", "model"]
        )
        for names, spread in self._ttft.items():
            first.add_metric(names, spread.buckets(), spread.sum)
        return iter((tokens, first))

    def _of_load(self) -> Iterator[Metric]:
        gauges = (
            ("running", "Hops that run on the replica.", 1.0),
            ("queued", "Hops that wait for a slot.", 1.0),
            ("streams", "Streams that are open.", 1.0),
            ("turns", "Running hops that belong to a turn.", 1.0),
            ("draining", "Slots that cancelled work still holds.", 1.0),
            ("queue_wait_ms", "How long the hop that was admitted last, or waits longest, has waited.", 1e-3),
        )
        loads = self._load()
        for name, text, scale in gauges:
            full = f"chains_replica_{name.replace('_ms', '_seconds')}"
            gauge = GaugeMetricFamily(full, text, labels=["node", "replica"])
            for load in loads:
                gauge.add_metric([load.node, load.replica], getattr(load, name) * scale)
            yield gauge
