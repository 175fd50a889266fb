"""Frames and chunks: what is written by hand is what protobuf reads and writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.errors import ErrorDetail, Frame, ProtocolError
from chains.wire import frames
from chains.wire.codec import encode
from chains.wire.pb import carrier_pb2 as pb


@given(st.lists(st.binary(max_size=9000), max_size=5))
def test_a_batch_of_frames_is_protobufs(headers: list[bytes]) -> None:
    sent = [pb.Frame(call=n, item=pb.Item(value=pb.Value(header=header))) for n, header in enumerate(headers, 1)]
    batch = b"".join(map(frames.framed, sent))
    assert batch == pb.Batch(frames=sent).SerializeToString()
    assert list(frames.frames_of(batch)) == sent


@given(st.integers(1, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=4), st.binary(max_size=400))
def test_a_chunk_is_protobufs(transfer: int, sizes: list[int], data: bytes) -> None:
    message = frames.chunk(transfer, sizes, memoryview(data))
    assert pb.Chunk.FromString(message) == pb.Chunk(transfer=transfer, sizes=sizes, data=data)
    found = frames.chunk_of(message)
    assert (found[0], found[1], bytes(found[2])) == (transfer, sizes, data)


@given(st.integers(1, 99), st.lists(st.integers(0, 99), max_size=4), st.binary(max_size=40))
def test_a_chunk_in_another_order_is_read_too(transfer: int, sizes: list[int], data: bytes) -> None:
    parts = [pb.Chunk(data=data), pb.Chunk(sizes=sizes), pb.Chunk(transfer=transfer)]
    found = frames.chunk_of(b"".join(part.SerializeToString() for part in parts))
    assert (found[0], found[1], bytes(found[2])) == (transfer, sizes, data)


@given(st.integers(1, 99), st.binary(max_size=40))
def test_a_chunk_that_says_where_the_value_lies(transfer: int, header: bytes) -> None:
    slot = pb.Slot(name="0" * 16, generation=2**63, sizes=[7])
    number, sizes, data, found = frames.chunk_of(frames.chunk(transfer, (), memoryview(header), slot))
    assert (number, sizes, bytes(data), found) == (transfer, [], header, slot)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_chunk_or_refused(message: bytes) -> None:
    try:
        frames.chunk_of(message)
    except ProtocolError:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_refused(batch: bytes) -> None:
    try:
        list(frames.frames_of(batch))
    except ProtocolError:
        pass


def test_an_error_keeps_its_text_and_its_way() -> None:
    lines = tuple(Frame("Hop", f"/chain/{n}.py", n, "run", "raise") for n in range(3))
    detail = ErrorDetail("ValueError", "no such day", "write monday", lines, "why")
    assert frames.detail_from(frames.detail_to(detail)) == detail


def test_an_error_without_end_is_cut_and_ends_with_its_root() -> None:
    lines = tuple(Frame("Hop", "f.py", n, "run", "x" * 900) for n in range(900))
    sent = frames.detail_to(ErrorDetail("E", "m" * 100_000 + "\ud800", "", lines))
    assert sent.ByteSize() < 40_000
    assert sent.frames[-1].line == 899


@pytest.mark.parametrize("value", ["text", b"x" * 5000, [1, 2]])
def test_cost_is_the_bytes_and_32(value: object) -> None:
    encoded = encode(value)
    assert frames.cost(encoded) == encoded.nbytes + 32
