"""Turn pip's output, read from stdin, into one progress line (a terminal) or a line now and then (a log).

Everything goes into the file named as the argument; pip's errors are shown as they come.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

STEPS = {
    "Collecting": "looking up",
    "Processing": "taking",
    "Downloading": "downloading",
    "Installing collected": "unpacking, a minute or so",
    "Successfully installed": "installed",
}
PACKAGE = ("Collecting", "Processing")  # pip says one of them for each
MILESTONES = ("Installing collected", "Successfully installed")


def main() -> None:
    started, packages, terminal = time.monotonic(), 0, sys.stdout.isatty()
    with Path(sys.argv[1]).open("a") as log:
        for line in sys.stdin:
            log.write(line)
            line = line.lstrip()  # pip indents what it downloads
            if line.startswith("ERROR"):
                print(("\r\033[K" if terminal else "") + line, end="", flush=True)
            start = next((start for start in STEPS if line.startswith(start)), None)
            if start is None:
                continue
            packages += start in PACKAGE
            name = "" if start in MILESTONES else line.split()[1].rpartition("/")[2][:50]
            seconds = time.monotonic() - started
            shown = f"  {seconds:4.0f} s  {packages} packages  {STEPS[start]} {name}".rstrip()
            if terminal:
                print(f"\r\033[K{shown}", end="", flush=True)
            elif start in MILESTONES or (start in PACKAGE and packages % 20 == 0):
                print(shown, flush=True)
    if terminal:
        print()


if __name__ == "__main__":
    main()
