"""`--set Node.argument=value` on a graph."""

from __future__ import annotations

import pytest

from chains.cli.settings import changed
from chains.dsl.graph import load
from chains.errors import SettingError
from tests.chains.client.caller import VOICE


def test_a_setting_becomes_the_constructors_argument() -> None:
    graph = load(str(VOICE))
    made = changed(graph, ["Brain.think_ms=7.5", "Mouth.pieces=2"])
    assert made.nodes["Brain"].arguments == {"think_ms": 7.5} and made.nodes["Mouth"].arguments == {"pieces": 2}
    assert graph.nodes["Brain"].arguments == {} and made.entry == "Phone"
    assert changed(graph, ["Brain.think_ms=fast"]).nodes["Brain"].arguments == {"think_ms": "fast"}


@pytest.mark.parametrize(
    ("pair", "found"),
    [
        ("think_ms=3", "write --set Node.argument=value"),
        ("Brain.think_ms", "write --set Node.argument=value"),
        ("Brian.think_ms=3", "did you mean Brain?"),
        ("Brain.thinkms=3", "did you mean think_ms?"),
        ("Phone.brain=3", "Phone has no settings"),
    ],
)
def test_a_setting_that_is_not_there_is_refused(pair: str, found: str) -> None:
    with pytest.raises(SettingError) as refused:
        changed(load(str(VOICE)), [pair])
    assert found in str(refused.value)
