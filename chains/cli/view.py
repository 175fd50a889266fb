"""`chains view`, and what other commands share of it: which viewer is meant, and how its page is told."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chains.cli.values import any_port, days, size
from chains.errors import SettingError

if TYPE_CHECKING:
    from chains.viewer.settings import ViewerSettings


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    view = commands.add_parser("view", help="the tracing page of a store, also while others write it; takes OTLP in")
    view.add_argument("--traces", default="", metavar="PATH", help="the store (default: $CHAINS_TRACES, or the user's)")
    view.add_argument("--host", default="127.0.0.1", help="interface to listen on (default: this machine alone)")
    view.add_argument("--port", type=any_port, default=None, help="default 8001, or a free one when that is in use")
    view.add_argument("--key", action="append", default=[], help="a key that must be shown; may be repeated")
    view.add_argument("--insecure", action="store_true", help="listen for other machines without a key")
    view.add_argument("--otlp-grpc", type=any_port, default=None, metavar="PORT", help="take OTLP over gRPC too")
    view.add_argument("--max-age-days", type=days, default=7.0, metavar="N", help="what is older goes (default 7)")
    view.add_argument("--max-bytes", type=size, default=2 << 30, metavar="SIZE", help="the oldest goes (default 2G)")
    view.add_argument("--debug", action="store_true", help="show the traceback of an error")
    view.set_defaults(command=_view)


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """Those of a command that starts a viewer of its own."""
    parser.add_argument("--no-view", action="store_true", help="without the tracing page, and without its store")
    parser.add_argument(
        "--view-port", type=any_port, default=None, metavar="PORT", help="of the tracing page (default 8001)"
    )
    parser.add_argument("--traces", default="", metavar="PATH", help="its store (default: $CHAINS_TRACES, or yours)")
    parser.add_argument(
        "--version-name", default="", metavar="NAME", help="what this version is called (default: 8 digits of its code)"
    )
    parser.add_argument("--record", action="store_true", help="keep what is said, too: sound and words of both sides")
    parser.add_argument(
        "--redact", default="", metavar="MODULE:FUNCTION", help="what goes over each piece before it is kept"
    )


def wanted(arguments: argparse.Namespace) -> ViewerSettings | None:
    """The viewer to start; None for --no-view, and where $CHAINS_VIEWER names one that runs. Raises SettingError."""
    from chains.viewer.settings import PORT, ViewerSettings

    elsewhere = os.environ.get("CHAINS_VIEWER", "")
    if arguments.redact and not arguments.record:
        raise SettingError("--redact without --record keeps nothing to redact", mend="add --record, or leave it out")
    if arguments.record and arguments.no_view and not elsewhere:
        raise SettingError("--record needs the store that --no-view leaves out", mend="leave one of them out")
    if arguments.no_view or elsewhere:
        return None
    port = PORT if arguments.view_port is None else arguments.view_port
    return ViewerSettings(traces=traces(arguments.traces), port=port)


@dataclass(frozen=True, slots=True)
class Page:
    """Where calls are shown: `url` for people ("" for nowhere), `gateway` the settings that send a gateway's there."""

    url: str = ""
    gateway: Mapping[str, Any] = field(default_factory=dict, repr=False)
    failed: Callable[[], str] = str
    """Why the page's process could not start; "" as long as nothing is known of it."""

    def link(self) -> str:
        """What to open; "" for nowhere."""
        return "" if self.failed() else self.url


@asynccontextmanager
async def shown(settings: ViewerSettings | None, *, exact: bool = False) -> AsyncIterator[Page]:
    """A viewer for as long as the block runs; without settings the one at $CHAINS_VIEWER, or none."""
    if settings is None:
        url, key = os.environ.get("CHAINS_VIEWER", "").rstrip("/"), os.environ.get("CHAINS_VIEWER_KEY", "")
        yield Page(f"{url}/", {"viewer": url, "viewer_key": key}) if url else Page()
        return
    from chains.viewer.process import ViewerProcess

    async with ViewerProcess(settings, exact=exact) as viewer:
        yield Page(viewer.url, {"viewer": viewer.endpoint}, lambda: viewer.failed)


def traces(given: str) -> Path:
    """The store that is meant."""
    from chains.viewer.settings import default_traces

    return Path(given).expanduser() if given else default_traces(os.environ)


def _view(arguments: argparse.Namespace) -> int:
    from chains.viewer.settings import PORT, ViewerSettings

    settings = ViewerSettings(
        traces=traces(arguments.traces),
        host=arguments.host,
        port=PORT if arguments.port is None else arguments.port,
        keys=tuple(arguments.key),
        insecure=arguments.insecure,
        otlp_grpc=arguments.otlp_grpc,
        max_age_days=arguments.max_age_days,
        max_bytes=arguments.max_bytes,
    )
    return asyncio.run(_shown(settings, exact=arguments.port is not None))


async def _shown(settings: ViewerSettings, *, exact: bool) -> int:
    """Until Ctrl-C, or SIGTERM."""
    import logging
    import signal

    from chains.records.store import Store
    from chains.viewer.process import open_near, reachable
    from chains.viewer.serving import collect_seldom, serve

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    Store.open(settings.traces).close()  # whatever is wrong with it is said before anything else
    listening, moved = open_near(settings.host, settings.port, exact=exact)
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    endpoint = reachable(settings.host, listening.getsockname()[1])
    if moved:
        print(f"note: {moved}")
    print(f"calls are shown at {endpoint}/ (Ctrl-C ends it)")
    print(f"the store is {settings.traces}")
    print(f"spans are taken at {endpoint}/v1/traces (OTLP over HTTP)", flush=True)
    collect_seldom()
    await serve(settings, listening, stop)
    return 0
