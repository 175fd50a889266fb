"""What is exported of calls, turns and hops, and where it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from chains.call import Call, current
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.errors import SettingError
from chains.export import Both, OtlpExporter, exporter_from_env, resource_of, sampler, viewer_endpoint
from chains.otlp import Endpoint
from chains.runtime.inprocess import InProcess
from chains.runtime.processes import Processes
from chains.spans import Recorder, state_of
from chains.testing import FakeClock
from chains.timing import LoopClock
from tests.chains.received import Received, attributes, length_ms, receiving
from tests.chains.shifted import Phone

PARTS = ("serialise", "wire", "queue", "compute", "wait")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "my number is 0171-555"


@pytest.fixture
def receiver() -> Iterator[Received]:
    with receiving() as received:
        yield received


@chainlet
class Mind:
    async def answer(self, text: str) -> str:
        scope = current()
        if "?" not in text:
            raise ValueError(f"no question in {text}")
        scope.note("gen_ai.usage.output_tokens", 7)
        scope.note("gen_ai.response.finish_reasons", ["stop"])
        scope.note("chains.call", "a name that is taken")
        with scope.work("think"):
            return f"an answer to {text}"


@chainlet(entry=True)
class Chat:
    mind: Mind = depends(Mind)

    async def talk(self, text: str) -> AsyncIterator[str]:
        yield await self.mind.answer(text)


async def converse(recorder: Recorder, clock: LoopClock, flags: str = "01") -> None:
    async with (
        InProcess(build(Chat), clock=clock, recorder=recorder) as runtime,
        runtime.open_call(
            id="c1", tenant="clinic", traceparent=f"00-{TRACE}-{PARENT}-{flags}", tracestate="vendor=1"
        ) as call,
    ):
        async with call.new_turn() as turn:
            turn.mark("speech_end")
            assert [text async for text in runtime.entry.talk(f"{SECRET}?")] == [f"an answer to {SECRET}?"]
            turn.mark("first_audio")
        with pytest.raises(ValueError, match="no question"):
            await anext(runtime.entry.talk(SECRET))


def asking(receiver: Received, **more: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **more}


async def exported(environ: dict[str, str], flags: str = "01") -> None:
    clock, exporter = LoopClock(), exporter_from_env(environ, chain="Chat", app="line", version="1f2e3d4c")
    assert exporter is not None
    try:
        await converse(Recorder(clock, exporter=exporter), clock, flags)
    finally:
        exporter.close()


def of_kind(receiver: Received, kind: str) -> list[tuple[Any, dict[str, Any]]]:
    found = [(span, attributes(span)) for span in receiver.spans]
    return [(span, said) for span, said in found if said["chains.kind"] == kind]


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
async def test_spans_reach_an_otlp_receiver(receiver: Received, compression: str) -> None:
    await exported(asking(receiver, OTEL_EXPORTER_OTLP_COMPRESSION=compression))
    assert {path for path, _, _ in receiver.requests} == {"/v1/traces"}
    spans = receiver.spans
    names = ["Chat.talk", "Chat.talk", "Mind.answer", "Mind.answer", "call", "turn 1"]
    assert sorted(span.name for span in spans) == names
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert {span.trace_state for span in spans} == {"vendor=1"}
    assert len({span.span_id for span in spans}) == len(spans)
    whole = next(span for span in spans if span.name == "call")
    assert whole.parent_span_id.hex() == PARENT
    talks = {span.span_id for span in spans if span.name == "Chat.talk"}
    for span in spans:
        assert span.end_time_unix_nano >= span.start_time_unix_nano > 1_600_000_000 * 10**9
        if span.name in ("Chat.talk", "turn 1"):
            assert span.parent_span_id == whole.span_id
        elif span.name == "Mind.answer":
            assert span.parent_span_id in talks
    for _, _, body in receiver.requests:
        assert b"0171" not in body, "what a caller said stands in no span"


async def test_a_hop_bears_its_account_and_its_notes(receiver: Received) -> None:
    await exported(asking(receiver))
    hops = of_kind(receiver, "hop")
    assert len(hops) == 4
    for span, said in hops:
        assert abs(sum(said.get(f"chains.{part}_ms", 0.0) for part in PARTS) - length_ms(span)) < 0.01
        assert said["chains.call"] == "c1" and f"{said['chains.node']}.{said['chains.method']}" == span.name
    good = next(said for span, said in hops if span.name == "Mind.answer" and "error.type" not in said)
    assert good["gen_ai.usage.output_tokens"] == 7 and good["gen_ai.response.finish_reasons"] == ["stop"]
    assert (good["chains.outcome"], good["chains.turn"], good["chains.replica"]) == ("done", 1, "Mind#0")
    assert [name for _, _, name, turn in json.loads(good["chains.works"]) if turn == 1] == ["think"]
    assert 0 <= good["chains.received_ms"] <= good["chains.accepted_ms"] <= good["chains.ended_ms"]
    assert "chains.attempts" not in good and "chains.items_in" not in good, "what says nothing is left out"
    talk = next((span, said) for span, said in hops if span.name == "Chat.talk" and said.get("chains.turn"))
    minds = {span.span_id.hex() for span, _ in hops if span.name == "Mind.answer"}
    waits = [on for _, _, kind, on, _ in json.loads(talk[1]["chains.waits"]) if kind == "hop"]
    assert waits and set(waits) <= minds
    assert talk[1]["chains.items_out"] == 1 and 0 < talk[1]["chains.first_item_ms"] <= length_ms(talk[0])
    failed = [(span, said) for span, said in hops if said["chains.outcome"] == "error"]
    assert {said["error.type"] for _, said in failed} == {"ValueError"} and len(failed) == 2
    assert {span.status.code for span, _ in failed} == {2}


async def test_a_turn_bears_its_path_and_a_call_its_outcome(receiver: Received) -> None:
    await exported(asking(receiver))
    ((turn, said),) = of_kind(receiver, "turn")
    assert (said["chains.turn"], said["chains.state"], said["chains.spoken"]) == (1, "answered", True)
    path = json.loads(said["chains.path"])
    assert sum(step[5] for step in path) == pytest.approx(said["chains.latency_ms"], abs=0.01)
    assert ["Mind.answer", "compute", "think", "Mind#0"] in [step[:4] for step in path]
    assert [event.name for event in turn.events] == ["speech_end", "first_audio"]
    between = (turn.events[1].time_unix_nano - turn.events[0].time_unix_nano) / 1e6
    assert between == pytest.approx(said["chains.latency_ms"], abs=0.01)
    ((whole, found),) = of_kind(receiver, "call")
    assert (found["chains.outcome"], found["error.type"], found["chains.tenant"]) == ("error", "ValueError", "clinic")
    assert (found["chains.turns"], found["chains.method"], whole.status.code) == (1, "Chat.talk", 2)


async def test_the_resource_says_who_sends(receiver: Received) -> None:
    attributes = "deployment.environment=test%20bed,service.version=2"
    await exported(asking(receiver, OTEL_SERVICE_NAME="clinic", OTEL_RESOURCE_ATTRIBUTES=attributes))
    said = receiver.resource
    assert (said["service.name"], said["service.version"], said["chains.chain"]) == ("clinic", "2", "Chat")
    assert said["deployment.environment"] == "test bed" and said["chains.app"] == "line"
    host, _, pid = said["service.instance.id"].rpartition(":")
    assert host and int(pid)
    assert resource_of({}, chain="Chat")["service.name"] == "Chat" and resource_of({})["service.name"] == "chains"


async def test_the_viewer_gets_every_call_and_the_backend_those_that_are_sampled(receiver: Received) -> None:
    with receiving() as viewer:
        environ = asking(receiver, CHAINS_VIEWER=f"{viewer.url}/", CHAINS_VIEWER_KEY="k")
        await exported(environ, flags="00")
        assert receiver.requests == [] and len(viewer.spans) == 6
        assert {headers["Authorization"] for headers in viewer.headers} == {"Bearer k"}
        await exported(environ, flags="01")
        assert len(receiver.spans) == 6 and len(viewer.spans) == 12


async def test_a_root_that_is_not_sampled_says_so_to_whom_it_calls(receiver: Received) -> None:
    exporter = exporter_from_env(asking(receiver, OTEL_TRACES_SAMPLER="always_off"))
    assert exporter is not None
    recorder = Recorder(LoopClock(), exporter=exporter)
    call = Call(LoopClock(), traceparent=f"00-{TRACE}-{PARENT}-01")
    assert call.traceparent.endswith("-01")
    recorder.open(call)
    assert call.traceparent == f"00-{TRACE}-{call.span:016x}-00"
    exporter.close()


async def test_what_is_lost_is_counted_and_said_on_the_next_call(receiver: Received) -> None:
    exporter = OtlpExporter(Endpoint(f"{receiver.url}/v1/traces", queue=3, batch=8, delay=60.0), {})
    clock = LoopClock()
    await converse(Recorder(clock, exporter=exporter), clock)  # six spans; only when it stops are they sent
    assert exporter.dropped == 3 and len(receiver.spans) == 3
    call = Call(clock)
    recorder = Recorder(clock, exporter=exporter)
    recorder.open(call)
    recorder.close(call)
    exporter.close()
    ((_, said),) = of_kind(receiver, "call")
    assert said["chains.dropped"] == 3


async def test_what_an_outage_has_cost_is_said_when_it_is_over(receiver: Received) -> None:
    receiver.answers = [400] * 5 + [200] + [400] + [200]
    exporter = OtlpExporter(Endpoint(f"{receiver.url}/v1/traces", delay=60.0), {})
    recorder = Recorder(LoopClock(), exporter=exporter)
    told = []
    for lost in (1, 2, 3, 4, 5, 5, 6, 6):
        for _ in range(1 if lost < 6 else 2):  # two in a request tell it once
            call = Call(LoopClock())
            recorder.open(call)
            recorder.close(call)
        assert await asyncio.to_thread(exporter.flush)
        told = [said.get("chains.dropped", 0) for _, said in of_kind(receiver, "call")]
    assert exporter.dropped == 7 and told == [5, 2, 0]
    exporter.close()


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "clinic"}, False),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}, True),
        ({"OTEL_SDK_DISABLED": "true", "CHAINS_VIEWER": "http://127.0.0.1:9"}, True),
    ],
)
def test_export_is_asked_for_by_the_variables_alone(environ: dict[str, str], asked: bool) -> None:
    exporter = exporter_from_env(environ)
    assert isinstance(exporter, OtlpExporter) == asked
    if exporter is not None:
        exporter.close()


def test_two_destinations_are_one_exporter() -> None:
    exporter = exporter_from_env({"OTEL_TRACES_EXPORTER": "otlp", "CHAINS_VIEWER": "http://127.0.0.1:9"})
    assert isinstance(exporter, Both)
    exporter.close()
    for url in ("127.0.0.1:9", "http://:x", "http://h:99999", "http://[::1"):
        with pytest.raises(SettingError, match="http://HOST:PORT"):
            viewer_endpoint(url)
    with pytest.raises(SettingError, match="CHAINS_VIEWER_KEY") as told:
        viewer_endpoint("http://127.0.0.1:9", "sesame\n")
    assert "sesame" not in str(told.value)


@pytest.mark.parametrize("names", ["console", "otpl", "zipkin,otlp"])
def test_an_exporter_that_is_not_known_is_said(names: str, caplog: pytest.LogCaptureFixture) -> None:
    exporter = exporter_from_env({"OTEL_TRACES_EXPORTER": names, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    assert isinstance(exporter, OtlpExporter) == ("otlp" in names)
    assert names.split(",")[0] in caplog.text
    if exporter is not None:
        exporter.close()


async def test_nothing_is_exported_unasked(receiver: Received) -> None:
    clock = LoopClock()
    recorder = Recorder(clock, exporter=exporter_from_env({}))
    await converse(recorder, clock)
    assert receiver.requests == []
    assert len(recorder.calls[0].hops) == 4, "the account is kept all the same"


@pytest.mark.parametrize(
    ("name", "argument", "parent", "shares"),
    [
        ("", "", None, (1.0, 1.0)),
        ("", "", False, (0.0, 0.0)),
        ("always_on", "", False, (1.0, 1.0)),
        ("parentbased_always_off", "", None, (0.0, 0.0)),
        ("parentbased_always_off", "", True, (1.0, 1.0)),
        ("traceidratio", "0.25", True, (0.2, 0.3)),
        ("parentbased_traceidratio", "0.25", None, (0.2, 0.3)),
    ],
)
def test_calls_are_sampled_by_the_standard_variables(
    name: str, argument: str, parent: bool | None, shares: tuple[float, float]
) -> None:
    sample = sampler({"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument})
    taken = sum(sample(Call(FakeClock()).trace_id, parent) for _ in range(2_000)) / 2_000
    assert shares[0] <= taken <= shares[1]


@pytest.mark.parametrize(("name", "argument"), [("jaeger_remote", ""), ("traceidratio", "2"), ("traceidratio", "x")])
def test_a_sampler_that_is_none_is_an_error(name: str, argument: str) -> None:
    with pytest.raises(SettingError, match="write"):
        sampler({"OTEL_TRACES_SAMPLER": name, "OTEL_TRACES_SAMPLER_ARG": argument})


@pytest.mark.parametrize(
    ("reason", "heard", "state"),
    [
        ("", False, "answered"),
        ("barge-in", True, "interrupted"),
        ("barge-in", False, "dropped"),
        ("turn failed", True, "failed"),
        ("deadline: turn 1 ran out of time", False, "failed"),
    ],
)
def test_what_became_of_a_turn(reason: str, heard: bool, state: str) -> None:
    turn = Call(FakeClock()).new_turn()
    turn.reason = reason
    if heard:
        turn.mark("first_audio")
    assert state_of(turn) == state


def check_sums(receiver: Received) -> None:
    """Each hop's parts are its time, each turn's path is its latency, to the millisecond."""
    for span, said in of_kind(receiver, "hop"):
        assert abs(sum(said.get(f"chains.{part}_ms", 0.0) for part in PARTS) - length_ms(span)) < 1.0
    for _, said in of_kind(receiver, "turn"):
        if "chains.path" in said:
            assert abs(sum(step[5] for step in json.loads(said["chains.path"])) - said["chains.latency_ms"]) < 1.0


@chainlet(entry=True)
class Busy:
    mind: Mind = depends(Mind)

    async def talk(self, turns: int) -> AsyncIterator[str]:
        for _ in range(turns):
            async with current().call.new_turn() as turn:
                for answer in await asyncio.gather(*(self._ask(n) for n in range(5))):
                    turn.mark("first_audio")
                    yield answer

    async def _ask(self, number: int) -> str:
        await asyncio.sleep(0.0005 * number)
        return await self.mind.answer(f"{number}?")


async def test_turns_are_accounted_while_their_call_goes_on(receiver: Received) -> None:
    """The exporter's thread looks at accounts that change under its eyes."""
    exporter = OtlpExporter(Endpoint(f"{receiver.url}/v1/traces", queue=10_000, batch=16, delay=0.001), {})
    clock = LoopClock()
    async with (
        InProcess(build(Busy), clock=clock, recorder=Recorder(clock, exporter=exporter)) as runtime,
        runtime.open_call(id="c1"),
    ):
        assert len([answer async for answer in runtime.entry.talk(60)]) == 300
    exporter.close()
    assert exporter.dropped == 0
    turns = of_kind(receiver, "turn")
    assert len(turns) == 60 and len(of_kind(receiver, "hop")) == 301
    assert all("chains.path" in said for _, said in turns)
    check_sums(receiver)


