"""`chains run` and `chains check`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chains.cli.view import Page, shown, wanted
from chains.dsl.graph import Graph, load
from chains.dsl.version import version_of
from chains.errors import GraphError, SettingError
from chains.gateway.app import example
from chains.gateway.session import GatewaySettings
from chains.runtime.deployment import Progress, Runtime
from chains.runtime.inprocess import InProcess
from chains.serve import Server, recorder, serve
from chains.sockets import listen

if TYPE_CHECKING:
    from chains.viewer.settings import ViewerSettings


def run(arguments: argparse.Namespace) -> int:
    """Serve a chain until Ctrl-C, which drains; a second one ends the calls at once. While it loads: see `serve`."""
    settings = GatewaySettings(
        host=arguments.host,
        port=arguments.port,
        keys=tuple(arguments.key),
        insecure=arguments.insecure,
        origins=tuple(arguments.origin),
        debug=arguments.debug,
        record=arguments.record,
        redact=arguments.redact,
    )
    logging.basicConfig(level=logging.DEBUG if arguments.debug else logging.WARNING, format="%(levelname)s %(message)s")
    for noisy in ("asyncio", "uvicorn", "websockets", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    viewer = wanted(arguments)
    listen(settings.host, settings.port).close()  # said now, not after the chain's libraries have loaded
    graph = load(arguments.chain)
    return asyncio.run(_serve(arguments, graph, settings, viewer))


async def _serve(
    arguments: argparse.Namespace, graph: Graph, settings: GatewaySettings, viewer: ViewerSettings | None
) -> int:
    made: Callable[..., Runtime] = _processes() if arguments.processes else InProcess
    for line in _not_kept(graph, arguments.processes):
        print(f"note: {line}", file=sys.stderr)
    async with shown(viewer, exact=arguments.view_port is not None) as page:
        settings = replace(settings, **page.gateway)
        kept = recorder(
            _say if arguments.profile else None,
            chain=graph.entry,
            version=arguments.version_name or version_of(graph),
            viewer=settings.viewer,
            viewer_key=settings.viewer_key,
        )
        runtime = made(graph, progress=_progress, recorder=kept)
        ready, stopping = partial(_answers, page), partial(_stopping, settings.drain_seconds)
        return await serve(graph, settings, runtime=runtime, ready=ready, stopping=stopping)


def _processes() -> Any:
    """The runtime with a process for each replica. Raises SettingError where the wire's libraries are missing."""
    try:
        from chains.runtime.processes import Processes
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        raise SettingError(
            f"{missing} is not installed, and processes need it to talk",
            mend='run: pip install "chains-serve[wire]"',
        ) from error
    return Processes


def _not_kept(graph: Graph, processes: bool) -> list[str]:
    """What of the chainlets' settings does not hold on this machine alone."""
    said = []
    for name, node in graph.nodes.items():
        wanted = node.spec.environment
        if wanted.pip:
            said.append(
                f"{name} runs without packages of its own ({' '.join(wanted.pip)}); chains deploy installs them"
            )
        least, most = node.spec.scaling.min, node.spec.scaling.max
        if least > 1 and not processes:
            said.append(f"{name} has 1 replica and not {least}; --processes starts them")
        elif most > max(1, least):
            said.append(f"{name} does not scale up to {most} replicas; chains deploy does that")
        if wanted.env and not processes:
            said.append(f"{name} runs without its variables {', '.join(wanted.env)}; --processes sets them")
    return said


def _say(line: str) -> None:
    print(line, flush=True)


def _progress(step: Progress) -> None:
    """A line for each step of each replica: what loads, and how long it has taken."""
    if step.stage in ("loading", "warming", "ready", "failed"):
        _say(f"{step.seconds:7.1f} s  {step.replica:<24} {step.stage}")


def _answers(page: Page, server: Server) -> None:
    gateway = server.gateway
    _say(f"\n{server.runtime.graph.entry} answers at {server.url} (Ctrl-C ends it)")
    if link := page.link():
        _say(f"where each call's time went: {link}")
    if gateway.settings.record:
        _say("calls are recorded: the sound and the words of both sides are kept with them")
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
