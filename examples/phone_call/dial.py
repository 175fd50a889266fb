"""The scripted caller: starts the clinic (or dials one that runs), speaks recorded lines in real time, shows the call.

    python -m examples.phone_call.dial [--url URL] [--lines FILE] [--out FOLDER]

Leaves call.wav (caller left, clinic right) and call.json (the transcript, each turn's latency, every hop) in FOLDER.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from chains.client import ClientCall, connect
from chains.client.playback import Playback
from chains.dsl.graph import Graph, load
from chains.dsl.version import version_of
from chains.errors import ChainsError, SettingError
from chains.gateway.audio import check_writable, read, write_wav
from chains.messages import Audio, Control, Text
from chains.records.lookup import find
from chains.records.store import Store
from chains.runtime.deployment import Progress, ProgressFn, Runtime
from chains.runtime.inprocess import InProcess
from chains.serve import Interrupts, Server, recorder
from chains.spans import Recorder, table, to_json
from chains.viewer.process import ViewerProcess
from chains.viewer.settings import ViewerSettings
from examples.phone_call.records import summary_of

HERE = Path(__file__).parent
RATE = 16_000
FRAME = RATE // 50
AUDIBLE = 10 ** (-45 / 20) * 32768
PAUSE_S = 0.25
LEGEND = """
The figure beside a line above is the caller's: from the last sound of what was said to the first sound of the reply.
A turn of the table counts from where the voice detector heard that end. A cancelled turn was begun on a guess that
the caller had finished, and withdrawn unheard."""
PATIENCE_S = 15.0


@dataclass(frozen=True)
class Line:
    """Something the caller says: int16 samples at 16 kHz, and where in them the speech ends."""

    text: str
    pcm: NDArray[np.int16]
    speech_ends: float


@dataclass
class Exchange:
    """One line and what came of it. `v2v` is from the last speech frame's sending to the first audible sample."""

    said: str
    spoken_at: float = 0.0
    speech_end: float = 0.0
    heard_as: str = ""
    reply: str = ""
    turn: int = 0
    v2v: float | None = None


