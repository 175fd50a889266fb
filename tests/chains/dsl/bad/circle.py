# ruff: noqa
# mypy: ignore-errors
"""Chainlets that depend on one another in a circle, and on themselves."""

from __future__ import annotations

from chains.dsl.chainlet import chainlet, depends


@chainlet
class Ears:
    brain: Brain

    async def hear(self, text: str) -> str:
        return text


@chainlet
class Brain:
    ears: Ears = depends(Ears)

    async def think(self, text: str) -> str:
        return text


@chainlet(entry=True)
class PhoneCall:
    brain: Brain = depends(Brain)

    async def run(self, text: str) -> str:
        return text


Ears.brain = depends(Brain)
#! (Ears.brain) closes a circle: Brain -> Ears -> Brain; take one of these dependencies out; pass the answer as an argument
PhoneCall.again = depends(PhoneCall)
#! (PhoneCall.again) closes a circle: PhoneCall -> PhoneCall; take one of these dependencies out; pass the answer as an argument
