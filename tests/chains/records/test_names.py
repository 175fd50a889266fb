"""Texts have one number, whoever asks, and names of others do not go on for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.records.arrived import Source
from chains.records.names import OTHER, Names
from chains.records.store import Store


def test_names_are_numbered_once(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.sqlite") as one, Store.open(tmp_path / "a.sqlite") as two:
        first, second = Names(one.connection), Names(two.connection)
        assert first.texts[""] == 0 and first.texts["a"] == second.texts["a"] == first.texts["a"]
        assert first.sources[Source("s")] == second.sources[Source("s")] != second.sources[Source("t")]
        second.forget()
        assert not second.texts and second.texts["a"] == first.texts["a"]


def test_names_of_others_end_and_ours_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chains.records.names.MOST", 5)
    with Store.open(tmp_path / "a.sqlite") as store:
        names = Names(store.connection)
        numbers = [names.foreign(f"GET /{index}") for index in range(10)]
        assert numbers[:5] == [1, 2, 3, 4, 5] and set(numbers[5:]) == {names.texts[OTHER]}
        names.forget()
        assert names.foreign("GET /2") == 3  # what has a number keeps it
        assert names.texts["LLM.stream"] == 7


def test_too_many_are_forgotten_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chains.records.names._REMEMBERED", 5)
    with Store.open(tmp_path / "a.sqlite") as store:
        names = Names(store.connection)
        numbers = [names.texts[str(index)] for index in range(10)]
        names.trim()
        assert not names.texts and [names.texts[str(index)] for index in range(10)] == numbers
