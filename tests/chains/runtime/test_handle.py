"""What a chainlet holds of another one: names, arguments, and calls out of blocking code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build
from chains.errors import Cancelled, DeadlineExceeded, InvalidValue, NotFound
from chains.runtime.inprocess import InProcess
from chains.testing.harness import until


@chainlet
class Ears:
    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.ended: list[str] = []

    async def hear(self, text: str, loud: bool = False) -> str:
        return text.upper() if loud else text

    async def words(self, text: str) -> AsyncIterator[str]:
        try:
            for word in text.split():
                yield word
        finally:
            self.ended.append("words")

    async def join(self, words: AsyncIterator[str]) -> str:
        return " ".join([word async for word in words])

    async def wait(self) -> int:
        try:
            await self.gate.wait()
        finally:
            self.ended.append("wait")
        return 1

    async def how_ended(self) -> list[str]:
        return self.ended

    async def fail(self, text: str) -> str:
        raise ValueError(text)


@chainlet(entry=True)
class Desk:
    ears: Ears = depends(Ears)
    hasty: Ears = depends(Ears, timeout=0.05)

    def blocking_call(self, text: str) -> str:
        return self.ears.hear(text, loud=True)  # type: ignore[return-value]

    def blocking_stream(self, text: str) -> list[str]:
        return list(self.ears.words(text))  # type: ignore[call-overload, no-any-return]

    def blocking_generator(self, text: str) -> str:
        return self.ears.join(word for word in text.split())  # type: ignore[arg-type, return-value]

    def blocking_break(self, text: str) -> str:
        words: Any = self.ears.words(text)
        for word in words:
            return str(word)
        return ""

    def blocking_wait(self) -> int:
        return self.ears.wait()  # type: ignore[return-value]

    def blocking_fail(self, text: str) -> str:
        try:
            return self.ears.fail(text)  # type: ignore[return-value]
        except ValueError as error:
            return f"caught {error}"

    def blocking_items(self, text: str) -> Iterator[str]:
        yield from self.ears.words(text)  # type: ignore[misc]

    def blocking_reader(self, words: Iterator[str]) -> str:
        return "+".join(words)

    def blocking_pipe(self, text: str) -> str:
        return self.ears.join(self.ears.words(text))  # type: ignore[return-value]

    def blocking_relay(self, words: Iterator[str]) -> str:
        first = next(words)
        return f"{first}, then {self.ears.join(words)}"  # type: ignore[arg-type]

    async def late(self) -> int:
        return await self.hasty.wait()


@pytest.fixture
async def runtime() -> AsyncIterator[InProcess]:
    async with InProcess(build(Desk), grace=0.0) as runtime, runtime.open_call():
        yield runtime


async def test_an_unknown_method_names_the_nearest(runtime: InProcess) -> None:
    ears = runtime.handle("Ears")
    with pytest.raises(NotFound, match=r"Ears has no method haer; did you mean hear\?"):
        ears.haer("x")
    with pytest.raises(NotFound, match=r"it has .*how_ended"):
        ears.zzz()
    with pytest.raises(AttributeError):
        ears._private  # noqa: B018
    assert not hasattr(ears, "__len__")
    assert repr(ears).startswith("<handle on Ears: ")


@pytest.mark.parametrize(
    ("args", "kwargs", "found"),
    [
        ((), {}, "without `text`"),
        ((7,), {}, "int"),
        (("a", True, 3), {}, "takes 2 arguments"),
        (("a",), {"text": "b"}, "twice"),
        (("a",), {"laud": True}, "no parameter `laud`"),
    ],
)
async def test_arguments_are_checked_before_anything_runs(
    runtime: InProcess, args: Any, kwargs: Any, found: str
) -> None:
    with pytest.raises(InvalidValue, match=found):
        runtime.handle("Ears").hear(*args, **kwargs)
    assert runtime.recorder.calls[0].hops == type(runtime.recorder.calls[0].hops)()


async def test_what_is_no_stream_is_refused(runtime: InProcess) -> None:
    with pytest.raises(InvalidValue, match=r"Ears.join\(words=\) is dict"):
        runtime.handle("Ears").join({"a": 1})


class Unwilling:
    def __aiter__(self) -> AsyncIterator[str]:
        raise ValueError("not today")


async def test_a_call_that_cannot_begin_leaves_nothing_in_its_scope(runtime: InProcess) -> None:
    async with runtime.open_call() as call:
        with pytest.raises(ValueError, match="not today"):
            runtime.handle("Ears").join(Unwilling())
        assert not call._children


async def test_outside_of_a_call_there_is_nothing_to_call() -> None:
    async with InProcess(build(Desk), grace=0.0) as runtime:
        with pytest.raises(NotFound, match="open_call"):
            runtime.entry.late()


async def test_defaults_are_filled_in(runtime: InProcess) -> None:
    assert await runtime.handle("Ears").hear("a") == "a"
    assert await runtime.handle("Ears").hear(loud=True, text="a") == "A"


async def test_blocking_code_calls_and_blocks(runtime: InProcess) -> None:
    desk = runtime.entry
    assert await desk.blocking_call("a") == "A"
    assert await desk.blocking_stream("a b c") == ["a", "b", "c"]
    assert await desk.blocking_fail("x") == "caught x"
    assert [word async for word in desk.blocking_items("a b")] == ["a", "b"]


async def test_a_stream_that_blocking_code_leaves_is_cancelled(runtime: InProcess) -> None:
    assert await runtime.entry.blocking_break("a b c") == "a"
    ears = runtime.handle("Ears")

    async def ended() -> bool:
        return await ears.how_ended() == ["words"]

    await until(ended, "the stream's finally")


def running(runtime: InProcess, wanted: bool) -> Any:
    """Whether all chainlets run something, or none does."""

    async def check() -> bool:
        return {bool(load.running) for load in runtime.load()} == {wanted}

    return check


async def test_blocking_code_that_waits_for_a_hop_is_released_by_a_cancel(runtime: InProcess) -> None:
    ears = runtime.handle("Ears")
    async with runtime.open_call() as call:
        result = runtime.entry.blocking_wait()
        await until(running(runtime, True), "the hop's start")
        call.cancel("hang-up")
        with pytest.raises(Cancelled, match="hang-up"):
            await result
    await until(running(runtime, False), "the blocking code's end")
    assert await ears.how_ended() == ["wait"]


async def test_blocking_code_reads_a_stream(runtime: InProcess) -> None:
    assert await runtime.entry.blocking_reader(runtime.handle("Ears").words("a b c")) == "a+b+c"


async def test_blocking_code_passes_streams_on(runtime: InProcess) -> None:
    assert await runtime.entry.blocking_pipe("a b c") == "a b c"
    assert await runtime.entry.blocking_relay(runtime.handle("Ears").words("a b c")) == "a, then b c"


async def test_the_options_of_a_use_hold_for_it_alone(runtime: InProcess) -> None:
    with pytest.raises(DeadlineExceeded, match=r"gave no result within 0.05 s"):
        await runtime.entry.late()
    options = [edge.options.timeout for edge in build(Desk).nodes["Desk"].edges.values()]
    assert options == [60.0, 0.05]


async def test_blocking_code_passes_a_generator_of_its_own() -> None:
    async with InProcess(build(Desk)) as runtime, runtime.open_call():
        assert await runtime.entry.blocking_generator("good morning") == "good morning"
