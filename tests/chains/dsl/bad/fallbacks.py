# ruff: noqa
# mypy: ignore-errors
"""Hedging that cannot be, fall-backs that cannot answer, prompts that no parameter carries."""

from __future__ import annotations

from collections.abc import AsyncIterator

from chains.dsl.chainlet import chainlet, depends, method


@chainlet
class Brain:
    @method(prefix="prompts")
    async def reply(self, prompt: str) -> str:
        #! (Brain.reply) has @method(prefix='prompts'), which is no parameter that carries a prompt; name one of prompt
        return prompt


@chainlet
class Large:
    async def reply(self, prompt: str) -> AsyncIterator[str]:
        yield prompt

    @method(idempotent=True)
    async def total(self, numbers: AsyncIterator[int]) -> int:
        return 0


@chainlet
class Small:
    async def reply(self, prompt: str) -> str:
        return prompt


@chainlet(entry=True)
class Call:
    brain: Brain = depends(Brain)
    hedged: Large = depends(Large, hedge=0.2)
    #! (Call.hedged) hedges Large, none of whose methods may run twice at once; write @method(idempotent=True) above one that reads no stream, or leave out hedge=
    never: Large = depends(Large, hedge=-1)
    #! (Call.never) has depends(hedge=-1), which is not a number above 0; write seconds, e.g. hedge=2.0, or None for no limit
    other: Large = depends(Large, fallback=Small)
    #! (Call.other.fallback) falls back on Small, whose reply is reply(prompt: str) -> str; write reply(prompt: str) -> stream of str there
    #! (Call.other.fallback) falls back on Small, which has no method total; write total(numbers: stream of int) -> int in Small
    same: Small = depends(Small, fallback=Small)
    #! (Call.same.fallback) falls back on Small itself; name another chainlet, or leave it out
    none: Small = depends(Small, fallback="Smaller")
    #! (Call.none.fallback) depends on 'Smaller', which is no class; write depends(Smaller), below class Smaller: a class must stand above those that depend on it

    async def run(self) -> str:
        return ""
