"""The clinic's file: what is wrong in it is told with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from chains.errors import SettingError
from examples.phone_call.booking import read_request
from examples.phone_call.clinic import HERE, read_clinic


def written(tmp_path: Path, change: dict[str, Any] | None = None, text: str = "") -> Path:
    """The example's file with keys replaced ("booking.days": ...; None takes one out), or any text."""
    content = yaml.safe_load((HERE / "clinic.yaml").read_text())
    for path, value in (change or {}).items():
        *parents, last = path.split(".")
        place = content
        for parent in parents:
            place = place[parent]
        if value is None:
            del place[last]
        else:
            place[last] = value
    file = tmp_path / "own.yaml"
    file.write_text(text or yaml.safe_dump(content))
    return file


def test_the_example_is_whole() -> None:
    clinic = read_clinic()
    assert len(clinic.facts) >= 15
    assert all(len(topic.asked) >= 3 for topic in clinic.facts.values())  # the first three show the model how to answer
    assert not set(clinic.facts) & {str(manner) for manner in clinic.manners}
    assert "Sunday" not in clinic.booking.days


def test_each_service_of_the_example_is_understood_by_its_name_and_words() -> None:
    clinic = read_clinic()
    for name, service in clinic.booking.services.items():
        for words in (name, *service.words):
            assert read_request(f"I'd like a {words} please", clinic).service == name, words


def test_another_file_is_one_setting_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLINIC_FILE", str(written(tmp_path, {"name": "Hill Clinic"})))
    assert read_clinic().name == "Hill Clinic"
    monkeypatch.setenv("CLINIC_FILE", "")
    assert read_clinic().name == "Lakeside Clinic"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"opening": "x"}, "opening: Extra inputs"),
        ({"greeting": None}, "greeting: Field required"),
        ({"facts": {}}, "facts: "),
        ({"facts.parking.say": ""}, "facts.parking.say: "),
        ({"facts.parking.asked": []}, "facts.parking.asked: "),
        ({"manners.goodbye": None}, "nothing to say for goodbye"),
        ({"manners.rude": {"say": "x", "asked": ["y"]}}, "manners.rude"),
        ({"booking.days": {}}, "booking.days: "),
        ({"booking.days": {"Someday": {"first": "08:00", "last": "09:00"}}}, "booking.days.Someday"),
        ({"booking.days.Monday.first": "8:00"}, "booking.days.Monday.first: "),
        ({"booking.days.Monday.last": "24:00"}, "booking.days.Monday.last: "),
        ({"booking.days.Monday.last": "07:00"}, r"first appointment \(08:00\) is after the last \(07:00\)"),
        ({"booking.services": {}}, "booking.services: "),
        ({"booking.services.filling.minutes": 0}, "booking.services.filling.minutes: "),
        ({"booking.services.filling.doctor": ""}, "booking.services.filling.doctor: "),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=told) as caught:
        read_clinic(written(tmp_path, change))
    assert "own.yaml is no clinic" in str(caught.value)
    assert "clinic.yaml" in caught.value.mend


def test_what_is_no_yaml_and_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="is no YAML"):
        read_clinic(written(tmp_path, text="name: [unclosed"))
    with pytest.raises(SettingError, match="is no clinic"):
        read_clinic(written(tmp_path, text="- a list"))
    with pytest.raises(SettingError, match="cannot be read: No such file"):
        read_clinic(tmp_path / "missing.yaml")
    with pytest.raises(SettingError, match="cannot be read"):
        read_clinic(tmp_path)
