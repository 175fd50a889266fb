"""What a viewer takes in of recordings, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from chains.errors import LimitExceeded, Overloaded, ProtocolError
from chains.records.call import detail
from chains.records.recorded import Batch, Row
from chains.records.recordings import incomplete, wav
from chains.records.render import HEADER
from chains.records.store import Store
from chains.viewer.tapes import MOST_BYTES, MOST_ROWS, Tapes, decoded, wrong
from tests.chains.records.taped import closed, event, opened, sound, spoken, text, tone
from tests.chains.viewer.taking import recorded, taking
from tests.chains.wire.hosted import eventually


def batch(*rows: Row, version: int = 1) -> bytes:
    return msgspec.msgpack.encode(Batch(version, list(rows)))


async def test_what_is_posted_is_in_the_store_when_the_viewer_ends(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url, httpx.AsyncClient() as client:
        for part in ([opened()], list(spoken(0, tone(500))), [closed(600)]):
            answer = await client.post(f"{url}/v1/recordings", content=batch(*part))
            assert answer.status_code == 204
    with Store.open(path, readonly=True) as store:
        assert [kind for _, kind, _ in recorded(store.connection, "c1")] == ["event", "audio", "event"]
        row, state = store.connection.execute("SELECT id, recorded FROM calls WHERE call = 'c1'").fetchone()
        assert state == 1 and not incomplete(store.connection, row)
        assert np.array_equal(np.frombuffer(wav(store.connection, row, "caller").data[HEADER:], "<i2"), tone(500))


async def test_a_gap_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    async with taking(path) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/v1/recordings", content=batch(opened(), event(0, "gap", items=3), closed(5)))
    with Store.open(path, readonly=True) as store:
        row, state = store.connection.execute("SELECT id, recorded FROM calls WHERE call = 'c1'").fetchone()
        assert state == 2 and incomplete(store.connection, row).startswith("3 items could not be kept")


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (sound(0, tone(20), rate=7), "7 samples a second"),
        (Row("c1", 0, 0, 0.0, "audio", 0, 16000, b"odd"), "half a sample"),
        (Row("c1", 2, 0, 0.0, "end", 0, 0, b""), "side 2"),
        (Row("c1", 0, 300, 0.0, "end", 0, 0, b""), "stream 300"),
        (Row("c1", 0, 0, 0.0, "end", 1 << 33, 0, b""), "turn"),
        (Row("c1", 0, 0, float("nan"), "end", 0, 0, b""), "at nan ms"),
        (Row("c1", 0, 0, -1.0, "end", 0, 0, b""), "at -1.0 ms"),
        (Row("c1", 0, 0, 0.0, "smell", 0, 0, b""), "smell"),
        (Row("c1", 0, 0, 0.0, "text", 0, 0, b"{}"), "text"),
        (Row("c1", 0, 0, 0.0, "text", 0, 0, b'{"text":"a","role":{}}'), "role"),
        (Row("c1", 0, 0, 0.0, "value", 0, 0, b"{"), "not JSON"),
        (Row("c1", 0, 0, 0.0, "value", 0, 0, b"[" * 100_000), "not JSON"),
        (Row("c1", 0, 0, 0.0, "event", 0, 0, b"[]"), "event"),
        (event(0, "played", ms="y"), "ms"),
        (event(0, "played", ms=10**400), "ms"),
        (event(0, "gap", items="x"), "items"),
        (event(0, "gap", items=-1), "items"),
        (opened(trace="zz"), "trace"),
        (opened(started=5e10), "started"),
        (opened(started=-1), "started"),
        (opened(method=5), "method"),
        (opened(audio="loud"), "audio"),
    ],
)
def test_an_item_that_makes_no_sense_costs_itself_alone(row: Row, found: str) -> None:
    assert found in wrong(row)
    good = [opened(call="c2"), text(5, "hello")]
    assert decoded(batch(good[0], row, good[1])) == ([*good, gap(1)], 1)


def gap(items: int, call: str = "c1") -> Row:
    return Row(call, 0, 0, 0.0, "event", 0, 0, msgspec.json.encode({"event": "gap", "items": items}))


@pytest.mark.parametrize(
    "row",
    [Row("", 0, 0, 0.0, "end", 0, 0, b""), Row("c" * 129, 0, 0, 0.0, "end", 0, 0, b""), [1], "x", ["c1", 1 << 63]],
)
def test_an_item_of_no_call_is_counted(row: object) -> None:
    assert decoded(msgspec.msgpack.encode([1, [row, opened()]])) == ([opened()], 1)


_VALUES: list[Any] = ["x", "", -1, 0, 1.5, 5e10, 1e300, 10**300, True, None, [], {}, [{}], {"event": "closed"}]
_FIELDS = ["ms", "items", "started", "trace", "method", "tenant", "audio", "streams", "arguments", "state", "replay_of"]
_EVENTS = ["open", "gap", "played", "clear", "turn", "held", "hang-up", "other"]


def test_nothing_that_comes_in_ends_the_keeping_or_breaks_the_reading(tmp_path: Path) -> None:
    """Every kind of event with every kind of value in every field that is read: the call can be read afterwards."""
    odd = [event(5, what, **{name: value}) for what in _EVENTS for name in _FIELDS for value in _VALUES]
    odd += [text(6, "a", **{name: value}) for name in ("role", "final", "spoken") for value in _VALUES]
    rows = []
    for number, row in enumerate(odd):
        call = f"c{number}"
        rows += [opened(call=call), sound(1, tone(20), side=1, turn=1, call=call)]
        rows += [msgspec.structs.replace(row, call=call), closed(9, call=call)]
    with Tapes(lambda: Store.open(tmp_path / "t.sqlite")) as tapes:
        tapes.take(batch(*rows))
    assert tapes.dropped < len(odd)
    with Store.open(tmp_path / "t.sqlite", readonly=True) as store:
        for number, row in enumerate(odd):
            found = detail(store.connection, f"c{number}", 0)
            assert found["audio"]["reply"], row


def removed(path: Path) -> None:
    for file in path.parent.glob(path.name + "*"):
        file.unlink()


def kept_of(path: Path, call: str) -> int:
    with Store.open(path, readonly=True) as store:
        return len(recorded(store.connection, call))


async def test_what_no_check_knew_of_costs_what_came_with_it_and_is_shown(tmp_path: Path) -> None:
    """A row that breaks the writing itself, put past all checks."""
    path = tmp_path / "t.sqlite"
    with Tapes(lambda: Store.open(path)) as tapes:
        tapes.take(batch(opened(), *spoken(0, tone(100))))
        tapes._queue.put(([opened(call="c9", started=5e10)], 0))
        await eventually(lambda: tapes.dropped > 0)
        tapes.take(batch(opened(call="c2"), closed(5, call="c2")))
    with Store.open(path, readonly=True) as store:
        row = store.connection.execute("SELECT id FROM calls WHERE call = 'c1'").fetchone()[0]
        assert "could not be kept" in incomplete(store.connection, row)  # the sound that had been gathered
        assert [kind for _, kind, _ in recorded(store.connection, "c2")] == ["event", "event"]
        drops = store.connection.execute("SELECT * FROM drops").fetchall()
        assert drops == [("recordings", "could not be written", 1)]


async def test_a_store_that_is_replaced_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    async with taking(path) as url, httpx.AsyncClient() as client:
        await client.post(f"{url}/v1/recordings", content=batch(opened(), closed(5)))
        await eventually(lambda: kept_of(path, "c1") == 2)
        removed(path)
        await client.post(f"{url}/v1/recordings", content=batch(opened(call="c2"), closed(5, call="c2")))
        await eventually(lambda: path.exists() and kept_of(path, "c2") == 2)
        assert (await client.get(f"{url}/api/calls/c2")).status_code == 200
        assert (await client.get(f"{url}/api/calls/c1")).status_code == 404
        assert (await client.delete(f"{url}/api/calls/c2")).status_code == 204


async def test_what_waits_is_bounded_in_bytes(tmp_path: Path) -> None:
    tapes = Tapes(lambda: Store.open(tmp_path / "t.sqlite"))  # not started: nothing is written
    large = batch(Row("c1", 0, 0, 0.0, "tensor", 0, 0, bytes(30 << 20)))
    for _ in range(4):
        tapes.take(large)
    with pytest.raises(Overloaded):
        tapes.take(large)
    tapes.take(batch(opened()))


def test_a_batch_of_too_many_rows_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decoded(msgspec.msgpack.encode([1, [0] * (MOST_ROWS + 1)]))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"{}", msgspec.msgpack.encode([1, 5]), batch(version=2)])
def test_a_body_that_is_no_batch_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decoded(body)


async def test_a_body_that_is_too_long_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    async with taking(tmp_path / "t.sqlite") as url, httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/v1/recordings", content=bytes(MOST_BYTES + 1))
        assert answer.status_code == 413 and answer.json()["error"]["type"] == LimitExceeded.__name__
        answer = await client.post(f"{url}/v1/recordings", content=b"nonsense")
        assert answer.status_code == 400


async def test_a_store_that_cannot_be_written_costs_what_came_then_and_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    Store.open(path).close()
    blocker = Store.open(path)
    opened_stores: list[Store] = []

    def impatient() -> Store:
        store = Store.open(path)
        store.connection.execute("PRAGMA busy_timeout = 10")
        opened_stores.append(store)
        return store

    tapes = Tapes(impatient)
    with tapes:
        await eventually(lambda: bool(opened_stores))
        blocker.connection.execute("BEGIN IMMEDIATE")
        tapes.take(batch(opened(), sound(0, tone(20))))
        await eventually(lambda: tapes.dropped > 0)
        blocker.connection.execute("COMMIT")
        tapes.take(batch(closed(40)))
    row = blocker.connection.execute("SELECT id FROM calls WHERE call = 'c1'").fetchone()[0]
    assert incomplete(blocker.connection, row).startswith("2 items could not be kept")
    blocker.close()
