"""A stream's credit, order and end, against a simple model."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pydantic import BaseModel

from chains.channel import SMALL, Channel, End, size_of
from chains.errors import Cancelled, SettingError
from chains.messages import Audio, Tensor, Text
from chains.testing import settle

WINDOW = 100


class AgainstAModel(RuleBasedStateMachine):
    """One producer and one consumer that never wait: what a channel does without anybody waiting on it."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: Channel[bytes] = Channel(WINDOW)
        self.sent: deque[bytes] = deque()
        self.held = False
        self.end: End | None = None
        self.number = 0

    @precondition(lambda self: self.end is None)
    @rule(size=st.integers(0, 3 * WINDOW))
    def offer(self, size: int) -> None:
        self.number += 1
        item = self.number.to_bytes(4) + b"x" * size
        queued = sum(len(one) + 1 for one in self.sent)
        admitted = not self.held and (not self.sent or queued < WINDOW)
        assert self.channel.admits() == admitted
        assert self.channel.offer(item) == admitted
        if admitted:
            self.sent.append(item)

    @precondition(lambda self: self.sent)
    @rule()
    def take(self) -> None:
        assert self.channel.take() == self.sent.popleft()

    @rule()
    def hold(self) -> None:
        self.held = True
        self.channel.hold()

    @rule()
    def resume(self) -> None:
        self.held = False
        self.channel.resume()

    @rule(kind=st.sampled_from(["done", "error", "cancelled"]))
    def finish(self, kind: Any) -> None:
        end = End(kind, ValueError("x") if kind == "error" else None, "why")
        self.channel.end(end)
        if self.end is None:
            self.end = end
            if kind == "cancelled":
                self.sent.clear()

    @precondition(lambda self: self.end is not None)
    @rule()
    def send_after_the_end(self) -> None:
        with pytest.raises(Cancelled):
            self.channel.offer(b"late")

    @precondition(lambda self: self.end is not None and not self.sent)
    @rule()
    def read_the_end(self) -> None:
        assert self.end is not None
        kinds = {"done": StopAsyncIteration, "error": ValueError, "cancelled": Cancelled}
        with pytest.raises(kinds[self.end.kind]):
            self.channel.take()

    @invariant()
    def credit_is_kept(self) -> None:
        channel = self.channel
        assert channel.ended is self.end
        assert channel.queued == sum(len(one) + 1 for one in self.sent)
        assert channel.queued <= channel.peak
        assert channel.ready() == bool(self.sent or self.end)
        largest = 3 * WINDOW + 5
        assert channel.peak < WINDOW + largest


TestAgainstAModel = AgainstAModel.TestCase


async def test_a_slow_consumer_holds_up_its_producer() -> None:
    channel: Channel[bytes] = Channel(10)
    made: list[int] = []

    async def produce() -> None:
        for n in range(6):
            await channel.send(b"12345678")
            made.append(n)
        channel.end()

    task = asyncio.ensure_future(produce())
    await settle()
    assert made == [0, 1], "one byte of credit was left for the second item"
    assert len(await channel.receive()) == 8
    await settle()
    assert made == [0, 1, 2], "credit came back when the item was taken"
    assert len([item async for item in channel]) == 5
    await task


async def test_one_item_passes_whatever_its_size() -> None:
    channel: Channel[bytes] = Channel(1)
    await channel.send(b"x" * 1_000)
    assert not channel.admits()
    await channel.receive()
    assert channel.admits()
    assert channel.queued == 0
    assert channel.peak == 1_001


async def test_held_producer_goes_on_where_it_was() -> None:
    channel: Channel[int] = Channel()
    channel.hold()
    sending = asyncio.ensure_future(channel.send(1))
    await settle()
    assert not sending.done()
    assert not channel.ready()
    channel.resume()
    await sending
    assert await channel.receive() == 1


