"""What a schema asks for and constrained output would ignore is refused, with its place."""

from __future__ import annotations

import json

import pytest

from engines.llm import schema
from engines.llm.errors import GrammarInvalid

NAME = {"type": "string"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ({"properties": {"a": {"not": NAME}}}, "#/properties/a has 'not'"),
        ({"items": {"uniqueItems": True}}, "#/items has 'uniqueItems'"),
        ({"allOf": [NAME, {"minLength": 1}]}, "# has 'allOf'"),
        ({"$defs": {"a": {"pattern": "a+", "maxLength": 3}}}, "#/$defs/a has 'pattern'"),
        ({"anyOf": [{"$ref": "https://example.org/a"}]}, "#/anyOf/0 refers to"),
        ({"properties": {"a": NAME}, "required": ["b"]}, "requires 'b'"),
        ({"properties": {"a": NAME}, "patternProperties": {"^b": NAME}}, "'patternProperties'"),
        ({"pattern": '^a"$'}, "# has a 'pattern' with a quote"),
        ({"pattern": r"^a\n$"}, "# has a 'pattern' with a quote"),
        ({"minLength": 5, "maxLength": 2}, "# has minLength 5 above maxLength 2"),
        ({"maxLength": -1}, "# has the length -1"),
        ({"properties": {"a": 5}}, "#/properties/a is int"),
        ([], "# is list"),
    ],
)
def test_what_cannot_be_enforced_is_refused(source: object, found: str) -> None:
    with pytest.raises(GrammarInvalid) as caught:
        schema.check(source)
    assert found in caught.value.message
    assert caught.value.mend


@pytest.mark.parametrize(
    "source",
    [
        True,
        {"properties": {"not": NAME, "if": {"enum": ["not", {"if": 1}]}}, "required": ["not"]},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": NAME}},
        {"pattern": r'^[^"\\\n]+$'},
        {"oneOf": [NAME, {"type": "null"}], "default": {"not": 1}},
        {"type": "array", "items": {"$ref": "#"}, "uniqueItems": False},
    ],
)
def test_what_can_be_enforced_passes(source: object) -> None:
    schema.check(source)


def test_a_schema_without_end_is_refused() -> None:
    nested: dict[str, object] = {}
    for _ in range(100):
        nested = {"items": nested}
    with pytest.raises(GrammarInvalid, match="nests deeper than 64"):
        schema.check(nested)
    with pytest.raises(GrammarInvalid, match="no JSON"):
        schema.prepared('{"items":' * 200_000)
    with pytest.raises(GrammarInvalid, match="over 5000 parts"):
        schema.prepared(json.dumps({"properties": {f"p{i}": {} for i in range(6000)}}))
