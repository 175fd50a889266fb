"""W3C trace context: what is taken over, what is said on, and whose spans nest where."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chains.call import Call, Hop
from chains.testing import FakeClock
from chains.trace import TraceContext, new_span
from tests.shape.tree import ROOT

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("header", "known", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True, True),
        (f"00-{TRACE}-{SPAN}-00", True, False),
        (f" 00-{TRACE}-{SPAN}-03 ", True, True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True, True),
        (f"00-{TRACE}-{SPAN}-01-more", False, True),
        (f"ff-{TRACE}-{SPAN}-01", False, True),
        (f"00-{TRACE}-{'0' * 16}-01", False, True),
        (f"00-{TRACE[1:]}-{SPAN}-01", False, True),
        (f"00-{TRACE}-{SPAN}", False, True),
        (f"00-{TRACE}-{SPAN}-0x", False, True),
        ("", False, True),
        (None, False, True),
    ],
)
def test_a_header_is_taken_over_or_ignored(header: str | None, known: bool, sampled: bool) -> None:
    found = TraceContext.read(header, "vendor=1")
    assert (found.trace_id == TRACE) == known and found.sampled == sampled
    assert found.parent == (SPAN if known else "") and found.state == ("vendor=1" if known else "")
    assert len(found.trace_id) == 32 and int(found.trace_id, 16)


@pytest.mark.parametrize("state", ["x" * 513, "a=\nb=1", "a=é"])
def test_a_state_that_is_none_is_left_out(state: str) -> None:
    assert TraceContext.read(f"00-{TRACE}-{SPAN}-01", state).state == ""


def test_what_is_said_on_names_the_running_hop() -> None:
    call = Call(FakeClock(), traceparent=f"00-{TRACE}-{SPAN}-00")
    hop = Hop(call, "Node", "run", None)
    assert hop.traceparent == f"00-{TRACE}-{hop.timing.span:016x}-00"
    assert call.traceparent == f"00-{TRACE}-{call.span:016x}-00"
    assert TraceContext.read(hop.traceparent).parent == f"{hop.timing.span:016x}"


def test_spans_have_ids_of_their_own() -> None:
    ids = {new_span() for _ in range(10_000)}
    assert len(ids) == 10_000 and all(0 < id < 2**64 for id in ids)


NESTED = """
import asyncio, sys
from chains.call import current
from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.runtime.inprocess import InProcess

@chainlet
class Probe:
    def blocking(self) -> str:
        return seen()
    async def say(self) -> str:
        return seen()

def seen() -> str:
    if "opentelemetry.trace" not in sys.modules:
        return "none"
    with trace.get_tracer("user").start_as_current_span("mine") as span:
        inside = span.get_span_context()
        above = getattr(span, "parent", None)  # one that is not recorded has none
        found = f"{above.span_id:016x}" if above else "none"
        same = f"{inside.trace_id:032x}" == current().call.trace_id
        return f"{found == current().traceparent.split('-')[2]} {same} {span.is_recording()}"

@chainlet(entry=True)
class Entry:
    probe: Probe = depends(Probe)
    async def run(self) -> str:
        first = await self.probe.say()
        return f"{seen()}, {first}, {await self.probe.blocking()}"

async def main(header: str) -> None:
    async with InProcess(build(Entry)) as runtime, runtime.open_call(traceparent=header or None, tracestate="v=1"):
        print(await runtime.entry.run())

if "setup" in sys.argv:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(TracerProvider())
asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("header", "setup", "told"),
    [
        ("", "setup", "True True True, True True True, True True True"),
        (f"00-{TRACE}-{SPAN}-01", "setup", "True True True, True True True, True True True"),
        (f"00-{TRACE}-{SPAN}-00", "setup", "False True False, False True False, False True False"),
        ("", "", "none, none, none"),
    ],
)
def test_spans_of_the_users_own_nest_under_the_running_hop(header: str, setup: str, told: str) -> None:
    command = [sys.executable, "-c", NESTED, header, setup]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == told