async def test_a_cancelled_receiver_hands_its_wake_up_on() -> None:
    channel: Channel[int] = Channel()
    first, second = (asyncio.ensure_future(channel.receive()) for _ in range(2))
    await settle()
    channel.offer(7)  # wakes the first, which is cancelled before it runs
    first.cancel()
    assert await asyncio.wait_for(second, 1.0) == 7
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_cancelled_sender_hands_its_credit_on() -> None:
    channel: Channel[bytes] = Channel(1)
    channel.offer(b"full")
    first, second = (asyncio.ensure_future(channel.send(name)) for name in (b"first", b"second"))
    await settle()
    assert channel.take() == b"full"  # credit for the first, which is cancelled before it runs
    first.cancel()
    await asyncio.wait_for(second, 1.0)
    assert channel.take() == b"second"


async def test_cancelled_waiters_leave_nothing_behind() -> None:
    channel: Channel[bytes] = Channel(1)
    receiving = [asyncio.ensure_future(channel.receive()) for _ in range(3)]
    await settle()
    for task in receiving:
        task.cancel()
    await settle()
    channel.offer(b"a")
    sending = [asyncio.ensure_future(channel.send(b"b")) for _ in range(3)]
    await settle()
    for task in sending:
        task.cancel()
    await settle()
    assert not channel._getters
    assert not channel._putters


@pytest.mark.parametrize("end", [End("done"), End("error", ValueError("x")), End("cancelled", reason="gone")])
async def test_an_end_releases_everybody_who_waits(end: End) -> None:
    channel: Channel[bytes] = Channel(1)
    receiving = [asyncio.ensure_future(channel.receive()) for _ in range(2)]
    await settle()
    channel.end(end)
    results = await asyncio.wait_for(asyncio.gather(*receiving, return_exceptions=True), 1.0)
    assert {type(result) for result in results} <= {StopAsyncIteration, RuntimeError, ValueError, Cancelled}
    full: Channel[bytes] = Channel(1)
    full.offer(b"a")
    sending = [asyncio.ensure_future(full.send(b"b")) for _ in range(2)]
    await settle()
    full.end(end)
    results = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 1.0)
    assert [type(result) for result in results] == [Cancelled, Cancelled]


async def test_what_was_sent_before_an_error_is_delivered_and_before_a_cancel_dropped() -> None:
    failed: Channel[int] = Channel()
    failed.offer(1)
    failed.end(End("error", ValueError("x")))
    assert await failed.receive() == 1
    with pytest.raises(ValueError, match="x"):
        await failed.receive()
    left: Channel[int] = Channel()
    left.offer(1)
    left.cancel("hang-up")
    with pytest.raises(Cancelled, match="hang-up"):
        await left.receive()
    assert left.queued == 0


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(SettingError, match="at least 1"):
        Channel(0)


class Order(BaseModel):
    name: str


@dataclasses.dataclass
class Box:
    data: bytes


@pytest.mark.parametrize(
    ("value", "least"),
    [
        (Audio(np.zeros(100, np.int16), 8000), 200),
        (Text("abc"), 3),
        (Tensor(np.zeros(10)), 80),
        ("x" * 50, 50),
        (b"x" * 50, 50),
        (bytearray(50), 50),
        (np.zeros(10), 80),
        ([b"x" * 50, b"x" * 50], 100),
        ({"k": "x" * 50}, 51),
        (Box(b"x" * 50), 50),
        (Order(name="x" * 50), 50),
        (object(), 1),
        (None, 1),
        (True, 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_size_counts_the_bytes_inside(value: Any, least: int) -> None:
    assert least <= size_of(value) <= least + 4 * SMALL


def test_size_of_what_holds_itself_is_finite() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert size_of(loop) > 0


async def test_a_lease_that_waits_is_woken_for_other_news() -> None:
    channel: Channel[bytes] = Channel()
    channel.push(b"x", 7)
    lease = await channel.lease()
    assert lease.size() == 7
    lease.look()
    waiting = asyncio.ensure_future(lease.news())
    await asyncio.sleep(0)
    lease.wake()
    await asyncio.wait_for(waiting, 1.0)
    assert not lease.ready() and lease.ahead == 1
