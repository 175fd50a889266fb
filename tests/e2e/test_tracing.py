"""Where the time went, from a caller's websocket to the page's answers: on every runtime the sums hold, and each of an
operator's cases is named.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from chains.client import connect
from chains.dsl.graph import build
from chains.messages import Audio, Text
from chains.runtime.deployment import Runtime
from chains.runtime.inprocess import InProcess
from chains.runtime.processes import Processes
from chains.serve import Server, recorder
from chains.viewer.process import ViewerProcess
from chains.viewer.settings import ViewerSettings
from tests.e2e.chain_with_turns import SLOWER, Reception

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def on_ray(graph: Any, **given: Any) -> Runtime:
    from chains.runtime.ray_serve import RayServe, RaySettings

    return RayServe(graph, settings=RaySettings(grace=0.0, bind="127.0.0.1"), **given)


RUNTIMES: dict[str, Callable[..., Runtime]] = {"inprocess": InProcess, "processes": Processes, "ray": on_ray}


@dataclass
class Line:
    """A chain that answers, and the API of the page that its calls are shown on."""

    url: str
    page: httpx.AsyncClient

    async def get(self, path: str, **parameters: Any) -> Any:
        response = await self.page.get(path, params=parameters)
        assert response.status_code == 200, response.text
        return response.json()

    async def talk(self, *lines: str, **arguments: Any) -> str:
        """Say each line once the one before is answered; the call's id."""
        answered: asyncio.Queue[None] = asyncio.Queue()

        async def said() -> AsyncIterator[str]:
            for line in lines:
                yield line
                if line != "stop":
                    await answered.get()

        async with connect(self.url) as client, client.call("run", lines=said(), **arguments) as call:
            async for item in call:
                if isinstance(item, Text) and item.final:
                    answered.put_nowait(None)
            return call.id

    async def kept(self, count: int) -> list[dict[str, Any]]:
        """The calls, once so many have ended and are kept."""
        async with asyncio.timeout(60.0):
            while True:
                found = await self.get("/api/calls", limit=1000)
                rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
                if sum(not row["live"] for row in rows) >= count:
                    return rows
                await asyncio.sleep(0.05)


