"""What `chains replay` does: finds the recording, plays it, waits for the spans, compares."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import statistics
import sys
from argparse import Namespace
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from chains.cli import difference
from chains.cli.settings import changed
from chains.cli.traces import Traces, opened, quoted
from chains.cli.tracing import console
from chains.cli.view import shown, traces
from chains.client import Client, connect
from chains.client.reach import address
from chains.client.replaying import Replayed, Replayer
from chains.dsl.graph import load
from chains.dsl.version import version_of
from chains.errors import NotFound, SettingError
from chains.gateway import audio
from chains.gateway.session import REPLAY_HEADER
from chains.records.replayable import Recording, recorded_input
from chains.records.store import Store
from chains.runtime.inprocess import InProcess
from chains.serve import Server, recorder
from chains.viewer.settings import ViewerSettings

SLOWER = 3
FAILED = 1
SPANS_S = 15.0


def replay(arguments: argparse.Namespace) -> int:
    """0; 1 when the replay ended with an error; 3 when turns got slower than --fail-slower allows."""
    if arguments.set and not arguments.chain:
        raise SettingError("--set changes a chain that is served here", mend="give it with --chain FILE")
    if arguments.out:
        audio.check_writable(arguments.out)
    return asyncio.run(_replay(arguments))


async def _replay(arguments: argparse.Namespace) -> int:
    path = traces(arguments.traces)
    original, recording = await _recording(arguments, path)
    _tell(arguments, _described(recording, original))
    async with _served(arguments, path) as url, _client(url, arguments.key, recording) as client:
        replayer = Replayer(client, recording, pace=arguments.pace, fast=arguments.fast, patience=arguments.patience)
        result = await replayer.run()
    if arguments.out:
        _write(arguments.out, result, recording)
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    async with opened(_local(arguments)) as store:
        if not await _arrived(store, result.call):
            _missing(arguments, path, result)
            return FAILED if result.error or arguments.fail_slower is not None else 0
        code = await _compare(arguments, store, recording.call, result.call)
    if result.error is not None:
        print(f"the replay ended with {type(result.error).__name__}: {result.error.message}", file=sys.stderr)
        return FAILED
    return code


def _client(url: str, key: str, recording: Recording) -> Client:
    """One that asks for sound as the recorded caller did, and says whose replay it is."""
    client = connect(url, key=key, rate=recording.rate, encoding=recording.encoding)
    client.headers[REPLAY_HEADER] = recording.call
    return client


async def _recording(arguments: argparse.Namespace, path: Path) -> tuple[dict[str, Any], Recording]:
    """The call that is meant, and its recording. Raises NotFound, Unavailable."""
    async with opened(_local(arguments)) as store:
        detail = await _detail(store, arguments.call)
    with Store.open(path, readonly=True) as file:
        row = file.connection.execute("SELECT id FROM calls WHERE call = ?", (detail["call"]["id"],)).fetchone()
        if row is None:
            raise NotFound(f"call {detail['call']['id']} is gone", mend="it was deleted meanwhile; take another")
        return detail, recorded_input(file.connection, row[0])


async def _detail(store: Traces, wanted: str) -> dict[str, Any]:
    ids = await _recorded(store, "slowest" if wanted == "slowest" else "started")
    if wanted in ("last", "slowest") and ids:
        wanted = ids[0]
    try:
        return await store.call(wanted)
    except NotFound as error:
        near = difflib.get_close_matches(wanted, ids, 3) or ids[:3]
        known = f"did you mean {', '.join(near)}? " if near else "none is recorded; chains run FILE --record records. "
        raise NotFound(error.message, mend=f"{known}chains trace --recorded lists them") from None


async def _recorded(store: Traces, sort: str) -> list[str]:
    """The calls that were recorded and are over, without replays."""
    found = await store.get("/api/calls", state="recorded", sort=sort, limit=500)
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    return [str(row["id"]) for row in rows if not row["live"] and not str(row["id"]).startswith("replay-of-")]


def _local(arguments: argparse.Namespace) -> Namespace:
    """The store here, whatever chain is called."""
    return Namespace(traces=arguments.traces, url="", key="")


@asynccontextmanager
async def _served(arguments: argparse.Namespace, path: Path) -> AsyncIterator[str]:
    """Where the changed chain answers. One that is served here writes its spans and its recording into the store;
    when the block is left they are there."""
    if arguments.to:
        base, method = address(arguments.to)
        if method:
            raise SettingError(f"--url names the method {method}", mend=f"the recording says which: --url {base}")
        yield arguments.to
        return
    graph = changed(load(arguments.chain), arguments.set)
    async with shown(ViewerSettings(traces=path, port=0)) as page:
        kept = recorder(
            chain=graph.entry, version=arguments.version_name or version_of(graph), viewer=page.gateway["viewer"]
        )
        runtime = InProcess(graph, recorder=kept)
        async with Server(graph, port=0, runtime=runtime, record=True, **page.gateway) as server:
            yield server.url


async def _arrived(store: Traces, call: str) -> bool:
    """Wait until the replay's spans are in the store; False if they never come."""
    deadline = asyncio.get_running_loop().time() + SPANS_S
    while asyncio.get_running_loop().time() < deadline:
        try:
            if not (await store.call(call))["call"]["live"]:
                return True
        except NotFound:
            pass  # not yet
        await asyncio.sleep(0.1)
    return False