@dataclass
class Caller:
    """The caller's side of the line: a stream of 20 ms frames in real time, silence between the lines."""

    began: float = 0.0
    sent: list[NDArray[np.int16]] = field(default_factory=list)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    _queue: list[NDArray[np.int16]] = field(default_factory=list)
    _line: tuple[Exchange, Line] | None = None

    def say(self, line: Line, exchange: Exchange) -> None:
        padded = np.zeros(-(-len(line.pcm) // FRAME) * FRAME, np.int16)
        padded[: len(line.pcm)] = line.pcm
        self._queue = list(padded.reshape(-1, FRAME))
        self._line = (exchange, line)
        self.finished.clear()

    async def frames(self) -> AsyncIterator[Audio]:
        self.began = due = time.monotonic()
        position = 0
        while True:
            pcm = self._queue.pop(0) if self._queue else np.zeros(FRAME, np.int16)
            if self._line is not None:
                self._clock(position)
                position = position + 1 if self._queue else 0
            self.sent.append(pcm)
            yield Audio(pcm, RATE)
            due += FRAME / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _clock(self, position: int) -> None:
        """Note when the line begins, and when the frame with its last speech goes out."""
        assert self._line is not None
        exchange, line = self._line
        if position == 0:
            exchange.spoken_at = time.monotonic()
        if position == min(int(line.speech_ends * RATE) // FRAME, -(-len(line.pcm) // FRAME) - 1):
            exchange.speech_end = time.monotonic()
        if not self._queue:
            self._line = None
            self.finished.set()


class Conversation:
    """What comes back: played on the caller's clock, reported to the clinic, printed as it is said."""

    def __init__(self, call: ClientCall, playback: Playback, exchanges: list[Exchange], quiet: bool) -> None:
        self.call = call
        self.playback = playback
        self.exchanges = exchanges
        self.transcript: list[dict[str, Any]] = []
        self.controls: list[Control] = []
        self.hung_up = asyncio.Event()
        self.replied = asyncio.Event()
        self.greeted = False
        self._quiet = quiet

    async def listen(self) -> None:
        async for item in self.call:
            if isinstance(item, Audio):
                self._on_audio(item)
            elif isinstance(item, Text) and item.final and item.text:
                self._on_text(item)
            elif isinstance(item, Control):
                self.controls.append(item)
                if item.kind == "hang_up":
                    break
                self.show("", f"[{item.kind}] {json.dumps(item.data, ensure_ascii=False)}")
        self.hung_up.set()
        self.replied.set()

    def _on_audio(self, piece: Audio) -> None:
        now = time.monotonic()
        self.playback.add(piece)
        exchange = self.exchanges[-1] if self.exchanges else None
        loud = bool(np.any(np.abs(piece.pcm.astype(np.int32)) > AUDIBLE))
        if exchange is not None and exchange.v2v is None and exchange.speech_end and loud:
            exchange.v2v, exchange.turn = now - exchange.speech_end, piece.turn

    def _on_text(self, text: Text) -> None:
        at = round(time.monotonic() - self.playback.began, 3)
        exchange = self.exchanges[-1] if self.exchanges else None
        self.transcript.append({"at": at, "role": text.role, "text": text.text, "turn": text.turn})
        if text.role == "user":
            if exchange is not None:
                exchange.heard_as = f"{exchange.heard_as} {text.text}".strip()
            self.show("caller", text.text)
            return
        note = ""
        if exchange is not None:
            exchange.reply = f"{exchange.reply} {text.text}".strip()
            note = f"   ({exchange.v2v * 1e3:.0f} ms)" if exchange.v2v is not None else ""
        self.show("clinic", text.text + note)
        self.greeted = True
        self.replied.set()

    def show(self, who: str, text: str) -> None:
        if not self._quiet:
            shown = "".join(c if c.isprintable() else "?" for c in text)  # a model may write anything
            print(f"{who:>8}: {shown}" if who else f"{'':>8}  {shown}", flush=True)

    async def reply_is_over(self) -> bool:
        """Wait until a reply has come and been played; False when none came."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.replied.wait()
                await self.playback.quiet()
        except TimeoutError:
            return False
        await asyncio.sleep(PAUSE_S)
        return True

    async def report(self) -> None:
        """Tell the clinic what has been heard, ten times a second."""
        told: dict[int, float] = {}
        while True:
            await asyncio.sleep(0.1)
            for turn, ms in self.playback.played().items():
                if ms > told.get(turn, 0.0):
                    told[turn] = ms
                    await self.call.played(turn, ms)


def read_lines(path: Path) -> list[Line]:
    """The caller's lines from a YAML file that lists them. SettingError for one that is no such file."""
    try:
        entries = yaml.safe_load(path.read_text())["lines"]
        return [Line(e["text"], read(path.parent / e["file"], RATE).pcm, e["speech_ends_ms"] / 1e3) for e in entries]
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise SettingError(
            f"{path} is no list of lines: {error}", mend="see examples/phone_call/lines/lines.yaml for its form"
        ) from None


@dataclass
class Finished:
    """A call that is over."""

    id: str
    exchanges: list[Exchange]
    transcript: list[dict[str, Any]]
    controls: list[Control]
    unanswered: int
    caller: Caller
    playback: Playback


async def converse(url: str, lines: Sequence[Line], *, key: str = "", quiet: bool = False) -> Finished:
    """Dial `url`, wait for the greeting, say the lines one by one as replies end, stay until the clinic hangs up."""
    caller, playback, exchanges = Caller(), Playback(), list[Exchange]()
    unanswered = 0
    async with connect(url, key=key) as client, client.call("run", audio=caller.frames()) as call:
        playback.began = time.monotonic()
        conversation = Conversation(call, playback, exchanges, quiet)
        call.watch(playback.on_event)
        tasks = [asyncio.ensure_future(conversation.listen()), asyncio.ensure_future(conversation.report())]
        try:
            await conversation.reply_is_over()
            for line in lines:
                if conversation.hung_up.is_set():
                    break
                exchange = Exchange(line.text)
                exchanges.append(exchange)
                conversation.replied.clear()
                caller.say(line, exchange)
                await caller.finished.wait()
                unanswered += not await conversation.reply_is_over()
            try:
                async with asyncio.timeout(2.0 if exchanges else 40.0):
                    await conversation.hung_up.wait()
            except TimeoutError:
                pass
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return Finished(
            call.id, exchanges, conversation.transcript, conversation.controls, unanswered, caller, playback
        )


def record(finished: Finished, folder: Path, spans: dict[str, Any] | None, summary: str) -> None:
    """Write call.wav and call.json."""
    left = np.concatenate(finished.caller.sent) if finished.caller.sent else np.zeros(1, np.int16)
    right = finished.playback.track(RATE)
    offset = int((finished.caller.began - finished.playback.began) * RATE)
    left = np.concatenate([np.zeros(max(0, offset), np.int16), left])
    both = np.zeros((max(len(left), len(right)), 2), np.int16)
    both[: len(left), 0] = left
    both[: len(right), 1] = right
    write_wav(folder / "call.wav", both, RATE)
    turns = [
        {
            "said": e.said,
            "heard_as": e.heard_as,
            "reply": e.reply,
            "turn": e.turn,
            "voice_to_voice_ms": None if e.v2v is None else round(e.v2v * 1e3, 1),
        }
        for e in finished.exchanges
    ]
    content = {
        "call": finished.id,
        "transcript": finished.transcript,
        "exchanges": turns,
        "controls": [{"kind": c.kind, "data": c.data} for c in finished.controls],
        "summary": summary,
        "spans": spans,
    }
    (folder / "call.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def progress_line() -> Any:
    """One line on the terminal that says which replicas are ready and which still load."""
    state: dict[str, str] = {}

    def show(progress: Progress) -> None:
        state[progress.replica] = progress.stage
        ready = sum(stage == "ready" for stage in state.values())
        waiting = ", ".join(f"{name.partition('#')[0]} {s}" for name, s in state.items() if s != "ready")
        text = f"starting the clinic: {ready}/{len(state)} ready, {progress.seconds:.1f} s  {waiting}"
        if sys.stdout.isatty():
            print(f"\r\x1b[2K{text}", end="" if waiting else "\n", flush=True)
        elif not waiting:
            print(text, flush=True)

    return show


@contextmanager
def interruptible(server: Server) -> Iterator[None]:
    """Ctrl-C or SIGTERM ends the task, and the program with 130 or 143; a second one at once, whatever still loads."""
    task = asyncio.current_task()
    assert task is not None, "only a task can be cancelled"
    with Interrupts(server.runtime, lambda _: task.cancel()) as interrupts:
        try:
            yield
        except asyncio.CancelledError:
            raise SystemExit(interrupts.exit_code) from None


@contextmanager
def in_process(graph: Graph, progress: ProgressFn, kept: Recorder) -> Iterator[Runtime]:
    """All chainlets in this process."""
    yield InProcess(graph, progress=progress, recorder=kept)


@contextmanager
def in_processes(graph: Graph, progress: ProgressFn, kept: Recorder) -> Iterator[Runtime]:
    """Each in a process of its own."""
    from chains.runtime.processes import Processes

    yield Processes(graph, progress=progress, recorder=kept)


@contextmanager
def on_ray(graph: Graph, progress: ProgressFn, kept: Recorder) -> Iterator[Runtime]:
    """On a Ray cluster of this machine, which lives as long as the call."""
    from chains.policy.profiles import mapped
    from chains.runtime.ray_serve import RayServe, RaySettings
    from chains.runtime.ray_serve.connection import private

    with private() as cluster:
        graph, _ = mapped(graph, cluster, "laptop")
        yield RayServe(graph, progress=progress, recorder=kept, settings=RaySettings(bind="127.0.0.1", grace=5.0))


RUNTIMES = {"inprocess": in_process, "processes": in_processes, "ray": on_ray}


@asynccontextmanager
async def clinic(arguments: argparse.Namespace, viewer: ViewerProcess | None) -> AsyncIterator[Server]:
    """The clinic on a free port; what its calls did goes to the viewer."""
    graph, endpoint = load(str(HERE / "call.py")), viewer.endpoint if viewer is not None else ""
    kept = recorder(chain=graph.entry, version=version_of(graph), viewer=endpoint)
    with RUNTIMES[arguments.runtime](graph, progress_line(), kept) as runtime:
        server = Server(graph, port=0, runtime=runtime, record=arguments.record, viewer=endpoint)
        with interruptible(server):
            async with server:
                yield server


async def run(arguments: argparse.Namespace) -> int:
    lines = read_lines(arguments.lines)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in ("call.wav", "call.json"):
        check_writable(arguments.out / name)
    if arguments.url:
        return tell(arguments, await converse(arguments.url, lines, key=arguments.key), None, "")
    if arguments.view is False:
        if arguments.record:
            raise SettingError("--record needs the store that --no-view leaves out", mend="leave one of them out")
        async with clinic(arguments, None) as server:
            finished = await converse(server.url, lines, key=arguments.key)
        return tell(arguments, finished, server, await summary_of(finished.id))
    async with ViewerProcess(ViewerSettings()) as viewer:
        async with clinic(arguments, viewer) as server:
            if not viewer.failed:
                print(f"where the call's time goes, while it goes on: {viewer.url}", flush=True)
            finished = await converse(server.url, lines, key=arguments.key)
        code = tell(arguments, finished, server, await summary_of(finished.id))
        page = f"{viewer.url}calls/{finished.id}"
        if arguments.view and not viewer.failed:
            print(f"\nwhere its time went: {page} (Ctrl-C ends it)", flush=True)
            await asyncio.Event().wait()
    if kept(finished.id, viewer.settings):
        print(f"\nwhere its time went: chains trace {finished.id}, or on a page: chains view, then {page}")
    return code


def kept(call: str, settings: ViewerSettings) -> bool:
    """Whether the store has the call."""
    if not settings.traces.is_file():
        return False
    try:
        with Store.open(settings.traces, readonly=True) as store:
            find(store.connection, call)
    except (ChainsError, sqlite3.Error):
        return False
    return True


def tell(arguments: argparse.Namespace, finished: Finished, server: Server | None, summary: str) -> int:
    """What is known of a call that is over; the clinic has stopped, so what it does after a call is done."""
    kept = server.runtime.recorder.find(finished.id) if server is not None else None
    if kept is not None:
        print(f"\n{table(kept)}\n{LEGEND}")
    if server is not None:
        print(f"\nsummary: {summary or '(none)'}")
    record(finished, arguments.out, to_json(kept) if kept is not None else None, summary)
    print(f"\nwrote {arguments.out / 'call.wav'} (caller left, clinic right) and {arguments.out / 'call.json'}")
    return 1 if finished.unanswered else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Call the clinic with recorded speech, in real time.")
    parser.add_argument("--url", default="", help="a clinic that runs already; without it one is started here")
    parser.add_argument("--runtime", choices=RUNTIMES, default="inprocess", help="what the clinic is started in")
    parser.add_argument("--key", default="", help="the bearer key, if the clinic wants one")
    parser.add_argument("--lines", type=Path, default=HERE / "lines" / "lines.yaml", help="what the caller says")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder for call.wav and call.json")
    parser.add_argument(
        "--view",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="keep the tracing page after the call, or none",
    )
    parser.add_argument("--record", action="store_true", help="keep sound and words of the call with its times")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    arguments = parser.parse_args()
    try:
        return asyncio.run(run(arguments))
    except ChainsError as error:
        if arguments.debug:
            raise
        print(f"dial: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
