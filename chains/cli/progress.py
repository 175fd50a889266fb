"""A bar for what is measured in bytes: how much, how fast, how long yet. Without a terminal it is silent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


@contextmanager
def bytes_bar(label: str, console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """The function to tell the bytes done and the bytes in all, from any thread; the bar ends with the block."""
    console = console or Console(file=sys.stderr)
    sizes = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), *sizes)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)

        def told(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield told
