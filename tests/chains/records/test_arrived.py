"""What a span on its way says of itself."""

from __future__ import annotations

from chains.records.arrived import Source
from tests.chains.records import made
from tests.chains.records.test_writer import arrivals


def test_how_a_source_is_called() -> None:
    assert Source("PhoneCall", "1", "host:1").label == "PhoneCall (host:1)"
    assert Source("PhoneCall").label == "PhoneCall"
    assert Source().label == "(unnamed)"


def test_its_size_grows_with_its_details() -> None:
    small, large = made.foreign_trace(1, spans=2)
    large.attributes["filler"] = "".join(map(str, range(10_000)))
    assert arrivals([large])[0].size - arrivals([small])[0].size > 10_000
