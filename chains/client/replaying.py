"""A recorded caller, who calls again: the same words at the same moments, or after the replies that they answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chains.client.aio import Client, ClientCall
from chains.client.playback import Playback
from chains.errors import Cancelled, ChainsError
from chains.messages import Audio
from chains.records.replayable import PAUSE_MS, Input, Recording

Pace = Literal["aligned", "as-recorded"]
_FRAME_MS = 20.0
_REPORT_S = 0.1
_BREATH_MS = 200.0
"""So long the caller was quiet before a place where words may wait: never within one."""
_AHEAD_MS = 40.0


@dataclass
class Replayed:
    """What came of a replay: its call's id, what was said and heard, notes for people, and the error that ended it."""

    call: str = ""
    began: float = 0.0
    said: list[tuple[float, Audio]] = field(default_factory=list)
    playback: Playback = field(default_factory=Playback)
    notes: list[str] = field(default_factory=list)
    error: ChainsError | None = None

    def track(self, rate: int) -> NDArray[np.int16]:
        """int16 of shape (samples, 2) at `rate`: the caller left, the chain right."""
        spoken = Playback(began=self.began, pieces=self.said)
        sides = [one.track(rate) for one in (spoken, self.playback)]
        both = np.zeros((max(map(len, sides)), 2), np.int16)
        for number, side in enumerate(sides):
            both[: len(side), number] = side
        return both


class Heard:
    """The replies of the call that runs, in the order in which they began, as the recorded ones are counted."""

    def __init__(self, playback: Playback, fast: bool) -> None:
        self.playback, self._fast = playback, fast
        self._turns: list[int] = []
        self._received: list[float] = []
        self._last: list[float] = []
        self._over: set[int] = set()

    def item(self, item: Any) -> None:
        now, turn = time.monotonic(), int(getattr(item, "turn", 0))
        if not isinstance(item, Audio) and not turn:
            return
        if not self._turns or self._another(turn, now):
            if turn and turn in self._turns:
                return  # the rest of one that another has followed
            self._turns.append(turn)
            self._received.append(0.0)
            self._last.append(now)
        self._last[-1] = now
        if isinstance(item, Audio):
            self._received[-1] += item.seconds * 1e3
            self.playback.add(item)

    def _another(self, turn: int, now: float) -> bool:
        last = self._turns[-1]
        if turn or last:
            return turn != last
        return now - (self._last[-1] if self._fast else max(self._last[-1], self.playback.end)) > PAUSE_MS / 1e3

    def event(self, event: str, turn: int) -> None:
        if not self._fast or event == "clear":
            self.playback.on_event(event, turn)
        if event in ("ended", "clear"):
            self._over.add(turn)

    @property
    def count(self) -> int:
        return len(self._turns)

    def ms(self, number: int) -> float:
        """How much of a reply has been heard (when nothing is played in real time: has come)."""
        if self._fast:
            return self._received[number]
        turn = self._turns[number]
        return self.playback.played().get(turn, 0.0) if turn else self._received[number]

    def played(self) -> dict[int, float]:
        """Milliseconds heard of each turn."""
        if not self._fast:
            return self.playback.played()
        return dict(zip(self._turns, self._received, strict=True))

    def over(self, number: int) -> bool:
        """Whether a reply has been said to its end, or was cut off."""
        if number + 1 < len(self._turns):
            return True
        now, turn = time.monotonic(), self._turns[number]
        end = self._last[number] if self._fast else max(self._last[number], self.playback.end)
        return turn in self._over and now >= end if turn else now - end > PAUSE_MS / 1e3


