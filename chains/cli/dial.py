"""`chains dial`: a caller. It speaks a recording or the microphone, and shows and records what comes back."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from chains.cli.microphone import Microphone
from chains.client import Client, ClientCall, connect
from chains.client.playback import Playback
from chains.errors import DeadlineExceeded, NotFound, SettingError
from chains.gateway import audio
from chains.messages import Audio, Control, Text

FRAME_S = audio.FRAME_MS / 1000
REPORT_S = 0.1
AUDIBLE = 33  # of 32767, -60 dB: below that a line is quiet


class Source(Protocol):
    """What the caller says: frames of audio as they are spoken, and what of it was spoken so far."""

    def frames(self) -> AsyncIterator[Audio]: ...
    @property
    def ended_at(self) -> float | None:
        """When the caller had said all (monotonic seconds); None as long as there is more."""
        ...

    @property
    def spoken(self) -> NDArray[np.int16]: ...


class Recording:
    """A file, frame by frame: in real time with silence after its end (the line stays open), or as fast as it goes."""

    def __init__(self, sound: Audio, fast: bool) -> None:
        self._sound, self._fast = sound, fast
        self.ended_at: float | None = None
        self._sent = 0

    @property
    def spoken(self) -> NDArray[np.int16]:
        return self._sound.pcm[: self._sent]

    async def frames(self) -> AsyncIterator[Audio]:
        due = time.monotonic()
        for frame in audio.frames(self._sound):
            self._sent += len(frame.pcm)
            yield frame
            due += FRAME_S
            if not self._fast:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        self.ended_at = time.monotonic()
        silence = Audio(np.zeros(int(self._sound.rate * FRAME_S), np.int16), self._sound.rate)
        if self._fast:
            for _ in range(50):  # a second, so that the end of the sentence is heard as one
                yield silence
            return
        while True:
            yield silence
            due += FRAME_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))


def dial(arguments: argparse.Namespace) -> int:
    """Call, speak, print the dialogue, hang up when the reply has gone quiet."""
    if arguments.rate not in range(4000, 192_001):
        raise SettingError(
            f"--rate is {arguments.rate}", mend="give samples per second, e.g. 16000, or 8000 for a telephone"
        )
    if arguments.out:
        audio.check_writable(arguments.out)
    playback = Playback()
    with ExitStack() as stack:
        source, speaker = _source(arguments, stack)
        client = connect(arguments.url, key=arguments.key, rate=arguments.rate, encoding=arguments.encoding)
        try:
            asyncio.run(_call(client, source, speaker, playback, arguments))
        finally:  # however it ended: what was said until then is kept
            if arguments.out and (len(source.spoken) or playback.pieces):
                _record(arguments.out, source.spoken, playback, arguments.rate)
                print(f"recorded into {arguments.out} (caller left, chain right)", flush=True)
    return 0


def _source(arguments: argparse.Namespace, stack: ExitStack) -> tuple[Source, Microphone | None]:
    if not arguments.mic:
        return Recording(audio.read(arguments.wav, arguments.rate), arguments.fast), None
    microphone: AbstractContextManager[Microphone] = Microphone(arguments.rate)
    opened = stack.enter_context(microphone)
    return opened, opened


async def _call(
    client: Client, source: Source, speaker: Microphone | None, playback: Playback, arguments: argparse.Namespace
) -> None:
    async with client:
        method, parameter = await _audio_parameter(client)
        given = {parameter: source.frames(), **_settings(arguments.set)}
        async with client.call(method, **given) as call:
            print(f"connected to {client.base} (call {call.id})", flush=True)
            playback.began = time.monotonic()

            def on_event(event: str, turn: int) -> None:
                playback.on_event(event, turn)
                if speaker is not None and event == "clear":
                    speaker.clear()

            call.watch(on_event)
            await _converse(call, source, speaker, playback, arguments)


async def _converse(
    call: ClientCall, source: Source, speaker: Microphone | None, playback: Playback, arguments: argparse.Namespace
) -> None:
    """Show what comes, report what is played, and leave when all has been said."""
    reporter = asyncio.create_task(_report(call, playback))
    last_item: float | None = None
    hung_up = _hang_up_on_interrupt()
    try:
        while not hung_up.is_set():
            left = _left(source.ended_at, last_item, arguments.quiet, arguments.patience)
            try:
                async with asyncio.timeout(min(left, 0.5)):
                    item = await anext(call, None)
            except TimeoutError:
                if left > 0.5:
                    continue
                if last_item is None:
                    raise _no_reply(arguments.patience) from None
                break
            if item is None or _hang_up(item):
                if not arguments.fast:
                    await playback.quiet()
                break
            _show(item)
            if isinstance(item, Audio):
                playback.add(item)
                if speaker is not None:
                    speaker.play(item)
            if not isinstance(item, Audio) or np.abs(item.pcm, dtype=np.int32).max(initial=0) >= AUDIBLE:
                last_item = max(time.monotonic(), playback.end)
    finally:
        reporter.cancel()
        await asyncio.gather(reporter, return_exceptions=True)
    for turn, ms in playback.played().items():
        await call.played(turn, ms)


def _hang_up_on_interrupt() -> asyncio.Event:
    """Ctrl-C and SIGTERM end the call, not the program: what was said is still recorded."""
    hung_up = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(RuntimeError, ValueError):  # only the main thread has signals
            asyncio.get_running_loop().add_signal_handler(number, hung_up.set)
    return hung_up


def _no_reply(patience: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"no reply came within {patience:g} s", mend="raise --patience, or look at /healthz of the server"
    )


def _left(ended: float | None, last_item: float | None, quiet: float, patience: float) -> float:
    """Seconds until the caller gives up: `quiet` after the last reply was heard, `patience` while none has come."""
    now = time.monotonic()
    if ended is None:
        return 60.0
    if last_item is not None and last_item > ended:
        return last_item + quiet - now
    return ended + patience - now


def _hang_up(item: Any) -> bool:
    return isinstance(item, Control) and item.kind == "hang_up"


def _show(item: Any) -> None:
    match item:
        case Text(text=text, final=True, role=role) if text.strip():
            print(
                f"{ {'user': 'caller', 'assistant': 'chain'}.get(role, role or 'text'):>8}: {text.strip()}", flush=True
            )
        case Control(kind=kind, data=data):
            print(f"{'':>8}  [{kind}{' ' + json.dumps(data, ensure_ascii=False) if data else ''}]", flush=True)
        case Audio() | Text():
            pass
        case _ if not isinstance(item, bytes | np.ndarray):
            print(f"{'':>8}  {item}", flush=True)


async def _report(call: ClientCall, playback: Playback) -> None:
    """Tell the server what has been heard, ten times a second while something is."""
    told: dict[int, float] = {}
    while True:
        await asyncio.sleep(REPORT_S)
        for turn, ms in playback.played().items():
            if ms > told.get(turn, 0.0):
                told[turn] = ms
                await call.played(turn, ms)


async def _audio_parameter(client: Client) -> tuple[str, str]:
    """The method to call and its stream of audio. Raises NotFound when it has none."""
    methods = (await client.chain())["methods"]
    method = client.method or ("run" if "run" in methods or len(methods) != 1 else next(iter(methods)))
    if method not in methods:
        raise NotFound(f"there is no method {method!r}", mend=f"put one in the URL: /v1/call/ and {', '.join(methods)}")
    for name, parameter in methods[method]["params"].items():
        if parameter["stream"] and "Audio" in json.dumps(parameter["schema"]):
            return method, name
    raise NotFound(f"{method} takes no stream of audio", mend=f"dial one that does, or call it: curl {client.base}/")


def _settings(pairs: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise SettingError(f"--set {pair} is no argument", mend="write --set name=value")
        try:
            given[name] = json.loads(value)
        except ValueError:
            given[name] = value
    return given


def _record(path: str, spoken: NDArray[np.int16], playback: Playback, rate: int) -> None:
    heard = playback.track(rate)
    both = np.zeros((max(len(spoken), len(heard)), 2), np.int16)
    both[: len(spoken), 0] = spoken
    both[: len(heard), 1] = heard
    audio.write_wav(path, both, rate)
