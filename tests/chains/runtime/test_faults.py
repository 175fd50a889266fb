"""Whose fault it is, and that it always comes back: errors of a method's own making."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chains.dsl.chainlet import chainlet
from chains.dsl.graph import build, load
from chains.errors import InvalidResult, InvalidValue, RemoteError
from chains.runtime.inprocess import InProcess


@chainlet(entry=True)
class Wrong:
    async def result(self) -> str:
        return 7  # type: ignore[return-value]

    def blocking(self) -> str:
        return 7  # type: ignore[return-value]

    async def item(self) -> AsyncIterator[str]:
        yield 7  # type: ignore[misc]

    async def odd(self, name: str) -> str:
        raise getattr(builtins, name)


@pytest.mark.parametrize("method", ["result", "blocking"])
async def test_a_wrong_result_is_the_methods_fault_and_no_callers(method: str) -> None:
    async with InProcess(build(Wrong)) as runtime, runtime.open_call():
        with pytest.raises(InvalidResult, match=r"returned is int.*; give str, or change the annotation") as caught:
            await getattr(runtime.entry, method)()
    assert (caught.value.http, caught.value.ws) == (500, 1011)


async def test_a_wrong_item_is_the_methods_fault() -> None:
    async with InProcess(build(Wrong)) as runtime, runtime.open_call():
        with pytest.raises(InvalidResult, match="yielded"):
            async for _ in runtime.entry.item():
                pass


async def test_a_wrong_argument_is_the_callers() -> None:
    async with InProcess(build(Wrong)) as runtime, runtime.open_call():
        with pytest.raises(InvalidValue) as caught:
            await runtime.entry.odd(7)
    assert not isinstance(caught.value, InvalidResult)
    assert caught.value.http == 422


@pytest.mark.parametrize("name", ["GeneratorExit", "KeyboardInterrupt", "SystemExit", "StopIteration"])
async def test_whatever_a_method_raises_its_caller_is_told(name: str) -> None:
    async with InProcess(build(Wrong)) as runtime, runtime.open_call():
        with pytest.raises((RemoteError, RuntimeError), match=name):
            await asyncio.wait_for(runtime.entry.odd(name), 5.0)
        assert all(not load.running for load in runtime.load())


async def test_an_errors_type_is_named_by_the_chains_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.py"
    path.write_text(
        "from chains import chainlet\n"
        "class Closed(Exception): ...\n"
        "@chainlet(entry=True)\n"
        "class Shop:\n"
        "    async def run(self) -> str:\n"
        "        raise Closed('on Sunday')\n"
    )
    async with InProcess(load(str(path))) as runtime, runtime.open_call():
        with pytest.raises(RemoteError) as caught:
            await runtime.entry.run()
    assert caught.value.type_name == "shop.Closed"
