"""What is packed comes back, to the microsecond, and is small."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chains.records import packing
from chains.records.arrived import Segment
from chains.records.packing import Event, Wait, Work, attributes_of, hex_id, pack, signed, unpack
from chains.records.schema import CALL, FOREIGN, HOP, TURN

WAITS = [[0.5, 12.25, "hop", "00f067aa0ba902b7", 3], [13.0, 1.001, "credit", "", 3], [20.0, 4.0, "lock", "", 0]]
WORKS = [[0.0, 3.5, "prefill", 3], [4.0, 2.5, "step", 3], [7.0, 2.5, "step", 3], [9.0, 1.0, "prefill", 4]]
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def through(attributes: dict[str, Any], name: str = "LLM.stream") -> packing.Rest:
    return unpack(pack(dict(attributes), [], name), name)


def test_a_hops_details_come_back() -> None:
    attributes = {
        "chains.node": "LLM", "chains.method": "stream", "chains.outcome": "done", "chains.first_item_ms": 61.257,
        "gen_ai.request.model": "tiny", "gen_ai.usage.input_tokens": 12,
        "gen_ai.request.temperature": 0.0, "gen_ai.request.top_p": 0.5, "my.note": [1, "two", {"three": 3.5}],
    }  # fmt: skip
    events = [("first token", 61_250, {"tokens": 1})]
    packed = pack(
        attributes | {"chains.waits": json.dumps(WAITS), "chains.works": json.dumps(WORKS)}, events, "LLM.stream"
    )
    rest = unpack(packed, "LLM.stream")
    assert rest.attributes == attributes
    assert rest.waits == [
        Wait(0.5, 12.25, "hop", signed(bytes.fromhex("00f067aa0ba902b7")), 3),
        Wait(13.0, 1.001, "credit", 0, 3),
        Wait(20.0, 4.0, "lock", 0, 0),
    ]
    assert rest.works == [Work(start, ms, name, turn) for start, ms, name, turn in WORKS]
    assert rest.events == [Event("first token", 61.25, {"tokens": 1})]


@pytest.mark.parametrize("node, name", [("a.b", "a.b.c"), ("A", "other"), ("", "x.y")])
def test_node_and_method_that_are_not_in_the_name_are_kept(node: str, name: str) -> None:
    attributes = {"chains.node": node, "chains.method": "c"}
    assert through(attributes, name).attributes == attributes


@given(st.dictionaries(st.text(max_size=10) | st.sampled_from(packing.KEYS[11:]), plain, max_size=8))
def test_any_attributes_come_back(attributes: dict[str, Any]) -> None:
    found = through(attributes).attributes
    assert found.keys() == attributes.keys()
    for key, value in attributes.items():
        if key.endswith("_ms") and type(value) in (int, float):
            assert found[key] == pytest.approx(value, abs=5e-4, rel=1e-12)
        else:
            assert found[key] == value


def test_nothing_takes_no_room() -> None:
    assert pack({}, [], "a") is None
    assert unpack(None) == packing.Rest({}, [], [], [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "null",
        "[1]",
        '[[1, 2, "hop", "xyz", 3]]',
        '[[1, 2, "hop", "00112233445566778899", 3]]',
        '[[1e300, 1, "hop", "", 0]]',
        '[["a", 1, "", "", 0]]',
        5,
    ],
)
def test_waits_that_make_no_sense_stay_as_they_are(text: object) -> None:
    attributes = {"chains.waits": text, "chains.works": text}
    rest = through(attributes)
    assert rest.attributes == attributes and rest.waits == rest.works == []


def test_waits_that_follow_each_other_are_small() -> None:
    waits = [[10.0 * index, 5.0, "credit", "", 3] for index in range(48)]
    packed = pack({"chains.waits": json.dumps(waits)}, [], "a")
    assert packed is not None and len(packed) < 48 * 6 + 12
    assert unpack(packed).waits == [Wait(*row[:3], 0, 3) for row in waits]  # type: ignore[arg-type]


def test_long_details_are_compressed() -> None:
    text = "the same again and again " * 100
    packed = pack({"text": text}, [], "a")
    assert packed is not None and len(packed) < 150
    assert unpack(packed).attributes == {"text": text}


def test_what_is_too_large_or_no_data_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        pack({"a": "x" * 300_000}, [], "a")
    with pytest.raises(OverflowError):
        pack({"a": 2**70}, [], "a")


def test_a_path_comes_back() -> None:
    path = [
        Segment("STT.transcribe", "compute", "decode", "STT-0", 0.0, 90.125),
        Segment("A.b", "wait", "credit", "", 90.125, 3.5),
    ]
    assert packing.unpack_path(packing.pack_path(path)[0]) == path
    many = [Segment(f"Hop{index}.run", "queue", "queue", "r", float(index), 1.0) for index in range(100)]
    assert packing.unpack_path(packing.pack_path(many)[0]) == many
    assert packing.pack_path([]) == (None, ()) and packing.unpack_path(None) == []


def test_parts_and_ids() -> None:
    assert packing.unpack_parts(packing.pack_parts((0.5, 0.25, 1.0, 80.0, 0.0))) == (0.5, 0.25, 1.0, 80.0, 0.0)
    assert packing.unpack_parts(None) == (0.0,) * 5
    for text in ("00f067aa0ba902b7", "ffffffffffffffff", "8000000000000001"):
        assert hex_id(signed(bytes.fromhex(text))) == text
        struct.pack("<q", signed(bytes.fromhex(text)))
    assert hex_id(0) == ""


def test_attributes_are_shown_as_they_were_sent() -> None:
    rest = packing.Rest({"chains.outcome": "done"}, [], [], [])
    parts = packing.pack_parts((0.0, 0.5, 0.0, 80.0, 0.0))
    assert attributes_of(rest, kind=HOP, call="c", turn=3, replica="r", parts=parts) == {
        "chains.kind": "hop", "chains.call": "c", "chains.turn": 3, "chains.replica": "r", "chains.outcome": "done",
        "chains.wire_ms": 0.5, "chains.compute_ms": 80.0,
    }  # fmt: skip
    assert attributes_of(rest, kind=TURN, call="c", turn=3, replica="", parts=None)["chains.turn"] == 3
    assert "chains.turn" not in attributes_of(rest, kind=CALL, call="c", turn=0, replica="", parts=None)
    assert attributes_of(rest, kind=FOREIGN, call="c", turn=0, replica="", parts=None) == rest.attributes


def test_known_keys_keep_their_numbers() -> None:
    """What stands in files: a key that moves would be read as another."""
    assert packing.KEYS[:3] == ("chains.node", "chains.method", "chains.outcome")
    assert packing.KEYS.index("gen_ai.operation.name") == 23 and packing.KEYS.index("server.port") == 48
    assert msgspec.msgpack.decode(pack({"chains.outcome": "x"}, [], "a") or b"") == [{2: "x"}]
