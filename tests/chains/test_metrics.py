"""What a scrape of the gateway says, and that the dashboard asks for nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from chains import Audio, Text, chainlet, current, depends
from chains.client import connect
from chains.dsl.graph import build
from chains.metrics import LATENCY, Metrics, Spread
from chains.serve import Server
from tests.shape.tree import ROOT

DASHBOARD = ROOT / "docs" / "grafana" / "chains.json"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@chainlet
class Mind:
    async def think(self, about: str) -> AsyncIterator[Text]:
        current().note("gen_ai.request.model", "tiny")
        current().note("gen_ai.usage.input_tokens", 12)
        current().note("gen_ai.usage.output_tokens", 3)
        current().note("chains.cached_tokens", 8)
        current().note("chains.ttft_ms", 40.0)
        for word in about.split():
            yield Text(word)

    async def fail(self) -> str:
        raise ValueError("no")


@chainlet(entry=True)
class Desk:
    mind: Mind = depends(Mind)

    async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio | Text]:
        """Two turns: one that is answered, one that the caller cuts off."""
        call = current().call
        async for piece in audio:
            async with call.new_turn() as turn:
                turn.mark("speech_end", call.clock.now() - 0.05)
                async for word in self.mind.think("a b c"):
                    yield Text(word.text, turn=turn.number)
                yield Audio(piece.pcm, piece.rate, turn=turn.number)
            async with call.new_turn() as turn:
                turn.cancel("the caller went on")

    async def broken(self) -> str:
        return await self.mind.fail()


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "gateway"}
            found[sample.name, frozenset(labels.items())] = sample.value
    return found


def of(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


async def scraped(server: Server, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url) as client:
        return await client.get("/metrics", headers=headers)


async def spoken_to() -> AsyncIterator[Audio]:
    yield Audio(np.zeros(320, np.int16), 16000)


async def conversed(server: Server) -> None:
    async with connect(server.url) as client, client.call("run", audio=spoken_to()) as call:
        async for _ in call:
            pass


async def test_a_call_is_counted_by_turn_hop_and_token() -> None:
    async with Server(build(Desk), port=0) as server:
        await conversed(server)
        await server.gateway.quiet(5.0)
        async with httpx.AsyncClient(base_url=server.url) as client:
            await client.post("/v1/call/broken", json={})
        found = samples((await scraped(server)).text)
    assert of(found, "chains_turns_total", state="answered") == 1
    assert of(found, "chains_turns_total", state="dropped") == 1
    assert of(found, "chains_turn_latency_seconds_count", spoken="true") == 1
    assert 0.05 <= of(found, "chains_turn_latency_seconds_sum", spoken="true") < 5
    think = {"node": "Mind", "method": "think"}
    assert of(found, "chains_hop_duration_seconds_count", **think, outcome="done") == 1
    assert of(found, "chains_hop_items_total", **think, direction="out") == 3
    assert of(found, "chains_hop_duration_seconds_count", node="Mind", method="fail", outcome="error") == 1
    parts = [of(found, "chains_hop_part_seconds_total", **think, part=part) for part in ("compute", "wait", "queue")]
    took = of(found, "chains_hop_duration_seconds_sum", **think, outcome="done")
    assert 0 < sum(parts) <= took + 1e-6
    for kind, count in (("input", 12), ("output", 3), ("cached", 8)):
        assert of(found, "chains_llm_hop_tokens_total", node="Mind", model="tiny", kind=kind) == count
    assert of(found, "chains_llm_hop_ttft_seconds_sum", node="Mind", model="tiny") == 0.04
    assert of(found, "chains_replica_running", node="Mind", replica="Mind#0") == 0
    assert of(found, "chains_calls_open") == 0
    assert of(found, "chains_call_duration_seconds_count", outcome="error") == 1


async def test_a_server_with_keys_shows_its_figures_to_who_has_one() -> None:
    async with Server(build(Desk), port=0, keys=("secret",)) as server:
        assert (await scraped(server)).status_code == 401
        shown = await scraped(server, authorization="Bearer secret")
    assert shown.status_code == 200 and shown.headers["content-type"].startswith("text/plain; version=")


async def test_names_that_callers_choose_make_no_endless_series() -> None:
    metrics = Metrics("here", list)
    for index in range(500):
        metrics._note("Mind", {"gen_ai.request.model": f"m{index}", "gen_ai.usage.input_tokens": 1})
    found = samples(metrics.text().decode())
    models = {dict(labels)["model"] for name, labels in found if name == "chains_llm_hop_tokens_total"}
    assert len(models) == 65
    assert of(found, "chains_llm_hop_tokens_total", node="Mind", model="other", kind="input") == 436


def test_a_spread_counts_what_is_at_its_bound_below_it() -> None:
    spread = Spread((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 2.5):
        spread.add(seconds)
    assert spread.buckets() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)] and spread.sum == 5.5
    assert list(LATENCY) == sorted(LATENCY)


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(DASHBOARD).read_text(encoding="utf-8"))
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


async def test_the_dashboard_asks_for_what_a_gateway_answers() -> None:
    async with Server(build(Desk), port=0) as server:
        await conversed(server)
        known = {name for name, _ in samples((await scraped(server)).text)}
    asked = {name for expr in expressions() for name in re.findall(r"chains_[a-z_]+", expr)}
    assert asked and asked <= known, asked - known
    for variable in dashboard()["templating"]["list"]:
        assert set(re.findall(r"chains_[a-z_]+", variable.get("definition", ""))) <= known


def test_the_dashboard_is_whole() -> None:
    """What Grafana wants of a file: a schema version, panels of their own number and place, balanced expressions."""
    board = dashboard()
    assert board["schemaVersion"] >= 36 and board["title"] and board["uid"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
        refs = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(refs)) == len(refs) and (refs or panel["type"] == "row"), panel["title"]
    names = {variable["name"] for variable in board["templating"]["list"]}
    for expr in expressions():
        assert expr.count("(") == expr.count(")") and expr.count("{") == expr.count("}")
        assert set(re.findall(r"\$(\w+)", expr)) <= names | {"__rate_interval"}
