"""The native websocket: one call a connection, JSON control frames, binary audio and tensors.

docs/protocol.md says what may be sent when.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from chains import protocol
from chains.call import HANG_UP, Call, Turn
from chains.dsl.signature import Method
from chains.errors import Cancelled, ChainsError, DeadlineExceeded, InvalidValue, LimitExceeded, ProtocolError
from chains.gateway.audio import AtRate
from chains.gateway.session import REPLAY_HEADER, Gateway, Inbox, bind
from chains.gateway.tape import Tape
from chains.messages import Audio

log = logging.getLogger("chains.gateway")
OK = 1000


async def serve(gateway: Gateway, websocket: WebSocket) -> None:
    """Conduct the one call of this connection, from its open frame to its terminal frame."""
    headers = websocket.headers
    if not gateway.origin_allowed(headers.get("origin", ""), headers.get("host", "")):
        log.warning("refused the websocket of another site's page; GatewaySettings.origins allows it")
        await websocket.close()  # before the accept this is an HTTP 403
        return
    await websocket.accept()
    connection = Connection(gateway, websocket)
    try:
        with gateway.admit():
            await connection.conduct()
    except WebSocketDisconnect:
        pass
    except Exception as error:
        await connection.fail(error)


class Connection:
    """One websocket and its one call."""

    def __init__(self, gateway: Gateway, websocket: WebSocket) -> None:
        self.gateway = gateway
        self.settings = gateway.settings
        self.websocket = websocket
        self.inboxes: list[Inbox] = []
        self._audio = protocol.AudioFormat()
        self._out = AtRate(lambda rate: self._audio.rate or rate)
        self._call: Call | None = None
        self._credit: int | None = None  # bytes of items that the client still takes; None: no limit
        self._more_credit = asyncio.Event()
        self._controls: deque[str] = deque()
        self._controls_ready = asyncio.Event()
        self._to_return: dict[int, int] = {}
        self._cleared: set[int] = set()
        self._failure: Exception | None = None
        self._active = 0.0
        self._idle_timer: asyncio.TimerHandle
        self._ended = False
        self._tape: Tape | None = None

    # the call's life

    async def conduct(self) -> None:
        opening = await self._opening()
        self.gateway.authorise(self.websocket.headers.get("authorization", ""), opening.key)
        method = self.gateway.method(self._method_name(opening))
        streams = [param for param in method.params if param.stream]
        self.inboxes = [Inbox(param, self.settings, partial(self._taken, index)) for index, param in enumerate(streams)]
        arguments = bind(method, opening.arguments, {inbox.param.name: inbox for inbox in self.inboxes})
        self._audio, self._credit = opening.audio, opening.window
        replay_of = self.websocket.headers.get(REPLAY_HEADER, "")
        async with self.gateway.open_call(
            method,
            deadline_s=opening.deadline_s,
            priority=opening.priority,
            traceparent=self.websocket.headers.get("traceparent"),
            replay_of=replay_of,
            tracestate=self.websocket.headers.get("tracestate"),
        ) as call:
            self._call = call
            sound = {"rate": opening.audio.rate, "encoding": opening.audio.encoding}
            self._tape = self.gateway.tape(call, method, opening.arguments, audio=sound, replay_of=replay_of)
            undo = call.watch(self._on_turn)
            call.on_cancel(self._on_cancel)
            try:
                await self._send(self._opened(call, method))
                await self._converse(method, arguments)
            finally:
                undo()
                if self._tape is not None:
                    self._tape.close()

    async def _opening(self) -> protocol.Open:
        seconds = self.settings.open_seconds
        try:
            async with asyncio.timeout(seconds):
                message = await self.websocket.receive()
        except TimeoutError:
            raise DeadlineExceeded(
                f"no open frame came within {seconds:g} s", mend='send {"type":"open"} first'
            ) from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text")
        if text is None:
            raise ProtocolError("a binary frame came before the open frame", mend='send {"type":"open"} first')
        frame = self._decoded(text)
        if not isinstance(frame, protocol.Open):
            raise ProtocolError("the first frame is not an open frame", mend='send {"type":"open"} first')
        return frame

    def _method_name(self, opening: protocol.Open) -> str:
        in_path: str = self.websocket.path_params.get("method", "")
        if in_path and opening.method and in_path != opening.method:
            raise ProtocolError(
                f"the path names {in_path!r}, the open frame {opening.method!r}", mend="name the method once"
            )
        return in_path or opening.method

    def _opened(self, call: Call, method: Method) -> str:
        streams = [
            {"name": inbox.param.name, "index": index, "window": inbox.window}
            for index, inbox in enumerate(self.inboxes)
        ]
        return protocol.encode_server(
            "opened",
            protocol=protocol.VERSION,
            call=call.id,
            method=method.name,
            streams=streams,
            streams_out=method.streams_out,
            max_frame=self.settings.max_frame,
            idle_seconds=self.settings.idle_seconds,
        )

    async def _converse(self, method: Method, arguments: dict[str, Any]) -> None:
        """Read and write side by side until the method has ended, the client has left, or one failed."""
        loop = asyncio.get_running_loop()
        self._active = loop.time()
        self._idle_timer = loop.call_later(self.settings.idle_seconds, self._check_idle)
        reader = asyncio.create_task(self._read())
        controls = asyncio.create_task(self._send_controls())
        try:
            await self._write(method, arguments)
            if self._failure is not None:
                raise self._failure
            await self._finish("done", OK)
        except WebSocketDisconnect:
            self._hang_up()
        except Exception as error:
            await self.fail(self._failure or error)
        finally:
            self._idle_timer.cancel()
            for inbox in self.inboxes:
                inbox.cancel("the call has ended")
            for task in (reader, controls):
                task.cancel()
            await asyncio.gather(reader, controls, return_exceptions=True)

    def _check_idle(self) -> None:
        loop = asyncio.get_running_loop()
        limit = self.settings.idle_seconds
        left = self._active + limit - loop.time()
        if left > 0:
            self._idle_timer = loop.call_later(left, self._check_idle)
            return
        self._abort(
            DeadlineExceeded(
                f"no frame came or went for {limit:g} s",
                mend='send {"type":"ping"} now and then, or raise GatewaySettings.idle_seconds',
            )
        )

    def _abort(self, failure: Exception) -> None:
        """End the call with this error, whatever the method makes of its cancel."""
        self._failure = self._failure or failure
        if self._call is not None:
            self._call.cancel(str(getattr(failure, "message", failure)))

    def _hang_up(self) -> None:
        if self._ended:
            return  # it was told how the call ended: who leaves then hangs up on nothing
        self._ended = True
        if self._tape is not None:
            self._tape.hung_up()
        if self._call is not None:
            self._call.cancel(HANG_UP)

    def _on_cancel(self, reason: str) -> None:
        for inbox in self.inboxes:
            inbox.cancel(reason)
        self._more_credit.set()

    # from the client

    async def _read(self) -> None:
        try:
            while True:
                message = await self.websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return self._hang_up()
                self._active = asyncio.get_running_loop().time()
                data = message.get("bytes")
                if data is not None:
                    await self._on_binary(data)
                else:
                    text = message["text"]
                    await self._on_frame(self._decoded(text), text)
        except Exception as error:
            self._abort(error)

    def _decoded(self, text: str) -> protocol.ClientFrame:
        self._refuse_large(protocol.size(text))
        return protocol.decode_client(text)

    def _refuse_large(self, size: int) -> None:
        limit = self.settings.max_frame
        if size > limit:
            raise LimitExceeded(
                f"a frame of {size} bytes is over the limit of {limit}",
                mend="send it in smaller frames, or raise GatewaySettings.max_frame",
            )

    async def _on_binary(self, data: bytes) -> None:
        self._refuse_large(len(data))
        index, value = protocol.decode_binary(data)
        inbox = self.inboxes[self._index(index)]
        inbox.put(value, len(data))
        if self._tape is not None:
            self._tape.received(data, index)
        await self._until_room(inbox)

    async def _on_frame(self, frame: protocol.ClientFrame, text: str) -> None:
        """Do what it says, then record it: what makes no sense is an error before it comes to the tape."""
        call = self._call
        assert call is not None, "frames are read within the call"
        index = self._index(frame.stream) if isinstance(frame, protocol.Item | protocol.End) else 0
        match frame:
            case protocol.Item():
                self._put_plain(self.inboxes[index], frame, protocol.size(text))
            case protocol.End():
                self.inboxes[index].end()
            case protocol.Credit():
                if self._credit is not None:
                    self._credit += frame.bytes
                    self._more_credit.set()
            case protocol.Played():
                call.played.report(frame.turn, frame.ms)
            case protocol.Hold():
                call.hold()
            case protocol.Resume():
                call.resume()
            case protocol.Cancel():
                call.cancel(frame.reason[:160])
            case protocol.Ping():
                self._control("pong", id=frame.id)
            case _:
                raise ProtocolError("a second open frame came", mend="open another connection for another call")
        if self._tape is not None:
            self._tape.received(text, index)
        if isinstance(frame, protocol.Item):
            await self._until_room(self.inboxes[index])

    def _put_plain(self, inbox: Inbox, frame: protocol.Item, size: int) -> None:
        try:
            inbox.put_plain(frame.value, frame.kind, size)
        except InvalidValue as error:
            name = inbox.param.checker.name
            mend = error.mend or f"send items of {name}; audio and tensors go in binary frames (docs/protocol.md)"
            raise InvalidValue(error.message, mend=mend) from None

    def _index(self, stream: str | int) -> int:
        for index, inbox in enumerate(self.inboxes):
            if stream in (index, inbox.param.name):
                return index
        known = ", ".join(f"{index} {inbox.param.name}" for index, inbox in enumerate(self.inboxes))
        raise ProtocolError(
            f"there is no stream {stream!r}",
            mend=f"the streams are {known}" if known else "this method takes none",
        )

    async def _until_room(self, inbox: Inbox) -> None:
        """Stop reading while a client that does not heed its credit is more than a frame past the window."""
        if inbox.waiting > inbox.window + self.settings.max_frame:
            await inbox.room()

    def _taken(self, index: int, size: int) -> None:
        """The chain took `size` bytes of a stream: give credit back, a quarter of the window at a time."""
        due = self._to_return.get(index, 0) + size
        if due >= self.settings.window // 4:
            self._control("credit", stream=index, bytes=due)
            due = 0
        self._to_return[index] = due

    # to the client

    async def _write(self, method: Method, arguments: dict[str, Any]) -> None:
        async for value in self.gateway.items(method, arguments):
            turn = getattr(value, "turn", 0)
            if turn not in self._cleared:
                for frame in self._frames(method, value, turn):
                    await self._send_item(frame, turn)
                if turn and isinstance(value, Audio):
                    self._mark_audio(turn)
        for frame in self._tail():
            await self._send_item(frame, self._out.turn)

    def _mark_audio(self, turn: int) -> None:
        """The turn's reply has begun to go out: where its latency ends."""
        turns = self._call.turns if self._call is not None else []
        if turn <= len(turns) and "first_audio" not in turns[turn - 1].marks:
            turns[turn - 1].mark("first_audio")

    def _frames(self, method: Method, value: Any, turn: int) -> Iterator[str | bytes]:
        if turn != self._out.turn:
            yield from self._tail()
        if isinstance(value, Audio):
            value = self._out.push(value)
            if not len(value.pcm) and not value.text:
                return
        if protocol.is_binary(value):
            yield protocol.encode_binary(value, 0, self._audio.encoding)
            return
        kind = protocol.kind_of(value)
        plain = method.result.dump(value) if kind == "value" else value
        yield protocol.encode_server("item", kind=kind, turn=turn, value=plain)

    def _tail(self) -> Iterator[bytes]:
        """What the conversion of a turn's audio still holds back at its end."""
        rest = self._out.flush()
        if rest is not None and rest.turn not in self._cleared:
            yield protocol.encode_binary(rest, 0, self._audio.encoding)

    async def _send_item(self, frame: str | bytes, turn: int) -> None:
        """Send when the client gave credit; drop it when its turn has been cancelled meanwhile."""
        if self._credit is not None:
            while self._credit <= 0 and turn not in self._cleared:
                self._check_cancelled()
                self._more_credit.clear()
                await self._more_credit.wait()
        if self._controls:
            await self._flush_controls()
        self._check_cancelled()
        if turn in self._cleared:
            return
        if self._credit is not None:
            self._credit -= protocol.size(frame)
        self._active = asyncio.get_running_loop().time()
        await self._send(frame)

    def _check_cancelled(self) -> None:
        if self._call is not None and self._call.cancelled:
            raise self._call.error()

    def _on_turn(self, event: str, turn: Turn) -> None:
        if event == "turn_cancelled":
            self._cleared.add(turn.number)
            self._control("clear", turn=turn.number)
            self._more_credit.set()
        else:
            self._control("turn", turn=turn.number, state=event.removeprefix("turn_"))

    def _control(self, kind: str, **fields: Any) -> None:
        self._controls.append(protocol.encode_server(kind, **fields))
        self._controls_ready.set()

    async def _send_controls(self) -> None:
        try:
            while True:
                await self._controls_ready.wait()
                self._controls_ready.clear()
                await self._flush_controls()
        except WebSocketDisconnect:
            self._hang_up()

    async def _flush_controls(self) -> None:
        while self._controls:
            await self._send(self._controls.popleft())

    async def _send(self, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            await self.websocket.send({"type": "websocket.send", "bytes": frame})
        else:
            await self.websocket.send({"type": "websocket.send", "text": frame})
        if self._tape is not None:
            self._tape.sent(frame)

    async def fail(self, error: Exception) -> None:
        """The terminal frame for an error: `cancelled` when that is what it is, else `error`."""
        if isinstance(error, Cancelled):
            await self._finish("cancelled", error.ws, reason=error.reason)
            return
        code = error.ws if isinstance(error, ChainsError) else 1011
        fields = protocol.error_fields(error, debug=self.settings.debug)
        await self._finish("error", code, error=fields)

    async def _finish(self, kind: str, code: int, **fields: Any) -> None:
        """The one terminal frame, then the close."""
        if self._ended:
            return
        self._ended = True
        reason = str(fields.get("error", {}).get("message", "")) or fields.get("reason", "")
        try:
            await self._flush_controls()
            await self._send(protocol.encode_server(kind, **fields))
            await self.websocket.close(code, reason.encode()[:120].decode(errors="ignore"))
        except (WebSocketDisconnect, RuntimeError):
            pass  # it left before it could be told
