"""What the store of the tracing page takes in: spans of phone calls over OTLP/HTTP into a receiver on one core.

The spans are in the shape of the example phone call's: 1,050 bytes and 17 attributes each. The receiver is a process of
its own, held to one core, and does all that the viewer does with a span: HTTP, decoding, checks, SQLite, percentiles.
First as fast as it answers, then a fixed 20,000 spans a second; what is lost is counted.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, from anywhere

import uvicorn
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.applications import Starlette

from benchmarks.report import Options, Row, arguments, compare, progress, report
from chains.records.intake import Intake
from chains.records.store import Store
from chains.records.writer import Writer
from chains.viewer import otlp
from chains.viewer.receiver import PROTOBUF, Receiver
from chains.viewer.serving import collect_seldom
from tests.chains.records import clinic, made

RATE = 20_000
GOAL_BYTES = 300
BATCH = 512
_FIRST = b"call-"  # what each round puts a letter into, so that its calls are other calls


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the spans that were sent: seconds until all were written, and the receiver's CPU seconds."""

    sent: int
    rejected: int
    stored: int
    seconds: float
    cpu: float
    bytes: int


def receive(path: Path, core: int | None, answers: Connection) -> None:
    """The receiver's process: tells its port, then on each message (spans, CPU seconds) once all is written."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    collect_seldom()
    listening = socket.create_server(("127.0.0.1", 0))
    with Intake(path) as intake:
        app = Starlette(routes=Receiver(intake).routes())
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        answers.send(listening.getsockname()[1])
        while answers.recv() != "stop":
            if not intake.flush(60.0):
                raise TimeoutError(f"{intake.waiting} spans are not written after a minute")
            with Store.open(path, readonly=True) as store:
                (stored,) = store.connection.execute("SELECT coalesce(sum(spans), 0) FROM calls").fetchone()
                answers.send((stored, time.process_time(), store.bytes()))
        server.should_exit = True
        thread.join()


class Side:
    """A receiver that runs; spans are sent to it from here."""

    def __init__(self, port: int, answers: Connection) -> None:
        self._answers = answers
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._http.connect()
        self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, bodies: list[bytes], rate: float = 0.0) -> Outcome:
        """Send the requests, at `rate` spans a second or one after the other; wait until all is written."""
        before, cpu, _ = self.look()
        started, rejected, sent = time.perf_counter(), 0, 0
        for body in bodies:
            if rate:
                time.sleep(max(0.0, started + sent / rate - time.perf_counter()))
            self._http.request("POST", "/v1/traces", body, {"content-type": PROTOBUF})
            answer = self._http.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise ConnectionError(f"the receiver answers {answer.status}: {text[:200]!r}")
            rejected += ExportTraceServiceResponse.FromString(text).partial_success.rejected_spans
            sent += BATCH
        stored, after, size = self.look()
        return Outcome(sent, rejected, stored - before, time.perf_counter() - started, after - cpu, size)

    def close(self) -> None:
        self._http.close()

    def look(self) -> tuple[int, float, int]:
        """Once all is written: spans in the store, CPU seconds, bytes."""
        self._answers.send("look")
        found: tuple[int, float, int] = self._answers.recv()
        return found


@contextmanager
def receiver(folder: Path) -> Iterator[Side]:
    """A receiver on the last of this process's cores, which is left to it."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    core = cores[-1] if len(cores) > 1 else None
    process = context.Process(target=receive, args=(folder / "traces.sqlite", core, there))
    process.start()
    try:
        if core is not None:
            os.sched_setaffinity(0, set(cores[:-1]))
        with closing(Side(here.recv(), here)) as side:
            yield side
        here.send("stop")
        process.join()
    finally:
        process.kill()
        process.join()
        if core is not None:
            os.sched_setaffinity(0, set(cores))


def rounds(spans: int) -> Iterator[list[bytes]]:
    """Requests of phone calls that run at the same time; each round has other calls."""
    found = sorted(clinic.many(spans), key=lambda span: span.end)
    whole = found[: len(found) // BATCH * BATCH]
    bodies = [request.SerializeToString() for request in made.requests(whole, BATCH)]
    for letter in "abcdefghijklmnopqrstuvwxyz":
        yield [body.replace(_FIRST, b"cal" + letter.encode() + b"-") for body in bodies]


def alone(bodies: list[bytes], folder: Path) -> tuple[list[float], list[float]]:
    """Seconds a span of decoding, and of writing, in this thread: what the receiver's CPU goes into."""
    decoding, writing = [], []
    with Store.open(folder / "alone.sqlite") as store:
        writer = Writer(store)
        for at in range(0, len(bodies), 8):
            batch = bodies[at : at + 8]
            started = time.process_time()
            spans = [s for b in batch for s in otlp.decode(ExportTraceServiceRequest.FromString(b)).spans]
            decoded = time.process_time()
            writer.write(spans)
            decoding.append((decoded - started) / len(spans))
            writing.append((time.process_time() - decoded) / len(spans))
    return decoding, writing


def rows(options: Options) -> list[Row]:
    """As fast as it goes, then at the rate, then without the sockets."""
    size, times, seconds = (5_000, 1, 1) if options.quick else (40_000, 3, 20)
    with tempfile.TemporaryDirectory() as folder, receiver(Path(folder)) as side:
        turns = rounds(size)
        side.send(next(turns)[:8])  # warm
        fast = []
        for _ in range(times):
            fast.append(side.send(next(turns)))
            progress(f"{fast[-1].stored / fast[-1].seconds:.0f} spans/s")
        paced: list[bytes] = []
        while len(paced) * BATCH < seconds * RATE:
            paced += next(turns)
        held = side.send(paced[: seconds * RATE // BATCH], RATE)
        decoding, writing = alone(next(turns), Path(folder))
        (total, _, size) = side.look()
    lost = held.sent - held.stored
    paced_s = held.sent / RATE
    return [
        compare(
            "spans/s: taken in on one core", [o.stored / o.seconds for o in fast], goal=RATE, higher_is_better=True
        ),
        compare("us of CPU: a span, all of the receiver", [o.cpu / o.stored for o in fast], goal=1e6 / RATE, scale=1e6),
        Row(f"spans lost of those sent at {RATE}/s", lost, n=held.sent, goal=0, met=lost == 0),
        Row("s behind: all written, after the last was due", held.seconds - paced_s, n=held.sent),
        Row(f"% of the core: at {RATE} spans/s", 100 * held.cpu / held.seconds, n=held.stored),
        Row("bytes on disk: a span", size / total, n=total, goal=GOAL_BYTES, met=size / total <= GOAL_BYTES),
        compare("us: decoding and checks, a span", decoding, scale=1e6),
        compare("us: writing, a span", writing, scale=1e6),
    ]


def main() -> None:
    options = arguments(__doc__ or "")
    report(rows(options), options.json, "Spans taken in by the store of the tracing page")


if __name__ == "__main__":
    main()
