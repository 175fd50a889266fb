"""What is counted per minute: kinds of waits on paths, names that never end."""

from __future__ import annotations

import json
from pathlib import Path

from chains.records import counting
from chains.records.names import OTHER
from chains.records.sketches import merged
from chains.records.store import Store
from chains.records.writer import Writer
from tests.chains.records import made
from tests.chains.records.test_writer import arrivals, rows


def test_waits_for_credit_and_input_are_parts_of_their_own(tmp_path: Path) -> None:
    call = made.phone_call("call-1", 1)
    (turn,) = [span for span in call if span.name == "turn 1"]
    path = [
        ["A.b", "wait", "credit", "A-0", 0.0, 5.0], ["A.b", "wait", "C.d", "A-0", 5.0, 2.0],
        ["A.b", "wait", "input", "A-1", 7.0, 1.0], ["A.b", "compute", "credit", "A-1", 8.0, 4.0],
    ]  # fmt: skip
    turn.attributes["chains.path"] = json.dumps(path)
    with Store.open(tmp_path / "traces.sqlite") as store:
        Writer(store).write(arrivals([turn]))
        found = {row[2:4]: row[4:] for row in rows(store.connection)["paths"]}
    assert found == {
        ("A-0", "credit"): (1, 5.0), ("A-0", "wait"): (1, 2.0), ("A-1", "input"): (1, 1.0),
        ("A-1", "compute"): (1, 4.0), ("every", ""): (1, 12.0),
    }  # fmt: skip


def test_a_slow_replica_shows_in_its_row(tmp_path: Path) -> None:
    with Store.open(tmp_path / "traces.sqlite") as store:
        Writer(store).write(arrivals([*made.calls(20, turns=3, slow="LLM-1", slow_ms=80.0)]))
        query = (
            "SELECT r.text, count, errors, sums, sketch FROM sketches JOIN names h ON h.id = hop"
            " JOIN names r ON r.id = replica WHERE h.text = 'LLM.stream'"
        )
        found = store.connection.execute(query).fetchall()
    per = {name: merged(row[1:] for row in found if row[0] == name) for name in ("LLM-0", "LLM-1")}
    assert per["LLM-0"].count + per["LLM-1"].count == 60
    for column in ("total", "compute"):
        assert 50 < per["LLM-1"].quantiles([0.5], column)[0] - per["LLM-0"].quantiles([0.5], column)[0] < 110


def test_names_without_end_are_counted_together(tmp_path: Path) -> None:
    spans = made.foreign_trace(1, spans=counting.MANY + 500)
    for index, span in enumerate(spans):
        span.name = f"GET /users/{index}"
    with Store.open(tmp_path / "traces.sqlite") as store:
        writer = Writer(store)
        for at in range(0, len(spans), 200):
            writer.write(arrivals(spans[at : at + 200]))
        found = {row[3]: row[5] for row in rows(store.connection)["sketches"]}
    assert sum(found.values()) == len(spans)
    assert found[OTHER] >= 490 and len(found) == counting.MANY + 1
