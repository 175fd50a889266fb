"""The viewer itself, in the process that it has for its own: what takes spans in, the store, and the page."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from chains.errors import ChainsError, SettingError
from chains.records.intake import Intake
from chains.records.recorded import PATH
from chains.records.retention import Retention
from chains.records.store import Store
from chains.viewer import forgetting
from chains.viewer.answers import error_response
from chains.viewer.bodies import Bodies
from chains.viewer.receiver import Receiver
from chains.viewer.settings import ViewerSettings
from chains.viewer.tapes import MOST_BYTES, Tapes
from chains.viewer.web import create_app


def collect_seldom() -> None:
    """Let Python look for cycles seldom: spans make none, and looking at them costs a tenth of what they do."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


async def serve(settings: ViewerSettings, listening: socket.socket, stop: asyncio.Event) -> None:
    """Answer on `listening` until `stop` is set; then all that was taken in is in the store. Raises SettingError."""
    async with AsyncExitStack() as stack:
        stack.callback(listening.close)
        retention = Retention(max_age_days=settings.max_age_days, max_bytes=settings.max_bytes)
        intake = Intake(settings.traces, retention=retention)
        stack.push_async_callback(asyncio.to_thread, intake.close)
        tapes = Tapes(lambda: Store.open(settings.traces))
        tapes.start()
        stack.push_async_callback(asyncio.to_thread, tapes.close)
        receiver = Receiver(intake)
        if settings.otlp_grpc is not None:
            await _grpc(receiver, settings, stack)
        app = create_app(
            settings.traces,
            settings,
            routes=[*receiver.routes(), _recordings(tapes), *forgetting.routes(settings.traces)],
            untold=lambda: intake.untold,
        )
        await _answer(app, listening, stop)


async def _grpc(receiver: Receiver, settings: ViewerSettings, stack: AsyncExitStack) -> None:
    try:
        from chains.viewer.grpc_receiver import GrpcReceiver
    except ModuleNotFoundError as error:
        raise SettingError(
            f"{error.name} is not installed, and OTLP over gRPC needs it",
            mend='run: pip install "chains-serve[wire]", or send OTLP over HTTP',
        ) from error
    made = GrpcReceiver(receiver, keys=settings.keys)
    await made.start(settings.host, settings.otlp_grpc or 0)
    stack.push_async_callback(made.close)


def _recordings(tapes: Tapes) -> BaseRoute:
    """Where gateways send what they record."""

    bodies = Bodies(MOST_BYTES, 4 * MOST_BYTES)

    async def take(request: Request) -> Response:
        try:
            async with bodies.of(request) as body:
                await asyncio.to_thread(tapes.take, body)
        except ClientDisconnect:
            return Response(status_code=400)
        except ChainsError as error:
            return error_response(error)
        return Response(status_code=204)

    return Route(PATH, take, methods=["POST"])


async def _answer(app: Starlette, listening: socket.socket, stop: asyncio.Event) -> None:
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,  # a ?key= would stand in it
        server_header=False,
        timeout_graceful_shutdown=1,  # pages that listen for what is new stay connected
    )
    server = _Uvicorn(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    server.should_exit = True
    await serving


class _Uvicorn(uvicorn.Server):
    """uvicorn without its own signal handlers: whoever runs the loop decides what Ctrl-C means."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
