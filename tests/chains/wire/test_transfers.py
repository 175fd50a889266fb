"""Values too large for a frame, in chunks: whole, in turn, into memory used again, and never more than agreed."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from chains.errors import LimitExceeded, ProtocolError
from chains.wire import frames
from chains.wire.codec import Encoded, encode
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.segments import MIB
from chains.wire.settings import WireSettings, new_token
from chains.wire.transfers import Arrivals, Departures
from tests.chains.wire.hosted import calling, eventually, hosted

SETTINGS = WireSettings(new_token())
WINDOW, ITEM = 256 * 1024, MIB


class Way:
    """From departure to arrival; `wrong` is what arrivals have found."""

    def __init__(self, settings: WireSettings = SETTINGS) -> None:
        self.wrong: list[Any] = []
        self.departures = Departures(None, lambda: None)
        self.arrivals = Arrivals(settings, None, lambda fault: self.wrong.append(fault) if fault else None)

    def move(self) -> None:
        while self.departures:
            self.arrivals.feed(self.departures.next_chunk())

    def sent(self, value: Any) -> Encoded:
        number = self.add(value)
        self.move()
        return self.arrivals.taken(pb.Value(transfer=number))

    def add(self, value: Any) -> int:
        sent = pb.Value()
        assert self.departures.add(sent, encode(value), frames.INLINE) == 0
        return int(sent.transfer)


@pytest.mark.parametrize("size", [1, 100_000, frames.CHUNK, 3 * MIB + 5])
def test_a_value_arrives_whole(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    way, value = Way(), {"array": np.frombuffer(data, np.uint8), "text": "x" * 40_000, "empty": np.empty(0)}
    found, given = way.sent(value), encode(value)
    assert (found.header, found.buffers) == (given.header, given.buffers)
    assert all(buffer.readonly for buffer in found.buffers) and not way.arrivals._receiving


def test_values_take_turns() -> None:
    way = Way()
    numbers = [way.add(b"x" * MIB) for _ in range(3)]
    order = [frames.chunk_of(way.departures.next_chunk())[0] for _ in range(6)]
    assert order == numbers * 2
    lacking = [pb.Value(transfer=number) for number in numbers]
    assert way.arrivals.lack(lacking) and not way.arrivals.lack([pb.Value(header=b"x")])


def test_memory_is_used_again() -> None:
    way, places = Way(), []
    for value in range(3):
        buffer = way.sent(np.full(4 * MIB, value, np.uint8)).buffers[0]
        assert buffer[-1] == value
        places.append(np.frombuffer(buffer, np.uint8).ctypes.data)
        del buffer
    assert places[0] == places[1] == places[2]


def test_what_nobody_wants_is_forgotten() -> None:
    way = Way()
    number = way.add(b"x" * MIB)
    way.move()
    way.arrivals.drop(pb.Value(transfer=number))
    way.arrivals.drop(pb.Value(header=b"x"))
    assert not way.arrivals._receiving


def test_limits() -> None:
    arrivals = Way(WireSettings(new_token(), value_bytes=MIB)).arrivals
    with pytest.raises(LimitExceeded, match="value_bytes"):
        arrivals.feed(frames.chunk(1, [MIB + 1], memoryview(b"x")))
    arrivals.feed(frames.chunk(1, [MIB - 1], memoryview(b"x")))
    with pytest.raises(LimitExceeded, match="value_bytes"):
        arrivals.feed(frames.chunk(2, [2], memoryview(b"x")))
    with pytest.raises(ProtocolError, match="twice"):
        arrivals.lack([pb.Value(transfer=1)] * 2)


@pytest.mark.parametrize("shared", [True, False])
async def test_a_stalled_consumer_holds_its_window_and_one_item(shared: bool) -> None:
    settings = WireSettings(new_token(), shared_memory=shared)
    async with hosted(settings) as replica, calling(replica.server.address, settings) as caller, caller.open_call():
        before = psutil.Process().memory_info().rss
        stream = caller.probe.endless(ITEM)
        await anext(stream)
        (served,) = replica.host.served
        out: Any = served.attempt.out
        await eventually(lambda: bool(out.queued >= WINDOW and stream.queued_bytes >= WINDOW))
        assert max(out.peak, stream.peak_bytes) <= WINDOW + ITEM + frames.ITEM_COST + 64
        assert psutil.Process().memory_info().rss - before <= 64 * MIB
        await stream.aclose()
