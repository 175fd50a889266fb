"""The `chains` command. Each subcommand is a function that takes the parsed arguments and returns the exit code."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version

from chains.cli import cluster, replay, trace, view
from chains.cli.plain import plain
from chains.cli.values import seconds
from chains.errors import ChainsError

GROUP = "chains.commands"
DISTRIBUTION = "chains-serve"
USAGE_ERROR = 2
Command = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. What goes wrong is told in one message with its mend; `--debug` adds the traceback."""
    arguments = parser().parse_args(argv)
    try:
        command: Command = arguments.command
        return command(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, e.g. `chains check ... | head`
        sys.stderr.close()
        return 1
    except Exception as error:
        return _tell(error, getattr(arguments, "debug", False))


def _tell(error: Exception, debug: bool) -> int:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, ChainsError):
        print(f"chains: {plain(str(error))}", file=sys.stderr)
        return USAGE_ERROR
    hint = "" if debug else "; run again with --debug for the traceback"
    print(f"chains: {type(error).__name__}: {plain(str(error))}{hint}", file=sys.stderr)
    return 1


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="chains", description="Multi-model workflows as plain Python classes: run, check and call them."
    )
    root.add_argument("--version", action="version", version=f"chains {_version()}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(commands)
    _add_check(commands)
    _add_dial(commands)
    cluster.register(commands)
    view.register(commands)
    trace.register(commands)
    replay.register(commands)
    broken = _add_plugins(commands)
    if broken:
        root.epilog = "not loaded: " + "; ".join(broken)
    return root


def _version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(not installed)"


def _add_plugins(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[str]:
    """Commands of other packages. One that cannot be loaded costs its own commands and no others."""
    broken = []
    for point in entry_points(group=GROUP):
        try:
            point.load()(commands)
        except Exception as error:
            broken.append(f"{point.name} ({type(error).__name__}: {error})")
    return broken


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser("run", help="serve a chain on this machine, in this process")
    run.add_argument("chain", metavar="FILE[:CHAIN]", help="call.py, call.py:PhoneCall or package.module:PhoneCall")
    run.add_argument("--host", default="127.0.0.1", help="interface to listen on (default: this machine alone)")
    run.add_argument("--port", type=int, default=8000, help="default 8000; 0 takes any free one")
    run.add_argument("--key", action="append", default=[], help="a bearer key callers must show; may be repeated")
    run.add_argument("--insecure", action="store_true", help="listen for other machines without a key")
    run.add_argument("--origin", action="append", default=[], help="a web page's origin that may call; may be repeated")
    run.add_argument("--processes", action="store_true", help="each replica in a process of its own")
    run.add_argument("--profile", action="store_true", help="after each call print where its time went, hop by hop")
    view.add_view_options(run)
    run.add_argument("--debug", action="store_true", help="tracebacks, and errors with the chain's own lines")
    run.set_defaults(command=_run)


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser("check", help="print a chain's graph, or all of its faults")
    check.add_argument("chain", metavar="FILE[:CHAIN]")
    check.add_argument("--svg", metavar="OUT.svg", help="draw the graph into a file")
    check.add_argument("--json", action="store_true", help="the graph, or the faults, as JSON")
    check.add_argument("--debug", action="store_true", help="show the traceback of an error")
    check.set_defaults(command=_check)


def _add_dial(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    dial = commands.add_parser("dial", help="call a served chain and speak to it")
    dial.add_argument(
        "url", metavar="URL", help="ws://127.0.0.1:8000, with /v1/call/METHOD for another method than run"
    )
    what = dial.add_mutually_exclusive_group(required=True)
    what.add_argument("--wav", metavar="IN.wav", help="speak a recording (wav, flac, ogg, mp3; any rate, any channels)")
    what.add_argument("--mic", action="store_true", help="speak through the microphone, hear through the speaker")
    dial.add_argument("--out", metavar="OUT.wav", help="record the call: caller left, chain right")
    pace = dial.add_mutually_exclusive_group()
    pace.add_argument("--realtime", dest="fast", action="store_false", help="20 ms of sound every 20 ms (default)")
    pace.add_argument("--fast", dest="fast", action="store_true", help="as fast as the chain takes it")
    dial.add_argument("--rate", type=int, default=16000, help="samples a second on the line (default 16000)")
    dial.add_argument("--encoding", choices=("pcm16", "mulaw"), default="pcm16")
    dial.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another argument of the method")
    dial.add_argument("--key", default="", help="the server's bearer key")
    dial.add_argument(
        "--quiet", type=seconds, default=3.0, metavar="S", help="hang up so long after the last reply (3)"
    )
    dial.add_argument("--patience", type=seconds, default=20.0, metavar="S", help="wait so long for a reply (20)")
    dial.add_argument("--debug", action="store_true", help="show the traceback of an error")
    dial.set_defaults(command=_dial, fast=False)


# Imported when asked for: `chains --version` and other packages' commands need neither numpy nor a web server.


def _run(arguments: argparse.Namespace) -> int:
    from chains.cli.operate import run

    return run(arguments)


def _check(arguments: argparse.Namespace) -> int:
    from chains.cli.operate import check

    return check(arguments)


def _dial(arguments: argparse.Namespace) -> int:
    from chains.cli.dial import dial

    return dial(arguments)


if __name__ == "__main__":
    sys.exit(main())
