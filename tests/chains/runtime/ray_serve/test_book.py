"""The address book follows what Serve does, and says nothing of what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

pytest.importorskip("ray")

from chains.runtime.ray_serve.book import Book, Listed
from tests.chains.runtime.ray_serve import chain_on_ray as chain
from tests.chains.runtime.ray_serve.test_deploy import deployed
from tests.chains.wire.hosted import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("ray_cluster")]


async def test_it_lists_who_listens_where_until_they_are_gone() -> None:
    book: dict[str, Mapping[str, Listed]] = {}
    async with deployed(chain.Front, "listed", replicas={"Worker": 2}):
        read = Book("listed", ["Worker", "Front"], book.__setitem__)
        await asyncio.wait_for(read.opened(), 60.0)
        await eventually(lambda: len(book) == 2)
        assert (len(book["Worker"]), len(book["Front"])) == (2, 1)
        one, other = book["Worker"].values()
        assert one.place.address != other.place.address and one.pid != other.pid
        assert one.place.machine == other.place.machine != ""
        assert all(name.startswith("Worker#") for name in book["Worker"])
    await eventually(lambda: not book["Worker"] and not book["Front"])
    await read.close()
