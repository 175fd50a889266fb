"""What the store holds as a whole."""

from __future__ import annotations

from pathlib import Path

from chains.records import overview
from chains.records.store import Store
from tests.chains.records import made
from tests.chains.records.shaped import RESOURCE, calls, kept


def test_totals_and_chains_are_told(tmp_path: Path) -> None:
    newer = {**RESOURCE, "service.version": "v2"}
    later = calls(2, prefix="later", seed=2, start=made.START + 3_600_000_000_000)
    spans = calls(3)
    batches = (spans, RESOURCE), (later, newer), (made.foreign_trace(), {"service.name": "shop"})
    with kept(tmp_path / "t.sqlite", *batches) as connection:
        told = overview.info(connection)
    assert told["calls"] == 6 and told["spans"] == len(spans) + len(later) + 5
    assert told["bytes"] > 40_000 and told["dropped"] == 0 and told["live"] == 0
    desk, shop = told["chains"]
    assert (desk["chain"], desk["app"], shop["chain"]) == ("Desk", "", "shop")
    assert [(one["version"], one["calls"]) for one in desk["versions"]] == [("v2", 2), ("v1", 3)]
    assert desk["hops"] == ["Desk.run", "Model.reply"] and "Model-1" in desk["replicas"]
    assert desk["versions"][1]["first_ms"] == made.START / 1e6
    assert "SELECT orders" in shop["hops"] and shop["replicas"] == []


def test_an_empty_store_has_nothing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty.sqlite") as store:
        told = overview.info(store.connection)
    assert (told["calls"], told["spans"], told["chains"], told["drops"]) == (0, 0, [], [])


def test_drops_that_could_not_be_written_are_told_too(tmp_path: Path) -> None:
    with Store.open(tmp_path / "t.sqlite") as store:
        store.connection.execute("INSERT INTO drops VALUES ('a', 'queue full', 5), ('b', 'queue full', 1)")
        found = overview.totals(store.connection)
    told = overview.with_untold(found, {("a", "queue full"): 2, ("c", "disk full"): 40})
    assert told["dropped"] == 48 and told["calls"] == 0
    assert told["drops"] == [("c", "disk full", 40), ("a", "queue full", 7), ("b", "queue full", 1)]
