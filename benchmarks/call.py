"""The phone call, end to end: thirty spoken questions over a real websocket, in real time, to the example clinic.

    python benchmarks/call.py [--quick] [--json FILE] [--random-weights]

--random-weights serves the language model with random weights instead: what is then still answered rightly was not
the model's doing.

What is measured:
- answered turns: a turn is answered when a reply was both heard and written.
- right answers: by tests/e2e/scoring.py; a goodbye also has to end the call.
- word error rates: of what was understood against what was said, and of the reply's sound, transcribed back by the same
  recogniser, against the reply's text. Both sides are normalised (case, punctuation, numbers in digits).
- voice to voice: from the sending of the frame with the last speech to the receipt of the first sample above -45 dBFS.
- framework overhead of a turn: along its critical path from the end of speech to the first audio, all time on the way
  to or from a chainlet, in a queue, in serialisation, in code of the entry that is no named work, and in waits that the
  account cannot follow. Not counted: the models' own compute, named work, and the wait for the caller's next frame (the
  hold that makes the end of speech certain).
- memory: the peak of this process, in which server, models and caller run, and that of the language model's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import jiwer
import numpy as np

from benchmarks.report import Row, arguments, compare, report
from chains.dsl.graph import load
from chains.gateway.audio import resample
from chains.messages import Audio
from chains.serve import Server
from chains.spans import CallRecord, Segment, account
from examples.phone_call import dial
from tests.e2e.scoring import answers, normalised

QUESTIONS = Path(__file__).parents[1] / "tests" / "e2e" / "questions" / "questions.json"
QUICK = (1, 2, 4, 8, 14, 25)  # a greeting's worth of topics, and a goodbye: numbers from 1
CALL = dial.HERE / "call.py"
ENTRY = "PhoneCall"


@dataclass(frozen=True)
class Question:
    """One spoken line, which call it belongs to, and how a right answer is recognised."""

    line: dial.Line
    call: int
    expected: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What came of one question. `exchange` is None when the call was over before it could be asked."""

    question: Question
    exchange: dial.Exchange | None
    hung_up: bool
    overhead_ms: float | None
    v2v: float | None

    @property
    def answered(self) -> bool:
        return self.exchange is not None and bool(self.exchange.reply) and self.exchange.v2v is not None

    @property
    def right(self) -> bool:
        if self.exchange is None or not answers(self.exchange.reply, self.question.expected):
            return False
        return self.hung_up or not self.question.expected.get("hang_up", False)


def read_questions(quick: bool) -> list[Question]:
    """All thirty in six calls, or six of them in one."""
    entries = json.loads(QUESTIONS.read_text())["lines"]
    lines = dial.read_lines(QUESTIONS)
    questions = [Question(line, entry["call"], entry) for line, entry in zip(lines, entries, strict=True)]
    return [Question(questions[n - 1].line, 1, questions[n - 1].expected) for n in QUICK] if quick else questions


def overhead_ms(path: Iterable[Segment], entry: str = ENTRY) -> float:
    """Milliseconds of a critical path that are the framework's (see above)."""
    return sum(
        s.ms
        for s in path
        if s.part in ("wire", "serialise", "queue")
        or (s.part == "wait" and not s.name)
        or (s.part == "compute" and not s.name and s.label.startswith(f"{entry}."))
    )


def overheads(record: CallRecord | None) -> dict[int, float]:
    """The overhead of each turn of a call that was answered after the caller had spoken."""
    if record is None:
        return {}
    accounts = [account(record, turn) for turn in record.turns if "speech_end" in turn.marks]
    return {found.number: overhead_ms(found.segments) for found in accounts if found is not None}


@dataclass
class Measured:
    """All calls of a run. `replies` are the text and the sound, at 16 kHz, of each reply that was said to its end."""

    answers: list[Answer] = field(default_factory=list)
    replies: list[tuple[str, Audio]] = field(default_factory=list)
    load_seconds: float = 0.0
    peak_mib: float = 0.0


def replies_of(finished: dial.Finished) -> list[tuple[str, Audio]]:
    said = [(line["turn"], line["text"]) for line in finished.transcript if line["role"] == "assistant"]
    found = []
    for turn, text in said:
        pieces = [piece for _, piece in finished.playback.pieces if piece.turn == turn]
        if pieces:
            sound = Audio(np.concatenate([piece.pcm for piece in pieces]), pieces[0].rate)
            found.append((text, resample(sound, dial.RATE)))
    return found


def voice_to_voice(finished: dial.Finished, exchange: dial.Exchange) -> float | None:
    """Seconds; None where the reply had begun before the end of the line (it was to the line's first words)."""
    began = min((start for start, piece in finished.playback.pieces if piece.turn == exchange.turn), default=None)
    return exchange.v2v if began is not None and began >= exchange.speech_end else None


