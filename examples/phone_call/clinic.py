"""What a reception knows and can book, read from a YAML file of the shape of clinic.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chains.errors import SettingError

Manner = Literal["greeting", "goodbye", "book", "unknown"]
HERE = Path(__file__).parent


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Topic(_Strict):
    """Something that can be said: one short sentence, and ways in which callers ask for it."""

    say: str = Field(min_length=1)
    asked: list[str] = Field(min_length=1)


class Service(_Strict):
    """Something that can be booked."""

    doctor: str
    minutes: int = Field(gt=0)
    words: list[str] = []


class Bookable(_Strict):
    services: dict[str, Service]
    days: list[str]
    first: str = Field(pattern=r"^\d\d:\d\d$")
    last: str = Field(pattern=r"^\d\d:\d\d$")


class Clinic(_Strict):
    """The whole file. Unknown keys are errors."""

    name: str
    greeting: str
    manners: dict[Manner, Topic]
    facts: dict[str, Topic] = Field(min_length=1)
    booking: Bookable


def read_clinic(path: Path = HERE / "clinic.yaml") -> Clinic:
    """Read the file. Raises SettingError that says where in it something is missing, unknown or wrong."""
    try:
        return Clinic.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise SettingError(
            f"{path} cannot be read: {error.strerror}", mend="give the path of a clinic's YAML"
        ) from None
    except yaml.YAMLError as error:
        raise SettingError(f"{path} is no YAML: {error}", mend="see examples/phone_call/clinic.yaml") from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise SettingError(f"{path} is no clinic: {faults}", mend="see examples/phone_call/clinic.yaml") from None
