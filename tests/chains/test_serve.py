"""The server as a whole: its port, its settings, its start and its end."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from chains.client import connect
from chains.dsl.graph import Graph, load
from chains.errors import Cancelled, SettingError, StartError, Unavailable
from chains.gateway.session import GatewaySettings
from chains.runtime.inprocess import InProcess
from chains.serve import Server, door
from chains.serve import serve as serve_until_signal
from chains.sockets import listen
from tests.chains.wire.hosted import eventually

Serve = Callable[..., Awaitable[Server]]

BROKEN = """
from chains import chainlet

@chainlet(entry=True)
class Broken:
    def load(self) -> None:
        raise RuntimeError("no weights here")

    async def run(self) -> str:
        return ""
"""


async def test_a_port_in_use_says_by_whom_and_before_anything_loads(graph: Graph) -> None:
    stages: list[str] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port} is in use by process {os.getpid()}.*--port"):
            async with Server(graph, port=port, progress=lambda step: stages.append(step.stage)):
                pass
    assert not stages


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"host": "0.0.0.0"}, r"open to other machines.*--key.*--insecure"),
        ({"port": 70_000}, "port is 70000"),
        ({"max_frame": 0}, "max_frame is 0"),
        ({"idle_seconds": -1.0}, "idle_seconds is -1"),
        ({"drain_seconds": float("nan")}, "drain_seconds is nan"),
        ({"ping_seconds": float("inf")}, "ping_seconds is inf"),
        ({"rates": ()}, "rates is empty"),
        ({"keys": ("",)}, "key is empty"),
        ({"max_frames": 5}, "no setting 'max_frames'"),
    ],
)
def test_settings_that_make_no_sense(graph: Graph, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        Server(graph, **settings)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", "127.8.9.10"])
def test_loopback_needs_no_key(host: str) -> None:
    GatewaySettings(host=host)


async def test_other_interfaces_with_a_key_or_on_purpose(graph: Graph) -> None:
    everywhere = Server(graph, host="0.0.0.0", port=0, keys=("sesame",))
    async with everywhere as server, connect(server.url, key="sesame") as client:
        assert await client.invoke("shout", text="a") == "A"
    GatewaySettings(host="0.0.0.0", insecure=True)


async def test_a_chain_that_does_not_start_frees_the_port(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(BROKEN)
    with listen("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(StartError):
        async with Server(load(str(file)), port=port):
            pass
    listen("127.0.0.1", port).close()


async def test_it_serves_again_on_the_same_port(graph: Graph) -> None:
    async with Server(graph, port=0) as server:
        port = server.port
    async with Server(graph, port=port) as server, connect(server.url) as client:
        assert await client.invoke("shout", text="a") == "A"


def test_outside_the_block_there_is_no_port(graph: Graph) -> None:
    with pytest.raises(Unavailable, match="async with"):
        _ = Server(graph).url


async def test_a_drain_refuses_newcomers_and_lets_open_calls_end(serve: Serve, watched: Any) -> None:
    server = await serve()
    async with connect(server.url) as client, client.call("run", audio=_until(watched.gate)) as call:
        await watched.event(watched.began, "run").wait()
        draining = asyncio.create_task(server.drain())
        await asyncio.sleep(0)  # the task runs to its first wait
        assert server.gateway.draining
        with pytest.raises(Unavailable, match="shutting down"):
            await client.invoke("shout", text="a")
        watched.gate.set()
        assert (await call.result()).text == "0 pieces"
        assert await draining


async def test_a_drain_cancels_what_does_not_end(serve: Serve) -> None:
    server = await serve(drain_seconds=0.1)
    async with connect(server.url) as client, client.call("drip") as call:
        assert await anext(call) == "first"
        assert not await server.drain()
        with pytest.raises(Cancelled, match="shutting down"):
            await anext(call)


async def test_serve_ends_on_a_signal_and_a_second_one_hurries(graph: Graph) -> None:
    ready: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    stopping: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_until_signal(graph, GatewaySettings(port=0), ready=ready.set_result, stopping=stopping.set_result)
    )
    server = await ready
    url = server.url
    async with connect(url) as client, client.call("drip") as call:
        assert await anext(call) == "first"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await stopping == 1
        assert not serving.done()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Cancelled, match="shutting down"):
            await anext(call)
    await asyncio.wait_for(serving, 3)
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient() as http:
            await http.get(url)


async def test_the_table_of_each_call_can_be_asked_for(graph: Graph) -> None:
    tables: list[str] = []
    async with Server(graph, port=0, profile=tables.append) as server, connect(server.url) as client:
        await client.invoke("shout", text="a secret")
    assert len(tables) == 1 and "Parlour.shout" in tables[0]
    assert "secret" not in tables[0]


async def _until(gate: asyncio.Event) -> AsyncIterator[Any]:
    await gate.wait()
    return
    yield


FORGETS = """
import asyncio
from collections.abc import AsyncIterator
from chains import chainlet, depends

