"""What a reception knows and can book, read from a YAML file of the shape of clinic.yaml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from chains.errors import Fault, GraphError

Manner = Literal["greeting", "goodbye", "book", "unknown"]
Weekday = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
HERE = Path(__file__).parent
_TIME = r"^([01]\d|2[0-3]):[0-5]\d$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Topic(_Strict):
    """Something that can be said: one short sentence, and ways in which callers ask for it."""

    say: str = Field(min_length=1)
    asked: list[str] = Field(min_length=1)


class Service(_Strict):
    """Something that can be booked."""

    doctor: str = Field(pattern=r"\S")
    minutes: int = Field(gt=0)
    words: list[str] = []


class Hours(_Strict):
    """When appointments of a day may begin, the first and the last of them, as "08:00"."""

    first: str = Field(pattern=_TIME)
    last: str = Field(pattern=_TIME)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.first > self.last:
            raise ValueError(f"the first appointment ({self.first}) is after the last ({self.last})")
        return self


class Bookable(_Strict):
    """What can be booked, and when. A day that is not listed has no appointments."""

    services: dict[str, Service] = Field(min_length=1)
    days: dict[Weekday, Hours] = Field(min_length=1)


class Clinic(_Strict):
    """The whole file. Unknown keys are errors."""

    name: str
    greeting: str
    manners: dict[Manner, Topic]
    facts: dict[str, Topic] = Field(min_length=1)
    booking: Bookable

    @field_validator("manners")
    @classmethod
    def _complete(cls, manners: dict[Manner, Topic]) -> dict[Manner, Topic]:
        missing = [manner for manner in get_args(Manner) if manner not in manners]
        if missing:
            raise ValueError(f"there is nothing to say for {', '.join(missing)}")
        return manners


def read_clinic(path: Path | None = None) -> Clinic:
    """Read the file: `path`, or that of CLINIC_FILE, or the clinic.yaml beside this.

    Raises GraphError with every fault of it: its line, what was found there, and what to write.
    """
    path = path or Path(os.environ.get("CLINIC_FILE") or HERE / "clinic.yaml")
    try:
        text = path.read_text(encoding="utf-8")
        return Clinic.model_validate(yaml.safe_load(text))
    except OSError as error:
        found = f"cannot be read: {error.strerror}"
        raise GraphError([Fault(str(path), found, "set CLINIC_FILE to the path of a clinic's YAML")]) from None
    except UnicodeDecodeError:
        raise GraphError([Fault(str(path), "is not UTF-8", "save the file as UTF-8")]) from None
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or "is not readable"
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise GraphError([Fault(where, f"is no YAML: {problem}", _EXAMPLE)]) from None
    except ValidationError as error:
        faults = [_fault(path, text, one["type"], list(one["loc"]), one["msg"]) for one in error.errors()]
        raise GraphError(faults) from None


_EXAMPLE = "see examples/phone_call/clinic.yaml for its form"
_WORDS = {
    "missing": "is missing",
    "string_type": "is no text",
    "string_too_short": "is empty",
    "too_short": "is empty",
    "int_type": "is no whole number",
    "int_parsing": "is no whole number",
    "int_from_float": "is no whole number",
    "greater_than": "is not above 0",
    "list_type": "is no list",
    "dict_type": "holds no keys",
    "model_type": "holds no keys",
}


def _fault(path: Path, text: str, kind: str, place: list[Any], message: str) -> Fault:
    """One of pydantic's errors in plain words, with the line of the file that it is about."""
    where = f"{path}:{_line(text, place)}"
    if place[-1:] == ["[key]"]:  # the key of a dict
        return _unknown(where, place[:-1])
    if kind == "extra_forbidden":
        return _unknown(where, place)
    name = ".".join(map(str, place)) or "the file"
    if kind == "string_pattern_mismatch":
        time = place[-1] in ("first", "last")
        return Fault(where, f"{name} is {'no time' if time else 'empty'}", 'write e.g. "08:00"' if time else _EXAMPLE)
    return Fault(where, f"{name} {_WORDS.get(kind) or message.removeprefix('Value error, ')}", _EXAMPLE)


def _unknown(where: str, place: list[Any]) -> Fault:
    kind: Any = Clinic  # what the keys around are of
    for key in place[:-1]:
        kind = kind.model_fields[key].annotation if hasattr(kind, "model_fields") else get_args(kind)[-1]
    known = tuple(kind.model_fields) if hasattr(kind, "model_fields") else get_args(get_args(kind)[0])
    return Fault(where, f"unknown key {'.'.join(map(str, place))}", f"known are {', '.join(known)}")


def _line(text: str, place: list[Any]) -> int:
    """The line where the deepest part of `place` that the file has begins."""
    node, line = yaml.compose(text), 1
    for key in place:
        if isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == str(key)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node = node.value[key]
            line = node.start_mark.line + 1
    return line
