"""What the gateway costs on top of the web server it stands on: the same echo as a chain and as bare Starlette.

Both sides are served by one process, on two ports, and measured in turns. The caller is another process.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.sync.client import ClientConnection, connect

from benchmarks.report import arguments, compare, interleave, report
from chains import Audio, chainlet
from chains.dsl.graph import build
from chains.protocol import encode_binary
from chains.serve import Server
from chains.sockets import listen

FRAME = encode_binary(Audio(np.zeros(320, np.int16), 16000))


@chainlet(entry=True)
class Echo:
    async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio]:
        async for piece in audio:
            yield piece

    async def shout(self, text: str) -> str:
        return text.upper()


async def bare_echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for data in websocket.iter_bytes():
        await websocket.send_bytes(data)


async def bare_shout(request: Request) -> JSONResponse:
    return JSONResponse({"result": (await request.json())["text"].upper()})


async def serve() -> None:
    """Both sides, until the process is ended; the two ports go to stdout."""
    async with Server(build(Echo), port=0) as server:
        app = Starlette(routes=[WebSocketRoute("/", bare_echo), Route("/", bare_shout, methods=["POST"])])
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws_per_message_deflate=False)
        bare = listen("127.0.0.1", 0)
        print(json.dumps([server.port, bare.getsockname()[1]]), flush=True)
        await uvicorn.Server(config).serve(sockets=[bare])


@contextmanager
def served() -> Iterator[tuple[int, int]]:
    line = [sys.executable, "-m", "benchmarks.gateway", "serve"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ours, bare = json.loads(process.stdout.readline())
            yield ours, bare
        finally:
            process.terminate()


@contextmanager
def opened(port: int) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}/v1/call/run", compression=None) as socket:
        socket.send('{"type":"open"}')
        socket.recv()
        yield socket


def roundtrip(socket: ClientConnection) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        socket.send(FRAME)
        while not isinstance(socket.recv(), bytes):  # credit comes back between the frames
            pass
        return (time.perf_counter() - start) * 1e6

    return measure


def post(client: httpx.Client, url: str) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        client.post(url, json={"text": "hello"}).raise_for_status()
        return (time.perf_counter() - start) * 1e6

    return measure


def dial(open_one: Callable[[], AbstractContextManager[ClientConnection]]) -> Callable[[], float]:
    """From nothing to the first frame that came back."""

    def measure() -> float:
        start = time.perf_counter()
        with open_one() as socket:
            roundtrip(socket)()
            return (time.perf_counter() - start) * 1e6

    return measure


def main() -> None:
    options = arguments(__doc__ or "")
    rounds = 200 if options.quick else 3000
    with served() as (port, bare), httpx.Client() as client:
        with opened(port) as ours, connect(f"ws://127.0.0.1:{bare}/", compression=None) as plain:
            frames = interleave(rounds, {"ours": roundtrip(ours), "bare": roundtrip(plain)}, seed=options.seed, warm=50)
        sides = {
            "ours": post(client, f"http://127.0.0.1:{port}/v1/call/shout"),
            "bare": post(client, f"http://127.0.0.1:{bare}/"),
        }
        posts = interleave(rounds // 3, sides, seed=options.seed, warm=20)
        dials = interleave(
            rounds // 10,
            {
                "ours": dial(lambda: opened(port)),
                "bare": dial(lambda: connect(f"ws://127.0.0.1:{bare}/", compression=None)),
            },
            seed=options.seed,
            warm=5,
        )
    rows = [
        compare("websocket, 20 ms of audio there and back (us)", frames["ours"], frames["bare"]),
        compare("HTTP, a small JSON call (us)", posts["ours"], posts["bare"]),
        compare("dial, open, first frame back (us)", dials["ours"], dials["bare"]),
    ]
    report(rows, options.json, "the gateway beside bare Starlette on the same server")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
    else:
        main()
