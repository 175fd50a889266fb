"""Items on their way to the viewer."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from chains.errors import InvalidValue
from chains.messages import Audio, Control, Tensor, Text
from chains.protocol import decode_binary
from chains.records.recorded import Batch, Recorded, rows

ITEM = Recorded("c1", "reply", "text", 12.5, Text("hello", turn=3, role="assistant"), 3)


def test_each_kind_becomes_a_row() -> None:
    (text,) = rows(ITEM)
    assert (text.call, text.side, text.kind, text.at_ms, text.turn) == ("c1", 1, "text", 12.5, 3)
    assert msgspec.json.decode(text.data)["text"] == "hello"
    (control,) = rows(replace(ITEM, kind="control", value=Control("hang_up")))
    assert msgspec.json.decode(control.data)["kind"] == "hang_up"
    (tensor,) = rows(replace(ITEM, kind="tensor", value=Tensor(np.eye(2), "t")))
    assert np.array_equal(decode_binary(tensor.data)[1].data, np.eye(2))
    assert rows(replace(ITEM, kind="value", value={"a": [1]}))[0].data == b'{"a":[1]}'
    assert rows(replace(ITEM, kind="end", value=None))[0].data == b""


def test_sound_that_says_what_is_spoken_in_it_is_text_too() -> None:
    text, sound = rows(replace(ITEM, kind="audio", value=Audio(np.arange(5, dtype=np.int16), 8000, 3, "hi")))
    assert msgspec.json.decode(text.data) == {"text": "hi", "role": "assistant", "spoken": True}
    assert (sound.kind, sound.rate) == ("audio", 8000)
    assert np.array_equal(np.frombuffer(sound.data, "<i2"), np.arange(5))


@pytest.mark.parametrize("kind", ["audio", "text", "control", "tensor", "event", "smell"])
def test_a_value_that_is_not_of_its_kind_is_refused(kind: str) -> None:
    with pytest.raises(InvalidValue):
        rows(replace(ITEM, kind=kind, value=7))  # type: ignore[arg-type]


def test_a_batch_survives_its_way() -> None:
    batch = Batch(1, rows(ITEM))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=Batch) == batch
