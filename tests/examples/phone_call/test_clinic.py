"""The clinic's file: what is wrong in it is told with its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from chains.errors import GraphError
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
    ("change", "line", "told"),
    [
        ({"opening": "x"}, "opening:", "unknown key opening; known are name, greeting, manners, facts, booking"),
        ({"greeting": None}, "", "greeting is missing; see "),
        ({"greeting": 3}, "greeting:", "greeting is no text; see "),
        ({"facts": {}}, "facts:", "facts is empty; see "),
        ({"facts": []}, "facts:", "facts holds no keys; see "),
        ({"facts.parking": "x"}, "  parking:", "facts.parking holds no keys; see "),
        ({"facts.parking.sya": "x"}, "    sya:", "unknown key facts.parking.sya; known are say, asked"),
        ({"facts.parking.say": None}, "  parking:", "facts.parking.say is missing; see "),
        ({"facts.parking.say": ""}, "    say: ''", "facts.parking.say is empty; see "),
        ({"facts.parking.asked": []}, "    asked: []", "facts.parking.asked is empty; see "),
        ({"facts.parking.asked": "x"}, "    asked: x", "facts.parking.asked is no list; see "),
        ({"facts.parking.asked": ["x", 77]}, "    - 77", "facts.parking.asked.1 is no text; see "),
        ({"manners.goodbye": None}, "manners:", "manners there is nothing to say for goodbye; see "),
        (
            {"manners.rude": {"say": "x", "asked": ["y"]}},
            "  rude:",
            "unknown key manners.rude; known are greeting, goodbye, book, unknown",
        ),
        ({"booking.days": {}}, "  days:", "booking.days is empty; see "),
        (
            {"booking.days": {"Someday": {"first": "08:00", "last": "09:00"}}},
            "    Someday:",
            "unknown key booking.days.Someday; known are Monday, Tuesday, ",
        ),
        ({"booking.days.Monday.first": "8:00"}, "      first: '8:00'", 'first is no time; write e.g. "08:00"'),
        ({"booking.days.Monday.last": "24:00"}, "      last: '24:00'", 'last is no time; write e.g. "08:00"'),
        (
            {"booking.days.Monday.last": "07:00"},
            "    Monday:",
            "booking.days.Monday the first appointment (08:00) is after the last (07:00); see ",
        ),
        ({"booking.services": {}}, "  services:", "booking.services is empty; see "),
        (
            {"booking.services.filling.minutes": 0},
            "      minutes: 0",
            "booking.services.filling.minutes is not above 0",
        ),
        ({"booking.services.filling.minutes": "x"}, "      minutes: x", "filling.minutes is no whole number"),
        ({"booking.services.filling.doctor": ""}, "      doctor: ''", "booking.services.filling.doctor is empty; see "),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_in_plain_words(
    tmp_path: Path, change: dict[str, Any], line: str, told: str
) -> None:
    file = written(tmp_path, change)
    with pytest.raises(GraphError) as caught:
        read_clinic(file)
    (fault,) = caught.value.faults
    where, _, number = fault.where.rpartition(":")
    assert where == str(file)
    assert told in str(fault)
    stands = file.read_text().splitlines()[int(number) - 1]
    assert stands.startswith(line) if line else number == "1"


def test_all_faults_are_told_at_once_and_by_chains_run_too(tmp_path: Path) -> None:
    file = written(tmp_path, {"nmae": "x", "name": None})
    command = [sys.executable, "-m", "chains", "check", str(HERE / "call.py")]
    environment = {**os.environ, "CLINIC_FILE": str(file), "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{file}:1 name is missing" in done.stderr and "unknown key nmae" in done.stderr
    assert "2 faults" in done.stderr and "clinic.py" not in done.stderr


def test_what_is_no_yaml_and_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"own\.yaml:\d+ is no YAML: expected"):
        read_clinic(written(tmp_path, text="name: [unclosed"))
    for text in ("- a list", " ", "some words"):
        with pytest.raises(GraphError, match=r"own\.yaml:1 the file holds no keys"):
            read_clinic(written(tmp_path, text=text))
    with pytest.raises(GraphError, match=r"own\.yaml is no YAML"):
        read_clinic(written(tmp_path, text="name: \x01"))
    with pytest.raises(GraphError, match=r"missing\.yaml cannot be read: No such file.*CLINIC_FILE"):
        read_clinic(tmp_path / "missing.yaml")
    with pytest.raises(GraphError, match="cannot be read"):
        read_clinic(tmp_path)
    (tmp_path / "own.yaml").write_bytes(b"name: \xff")
    with pytest.raises(GraphError, match="is not UTF-8"):
        read_clinic(tmp_path / "own.yaml")
