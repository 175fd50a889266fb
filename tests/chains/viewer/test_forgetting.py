"""DELETE of a call over HTTP, at the viewer itself."""

from __future__ import annotations

from pathlib import Path

import httpx

from chains.records.store import Store
from tests.chains.records.taped import closed, kept, opened, text
from tests.chains.viewer.taking import recorded, taking


async def test_a_call_is_deleted_with_what_was_said_or_what_was_said_alone(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    kept(path, [opened(), text(1, "rutabaga"), closed(2)])[0].close()
    async with taking(path) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.delete("/api/calls/c1?recording=1")).status_code == 204
        with Store.open(path, readonly=True) as store:
            assert recorded(store.connection, "c1") == []
            assert store.connection.execute("SELECT recorded FROM calls").fetchall() == [(0,)]
        assert (await client.delete("/api/calls/c1")).status_code == 204
        gone = await client.delete("/api/calls/c1")
        assert gone.status_code == 404 and "no such call" in gone.json()["error"]["message"]
        assert (await client.delete("/api/calls/c1?recording=yes")).status_code == 422


async def test_a_page_of_another_site_deletes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    kept(path, [opened(), closed(2)])[0].close()
    async with taking(path) as url, httpx.AsyncClient(base_url=url) as client:
        refused = await client.delete("/api/calls/c1", headers={"origin": "https://evil.example"})
        assert refused.status_code == 403
    with Store.open(path, readonly=True) as store:
        assert store.connection.execute("SELECT count(*) FROM calls").fetchone() == (1,)
