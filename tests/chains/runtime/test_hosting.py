"""A chainlet called with plain grpcio, the generated stubs and msgpack alone, as another language would; and what the
replica's side owes a caller: credit, deadlines, one End.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import grpc
import msgspec
import pytest

from chains.runtime.host import Hosted
from chains.wire.pb import carrier_pb2, carrier_pb2_grpc
from chains.wire.settings import WireSettings, new_token
from tests.chains.wire.hosted import eventually, hosted

TOKEN = new_token()


@pytest.fixture
async def replica() -> AsyncIterator[Hosted]:
    async with hosted(WireSettings(TOKEN)) as made:
        yield made


class Foreign:
    """A caller of another make: nothing of chains but the generated messages."""

    def __init__(self, stub: Any) -> None:
        metadata = (("authorization", f"Bearer {TOKEN}"), ("chains-connection", secrets.token_hex(16)))
        self.call = stub.Connect(metadata=metadata)
        self.bulk = stub.Bulk
        self.metadata = metadata
        self._waiting: list[Any] = []

    async def send(self, number: int, **kind: Any) -> None:
        await self.call.write(carrier_pb2.Batch(frames=[carrier_pb2.Frame(call=number, **kind)]))

    async def open(self, number: int, method: str, arguments: dict[str, Any] | None = None, **more: Any) -> None:
        given = [carrier_pb2.Argument(name=name, value=value(one)) for name, one in (arguments or {}).items()]
        await self.send(number, open=carrier_pb2.Open(method=method, arguments=given, **more))

    async def next(self, kind: str) -> Any:
        """The next frame of this kind; others on the way are dropped."""
        while (frame := await self._frame()).WhichOneof("kind") != kind:
            pass
        return getattr(frame, kind)

    async def about(self, number: int) -> Any:
        """The next frame of this call; others on the way are dropped."""
        while (frame := await self._frame()).call != number:
            pass
        return frame

    async def _frame(self) -> Any:
        while not self._waiting:
            batch = await self.call.read()
            assert batch is not grpc.aio.EOF, await self.call.details()
            self._waiting = list(batch.frames)
        return self._waiting.pop(0)


def value(plain: Any) -> Any:
    return carrier_pb2.Value(header=msgspec.msgpack.encode([0, plain]))


def plain(sent: Any) -> Any:
    return msgspec.msgpack.decode(sent.header)[1]


@pytest.fixture
async def foreign(replica: Hosted) -> AsyncIterator[Foreign]:
    async with grpc.aio.insecure_channel(replica.server.address) as channel:
        made = Foreign(carrier_pb2_grpc.CarrierStub(channel))
        yield made
        made.call.cancel()


async def test_it_says_who_it_is(foreign: Foreign) -> None:
    hello = await foreign.next("hello")
    assert (hello.version, hello.node, hello.replica) == (1, "Probe", "Probe#0")


async def test_a_value_for_a_value(foreign: Foreign) -> None:
    await foreign.open(1, "echo", {"value": 7})
    end = await foreign.next("end")
    assert (end.kind, end.accepted, plain(end.value)) == (carrier_pb2.End.DONE, True, 7)
    assert end.account.elapsed > 0


async def test_a_call_that_waits_for_a_slot_is_said_to_and_begins_once_that_was_taken_back(foreign: Foreign) -> None:
    for number in range(1, 9):
        await foreign.open(number, "gated", {"value": number})
    await foreign.open(9, "echo", {"value": 9})
    await foreign.next("queued")
    await foreign.send(1, cancel=carrier_pb2.Cancel())
    told = [await foreign.about(9) for _ in range(2)]
    assert [frame.WhichOneof("kind") for frame in told] == ["accepted", "end"], "the first had left before"
    assert told[0].accepted.queued > 0 and plain(told[1].end.value) == 9


async def test_a_call_that_waited_does_not_begin_for_a_caller_that_has_gone(replica: Hosted) -> None:
    """It may have asked another replica by then."""
    async with grpc.aio.insecure_channel(replica.server.address) as channel:
        made = Foreign(carrier_pb2_grpc.CarrierStub(channel))
        for number in range(1, 9):
            await made.open(number, "gated", {"value": number})
        await made.open(9, "gated", {"value": 9})
        await made.next("queued")
        made.call.cancel()
    await eventually(lambda: not replica.replica.running and not replica.replica.waiting)
    assert replica.replica._instance.counts.get("gated", 0) <= 8


async def test_a_stream_flows_while_there_is_credit(foreign: Foreign) -> None:
    await foreign.open(1, "numbers", {"count": 5}, window=1)
    for n in range(5):
        item = await foreign.next("item")
        assert (item.stream, plain(item.value)) == (0, n)
        assert not foreign._waiting or foreign._waiting[0].WhichOneof("kind") != "item", "one at a time: no credit"
        await foreign.send(1, credit=carrier_pb2.Credit(items=1, bytes=len(item.value.header) + 32))
    assert (await foreign.next("end")).kind == carrier_pb2.End.DONE


async def test_a_stream_as_an_argument(foreign: Foreign) -> None:
    await foreign.open(1, "total", streams=[carrier_pb2.StreamArgument(name="numbers", window=1000)])
    for n in (20, 22):
        await foreign.send(1, item=carrier_pb2.Item(stream=1, value=value(n)))
    credit = await foreign.next("credit")
    assert credit.stream == 1 and credit.bytes == 35 * credit.items
    await foreign.send(1, close=carrier_pb2.Close(stream=1))
    assert plain((await foreign.next("end")).value) == 42


async def test_errors_are_told(foreign: Foreign) -> None:
    wrongs: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
        ("fail", {"kind": "value"}, {}, "ValueError", "no such day"),
        ("echo", {"value": "seven"}, {}, "InvalidValue", "int"),
        ("echo", {}, {}, "InvalidValue", "without `value`"),
        ("echo", {"value": 1, "more": 2}, {}, "InvalidValue", "more"),
        ("total", {"numbers": 1}, {}, "InvalidValue", "numbers"),
        ("echo", {"value": 1}, {"streams": [carrier_pb2.StreamArgument(name="value")]}, "InvalidValue", "no stream"),
        ("nothing", {}, {}, "NotFound", "no method nothing"),
        ("__init__", {}, {}, "NotFound", "no method"),
        ("gated", {"value": 1}, {"time_left": 0.02}, "DeadlineExceeded", "Probe.gated"),
        ("echo", {"value": 1}, {"time_left": -5.0}, "DeadlineExceeded", "Probe.echo"),
    ]
    for number, (method, arguments, more, name, says) in enumerate(wrongs, 1):
        await foreign.open(number, method, arguments, **more)
        end = await foreign.next("end")
        assert (end.kind, end.error.type_name) == (carrier_pb2.End.ERROR, name), (method, arguments)
        assert says in end.error.message + end.error.mend
        assert end.accepted == (method in ("fail", "gated"))
    assert end.error.frames == [] or end.error.frames[-1].hop == "Probe"


async def test_a_cancel_gets_its_end(foreign: Foreign, replica: Hosted) -> None:
    await foreign.open(1, "gated", {"value": 1})
    await foreign.next("accepted")
    await foreign.send(1, cancel=carrier_pb2.Cancel(reason="left"))
    end = await foreign.next("end")
    assert (end.kind, end.reason) == (carrier_pb2.End.CANCELLED, "left")
    assert replica.host.replica.running == {}


async def test_a_held_call_makes_nothing(foreign: Foreign) -> None:
    await foreign.open(1, "numbers", {"count": 2}, window=1000, held=True)
    await foreign.next("accepted")
    await foreign.open(2, "seen")
    assert plain((await foreign.next("end")).value) == {"numbers": 1}, "it waits with its first item"
    await foreign.send(1, hold=carrier_pb2.Hold(held=False))
    assert plain((await foreign.next("item")).value) == 0


async def test_load_is_told(foreign: Foreign) -> None:
    assert (await foreign.next("load")).state == "ready"
    await foreign.open(1, "gated", {"value": 1}, turn=3, conversation="c")
    load = await foreign.next("load")
    assert (load.running, load.turns, load.queued) == (1, 1, 0)


async def test_large_values_come_beside(foreign: Foreign) -> None:
    await foreign.next("hello")
    bulk = foreign.bulk(metadata=foreign.metadata)
    await foreign.open(1, "endless", {"size": 600_000}, window=1)
    sent = (await foreign.next("item")).value
    assert sent.transfer == 1 and not sent.header
    first = await bulk.read()
    data = first.data
    while len(data) < sum(first.sizes):
        data += (await bulk.read()).data
    assert data[first.sizes[0] :] == b"x" * 600_000
    bulk.cancel()


async def test_a_caller_that_goes_leaves_nothing(replica: Hosted) -> None:
    async with grpc.aio.insecure_channel(replica.server.address) as channel:
        made = Foreign(carrier_pb2_grpc.CarrierStub(channel))
        await made.open(1, "gated", {"value": 1})
        await made.open(2, "endless", window=1000)
        await made.open(3, "total", streams=[carrier_pb2.StreamArgument(name="numbers", window=1000)])
        for _ in range(2):
            await made.next("accepted")
    await eventually(lambda: not replica.host.replica.running and not replica.host.open and not replica.host._peers)
