# ruff: noqa
# mypy: ignore-errors
"""Settings of @chainlet that are unknown or of another kind, names that clash, and chainlets that offer nothing."""

from __future__ import annotations

from chains.dsl.chainlet import chainlet, depends
from chains.dsl.specs import Limits, Resources


@chainlet(resurces=Resources(), scaling=Resources(), limits=3, colour="blue")
class Ears:
    #! (Ears) has an unknown setting @chainlet(resurces=...); write resources=...
    #! (Ears) has an unknown setting @chainlet(colour=...); known are resources, scaling, limits, placement, environment, entry, name
    #! (Ears) has @chainlet(scaling=Resources(cpu=1.0, memory='', gpu='', gpus=0.0)); write scaling=Autoscaling(...)
    #! (Ears) has @chainlet(limits=3); write limits=Limits(...)
    async def hear(self, text: str) -> str:
        return text


@chainlet(name="Ears")
class Other:
    #! (Ears) is called Ears, like the chainlet at decorators.py:12; write @chainlet(name="Other2")
    async def hear(self, text: str) -> str:
        return text


@chainlet(name="no name")
class Named:
    #! (no name) has @chainlet(name='no name'); write a name like a class's, e.g. name="Named"
    async def hear(self, text: str) -> str:
        return text


@chainlet(entry="yes")
class Silent:
    #! (Silent) has @chainlet(entry='yes'); write entry=True
    #! (Silent) has no public method; write e.g. async def run(self, text: str) -> str
    def _private(self, text):
        pass

    @property
    def public(self):
        return 1

    @staticmethod
    def helper(x):
        return x


@chainlet
class Slotted:
    #! (Slotted) has __slots__ and no room for its dependencies; leave __slots__ out, or add "__dict__" to it
    __slots__ = ("x",)

    async def run(self, text: str) -> str:
        return text


@chainlet
class Awaits:
    async def __init__(self) -> None:
        #! (Awaits.__init__) is an `async def`, which nobody can await; write def __init__(self, ...), and await in async def load(self)
        pass

    async def run(self, text: str) -> str:
        return text


@chainlet(entry=True, limits=Limits(running=4))
class PhoneCall:
    awaits: Awaits = depends(Awaits)
    ears: Ears = depends(Ears)
    other: Other = depends(Other)
    named: Named = depends(Named)
    silent: Silent = depends(Silent)
    slotted: Slotted = depends(Slotted)

    async def run(self, text: str) -> str:
        return text
