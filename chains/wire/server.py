"""The replica's end: a gRPC server that lets in who has the token, and hands their calls to whoever answers them."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from chains.errors import ChainsError, LimitExceeded, ProtocolError, StartError, Unauthenticated, Unavailable
from chains.wire.carrier import Answer, Carrier
from chains.wire.frames import VERSION
from chains.wire.link import OPTIONS, Link
from chains.wire.pb import carrier_pb2 as pb
from chains.wire.settings import WireSettings
from chains.wire.sharing import Memory, Sharing

log = logging.getLogger("chains")
_ID = re.compile(r"[0-9a-f]{32}")


class WireServer:
    """Listens at `settings.bind`. Calls that peers open are begun by `answer`; `joined` and `left` hear of peers.

    With `memory`, large values go through shared memory to and from callers on this machine that know how.
    """

    def __init__(
        self,
        settings: WireSettings,
        node: str,
        replica: str,
        answer: Answer,
        joined: Callable[[Carrier], None],
        left: Callable[[Carrier], None],
        memory: Memory | None = None,
    ) -> None:
        self.address = ""
        self._settings = settings
        self._hello = pb.Hello(version=VERSION, node=node, replica=replica, direct=settings.direct)
        self._answer = answer
        self._joined = joined
        self._left = left
        self._memory = memory
        self._links: dict[str, Link] = {}
        self._expected = f"Bearer {settings.token}".encode()
        self._server: Any = None
        self._stopping = False

    async def start(self) -> str:
        """Listen; the address that was bound. Raises StartError when it cannot be."""
        options = [
            *OPTIONS,
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", 16),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
            ("grpc.http2.max_ping_strikes", 0),
        ]
        server = grpc.aio.server(options=options)
        handlers = {
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
            "Bulk": grpc.stream_stream_rpc_method_handler(self._bulk),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("chains.v1.Carrier", handlers),))
        bind = self._settings.bind
        try:
            tls = self._settings.tls
            if tls is None:
                port = server.add_insecure_port(bind)
            else:
                pair = (tls.read(tls.key), tls.read(tls.cert))
                ca = tls.read(tls.ca)
                credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
                port = server.add_secure_port(bind, credentials)
        except (RuntimeError, ValueError, TypeError):
            port = 0
        if port == 0:
            raise StartError(
                f"{bind} cannot be listened on", mend="free the port, or write port 0 for any that is free"
            )
        await server.start()
        self._server = server
        self.address = f"{bind.rpartition(':')[0]}:{port}"
        return self.address

    async def stop(self, grace: float | None = None) -> None:
        """Take no new connections, end those that stand in good order, break off after `grace` seconds."""
        self._stopping = True
        for link in list(self._links.values()):
            link.close()
        if self._server is not None:
            await self._server.stop(grace)

    async def _admit(self, context: Any) -> str:
        """The connection's id, of a peer that has the token. Others are sent away before anything of theirs is read."""
        given, id = b"", ""
        for key, value in context.invocation_metadata() or ():
            if key == "authorization":
                given = value.encode() if isinstance(value, str) else value
            elif key == "chains-connection" and isinstance(value, str):
                id = value
        if not hmac.compare_digest(given, self._expected):
            await _refuse(context, Unauthenticated("no valid token", mend="send the deployment's token"))
        if not _ID.fullmatch(id):
            await _refuse(context, ProtocolError("chains-connection is missing", mend="send 32 hexadecimal digits"))
        return id

    async def _connect(self, _: Any, context: Any) -> None:
        id = await self._admit(context)
        if self._stopping:
            await _refuse(context, Unavailable("the replica stops", mend="call another"))
        if id in self._links:
            await _refuse(context, ProtocolError("this chains-connection is in use", mend="draw a new one"))
        if len(self._links) >= self._settings.connections:
            await _refuse(context, LimitExceeded("too many connections", mend="raise WireSettings.connections"))
        sharing = Sharing(self._memory, id) if self._memory is not None else None
        link = Link(self._settings, self._answer, _ignored, sharing)
        self._links[id] = link
        carrier = link.carrier
        carrier.urge(pb.Frame(hello=self._hello))
        self._joined(carrier)
        try:
            await self._carried(link.run(context), context)
        finally:
            del self._links[id]
            self._left(carrier)
            carrier.lose("the caller went away")

    async def _bulk(self, _: Any, context: Any) -> None:
        id = await self._admit(context)
        link = self._links.get(id)
        if link is None:
            await _refuse(
                context, ProtocolError("Bulk belongs to no connection", mend="open Connect first, with the same id")
            )
        else:
            await self._carried(link.run_bulk(context), context)

    async def _carried(self, running: Any, context: Any) -> None:
        """A peer that does not keep the protocol loses its connection, and is told why."""
        try:
            await running
        except ChainsError as error:
            await _refuse(context, error)
        except (asyncio.CancelledError, grpc.RpcError, grpc.aio.UsageError):
            raise
        except Exception as error:
            if context.cancelled() or context.done():
                return
            log.error("a connection ended by a fault of ours: %s", type(error).__name__, exc_info=error)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")


def _ignored(kind: str, sent: Any) -> None:
    if kind != "pong":
        raise ProtocolError(f"a caller sent a {kind}", mend="leave that to the replica")


async def _refuse(context: Any, error: ChainsError) -> NoReturn:
    await context.abort(grpc.StatusCode[error.grpc], str(error))
    raise AssertionError("abort raises")
