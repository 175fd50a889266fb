"""What a reception knows and can book, read from a YAML file of the shape of clinic.yaml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from chains.errors import SettingError

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

    Raises SettingError that says where in it something is missing, unknown or wrong.
    """
    path = path or Path(os.environ.get("CLINIC_FILE") or HERE / "clinic.yaml")
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
