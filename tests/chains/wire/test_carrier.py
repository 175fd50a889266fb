"""Two carriers back to back, without a socket: order, turns, credit, large values, peers that break the protocol."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains.dsl.signature import Checker
from chains.errors import ChainsError, LimitExceeded, ProtocolError
from chains.wire import frames
from chains.wire.carrier import Carrier
from chains.wire.codec import Encoded, decode, encode
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import FRAME, WireSettings

TOKEN = "a-token-of-more-than-16"


class Heard:
    """A port that writes down what it is told."""

    def __init__(self, opening: Any = None, arguments: dict[str, Encoded] | None = None) -> None:
        self.opening = opening
        self.arguments = arguments
        self.heard: list[Any] = []
        self.values: list[Encoded] = []

    def on_queued(self) -> None:
        self.heard.append(("queued", None))

    def on_accepted(self, queued: float) -> None:
        self.heard.append(("accepted", queued))

    def on_item(self, stream: int, value: Encoded, size: int) -> None:
        self.heard.append(("item", stream, size))
        self.values.append(value)

    def on_close(self, stream: int, close: Any) -> None:
        self.heard.append(("close", stream))

    def on_credit(self, credit: Any) -> None:
        self.heard.append(("credit", credit.stream, credit.items, credit.bytes, credit.ended))

    def on_hold(self, held: bool) -> None:
        self.heard.append(("hold", held))

    def on_cancel(self, reason: str) -> None:
        self.heard.append(("cancel", reason))

    def on_turn(self, turn: Any) -> None:
        self.heard.append(("turn", turn.number, turn.event))

    def on_account(self, account: Any) -> None:
        self.heard.append(("account", len(account.hops)))

    def on_played(self, turn: int, ms: float) -> None:
        self.heard.append(("played", turn, ms))

    def on_end(self, end: Any, value: Encoded | None) -> None:
        self.heard.append(("end", end.kind))
        if value is not None:
            self.values.append(value)

    def on_lost(self, why: str) -> None:
        self.heard.append(("lost", why))


class Pair:
    """A caller's and a replica's carrier; `move` hands over what each has written."""

    def __init__(self, *, sharing: tuple[Any, Any] = (None, None), **limits: int) -> None:
        self.served: dict[int, Heard] = {}
        self.told: list[str] = []
        settings = WireSettings(TOKEN, **limits)  # type: ignore[arg-type]

        def answer(carrier: Carrier, number: int, opening: Any, arguments: dict[str, Encoded]) -> Heard:
            self.served[number] = Heard(opening, arguments)
            return self.served[number]

        def nothing() -> None: ...

        def told(kind: str, sent: Any) -> None:
            self.told.append(kind)

        self.caller = Carrier(settings, nothing, nothing, None, told, sharing[0])
        self.replica = Carrier(settings, nothing, nothing, answer, told, sharing[1])

    def move(self) -> None:
        for one, other in ((self.caller, self.replica), (self.replica, self.caller)):
            while one.pending:
                other.feed(one.batch())
            while one.bulky:
                other.feed_chunk(one.next_chunk())

    def opened(self, **arguments: Any) -> tuple[int, Heard, Heard]:
        port = Heard()
        encoded = {name: encode(value) for name, value in arguments.items()}
        number = self.caller.open(port, pb.Frame(open=pb.Open(method="say")), encoded)
        self.move()
        return number, port, self.served[number]


def test_a_call_from_open_to_end() -> None:
    pair = Pair()
    number, port, served = pair.opened(text="hello")
    assert served.opening.method == "say" and served.arguments is not None
    assert decode(served.arguments["text"].header, [], Checker(str)) == "hello"
    pair.replica.accept(number, 0.5)
    pair.replica.item(number, 0, encode(7))
    pair.move()
    pair.caller.credit(number, 0, 35, urgent=True)
    pair.caller.urge(pb.Frame(call=number, hold=pb.Hold(held=True)))
    pair.move()
    pair.replica.end(pb.Frame(call=number, end=pb.End(kind=frames.DONE)), encode("bye"))
    pair.move()
    assert port.heard == [("accepted", 0.5), ("item", 0, 35), ("end", frames.DONE)]
    assert served.heard == [("hold", True), ("credit", 0, 1, 35, False)]
    assert (pair.caller.calls, pair.replica.calls) == ({}, {})


def test_an_end_that_comes_at_once_stands_for_the_acceptance() -> None:
    pair = Pair()
    number, port, _ = pair.opened()
    pair.replica.accept(number, 0.0)
    pair.replica.end(pb.Frame(call=number, end=pb.End(accepted=True)), None)
    pair.move()
    assert port.heard == [("end", frames.DONE)]


def test_who_waits_is_told_so_and_its_acceptance_has_left_before_its_code_starts() -> None:
    pair = Pair()
    number, port, _ = pair.opened()
    pair.replica.queued(number)
    pair.move()
    pair.replica.accept(number, 0.5)
    begun: list[bool] = []
    pair.replica.once_written(lambda: begun.append(not pair.replica.lost))
    pair.caller.feed(pair.replica.batch())
    assert port.heard == [("queued", None), ("accepted", 0.5)] and not begun
    pair.replica.written()
    pair.replica.written()
    assert begun == [True], "once, when it was written"
    pair.replica.once_written(lambda: begun.append(not pair.replica.lost))
    pair.replica.lose("broke")
    pair.replica.once_written(lambda: begun.append(not pair.replica.lost))
    assert begun == [True, False, False], "it learns that nobody heard of it"


def test_a_call_has_departed_once_its_open_is_in_a_batch() -> None:
    pair = Pair()
    numbers = [pair.caller.open(Heard(), pb.Frame(open=pb.Open(method="say")), {}) for _ in range(2)]
    assert not any(map(pair.caller.departed, numbers))
    pair.caller.batch()
    late = pair.caller.open(Heard(), pb.Frame(open=pb.Open(method="say")), {})
    pair.caller.lose("broke")
    assert [pair.caller.departed(number) for number in (*numbers, late)] == [True, True, False]


def test_the_calls_take_turns_and_control_goes_first() -> None:
    pair = Pair()
    numbers = [pair.opened()[0] for _ in range(3)]
    for number in numbers:
        for _ in range(2):
            pair.replica.item(number, 0, encode("x"))
    pair.replica.urge(pb.Frame(load=pb.Load(running=3)))
    kinds = [(frame.call, frame.WhichOneof("kind")) for frame in frames.frames_of(pair.replica.batch())]
    assert kinds == [(0, "load"), *((number, "item") for _ in range(2) for number in numbers)]


def test_a_batch_is_bounded_and_no_frame_is_too_large() -> None:
    pair = Pair()
    numbers = [pair.opened()[0] for _ in range(4)]
    for _ in range(20):
        for number in numbers:
            pair.replica.item(number, 0, encode("x" * 30_000))
    sizes = []
    while pair.replica.pending:
        batch = pair.replica.batch()
        sizes.append(len(batch))
        assert {frame.call for frame in frames.frames_of(batch)} == set(numbers), "all calls are in each"
    assert max(sizes) < 200_000
    with pytest.raises(LimitExceeded):
        pair.caller.open(Heard(), pb.Frame(open=pb.Open(method="say", tenant="x" * 70_000)), {})


def test_large_values_go_beside_and_nothing_overtakes_them() -> None:
    pair = Pair()
    array = np.arange(300_000, dtype=np.float32)
    number, port, served = pair.opened(array=array, small=1)
    assert served.arguments is not None
    sent = served.arguments["array"]
    assert np.array_equal(decode(sent.header, sent.buffers, Checker(np.ndarray)), array)
    pair.replica.item(number, 0, encode("first"))
    pair.replica.item(number, 0, encode(array))
    pair.replica.item(number, 0, encode("last"))
    pair.replica.end(pb.Frame(call=number, end=pb.End()), None)
    pair.caller.feed(pair.replica.batch())
    assert [one[0] for one in port.heard] == ["item"], "what comes after a large value waits for it"
    pair.move()
    assert [one[0] for one in port.heard] == ["item", "item", "item", "end"]
    arrived = decode(port.values[1].header, port.values[1].buffers, Checker(np.ndarray))
    assert np.array_equal(arrived, array) and arrived.flags.aligned and not arrived.flags.writeable


def test_chunks_of_several_values_are_mixed() -> None:
    pair = Pair()
    numbers = [pair.opened()[0] for _ in range(2)]
    for number in numbers:
        pair.replica.item(number, 0, encode(b"%d" % number * 600_000))
    order = []
    while pair.replica.bulky:
        chunk = pair.replica.next_chunk()
        order.append(frames.chunk_of(chunk)[0])
        pair.caller.feed_chunk(chunk)
    assert order[:4] == [1, 2, 1, 2]


def test_a_cancel_does_not_wait_for_large_values() -> None:
    pair = Pair()
    number, _, served = pair.opened()
    pair.caller.item(number, 1, encode(b"x" * 100_000))
    pair.caller.urge(pb.Frame(call=number, cancel=pb.Cancel(reason="left")))
    pair.replica.feed(pair.caller.batch())
    assert served.heard == [("cancel", "left")]


def test_a_later_call_overtakes_one_whose_arguments_are_large() -> None:
    pair = Pair()
    large = pair.caller.open(Heard(), pb.Frame(open=pb.Open(method="scale")), {"array": encode(b"x" * 100_000)})
    pair.caller.urge(pb.Frame(call=large, hold=pb.Hold(held=True)))
    small = pair.caller.open(Heard(), pb.Frame(open=pb.Open(method="say")), {})
    pair.replica.feed(pair.caller.batch())
    pair.caller.urge(pb.Frame(call=large, hold=pb.Hold(held=False)))
    pair.replica.feed(pair.caller.batch())
    assert list(pair.served) == [small]
    pair.move()
    assert list(pair.served) == [small, large]
    assert pair.served[large].heard == [("hold", True), ("hold", False)]


def test_control_does_not_overtake_its_calls_open() -> None:
    pair = Pair()
    number = pair.caller.open(Heard(), pb.Frame(open=pb.Open(method="say")), {})
    pair.caller.urge(pb.Frame(call=number, cancel=pb.Cancel(reason="at once")))
    pair.move()
    assert pair.served[number].heard == [("cancel", "at once")]


def test_credit_is_gathered() -> None:
    pair = Pair()
    number, _, served = pair.opened()
    for _ in range(5):
        pair.caller.credit(number, 0, 10, urgent=False)
    pair.caller.credit(number, 1, 0, urgent=True, ended=True)
    pair.move()
    assert served.heard == [("credit", 0, 5, 50, False), ("credit", 1, 0, 0, True)]


def test_a_lost_connection_tells_each_call_once() -> None:
    pair = Pair()
    number, port, _ = pair.opened()
    pair.caller.lose("broke")
    pair.caller.lose("again")
    pair.caller.item(number, 0, encode(1))
    pair.caller.urge(pb.Frame(ping=pb.Ping()))
    assert port.heard == [("lost", "broke")] and not pair.caller.pending


def test_a_ping_is_answered() -> None:
    pair = Pair()
    pair.caller.urge(pb.Frame(ping=pb.Ping(number=3)))
    pair.move()
    assert pair.told == ["pong"]


def test_frames_about_a_call_that_has_ended_are_let_be() -> None:
    pair = Pair()
    number, _, _ = pair.opened()
    pair.replica.end(pb.Frame(call=number, end=pb.End()), None)
    pair.caller.urge(pb.Frame(call=number, cancel=pb.Cancel(reason="late")))
    pair.move()


HOSTILE: dict[str, Any] = {
    "no call of this number": pb.Frame(call=9, cancel=pb.Cancel()),
    "an empty frame": pb.Frame(call=1),
    "an open without a number": pb.Frame(open=pb.Open(method="say")),
    "a call that is opened twice": pb.Frame(call=1, open=pb.Open(method="say")),
    "an item for the connection": pb.Frame(item=pb.Item()),
    "a hello within a call": pb.Frame(call=1, hello=pb.Hello()),
}


@pytest.mark.parametrize("frame", HOSTILE.values(), ids=HOSTILE)
def test_who_breaks_the_protocol_is_refused(frame: Any) -> None:
    pair = Pair()
    pair.opened()
    with pytest.raises(ProtocolError):
        pair.replica.feed(frames.framed(frame))


def test_a_replica_opens_no_calls() -> None:
    with pytest.raises(ProtocolError, match="not its place"):
        Pair().caller.feed(frames.framed(pb.Frame(call=1, open=pb.Open())))


def test_a_frame_that_is_too_large_ends_the_connection_and_a_batch_of_many_does_not() -> None:
    pair = Pair()
    number, _, served = pair.opened()
    item = pb.Item(stream=1, value=pb.Value(header=encode(0).header, buffers=[b"x" * (FRAME - 64)]))
    fits = frames.framed(pb.Frame(call=number, item=item))
    pair.replica.feed(fits * 3)
    assert len(served.values) == 3
    item.value.buffers.append(b"x" * 64)
    with pytest.raises(LimitExceeded, match=r"a frame of 65\d{3} bytes; send at most 65536 in one"):
        pair.replica.feed(frames.framed(pb.Frame(call=number, item=item)))


def test_limits() -> None:
    pair = Pair(open_calls=2, value_bytes=100_000, queued_bytes=10_000)
    pair.opened()
    pair.opened()
    with pytest.raises(LimitExceeded, match="open_calls"):
        pair.opened()
    with pytest.raises(LimitExceeded, match="value_bytes"):
        pair.replica.feed_chunk(frames.chunk(1, [2**62], memoryview(b"x")))
    waiting = pb.Frame(call=1, item=pb.Item(stream=1, value=pb.Value(transfer=7)))
    pair.replica.feed(frames.framed(waiting))
    with pytest.raises(LimitExceeded, match="queued_bytes"):
        for _ in range(1000):
            pair.replica.feed(frames.framed(waiting))


@pytest.mark.parametrize(
    "chunks",
    [
        [frames.chunk(1, [], memoryview(b"x"))],
        [frames.chunk(0, [1], memoryview(b"x"))],
        [frames.chunk(1, [1], memoryview(b"xx"))],
        [frames.chunk(1, [3], memoryview(b"x")), frames.chunk(1, [3], memoryview(b"x"))],
    ],
)
def test_broken_transfers(chunks: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        for chunk in chunks:
            Pair().replica.feed_chunk(chunk) if len(chunks) == 1 else None
        pair = Pair()
        for chunk in chunks:
            pair.replica.feed_chunk(chunk)


_numbers = st.integers(0, 4)
_frames = st.one_of(
    st.builds(lambda n, m: pb.Frame(call=n, open=pb.Open(method=m)), _numbers, st.text(max_size=5)),
    st.builds(
        lambda n, s, h, t: pb.Frame(call=n, item=pb.Item(stream=s, value=pb.Value(header=h, transfer=t))),
        _numbers, _numbers, st.binary(max_size=9), _numbers,
    ),
    st.builds(lambda n, s, b: pb.Frame(call=n, credit=pb.Credit(stream=s, bytes=b)), _numbers, _numbers, _numbers),
    st.builds(lambda n: pb.Frame(call=n, end=pb.End()), _numbers),
    st.builds(lambda n: pb.Frame(call=n, cancel=pb.Cancel()), _numbers),
    st.binary(max_size=30),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(_frames, max_size=12))
def test_whatever_comes_is_taken_or_refused(sent: list[Any]) -> None:
    """No other error than ours leaves a carrier, whatever a peer makes up."""
    pair = Pair()
    try:
        for frame in sent:
            pair.replica.feed(frame if isinstance(frame, bytes) else frames.framed(frame))
            pair.replica.feed_chunk(frame if isinstance(frame, bytes) else frames.chunk(2, [1], memoryview(b"x")))
    except ChainsError:
        pass
