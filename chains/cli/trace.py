"""`chains trace`: the calls that were kept, one of them drawn, two compared, one deleted."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import Any

from chains.cli.values import count, some

STATES = ("slow", "failed", "interrupted", "dropped", "live", "recorded")
LIMIT = 1_000
_AGO = re.compile(r"-?(\d+(?:\.\d+)?[smhd])")
_EPILOG = """
chains trace                    the calls of the last days, the newest first
chains trace last               the newest, drawn; also: slowest, an id, or what one begins with
chains trace diff A B           two calls, two versions (version:NAME), two ranges (range:-2h..-1h): what got slower
chains trace delete CALL        take a call out of the store, with what was recorded of it
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    trace = commands.add_parser(
        "trace",
        help="list the calls that were kept, draw one, compare two",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trace.add_argument("what", nargs="*", metavar="CALL | diff A B | delete CALL", help="default: list the calls")
    state = trace.add_mutually_exclusive_group()
    for name in STATES:
        state.add_argument(
            f"--{name}", dest="state", action="store_const", const=name, default="", help=f"list those that are {name}"
        )
    trace.add_argument("--min-ms", type=float, default=None, metavar="MS", help="list those with a turn that long")
    for name in ("chain", "app", "version", "hop", "replica"):
        trace.add_argument(f"--{name}", default="", metavar=name.upper(), help=f"list those of this {name}")
    trace.add_argument("--search", default="", metavar="TEXT", help="in ids, methods, hops, and what was recorded")
    trace.add_argument("--since", type=moment, default=None, metavar="AGO", help="30m, 2h, 7d, or a date")
    trace.add_argument("--until", type=moment, default=None, metavar="AGO", help="the same")
    trace.add_argument("--turn", type=some, default=None, metavar="N", help="draw this turn alone; list: has that many")
    trace.add_argument("--slowest", action="store_true", help="list the slowest first")
    trace.add_argument("--limit", type=most, default=20, metavar="N", help="list so many (20)")
    trace.add_argument("-f", "--follow", action="store_true", help="go on listing until Ctrl-C")
    trace.add_argument("--json", action="store_true", help="as JSON, for programs")
    trace.add_argument("--html", default="", metavar="OUT.html", help="write the call's page into one file")
    trace.add_argument("--recording", action="store_true", help="delete: what was recorded, not the times")
    trace.add_argument("--yes", action="store_true", help="delete: do not ask")
    trace.add_argument("--width", type=count, default=0, metavar="N", help="columns (default: the terminal's)")
    trace.add_argument("--traces", default="", metavar="PATH", help="the store (default: $CHAINS_TRACES, or yours)")
    trace.add_argument("--url", default="", help="of a viewer, in place of a store that lies here")
    trace.add_argument("--key", default="", help="its key")
    trace.add_argument("--debug", action="store_true", help="show the traceback of an error")
    usual = {action.dest: trace.get_default(action.dest) for action in trace._actions}
    trace.set_defaults(command=_trace, usual=usual)


def most(text: str) -> int:
    """As many calls as the API lists at once."""
    found = some(text)
    if found > LIMIT:
        raise argparse.ArgumentTypeError(f"{text} are too many; {LIMIT} are the most, --since and --until go further")
    return found


def moment(text: str) -> str:
    """As the API takes it: a time before now, or unix milliseconds."""
    if ago := _AGO.fullmatch(text):
        return f"-{ago[1]}"
    try:
        return f"{datetime.fromisoformat(text).timestamp() * 1e3:.0f}"
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text} is no moment; write 30m, 2h or 7d for a time ago, or 2026-01-31T14:00"
        ) from None


def _trace(arguments: argparse.Namespace) -> int:
    found: Callable[[argparse.Namespace], Any] = import_module("chains.cli.tracing").trace
    code: int = found(arguments)
    return code