@asynccontextmanager
async def served(
    folder: Path, kind: str, request: pytest.FixtureRequest, chain: type = Reception, **replicas: int
) -> AsyncIterator[Line]:
    if kind == "ray":
        request.getfixturevalue("ray_cluster")
    graph = build(chain)
    async with AsyncExitStack() as stack:
        viewer = await stack.enter_async_context(ViewerProcess(ViewerSettings(traces=folder / "t.sqlite", port=0)))
        kept = recorder(chain=graph.entry, version="one", viewer=viewer.endpoint)
        runtime = RUNTIMES[kind](graph, recorder=kept, replicas=replicas)
        server = await stack.enter_async_context(Server(graph, port=0, runtime=runtime))
        page = await stack.enter_async_context(httpx.AsyncClient(base_url=viewer.endpoint, timeout=60.0))
        yield Line(server.url, page)


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_the_sums_hold(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with served(tmp_path, kind, request) as line:
        calls = await asyncio.gather(*(line.talk("good day", "stop", "a cleaning please", ask=True) for _ in range(4)))
        await line.kept(4)
        on_path: set[str] = set()
        for call in calls:
            detail = await line.get(f"/api/calls/{call}")
            _check(detail)
            on_path |= {step[0] for turn in detail["turns"] for step in turn["path"]}
            states = {turn["number"]: turn["state"] for turn in detail["turns"]}
            assert states == {1: "answered", 2: "dropped", 3: "answered"}
        # one whose answer was there before it was waited for is on no path: of a call's first turn that may be any
        assert on_path >= {"Reception.run", "Ears.hear", "Brain.think", "Tight.look_up", "Mouth.speak"}


def _check(detail: dict[str, Any]) -> None:
    """Each hop's parts add up to its time, each answered turn's path to its latency, within a millisecond."""
    at = {name: index for index, name in enumerate(detail["columns"])}
    hops = [span for span in detail["spans"] if span[at["kind"]] == "hop"]
    assert {span[at["name"]] for span in hops} >= {"Reception.run", "Ears.hear", "Brain.think", "Tight.look_up"}
    for span in hops:
        assert sum(span[at["parts"]]) == pytest.approx(span[at["ms"]], abs=1.0)
        assert sum(part[2] for part in span[at["segments"]]) == pytest.approx(span[at["ms"]], abs=1.0)
    for turn in detail["turns"]:
        if turn["state"] == "answered":
            path = turn["path"]
            assert sum(step[5] for step in path) == pytest.approx(turn["latency_ms"], abs=1.0)
            assert {step[0] for step in path} >= {"Ears.hear", "Mouth.speak"}, path
            for before, after in itertools.pairwise(path):
                assert after[4] == pytest.approx(before[4] + before[5], abs=1.0), "no gap and no overlap"
    checks = detail["checks"]
    assert checks["hops"] == len(hops) and checks["worst_hop_ms"] < 1.0 and checks["worst_turn_ms"] < 1.0


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_the_slow_replica_is_named(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    slow = tmp_path / "slow"
    async with served(tmp_path, kind, request, Brain=3) as line:
        for _ in range(10):
            await asyncio.gather(*(line.talk("one", "two", "three", slow=str(slow)) for _ in range(5)))
        await line.kept(50)
        chain = await line.get("/api/chain", chain="Reception")
        first = chain["findings"][0]
        name = slow.read_text().split()[1]
        assert (first["kind"], first["hop"], first["replica"]) == ("replica", "Brain.think", name), chain["findings"]
        assert first["ms"] == pytest.approx(SLOWER * 1e3, rel=0.5)
        told = next(one for hop in chain["hops"] for one in hop["replicas"] if one["replica"] == name)
        assert told["outlier"] and "compute" in told["why"]


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_a_queue_that_is_too_long_is_named(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async with served(tmp_path, kind, request) as line:
        await asyncio.gather(*(line.talk("one", "two", "three", ask=True) for _ in range(12)))
        await line.kept(12)
        findings = (await line.get("/api/chain", chain="Reception"))["findings"]
        assert (findings[0]["kind"], findings[0]["hop"]) == ("queue", "Tight.look_up"), findings


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_a_client_that_reads_slowly_is_named(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    async def listen(url: str) -> None:
        async with connect(url) as client, client.call("recite", pieces=60) as call:
            async for item in call:
                assert isinstance(item, Audio)
                await asyncio.sleep(0.03)  # what is tested: somebody who takes their time

    async with served(tmp_path, kind, request) as line:
        await asyncio.gather(*(listen(line.url) for _ in range(4)))
        await line.kept(4)
        findings = (await line.get("/api/chain", chain="Reception"))["findings"]
        assert [one["kind"] for one in findings if one["hop"] == "Reception.recite"] == ["client"], findings


async def test_a_call_is_seen_while_it_goes_on(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    spoken, hang_up = asyncio.Event(), asyncio.Event()

    async def said() -> AsyncIterator[str]:
        yield "good day"
        await hang_up.wait()

    async with served(tmp_path, "inprocess", request) as line, connect(line.url) as client:
        async with client.call("run", lines=said()) as call:

            async def listened() -> None:
                async for item in call:
                    if isinstance(item, Text) and item.final:
                        spoken.set()

            listening = asyncio.ensure_future(listened())
            await spoken.wait()
            async with asyncio.timeout(30.0):
                while not (rows := await line.kept(0)) or not rows[0]["turns"]:  # noqa: ASYNC110 - it is another process
                    await asyncio.sleep(0.05)
            assert rows[0]["live"] and rows[0]["id"] == call.id
            detail = await line.get(f"/api/calls/{call.id}")
            assert detail["call"]["live"] and detail["turns"][0]["state"] == "answered"
            assert detail["turns"][0]["latency_ms"] > 0
            hang_up.set()
            await listening
        assert not (await line.kept(1))[0]["live"]


async def test_the_phone_call_is_seen_turn_by_turn_while_it_goes_on(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples.phone_call.call import PhoneCall
    from tests.e2e.phone import phone

    monkeypatch.setenv("CLINIC_DB", str(tmp_path / "clinic.sqlite"))
    async with served(tmp_path, "inprocess", request, PhoneCall) as line:
        async with phone(line.url) as caller:
            id = caller.call.id

            async def turns(number: int) -> dict[str, Any]:
                """The call as the page has it once a turn of at least that number has ended, while it goes on."""
                async with asyncio.timeout(90.0):
                    while True:
                        detail: dict[str, Any] = await line.get(f"/api/calls/{id}")
                        if any(turn["number"] >= number and turn["path"] for turn in detail["turns"]):
                            assert detail["call"]["live"] and detail["checks"]["worst_turn_ms"] < 1.0
                            return detail
                        await asyncio.sleep(0.1)

            greeting = (await turns(1))["turns"][0]
            assert greeting["state"] == "answered" and {step[0] for step in greeting["path"]} >= {"Tts.speak"}
            caller.start("Which street is the clinic on?")
            await caller.said()
            asked = (await turns(2))["turns"][1:]
            assert any(turn["spoken"] for turn in asked) or any(turn["state"] == "dropped" for turn in asked)
        await line.kept(1)
        detail = await line.get(f"/api/calls/{id}")
        assert not detail["call"]["live"] and detail["checks"]["worst_hop_ms"] < 1.0
        names = {span[detail["columns"].index("name")] for span in detail["spans"]}
        assert names >= {"PhoneCall.run", "Vad.listen", "Asr.transcribe", "LLM.score", "Tts.speak"}
