"""A served chain on a real port, for the tests of the gateway, the clients and the CLI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from chains.dsl.graph import Graph, load
from chains.serve import Server

PARLOUR = Path(__file__).parent / "gateway" / "parlour.py"

Serve = Callable[..., Awaitable[Server]]


@pytest.fixture
def graph() -> Graph:
    """The parlour, loaded anew, so that what it remembers is this test's alone."""
    return load(str(PARLOUR))


@pytest.fixture
def watched(graph: Graph) -> Any:
    return graph.nodes["Parlour"].cls.watched  # type: ignore[attr-defined]


@pytest.fixture
async def serve(graph: Graph) -> AsyncIterator[Serve]:
    """`await serve(idle_seconds=0.2)`: the parlour on a free port with these settings."""
    async with AsyncExitStack() as stack:

        async def start(**settings: Any) -> Server:
            return await stack.enter_async_context(Server(graph, port=0, **settings))

        yield start
