"""The front's way to a step loop; here to one in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from engines.llm.assembly import Facts
from engines.llm.core import Core
from engines.llm.errors import RequestFailed
from engines.llm.messages import Close, Message, Report

Deliver = Callable[[Report], None]
Gone = Callable[[str], None]
"""Called when the loop has ended, with why; "" when it was told to."""


class Link(Protocol):
    """A running step loop. Its reports go to a Deliver, its end to a Gone."""

    facts: Facts

    def send(self, message: Message) -> None:
        """Hand a message over. Raises RequestFailed when the loop is gone."""
        ...

    def close(self) -> None:
        """End the loop and wait for it."""
        ...


class ThreadLink:
    """The loop in a thread of this process."""

    def __init__(self, make: Callable[[Deliver], tuple[Core, Facts]], deliver: Deliver, gone: Gone) -> None:
        self._core, self.facts = make(deliver)
        self._gone, self._told = gone, False
        self._thread = threading.Thread(target=self._run, name="engine core", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._core.run()
        self._gone("" if self._told else "the engine's step loop has ended")

    def send(self, message: Message) -> None:
        if not self._thread.is_alive():
            raise lost("its thread has ended")
        self._core.put(message)

    def close(self) -> None:
        self._told = True
        self._core.put(Close())
        self._thread.join()


def lost(why: str) -> RequestFailed:
    return RequestFailed(f"the engine is gone: {why}", mend="load the model again; the log says what happened")