def _missing(arguments: argparse.Namespace, path: Path, result: Replayed) -> None:
    found = f"the replay was call {result.call}; its spans are not in {path}"
    mend = f"; see chains trace {result.call} --url VIEWER, where that chain's calls are shown" if arguments.to else ""
    print(found + mend, file=sys.stderr)


async def _compare(arguments: argparse.Namespace, store: Traces, before: str, after: str) -> int:
    specs = {"a": f"call:{before}", "b": f"call:{after}"}
    answer = await store.get("/api/compare", **specs)
    calls = [await store.call(call) for call in (before, after)]
    figures = [_typical(call) for call in calls]
    slower = _percent(*figures)
    if arguments.json:
        about = {"replay": after, "of": before, "before_ms": figures[0], "after_ms": figures[1]}
        about["slower_percent"] = slower
        print(json.dumps({**about, "compare": answer}, indent=2))
    else:
        out = console(arguments.width)
        for line in difference.lines(answer, calls, out.width):
            out.print(line)
        where = f"/compare?a=call:{quoted(before)}&b=call:{quoted(after)}"
        out.print(f"\nside by side on the page, at the address that chains view gives, then {where}")
    limit = arguments.fail_slower
    if limit is None or slower is None or slower <= limit:
        return 0
    print(f"slower by {slower:.0f} %: {figures[0]:.0f} ms before, {figures[1]:.0f} ms now", file=sys.stderr)
    return SLOWER


def _typical(call: Mapping[str, Any]) -> float | None:
    """The median latency of a call's turns that were answered; of a call without turns its length. In ms."""
    turns = [
        turn["latency_ms"]
        for turn in call["turns"]
        if turn["latency_ms"] is not None and turn["state"] not in ("dropped", "failed")
    ]
    if turns:
        return float(statistics.median(turns))
    about = call["call"]
    ended = about["ended_ms"]
    return None if ended is None else float(ended - about["started_ms"])


def _percent(before: float | None, after: float | None) -> float | None:
    return None if not before or after is None else 100.0 * (after - before) / before


def _described(recording: Recording, detail: Mapping[str, Any]) -> str:
    seconds = recording.ended / 1e3
    what = f"{recording.method}, {seconds:.1f} s, {len(detail['turns'])} turns"
    return f"replaying call {recording.call} ({what})"


def _tell(arguments: argparse.Namespace, line: str) -> None:
    print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)


def _write(path: str, result: Replayed, recording: Recording) -> None:
    rates = {piece.rate for _, piece in (*result.said, *result.playback.pieces)}
    rate = recording.rate or max(rates, default=16_000)
    audio.write_wav(path, result.track(rate), rate)
    print(f"recorded into {path} (caller left, chain right)", file=sys.stderr)
