"""What of a JSON schema constrained output can hold a reply to; the rest is refused rather than ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from engines.llm.errors import GrammarInvalid

DEEPEST = 64
MOST_PARTS = 5000
LONGEST = 100_000  # characters of a text

NOT_KEPT = {
    "not": "say what is wanted instead, e.g. with enum",
    "if": "use anyOf",
    "contains": "describe the items",
    "dependentRequired": "use anyOf",
    "dependentSchemas": "use anyOf",
    "dependencies": "use anyOf",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
# What no text in JSON holds as it is; outside of brackets, where it would be written literally.
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]")
_UNWRITABLE = re.compile(r"\"|\\\\|\\[nrtfv0]|\\x[01]|\\u00[01]|[\x00-\x1f]")
_ONE = (
    "items",
    "additionalProperties",
    "additionalItems",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
)
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


def prepared(source: str) -> str:
    """A schema's text as it is compiled. GrammarInvalid says where it is no JSON, or what could not be kept to."""
    try:
        schema = json.loads(source)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GrammarInvalid(f"the schema is no JSON: {error}", mend="write a JSON schema") from None
    check(schema)
    return json.dumps(with_lengths_as_patterns(schema))


def with_lengths_as_patterns(schema: Any) -> Any:
    """A checked schema whose lengths of texts are patterns: the compiler's own lengths let control characters in."""
    for _, part in list(_parts(schema, "#", 0)):
        if isinstance(part, dict) and ("minLength" in part or "maxLength" in part):
            least, most = part.pop("minLength", 0), part.pop("maxLength", "")
            part["pattern"] = f"^.{{{least},{most}}}$"
    return schema


def check(schema: object) -> None:
    """Raises GrammarInvalid at the first part that could not be kept to, with its place and what to write."""
    for count, (place, part) in enumerate(_parts(schema, "#", 0)):
        if count >= MOST_PARTS:
            raise GrammarInvalid(f"the schema has over {MOST_PARTS} parts", mend="ask for less at once")
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise GrammarInvalid(f"{place} is {type(part).__name__}", mend="write a schema: an object, true or false")
        _check_part(part, place)


def _check_part(part: dict[str, Any], place: str) -> None:
    for name, instead in NOT_KEPT.items():
        if name in part:
            raise GrammarInvalid(f"{place} has {name!r}, which cannot be enforced", mend=instead)
    if part.get("uniqueItems") is True:
        raise GrammarInvalid(f"{place} has 'uniqueItems', which cannot be enforced", mend="leave it out")
    if isinstance(part.get("allOf"), list) and len(part["allOf"]) > 1:
        raise GrammarInvalid(f"{place} has 'allOf' of several, which cannot be enforced", mend="merge them into one")
    if "pattern" in part and ("minLength" in part or "maxLength" in part):
        raise GrammarInvalid(
            f"{place} has 'pattern' beside a length, which cannot be enforced together",
            mend="write the length into the pattern, e.g. ^[a-z]{2,5}$",
        )
    pattern = part.get("pattern")
    if isinstance(pattern, str) and _UNWRITABLE.search(_CLASS.sub("", pattern)):
        raise GrammarInvalid(
            f"{place} has a 'pattern' with a quote, backslash or control character, which cannot be enforced",
            mend="use enum, or leave the pattern out",
        )
    _check_lengths(part, place)
    reference = part.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        raise GrammarInvalid(f"{place} refers to {reference!r}", mend="refer into the schema itself: #/$defs/NAME")
    properties, required = part.get("properties"), part.get("required")
    if isinstance(properties, dict) and isinstance(required, list):
        unknown = [name for name in required if name not in properties]
        if unknown:
            raise GrammarInvalid(
                f"{place} requires {', '.join(map(repr, unknown))}, which it does not describe",
                mend="add them to properties",
            )
    if isinstance(properties, dict) and properties and part.get("patternProperties"):
        raise GrammarInvalid(
            f"{place} has 'patternProperties' beside 'properties', which cannot be enforced", mend="keep one of them"
        )


def _check_lengths(part: dict[str, Any], place: str) -> None:
    least, most = part.get("minLength", 0), part.get("maxLength")
    for length in (least, 0 if most is None else most):
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= LONGEST:
            raise GrammarInvalid(f"{place} has the length {length!r}", mend=f"write a number from 0 to {LONGEST}")
    if most is not None and least > most:
        raise GrammarInvalid(f"{place} has minLength {least} above maxLength {most}", mend="swap them")


def _parts(schema: object, place: str, depth: int) -> Iterator[tuple[str, object]]:
    """Each schema in the schema, with where it stands."""
    if depth > DEEPEST:
        raise GrammarInvalid(f"the schema nests deeper than {DEEPEST}", mend="refer to $defs instead")
    yield place, schema
    if not isinstance(schema, dict):
        return
    for name in _ONE:
        if isinstance(schema.get(name), dict):
            yield from _parts(schema[name], f"{place}/{name}", depth + 1)
    for name in _MANY:
        inner = schema.get(name)
        for index, one in enumerate(inner if isinstance(inner, list) else ()):
            yield from _parts(one, f"{place}/{name}/{index}", depth + 1)
    for name in _NAMED:
        inner = schema.get(name)
        for key, one in inner.items() if isinstance(inner, dict) else ():
            yield from _parts(one, f"{place}/{name}/{key}", depth + 1)
