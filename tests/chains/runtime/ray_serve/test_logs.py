"""Whose a log file is, its last lines, and what comes after them. Over a real cluster: test_operate.py."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ray")

from chains.runtime.ray_serve.logs import read_folder


def write(folder: Path, name: str, actor: str, text: str, mark: str = "") -> Path:
    file = folder / f"worker-{name}"
    file.write_text(f":job_id:01000000\n:actor_name:{actor}\n" + (f":replica:{mark}\n" if mark else "") + text)
    return file


def test_files_of_the_application_under_their_replicas_names(tmp_path: Path) -> None:
    write(tmp_path, "aa-01-7.out", "ServeReplica:desk:Ears", "one\ntwo\nthree\n", "Ears#abc")
    write(tmp_path, "aa-01-7.err", "ServeReplica:desk:Ears", "a warning\n", "Ears#abc")
    write(tmp_path, "bb-01-8.out", "ServeReplica:desk:Brain", "thought\n")
    write(tmp_path, "cc-01-9.out", "ServeReplica:desk2:Ears", "another's\n", "Ears#xyz")
    write(tmp_path, "dd-01-9.out", "ServeController", "no replica\n")
    found = read_folder(tmp_path, "desk", "", {}, 2)
    assert {name: (whose, lines) for name, (whose, lines, _) in found.items()} == {
        "worker-aa-01-7.out": ("Ears#abc", ["two", "three"]),
        "worker-aa-01-7.err": ("Ears#abc", ["a warning"]),
        "worker-bb-01-8.out": ("Brain#8", ["thought"]),
    }
    assert set(read_folder(tmp_path, "desk", "Brain", {}, 2)) == {"worker-bb-01-8.out"}
    assert read_folder(tmp_path, "desk", "Brain", {}, 0)["worker-bb-01-8.out"][1] == []


def test_only_whole_lines_and_each_once(tmp_path: Path) -> None:
    file = write(tmp_path, "aa-01-7.out", "ServeReplica:desk:Ears", "one\ntw", "Ears#abc")
    _, lines, position = read_folder(tmp_path, "desk", "", {}, 10)[file.name]
    assert lines == ["one"]
    with file.open("a") as more:
        more.write("o\nthree\n")
    _, lines, position = read_folder(tmp_path, "desk", "", {file.name: position}, None)[file.name]
    assert lines == ["two", "three"]
    assert read_folder(tmp_path, "desk", "", {file.name: position}, None)[file.name][1] == []
