"""`chains replay`: a recorded call again, to a chain that was changed, and both side by side.

Here are its arguments; what it does is imported when it is called.
"""

from __future__ import annotations

import argparse
import math
from importlib import import_module

from chains.cli.values import seconds

_EPILOG = """
chains replay last --chain call.py                    the newest that was recorded, to the chain as it is now
chains replay ID --chain call.py --set Brain.model=small
chains replay ID --url ws://127.0.0.1:8000            to a chain that runs already
chains replay ID --chain call.py --fail-slower 20     exit code 3 when turns got slower by more than 20 %
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    replay = commands.add_parser(
        "replay",
        help="play what a recorded caller said to a changed chain, and compare",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    replay.add_argument(
        "call", metavar="CALL", help="its id, what that begins with; `last`, `slowest`: of those recorded"
    )
    where = replay.add_mutually_exclusive_group(required=True)
    where.add_argument("--chain", default="", metavar="FILE[:CHAIN]", help="serve this chain here, for this one call")
    where.add_argument("--url", dest="to", default="", metavar="URL", help="call a chain that runs already")
    replay.add_argument(
        "--set", action="append", default=[], metavar="NODE.ARG=VALUE", help="another setting of a chainlet; repeatable"
    )
    pace = replay.add_mutually_exclusive_group()
    pace.add_argument(
        "--aligned",
        dest="pace",
        action="store_const",
        const="aligned",
        default="aligned",
        help="words wait for the reply that they answered (default)",
    )
    pace.add_argument(
        "--as-recorded", dest="pace", action="store_const", const="as-recorded", help="each piece at its recorded time"
    )
    replay.add_argument("--fast", action="store_true", help="do not wait for time to pass")
    replay.add_argument("--patience", type=seconds, default=20.0, metavar="S", help="wait so long for a reply (20)")
    replay.add_argument("--out", default="", metavar="OUT.wav", help="record the replay: caller left, chain right")
    replay.add_argument(
        "--fail-slower", type=_percent, default=None, metavar="PERCENT", help="exit code 3 when turns got that slower"
    )
    replay.add_argument("--key", default="", help="the bearer key of the chain at --url")
    replay.add_argument("--version-name", default="", metavar="NAME", help="what the changed chain is called")
    replay.add_argument(
        "--traces", "--store", default="", metavar="PATH", help="the store (default: $CHAINS_TRACES, or yours)"
    )
    replay.add_argument("--json", action="store_true", help="the comparison as JSON, for programs")
    replay.add_argument("--width", type=int, default=0, metavar="N", help="columns (default: the terminal's)")
    replay.add_argument("--debug", action="store_true", help="show the traceback of an error")
    replay.set_defaults(command=_replay)


def _percent(text: str) -> float:
    """By how much slower is still fine; a figure from 0."""
    try:
        found = float(text.removesuffix("%"))
    except ValueError:
        found = math.nan
    if not 0.0 <= found < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is no percentage; give e.g. 20")
    return found


def _replay(arguments: argparse.Namespace) -> int:
    code: int = import_module("chains.cli.replaying").replay(arguments)
    return code