def answers_of(finished: dial.Finished, questions: Sequence[Question], spent: Mapping[int, float]) -> list[Answer]:
    """Each question with what came of it; those that the call ended before have no exchange."""
    hung_up = any(control.kind == "hang_up" for control in finished.controls)
    last = len(finished.exchanges) - 1
    found = []
    for position, question in enumerate(questions):
        exchange = finished.exchanges[position] if position <= last else None
        overhead = spent.get(exchange.turn) if exchange is not None else None
        v2v = voice_to_voice(finished, exchange) if exchange is not None else None
        found.append(Answer(question, exchange, hung_up and position == last, overhead, v2v))
    return found


async def ask_all(questions: Sequence[Question], quiet: bool = False) -> Measured:
    """Serve the clinic, and ask: one call after another, and in each one question after another."""
    measured = Measured()
    began = time.perf_counter()
    async with Server(load(str(CALL)), port=0) as server:
        measured.load_seconds = time.perf_counter() - began
        for _, group in groupby(questions, key=lambda question: question.call):
            asked = list(group)
            finished = await dial.converse(server.url, [question.line for question in asked], quiet=quiet)
            spent = overheads(server.runtime.recorder.find(finished.id))
            measured.answers += answers_of(finished, asked, spent)
            measured.replies += replies_of(finished)
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    measured.peak_mib = sum(peaks) / 1024  # of its children, which have ended, the largest
    return measured


def transcribed(replies: Sequence[tuple[str, Audio]]) -> list[tuple[str, str]]:
    """Each reply's text, and what the recogniser makes of its sound."""
    from engines.asr.model import WhisperModel

    whisper = WhisperModel()
    return [(text, whisper.transcribe(sound.to_float()).text) for text, sound in replies]


def error_rate(pairs: Sequence[tuple[str, str]]) -> float:
    """Word error rate over all (said, understood) pairs, in per cent."""
    said, understood = zip(*[(normalised(a), normalised(b)) for a, b in pairs], strict=True)
    return 100 * float(jiwer.wer(list(said), list(understood)))


def rows(measured: Measured) -> list[Row]:
    found = measured.answers
    count = len(found)
    answered, right = sum(a.answered for a in found), sum(a.right for a in found)
    heard = error_rate([(a.question.line.text, a.exchange.heard_as) for a in found if a.exchange is not None])
    spoken = error_rate(transcribed(measured.replies))
    goal = -(-27 * count // 30)
    return [
        Row(f"answered turns, of {count}", answered, n=count, goal=count, met=answered == count),
        Row(f"right answers, of {count}", right, n=count, goal=goal, met=right >= goal),
        Row("word error rate of what was heard, %", heard, n=count, goal=10, met=heard < 10),
        Row("word error rate of the replies' sound, %", spoken, n=len(measured.replies), goal=10, met=spoken < 10),
        *rows_of_latency(found),
        Row("time to load, s", measured.load_seconds),
        Row("peak memory, MiB", measured.peak_mib, goal=4096, met=measured.peak_mib < 4096),
    ]


def rows_of_latency(found: Sequence[Answer]) -> list[Row]:
    """No row for what could not be measured even once."""
    v2v = [a.v2v for a in found if a.v2v is not None]
    overhead = [a.overhead_ms for a in found if a.overhead_ms is not None]
    found_rows = []
    if v2v:
        found_rows.append(compare("voice to voice p50, ms", v2v, goal=1200, scale=1e3))
        found_rows.append(compare("voice to voice p95, ms", v2v, at=95, scale=1e3))
    if overhead:
        found_rows.append(compare("framework overhead of a turn p95, ms", overhead, at=95, goal=15))
    return found_rows


def show(found: Sequence[Answer]) -> None:
    """Each question that was not answered rightly, and what came of it."""
    for answer in found:
        if answer.right:
            continue
        exchange = answer.exchange
        outcome = f"heard {exchange.heard_as!r}, replied {exchange.reply!r}" if exchange else "the call was over"
        print(f"wrong: {answer.question.line.text!r}: {outcome}")


def main() -> None:
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--random-weights", action="store_true")
    own, others = flags.parse_known_args()
    options = arguments(f"{(__doc__ or '').splitlines()[0]} Also --random-weights: a model that knows nothing.", others)
    title = "Phone call, 6 questions" if options.quick else "Phone call, 30 questions"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLINIC_DB"] = str(Path(folder) / "clinic.sqlite")
        if own.random_weights:
            from tests.e2e.random_weights import write_random_model

            os.environ["CLINIC_LLM"] = str(write_random_model(Path(folder) / "model"))
            title += ", random weights"
        measured = asyncio.run(ask_all(read_questions(options.quick)))
    show(measured.answers)
    report(rows(measured), options.json, title)


if __name__ == "__main__":
    main()
