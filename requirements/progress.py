"""Turn pip's output, read from stdin, into one progress line (a terminal) or a line every ten packages (a log).

Everything goes into the file named as the argument; pip's errors are shown as they come.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

STEPS = {
    "Collecting": "resolve",
    "Downloading": "download",
    "Using": "cached",
    "Building": "build",
    "Installing": "install (a minute or so)",
    "Successfully": "done",
}


def main() -> None:
    started, packages, terminal = time.monotonic(), 0, sys.stdout.isatty()
    with Path(sys.argv[1]).open("a") as log:
        for line in sys.stdin:
            log.write(line)
            words = line.split()
            if not words:
                continue
            if words[0].startswith("ERROR"):
                print(("\r\033[K" if terminal else "") + line, end="", flush=True)
            if words[0] not in STEPS:
                continue
            packages += words[0] == "Collecting"
            name = words[1].split("==")[0].split(">=")[0] if words[0] in ("Collecting", "Downloading") else ""
            shown = f"  {time.monotonic() - started:4.0f} s  {packages} packages  {STEPS[words[0]]} {name[:60]}"
            if terminal:
                print(f"\r\033[K{shown}", end="", flush=True)
            elif words[0] in ("Installing", "Successfully") or (
                words[0] == "Collecting" and packages % 10 == 0
            ):
                print(shown.rstrip(), flush=True)
    if terminal:
        print()


if __name__ == "__main__":
    main()