class Replayer:
    """Plays a recording to the chain behind `client`: `await Replayer(client, recording).run()`.

    `aligned`: words wait, with silence on the line, until the reply that they came after has been said here too (at
    most `patience` seconds each); else the recorded clock holds. `fast` does not wait for time to pass.
    """

    def __init__(
        self,
        client: Client,
        recording: Recording,
        *,
        pace: Pace = "aligned",
        fast: bool = False,
        patience: float = 20.0,
    ) -> None:
        self._client, self._recording = client, recording
        self._aligned, self._fast, self._patience = pace == "aligned", fast, patience
        self.result = Replayed()
        self._heard = Heard(self.result.playback, fast)
        self._queues: dict[int, asyncio.Queue[Any]] = {}
        self._open: set[int] = set()
        self._rates: dict[int, int] = {}
        self._quiet = _quiet_level(recording.inputs)
        self._quiet_ms = _BREATH_MS
        self._shift = 0.0
        self._ended = asyncio.Event()

    async def run(self) -> Replayed:
        """Raises ChainsError when the call cannot be opened; what ends it later is in the result."""
        recording = self._recording
        given = {name for name in recording.arguments if name in recording.streams}
        self._queues = {n: asyncio.Queue() for n, name in enumerate(recording.streams) if name not in given}
        self._open = set(self._queues)
        streams = {recording.streams[number]: self._fed(queue) for number, queue in self._queues.items()}
        arguments = {**recording.arguments, **streams}
        async with self._client.call(recording.method, **arguments) as call:
            self.result.call = call.id
            self.result.began = self.result.playback.began = time.monotonic()
            call.watch(self._heard.event)
            reader = asyncio.create_task(self._read(call))
            reporter = asyncio.create_task(self._report(call))
            try:
                await self._play(call)
                await self._last_reply(reader)
            finally:
                for task in (reporter, reader):
                    task.cancel()
                await asyncio.gather(reporter, reader, return_exceptions=True)
        return self.result

    async def _fed(self, queue: asyncio.Queue[Any]) -> AsyncIterator[Any]:
        while (item := await queue.get()) is not None:
            yield item

    async def _read(self, call: ClientCall) -> None:
        try:
            async for item in call:
                self._heard.item(item)
        except ChainsError as error:
            if not isinstance(error, Cancelled):
                self.result.error = error
        finally:
            self._ended.set()

    async def _report(self, call: ClientCall) -> None:
        told: dict[int, float] = {}
        while self._recording.reported:
            await asyncio.sleep(_REPORT_S / (10 if self._fast else 1))
            for turn, ms in self._heard.played().items():
                if ms > told.get(turn, 0.0):
                    told[turn] = ms
                    with suppress(ChainsError):  # the reader says how it ended
                        await call.played(turn, ms)

    # what the caller does

    async def _play(self, call: ClientCall) -> None:
        for one in self._recording.inputs:
            if self._ended.is_set():
                return
            await self._until(one.at)
            if self._aligned and self._may_wait(one):
                if self._skippable(one):
                    self._shift -= one.ms
                    continue
                await self._wait_for_reply(one.at)
            await self._send(call, one)

    async def _until(self, at: float) -> None:
        """Return when it is time for what was recorded at `at` ms, or the call has ended."""
        left = self.result.began + (at + self._shift) / 1e3 - time.monotonic()
        if self._fast or left <= 0:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._ended.wait()

    def _may_wait(self, one: Input) -> bool:
        return one.kind != "audio" or self._quiet_ms >= _BREATH_MS

    def _skippable(self, one: Input) -> bool:
        """Silence in which the caller listened to what has been said here already."""
        anchor = self._recording.answered(one.at)
        if anchor is None or one.kind != "audio" or not self._is_quiet(one.value) or anchor[0] >= self._heard.count:
            return False
        number, ms = anchor
        if ms == float("inf") or self._recording.replies[number].end <= one.at:
            return False
        return self._heard.over(number) or self._heard.ms(number) > ms + _AHEAD_MS

    async def _wait_for_reply(self, at: float) -> None:
        anchor = self._recording.answered(at)
        if anchor is None:
            return
        began = time.monotonic()
        while not self._said(*anchor) and not self._ended.is_set():
            if time.monotonic() - began > self._patience:
                turn = self._recording.replies[anchor[0]].turn or anchor[0] + 1
                self.result.notes.append(f"the reply of turn {turn} was waited for {self._patience:g} s in vain")
                self._patience = min(self._patience, 2.0)
                break
            await self._silence()
        if not self._fast:
            self._shift += (time.monotonic() - began) * 1e3

    def _said(self, number: int, ms: float) -> bool:
        heard = self._heard
        if number >= heard.count:
            return False
        return heard.over(number) or (ms != float("inf") and heard.ms(number) >= ms)

    async def _silence(self) -> None:
        """20 ms of nothing on each line that carries sound; four times as fast when time does not count."""
        for stream, rate in self._rates.items():
            if stream in self._open:
                quiet = Audio(np.zeros(int(rate * _FRAME_MS / 1e3), np.int16), rate)
                self._queues[stream].put_nowait(quiet)
        with suppress(TimeoutError):
            async with asyncio.timeout(_FRAME_MS / 1e3 / (4 if self._fast else 1)):
                await self._ended.wait()

    async def _send(self, call: ClientCall, one: Input) -> None:
        value = one.value
        if one.kind == "event":
            await self._control(call, value)
        elif one.stream not in self._open:
            return
        elif one.kind == "end":
            self._open.discard(one.stream)
            self._queues[one.stream].put_nowait(None)
        else:
            if isinstance(value, Audio):
                self._rates[one.stream] = value.rate
                self._quiet_ms = self._quiet_ms + one.ms if self._is_quiet(value) else 0.0
                self.result.said.append((time.monotonic(), value))
            self._queues[one.stream].put_nowait(value)

    async def _control(self, call: ClientCall, event: dict[str, Any]) -> None:
        with suppress(ChainsError):  # the reader says how it ended
            if event["event"] == "hold":
                await call.hold()
            elif event["event"] == "resume":
                await call.resume()
            else:
                await call.cancel(str(event.get("reason", "")) or "cancelled by the client")

    def _is_quiet(self, audio: Audio) -> bool:
        return bool(np.abs(audio.pcm, dtype=np.int32).max(initial=0) <= self._quiet)

    async def _last_reply(self, reader: asyncio.Task[None]) -> None:
        """Stay on the line for as long as the recorded caller did: to the call's end, or to what they heard last."""
        recording = self._recording
        if not recording.left:
            for number in self._open:
                self._queues[number].put_nowait(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._patience, (recording.ended - self._now()) / 1e3 + self._patience)):
                    await asyncio.shield(reader)
                    return
            self.result.notes.append("the call did not end by itself, as it did when it was recorded")
        elif self._aligned:
            await self._wait_for_reply(recording.ended)
        else:
            await self._until(recording.ended)

    def _now(self) -> float:
        return (time.monotonic() - self.result.began) * 1e3


def _quiet_level(inputs: list[Input]) -> float:
    """What counts as silence of this caller: a tenth of their loud moments."""
    peaks = [int(np.abs(one.value.pcm, dtype=np.int32).max(initial=0)) for one in inputs if one.kind == "audio"]
    return max(200.0, 0.1 * float(np.percentile(peaks, 95))) if peaks else 200.0
