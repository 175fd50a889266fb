"""The maker's part: who may claim what, and what is kept for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chains.errors import ProtocolError, Unauthenticated, revive
from chains.runtime.claims import Claim, Makers
from chains.wire import frames
from chains.wire.codec import Encoded
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import WireSettings, new_token
from chains.wire.stub import Connection
from tests.chains.runtime.past import SETTINGS, Past, passing
from tests.chains.wire.hosted import eventually

TOKEN = b"t" * 16


@pytest.fixture
async def past() -> AsyncIterator[Past]:
    async with passing() as made:
        yield made
        await eventually(made.at_rest)


class Stranger(Claim):
    """A claim by hand: what comes, and how it ends."""

    def __init__(self, makers: Makers, address: str, token: bytes, window: int = 2**16) -> None:
        self.items: list[Encoded] = []
        self.end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        super().__init__(self, makers, pb.StreamReference(address=address, token=token), window)
        self.start()

    def claimed(self, value: Encoded, size: int) -> None:
        self.items.append(value)

    def close(self, close: Any) -> None: ...
    def lost(self) -> None: ...

    def on_end(self, end: Any, value: Encoded | None) -> None:
        self.end.set_result(end)
        super().on_end(end, value)


@pytest.fixture
async def makers() -> AsyncIterator[Makers]:
    made = Makers(SETTINGS, lambda address: None)
    yield made
    await made.close()


async def _refused(claim: Stranger) -> str:
    end = await asyncio.wait_for(claim.end, 5.0)
    assert end.kind == frames.ERROR
    error = revive(frames.detail_from(end.error), ())
    return f"{type(error).__name__}: {error}"


async def test_a_wrong_token_gets_a_typed_error(past: Past, makers: Makers) -> None:
    claim = Stranger(makers, past.b.server.address, TOKEN)
    assert "NotFound: no stream is lent under this token" in await _refused(claim)


@pytest.mark.parametrize(
    ("address", "token"), [("127.0.0.1:1", b""), ("127.0.0.1:1", b"t" * 60_000), ("a" * 300, TOKEN)]
)
async def test_a_reference_that_makes_no_sense_is_no_claim(makers: Makers, address: str, token: bytes) -> None:
    with pytest.raises(ProtocolError, match="a stream reference makes no sense"):
        Stranger(makers, address, token)
    assert not makers.connections


async def test_a_token_is_claimed_once_and_ends_with_its_call(past: Past, makers: Makers) -> None:
    address = past.b.server.address
    async with past.a.open_call():
        stream = past.maker.gated_numbers(5, 2)
        assert await anext(stream) == 0
        lend = pb.Direct(step=pb.Direct.LEND, token=TOKEN)
        carried = next(iter(past.a.remote.carried))
        carried.carrier.send(carried.number, pb.Frame(call=carried.number, direct=lend))
        await eventually(lambda: TOKEN in past.b.host.keeps.unclaimed)
        first = Stranger(makers, address, TOKEN)
        await eventually(lambda: TOKEN not in past.b.host.keeps.unclaimed)
        assert "NotFound" in await _refused(Stranger(makers, address, TOKEN)), "used"
        await past.maker.open_gate()
        await eventually(lambda: len(first.items) == 3)
        await stream.aclose()
        assert (await asyncio.wait_for(first.end, 5.0)).kind == frames.CANCELLED
        assert "NotFound" in await _refused(Stranger(makers, address, TOKEN)), "and gone"


async def test_the_deployments_token_is_asked_for_as_well(past: Past) -> None:
    stranger = Connection(past.b.server.address, WireSettings(new_token()), lambda kind, sent: None)
    with pytest.raises(Unauthenticated):
        await stranger.live()
    await stranger.close()


async def test_ended_code_leaves_its_items_until_they_are_read(past: Past) -> None:
    async with past.a.open_call():
        await past.maker.open_gate()
        stream = past.maker.gated_numbers(40, 0)
        assert await past.reader.first_of(stream, 1) == [0]
        await eventually(lambda: not past.b.host.served)
        assert [n async for n in stream] == list(range(1, 40))
        await eventually(lambda: bool(stream.timing.ended))
        assert stream.timing.outcome == "done"


async def test_a_maker_that_stops_waits_for_its_readers() -> None:
    async with passing() as past, past.a.open_call():
        stream = past.maker.paced(30, 0.001)
        result = past.reader.total(stream)
        await eventually(lambda: stream.timing.items_out > 0)
        await past.b.stop(5.0)
        assert await result == sum(range(30))
