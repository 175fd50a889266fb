"""The caller's end of a connection: dials a replica, keeps the connection, and dials anew when it breaks."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from typing import Any, Literal

import grpc

from chains.errors import ChainsError, ProtocolError, Unauthenticated, Unavailable
from chains.wire.carrier import Carrier
from chains.wire.frames import BULK, CONNECT, VERSION
from chains.wire.link import OPTIONS, REST, Link
from chains.wire.settings import WireSettings
from chains.wire.sharing import Memory, Sharing

log = logging.getLogger("chains")
State = Literal["connecting", "up", "down", "closed"]
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
BROKEN = 0.1
"""Seconds in which what has come already is read where one of a connection's two streams has broken."""
GREETING = 5.0
"""Seconds that a replica has for its Hello."""


class Connection:
    """All calls of this process to the replica at `address`. `told(kind, frame)` hears what it says of itself, and of
    each connection that does not stand or breaks: ("down", None).

    `state` is what holds now; `epoch` counts the connections there have been. What was under way on a connection that
    breaks is told so (`Port.on_lost`); the next `live()` is on a new one. With `memory`, large values go through shared
    memory when the replica is on this machine.
    """

    def __init__(
        self,
        address: str,
        settings: WireSettings,
        told: Callable[[str, Any], None],
        memory: Memory | None = None,
    ) -> None:
        self.address = address
        self.state: State = "connecting"
        self.epoch = 0
        self.carrier: Carrier | None = None
        self._settings = settings
        self._told = told
        self._memory = memory
        self._why: ChainsError = Unavailable(f"{address} was not reached yet")
        self._waiting: list[asyncio.Future[Carrier]] = []
        self._link: Link | None = None
        self._task = asyncio.get_running_loop().create_task(self._keep(), context=Context())

    async def live(self) -> Carrier:
        """The carrier of the connection that stands. Raises Unavailable or Unauthenticated at once when none does."""
        if self.state == "up" and self.carrier is not None:
            return self.carrier
        if self.state != "connecting":
            raise self._fault()
        future: asyncio.Future[Carrier] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return await future

    def _closed(self) -> bool:
        return self.state == "closed"

    def _fault(self) -> ChainsError:
        return type(self._why)(self._why.message, mend=self._why.mend)

    async def close(self) -> None:
        """Give the connection up; what was under way on it is lost."""
        self.state = "closed"
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._settle()

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed():
            self.epoch += 1
            try:
                await self._session()
                self._why = Unavailable(f"the replica at {self.address} ended the connection", mend="call again")
            except ChainsError as error:
                self._why = error
            except grpc.aio.AioRpcError as error:
                self._why = _ours(error, self.address)
            except asyncio.CancelledError:  # of the call, which the bulk stream's end cancels, or of this task
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                self._why = Unavailable(f"the connection to {self.address} broke", mend="call again")
            except Exception as error:
                log.error("the connection to %s ended by a fault of ours", self.address, exc_info=error)
                self._why = Unavailable(f"the connection to {self.address} broke", mend="call again")
            finally:
                stood, carrier = self.carrier is not None, self.carrier
                self.carrier = None
                self._down()
                if carrier is not None:
                    log.info(
                        "the connection to %s is over with %d calls on it: %s",
                        self.address,
                        len(carrier.calls),
                        self._why,
                    )
                    carrier.lose(self._why.message)
                self._settle()
            pause = FIRST_PAUSE if stood else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause)

    def _down(self) -> None:
        """No call is to be sent on it any more."""
        if not self._closed():
            self.state = "down"
            self._told("down", None)

    async def _session(self) -> None:
        """One connection, from the dial to its end."""
        id = secrets.token_hex(16)
        sharing = Sharing(self._memory, id) if self._memory is not None else None
        self._link = link = Link(self._settings, None, self._heard, sharing)
        metadata = (("authorization", f"Bearer {self._settings.token}"), ("chains-connection", id))
        async with self._channel() as channel:
            main = channel.stream_stream(CONNECT)(metadata=metadata)
            lanes: list[asyncio.Task[None]] = []
            try:
                async with asyncio.timeout(GREETING):
                    greeting = await main.read()
                if greeting is grpc.aio.EOF:
                    await _raise_status(main)
                self.carrier = link.carrier
                link.carrier.feed(greeting)
                if self.state != "up":
                    raise ProtocolError(
                        f"{self.address} does not greet", mend="is a chainlet's replica listening there?"
                    )
                if sharing is not None:
                    link.carrier.urge(sharing.offer())
                beside = channel.stream_stream(BULK)(metadata=metadata)
                lanes = [asyncio.ensure_future(link.run(main)), asyncio.ensure_future(link.run_bulk(beside))]
                self._settle()
                await asyncio.wait(lanes, return_when=asyncio.FIRST_COMPLETED)
                self._down()
                broke = any(task.done() and (task.cancelled() or task.exception()) for task in lanes)
                await asyncio.wait(lanes, timeout=BROKEN if broke else REST)  # one ends before the other's last words
                for task in lanes:
                    if task.done():
                        await task
                await _raise_status(main if lanes[0].done() else beside)
            except TimeoutError:
                raise Unavailable(f"{self.address} did not answer within {GREETING:g} s") from None
            finally:
                main.cancel()
                for task in lanes:
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):  # what ended first was raised above
                        await task

    def _channel(self) -> Any:
        options: list[tuple[str, Any]] = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        tls = self._settings.tls
        if tls is None:
            return grpc.aio.insecure_channel(self.address, options)
        if tls.name:
            options.append(("grpc.ssl_target_name_override", tls.name))
        credentials = grpc.ssl_channel_credentials(tls.read(tls.ca), tls.read(tls.key), tls.read(tls.cert))
        return grpc.aio.secure_channel(self.address, credentials, options)

    def _heard(self, kind: str, sent: Any) -> None:
        if kind == "hello":
            if sent.version != VERSION:
                raise ProtocolError(
                    f"{self.address} speaks version {sent.version} of the wire, this process {VERSION}",
                    mend="run the same version of chains on both sides",
                )
            self.state = "up"
        if kind == "bye" and self._link is not None:
            self._down()
            self._link.close()
        self._told(kind, sent)

    def _settle(self) -> None:
        """Tell those who wait for the connection how it went."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.done():
                continue
            if self.state == "up" and self.carrier is not None:
                future.set_result(self.carrier)
            else:
                future.set_exception(self._fault())


async def _raise_status(call: Any) -> None:
    """Raise what the server ended the stream with, if that was an error."""
    if await call.code() is not grpc.StatusCode.OK:
        raise grpc.aio.AioRpcError(await call.code(), (), (), details=await call.details())


def _ours(error: Any, address: str) -> ChainsError:
    """No error of gRPC's reaches a user."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return Unauthenticated(f"{address} refuses this process's token", mend="give both the deployment's token")
    if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE):
        return Unavailable(f"{address} ended the connection: {details}", mend="run the same version on both sides")
    return Unavailable(f"{address} is not reached ({code.name.lower().replace('_', ' ')})", mend="call again")
