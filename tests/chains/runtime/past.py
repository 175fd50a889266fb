"""Two replicas behind real sockets and a caller that passes the streams of one on to the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from chains.runtime.handle import Handle
from chains.runtime.host import Hosted
from chains.wire.settings import WireSettings, new_token
from tests.chains.wire.hosted import GRAPH, Caller, calling, hosted

SETTINGS = WireSettings(new_token())


class Past:
    """`maker` and `reader` are handles, `b` and `c` the replicas behind them. `passed` counts the caller's items."""

    def __init__(self, b: Hosted, c: Hosted, a: Caller, to_reader: Caller) -> None:
        self.b = b
        self.c = c
        self.a = a
        self._to_reader = to_reader
        self.maker: Any = self.handle("probe")
        self.reader: Any = Handle(to_reader.target, GRAPH.nodes["Entry"].edges["probe"], a.line)
        self.passed = 0

    def handle(self, edge: str) -> Any:
        """The maker, with the options of that edge."""
        return Handle(self.a.target, GRAPH.nodes["Entry"].edges[edge], self.a.line)

    def watch(self) -> None:
        """Count what comes from the maker: nothing else sends items to the caller's first connection."""
        carrier = self.a.remote.connection.carrier
        assert carrier is not None
        handle = carrier._handle

        def counting(call: int, kind: str, sent: Any) -> None:
            self.passed += kind == "item"
            handle(call, kind, sent)

        carrier._handle = counting  # type: ignore[method-assign]

    def at_rest(self) -> bool:
        """Nothing is left of any stream, anywhere."""
        keeps, makers = self.b.host.keeps, self.c.makers
        return not (
            keeps.unclaimed
            or keeps.rests
            or self.b.host.served
            or self.c.host.served
            or any(makers._users.values())
            or any(connection.carrier and connection.carrier.calls for connection in makers.connections.values())
            or any(carrier.calls for carrier in self.b.host._peers)
            or self.a.line.tasks
        )


@asynccontextmanager
async def passing(maker: WireSettings = SETTINGS, reader: WireSettings = SETTINGS) -> AsyncIterator[Past]:
    async with AsyncExitStack() as stack:
        b = await stack.enter_async_context(hosted(maker))
        c = await stack.enter_async_context(hosted(reader))
        a = await stack.enter_async_context(calling(b.server.address, maker))
        to_reader = await stack.enter_async_context(calling(c.server.address, reader))
        await a.remote.reached()
        await to_reader.remote.reached()
        past = Past(b, c, a, to_reader)
        past.watch()
        yield past
