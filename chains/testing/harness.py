"""What the cases of the conformance suite share: how a runtime is made, and how a moment is waited for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from chains.dsl.graph import Graph
from chains.runtime.deployment import Runtime

PROMPT = 0.05
AT_ONCE = 3.0
"""Seconds within which happens what waits for nobody, also on a busy machine."""


class Make(Protocol):
    """Makes the runtime under test for a graph; `replicas` maps node names to counts, 1 each otherwise."""

    def __call__(
        self, graph: Graph, *, replicas: Mapping[str, int] | None = None
    ) -> AbstractAsyncContextManager[Runtime]: ...


@dataclass(frozen=True)
class Case:
    """One sentence of the contract, and the code that fails when a runtime breaks it."""

    room: str
    name: str
    run: Callable[[Make], Awaitable[None]]

    @property
    def sentence(self) -> str:
        return (self.run.__doc__ or "").strip()

    def __str__(self) -> str:
        return f"{self.room}.{self.name}"


class Broken(AssertionError):
    """The runtime does not keep the contract."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


async def raises(kind: type[BaseException], awaitable: Awaitable[Any]) -> BaseException:
    """The error of `kind` that awaiting gives; Broken when it gives another, or a value."""
    try:
        value = await asyncio.wait_for(awaitable, 10.0)
    except kind as error:
        return error
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        raise Broken(f"raised {type(error).__name__}: {error}; expected {kind.__name__}") from error
    raise Broken(f"gave {value!r}; expected {kind.__name__}")


async def until(check: Callable[[], Awaitable[bool]], what: str | Callable[[], str], seconds: float = 5.0) -> float:
    """Ask until `check` holds; the seconds that took. Broken when it never does, with `what` was waited for: a function
    is asked then, and can say what was there instead.
    """
    start = time.monotonic()
    while not await check():
        if time.monotonic() - start > seconds:
            raise Broken(f"not within {seconds:g} s: {what if isinstance(what, str) else what()}")
        await asyncio.sleep(0.001)
    return time.monotonic() - start


async def promptly(attempt: Callable[[], Awaitable[float]], what: str, within: float = PROMPT, tries: int = 5) -> None:
    """The best of a few tries takes at most `within` seconds: a busy machine is no broken contract."""
    best = float("inf")
    for _ in range(tries):
        best = min(best, await attempt())
        if best <= within:
            return
    raise Broken(f"{what} took {best * 1e3:.0f} ms; at most {within * 1e3:.0f} ms")


async def at_rest() -> None:
    """Leave everybody else time to do what they can do; then ask again whether anything has moved."""
    await asyncio.sleep(0.02)
