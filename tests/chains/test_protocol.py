"""The native frames: what is written is read back, and whatever is broken is refused in words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains import errors, protocol
from chains.errors import ChainsError, Overloaded, ProtocolError, RemoteError
from chains.messages import Audio, Control, Tensor, Text, Tokens


@given(st.binary(max_size=400).filter(lambda data: len(data) % 2 == 0), st.text(max_size=20), st.integers(0, 2**32 - 1))
def test_audio_comes_back(pcm: bytes, text: str, turn: int) -> None:
    audio = Audio(np.frombuffer(pcm, "<i2"), 22050, turn, text)
    stream, back = protocol.decode_binary(protocol.encode_binary(audio, 3))
    assert (stream, back.rate, back.turn, back.text) == (3, 22050, turn, text)
    assert back.to_bytes() == pcm
    assert not back.pcm.flags.writeable


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1, 4)])
def test_arrays_and_tensors_come_back(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, dtype)
    _, plain = protocol.decode_binary(protocol.encode_binary(array))
    _, tensor = protocol.decode_binary(protocol.encode_binary(Tensor(array, "größe", 2)))
    assert isinstance(tensor, Tensor) and (tensor.name, tensor.turn) == ("größe", 2)
    for back in (plain, tensor.data):
        assert back.shape == shape
        np.testing.assert_array_equal(back, array)


def test_a_strided_array_is_sent_in_order() -> None:
    array = np.arange(12, dtype="f4").reshape(3, 4).T[::2]
    _, back = protocol.decode_binary(protocol.encode_binary(array))
    np.testing.assert_array_equal(back, array)


def test_bytes_come_back() -> None:
    assert protocol.decode_binary(protocol.encode_binary(b"\x00\x01", 1)) == (1, b"\x00\x01")


def test_the_payload_is_aligned_whatever_the_text() -> None:
    for text in ("", "a", "12345678", "ä"):
        frame = protocol.encode_binary(Audio(np.ones(2, np.int16), 8000, 0, text))
        assert (len(frame) - 4) % 8 == 0


def test_an_array_without_a_code_is_refused_with_what_to_use() -> None:
    with pytest.raises(ProtocolError, match=r"complex128.*float32"):
        protocol.encode_binary(np.ones(2, "c16"))


@given(st.binary(max_size=80))
def test_any_junk_is_a_protocol_error_or_a_value(junk: bytes) -> None:
    try:
        protocol.decode_binary(junk)
    except ProtocolError as error:
        assert error.mend


@given(st.text(max_size=60))
def test_any_text_is_a_protocol_error_or_a_frame(junk: str) -> None:
    try:
        protocol.decode_client(junk)
    except ProtocolError as error:
        assert error.mend


def test_a_deeply_nested_frame_is_refused() -> None:
    with pytest.raises(ProtocolError):
        protocol.decode_client('{"type":"item","value":' + "[" * 100_000 + "]" * 100_000 + "}")


@pytest.mark.parametrize(
    "frame",
    [
        protocol.Open("run", {"text": "x"}, protocol.AudioFormat(8000, "mulaw"), 1000, "k", "batch", 2.0),
        protocol.Item({"a": [1]}, "audio"),
        protocol.End(1),
        protocol.Credit(5),
        protocol.Played(2, 120.5),
        protocol.Hold(),
        protocol.Resume(),
        protocol.Cancel("enough"),
        protocol.Ping(9),
    ],
)
def test_client_frames_come_back(frame: protocol.ClientFrame) -> None:
    text = protocol.encode_client(frame)
    assert json.loads(text)["type"] in protocol.CLIENT_TYPES
    assert protocol.decode_client(text) == frame


@pytest.mark.parametrize("message", [Text("hi", role="user"), Tokens((1, 2), "ab", 3), Control("x", {"a": 1})])
def test_messages_come_back_as_json_items(message: Text | Tokens | Control) -> None:
    frame = protocol.decode_server(
        protocol.encode_server("item", kind=protocol.kind_of(message), turn=0, value=message)
    )
    assert protocol.from_kind(frame["kind"], frame["value"]) == message


def test_a_message_of_another_shape_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no text item"):
        protocol.from_kind("text", {"txt": "hi"})
    with pytest.raises(ProtocolError, match="not known"):
        protocol.from_kind("smell", {})


def test_errors_keep_their_type_and_mend() -> None:
    back = protocol.error_from(protocol.error_fields(Overloaded("full", mend="wait")))
    assert isinstance(back, Overloaded) and (back.message, back.mend) == ("full", "wait")
    assert isinstance(protocol.error_from(protocol.error_fields(ValueError("no"))), ValueError)
    remote = protocol.error_from({"type": "os.system", "message": "rm"})
    assert isinstance(remote, RemoteError) and remote.type_name == "os.system"
    assert isinstance(protocol.error_from({}), ChainsError)


def test_frames_count_in_bytes() -> None:
    assert protocol.size("ä") == 2
    assert protocol.size(b"abc") == 3


def test_mulaw_is_g711() -> None:
    # The corner values of the standard's table, and each code's own value.
    assert protocol.mulaw_decode(np.array([0x00, 0x7F, 0x80, 0xFF, 0xF0], np.uint8)).tolist() == [
        -32124,
        0,
        32124,
        0,
        120,
    ]
    codes = np.arange(256, dtype=np.uint8)
    again = protocol.mulaw_encode(protocol.mulaw_decode(codes))
    assert [int(code) for code in codes[again != codes]] == [0x7F]  # minus zero is zero
    samples = np.arange(-32635, 32636).astype(np.int16)  # beyond lies the clipping
    error = np.abs(protocol.mulaw_decode(protocol.mulaw_encode(samples)).astype(int) - samples)
    half_step = (np.abs(samples.astype(int)) + 132) / 32
    assert (error <= half_step).all()


PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_pages_example_of_a_frame_is_one() -> None:
    page = PAGE.read_text()
    code = re.search(r"```python\n(.*?)```", page, re.S)
    written = re.search(r"`((?:[0-9a-f]{2} ){15}[0-9a-f]{2})`", page)
    assert code and written
    made: dict[str, bytes] = {}
    exec(code[1], made)
    assert made["frame"] == bytes.fromhex(written[1]) + b"\xff" * 160
    _, audio = protocol.decode_binary(made["frame"])
    assert (audio.rate, len(audio.pcm), audio.pcm.any()) == (8000, 160, False)


def test_the_pages_table_of_errors_is_the_tree() -> None:
    rows = re.findall(r"^\| `(\w+)`[^|]*\| (\d+) \| (\d+) \|", PAGE.read_text(), re.M)
    told = {name: (int(http), int(ws)) for name, http, ws in rows}
    assert len(told) == 12
    for name, codes in told.items():
        cls = getattr(errors, name)
        assert codes == (cls.http, cls.ws), name


def test_the_page_names_every_frame_and_element_type() -> None:
    page = PAGE.read_text()
    for kind in protocol.CLIENT_TYPES:
        assert f"`{kind}`" in page
    for code, name in enumerate(protocol.DTYPES):
        assert re.search(rf"\b{code} {np.dtype(name).name}\b", page), name