@pytest.mark.slow
async def test_hops_and_turns_of_other_processes_are_told_while_the_call_goes_on(receiver: Received) -> None:
    """Their clocks are seconds off, and nothing shows of it."""
    exporter = exporter_from_env(asking(receiver))
    assert exporter is not None
    clock = LoopClock()
    recorder = Recorder(clock, exporter=exporter)
    async with Processes(build(Phone), clock=clock, recorder=recorder) as runtime, runtime.open_call(id="c1") as call:
        parents = []
        stream = runtime.entry.call(2)
        async for parent in stream:
            parents.append(parent.split("-")[2])
            call.turns[(len(parents) - 1) // 2].mark("first_audio")
            if len(parents) == 3:
                exporter.flush()
                early = [(span.name, said["chains.turn"]) for span, said in of_kind(receiver, "hop")]
                assert {("Mind.answer", 1), ("Deep.think", 1)} <= set(early), "the turn is over, the call is not"
                assert 1 in [said["chains.turn"] for _, said in of_kind(receiver, "turn")]
    exporter.close()
    assert len(recorder.calls[0].turns) == 3
    check_told(receiver, parents)


def check_told(receiver: Received, parents: list[str]) -> None:
    check_sums(receiver)
    hops, turns = of_kind(receiver, "hop"), of_kind(receiver, "turn")
    assert sorted(span.name for span, _ in hops) == ["Deep.think"] * 4 + ["Mind.answer"] * 2 + ["Phone.call"]
    assert [said["chains.state"] for _, said in turns] == ["answered", "answered", "dropped"]
    ids = {span.span_id: span for span in receiver.spans}
    assert len(ids) == len(receiver.spans)
    above = {"Deep.think": "Mind.answer", "Mind.answer": "Phone.call", "Phone.call": "call", "turn": "call"}
    whole = next(span for span in receiver.spans if span.name == "call")
    for span, said in [*hops, *turns]:
        assert ids[span.parent_span_id].name == above[span.name.split()[0]]
        assert whole.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= whole.end_time_unix_nano
        if span.name == "Deep.think":
            assert said["chains.thoughts"] == 1 and said["chains.compute_ms"] > 19
    assert parents == [span.span_id.hex() for span, _ in hops if span.name == "Deep.think"], "the same on both sides"
    for _, said in turns[:2]:
        path = json.loads(said["chains.path"])
        thinking = sum(step[5] for step in path if step[:3] == ["Deep.think", "compute", "think"])
        assert 15 < thinking < said["chains.latency_ms"] < 2_000, "only what came before the first audio"
        assert {step[3] for step in path if step[0] == "Deep.think"} == {"Deep#0"}
