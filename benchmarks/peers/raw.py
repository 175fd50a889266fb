"""Raw grpc.aio between two plain processes: what a generated stub does, and raw bytes by a generic serializer.

`python -m benchmarks.peers.raw callee` prints its port, `... caller PORT` obeys `loops.obey`.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.peers.loops import Array, Told, ends, every_ms, obey
from chains.wire.pb import carrier_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
ANY_SIZE = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
LINE = 2**24


async def _say(request: Any, context: Any) -> Any:
    return pb.Open(method=request.method)


async def _repeat(request: Any, context: Any) -> AsyncIterator[Any]:
    for _ in range(request.turn):
        yield pb.Open(method=request.method)


async def _paced(request: Any, context: Any) -> AsyncIterator[Any]:
    async for token in every_ms(request.turn):
        yield pb.Open(method=token)


async def _put(request: bytes, context: Any) -> bytes:
    (length,) = struct.unpack_from("<I", request)
    header = json.loads(request[4 : 4 + length])
    array = np.frombuffer(request, header["dtype"], offset=4 + length).reshape(header["shape"])
    return struct.pack("<d", ends(array))


async def callee() -> None:
    server = grpc.aio.server(options=ANY_SIZE)
    read, write = pb.Open.FromString, pb.Open.SerializeToString
    handlers = {
        "Say": grpc.unary_unary_rpc_method_handler(_say, read, write),
        "Repeat": grpc.unary_stream_rpc_method_handler(_repeat, read, write),
        "Paced": grpc.unary_stream_rpc_method_handler(_paced, read, write),
        "Put": grpc.unary_unary_rpc_method_handler(_put),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peer.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


class Stub:
    """The callee, by plain stubs with a deadline."""

    def __init__(self, channel: Any) -> None:
        write, read = pb.Open.SerializeToString, pb.Open.FromString
        self._say = channel.unary_unary("/peer.Echo/Say", write, read)
        self._repeat = channel.unary_stream("/peer.Echo/Repeat", write, read)
        self._paced = channel.unary_stream("/peer.Echo/Paced", write, read)
        self._put = channel.unary_unary("/peer.Echo/Put")

    async def say(self, text: str) -> str:
        answer: str = (await self._say(pb.Open(method=text), timeout=60)).method
        return answer

    async def repeat(self, text: str, times: int) -> AsyncIterator[str]:
        async for message in self._repeat(pb.Open(method=text, turn=times), timeout=60):
            yield message.method

    async def paced(self, times: int) -> AsyncIterator[str]:
        async for message in self._paced(pb.Open(turn=times), timeout=60):
            yield message.method

    async def put(self, array: Array) -> float:
        header = json.dumps({"dtype": array.dtype.str, "shape": array.shape}).encode()
        message = b"".join((struct.pack("<I", len(header)), header, array.data.cast("B")))
        answer: float = struct.unpack("<d", await self._put(message, timeout=60))[0]
        return answer


def dial(port: int) -> Any:
    """A channel to the callee at `port` of this machine."""
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=ANY_SIZE)


async def caller(port: str) -> None:
    async with dial(int(port)) as channel:
        await channel.channel_ready()
        await obey(Stub(channel))


async def start() -> Told:
    """Both processes, ready."""

    async def spawn(*words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.peers.raw", *words, stdin=pipe, stdout=pipe, limit=LINE, cwd=ROOT
        )

    server = await spawn("callee")
    assert server.stdout is not None
    client = await spawn("caller", (await server.stdout.readline()).decode().strip())
    assert client.stdout is not None
    await client.stdout.readline()
    return Told(server, client)


if __name__ == "__main__":
    asyncio.run(callee() if sys.argv[1] == "callee" else caller(sys.argv[2]))
