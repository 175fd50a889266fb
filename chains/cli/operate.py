"""`chains run` and `chains check`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from chains.dsl.graph import Graph, load
from chains.errors import GraphError, SettingError
from chains.gateway.app import example
from chains.gateway.session import GatewaySettings
from chains.runtime.deployment import Progress
from chains.serve import Server, listen, serve


def run(arguments: argparse.Namespace) -> int:
    """Serve a chain until Ctrl-C, which drains; a second one ends the calls at once. While it loads: see `serve`."""
    settings = GatewaySettings(
        host=arguments.host,
        port=arguments.port,
        keys=tuple(arguments.key),
        insecure=arguments.insecure,
        origins=tuple(arguments.origin),
        debug=arguments.debug,
    )
    logging.basicConfig(level=logging.DEBUG if arguments.debug else logging.WARNING, format="%(levelname)s %(message)s")
    for noisy in ("asyncio", "uvicorn", "websockets", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    listen(settings.host, settings.port).close()  # said now, not after the chain's libraries have loaded
    graph = load(arguments.chain)
    profile = _say if arguments.profile else None
    stopping = partial(_stopping, settings.drain_seconds)
    return asyncio.run(serve(graph, settings, progress=_progress, ready=_answers, stopping=stopping, profile=profile))


def _say(line: str) -> None:
    print(line, flush=True)


def _progress(step: Progress) -> None:
    """A line for each step of each replica: what loads, and how long it has taken."""
    if step.stage in ("loading", "warming", "ready", "failed"):
        _say(f"{step.seconds:7.1f} s  {step.replica:<24} {step.stage}")


def _answers(server: Server) -> None:
    gateway = server.gateway
    _say(f"\n{server.runtime.graph.entry} answers at {server.url} (Ctrl-C ends it)")
    for method in gateway.methods.values():
        _say(f"\n  {method.shape}\n    {example(server.url, method, bool(server.settings.keys))}")
    _say("")


def _stopping(seconds: float, calls: int) -> None:
    waiting = (
        f"{calls} call{'s have' if calls != 1 else ' has'} {seconds:g} s to end (Ctrl-C again ends them now)"
        if calls
        else "no call is open"
    )
    _say(f"\nstopping: {waiting}")


def check(arguments: argparse.Namespace) -> int:
    """Print the graph, or every fault with the line to write (exit code 2)."""
    try:
        graph = load(arguments.chain)
    except GraphError as error:
        if not arguments.json:
            raise
        print(json.dumps({"ok": False, "faults": [asdict(fault) for fault in error.faults]}, indent=2))
        return 2
    if arguments.svg:
        _draw(graph, Path(arguments.svg))
    if arguments.json:
        print(json.dumps({"ok": True, **graph.to_json()}, indent=2))
    else:
        print(graph.text())
    return 0


def _draw(graph: Graph, path: Path) -> None:
    try:
        path.write_text(graph.svg(), encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}", mend="check its folder and rights") from None
    print(f"drawn into {path}", file=sys.stderr)