@chainlet
class Below:
    async def run(self) -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

@chainlet(entry=True)
class Forgets:
    below: Below = depends(Below)

    async def cancelled(self) -> str:
        task = asyncio.create_task(self.below.run().__anext__())
        await asyncio.sleep(0)
        return "done"

    async def failed(self) -> str:
        async def fail() -> None:
            raise ValueError("forgotten")

        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        return "done"
"""


@pytest.mark.parametrize(("method", "told"), [("cancelled", False), ("failed", True)])
async def test_a_forgotten_task_is_told_unless_it_was_cancelled_with_its_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str, told: bool
) -> None:
    file = tmp_path / "forgets.py"
    file.write_text(FORGETS)
    ready: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    settings = GatewaySettings(port=0)
    serving = asyncio.create_task(serve_until_signal(load(str(file)), settings, ready=ready.set_result))
    async with connect((await ready).url) as client:
        assert await client.invoke(method) == "done"
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(serving, 5) == 0
    gc.collect()  # a task is found to be forgotten when it is
    assert ("never retrieved" in caplog.text) is told


# several behind one port


async def test_who_has_come_when_it_leaves_a_port_is_answered_and_told_that_it_was_the_last(graph: Graph) -> None:
    request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    async with door(graph, InProcess(graph), port=0) as server, AsyncExitStack() as stack:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        stack.callback(writer.close)
        writer.write(request)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        writer.write(request)  # on its way when the server leaves
        others = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(40)]
        for other in others:  # none of them has been accepted
            other.sendall(request)
        assert await server.leave()
        rest = await reader.read()
        answers = [await asyncio.to_thread(_all_of, other) for other in others]
    for answer in (rest, *answers):
        assert answer.count(b"HTTP/1.1 200") == 1 and b"connection: close\r\n" in answer


def _all_of(other: socket.socket) -> bytes:
    other.settimeout(10.0)
    return b"".join(iter(lambda: other.recv(65_536), b""))


async def test_one_that_leaves_a_shared_port_ends_its_calls_and_the_other_takes_all_that_is_new(graph: Graph) -> None:
    async with door(graph, InProcess(graph), port=0) as old, httpx.AsyncClient() as web:
        assert (await web.get(f"{old.url}/healthz")).json()["calls"] == 0
        async with connect(old.url) as client, client.call("drip") as line:
            assert await anext(aiter(line)) == "first"
            async with door(graph, InProcess(graph), port=old.port, keys=["sesame"]) as new:
                leaving = asyncio.ensure_future(old.leave())
                await eventually(old._leaving.is_set)
                assert (await web.get(f"{old.url}/v1/chain")).status_code == 200, "on its connection to the old one"
                for _ in range(8):
                    assert (await web.get(f"{old.url}/v1/chain")).status_code == 401, "only the new one wants a key"
                await eventually(lambda: old.gateway.draining)
                assert not leaving.done() and new.settings.keys == ("sesame",)
                await line.cancel()
                assert await leaving


async def test_a_port_is_shared_only_by_those_who_say_so(graph: Graph) -> None:
    async with Server(graph, port=0) as alone:
        with pytest.raises(SettingError, match="is in use"):
            async with door(graph, InProcess(graph), port=alone.port):
                pass
    with pytest.raises(SettingError, match="no setting 'prot'"):
        door(graph, InProcess(graph), prot=1)
