"""OTLP over gRPC, for exporters that speak nothing else; where grpcio is installed."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import grpc
from grpc import aio

from chains.errors import ChainsError, StartError
from chains.viewer.receiver import BodyLimits, Receiver

_AT_ONCE = 16  # requests, each of which may be as long as a body of HTTP
SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


class GrpcReceiver:
    """A server of TraceService/Export on the running loop; with `keys`, requests must carry one as a bearer token."""

    def __init__(self, receiver: Receiver, *, keys: Sequence[str] = (), limits: BodyLimits | None = None) -> None:
        self._receiver = receiver
        self._keys = tuple(keys)
        largest = (limits or BodyLimits()).packed
        options = [("grpc.max_receive_message_length", largest), ("grpc.so_reuseport", 0)]
        self._server = aio.server(options=options, maximum_concurrent_rpcs=_AT_ONCE)
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Export": handler}),))

    async def start(self, host: str = "127.0.0.1", port: int = 4317) -> int:
        """Listen; gives the port (0 picks one). StartError when it is taken."""
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise StartError(f"port {port} for OTLP over gRPC is taken", mend="name another, or stop who has it")
        await self._server.start()
        return int(bound)

    async def close(self, grace: float = 1.0) -> None:
        """Stop; requests that run have `grace` seconds."""
        await self._server.stop(grace)

    async def _export(self, body: bytes, context: aio.ServicerContext) -> bytes:
        if self._keys and not self._keyed(context):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no key, or a wrong one")
        try:
            answer: bytes = (await self._receiver.receive(body)).SerializeToString()
            return answer
        except ChainsError as error:
            await context.abort(grpc.StatusCode[error.grpc], str(error))
            raise

    def _keyed(self, context: aio.ServicerContext) -> bool:
        sent = dict(context.invocation_metadata() or ()).get("authorization", "")
        # every key is looked at, so that the time it takes says nothing
        return sum(hmac.compare_digest(str(sent).encode(), f"Bearer {key}".encode()) for key in self._keys) > 0
