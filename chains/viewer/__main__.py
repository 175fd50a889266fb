"""A viewer as somebody's child: `python -m chains.viewer FD`, FD being the listening socket.

Standard input has one line of JSON, the settings; when it ends, whoever started this has ended too.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

from chains.errors import ChainsError
from chains.viewer.process import SAID, WRONG_SETTINGS, read_settings
from chains.viewer.serving import collect_seldom, serve
from chains.viewer.settings import ViewerSettings


def main() -> int:
    os.nice(10)  # a call's work comes first
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_seldom()
    settings = read_settings(sys.stdin.buffer.readline())
    listening = socket.socket(fileno=int(sys.argv[1]))
    try:
        asyncio.run(_run(settings, listening))
    except ChainsError as error:
        print(f"{SAID}{error}", file=sys.stderr)  # noqa: T201  # nobody else can say it
        return WRONG_SETTINGS
    return 0


async def _run(settings: ViewerSettings, listening: socket.socket) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def told() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            stop.set()

    loop.add_reader(0, told)
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    await serve(settings, listening, stop)


if __name__ == "__main__":
    sys.exit(main())
