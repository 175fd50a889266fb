# ruff: noqa
# mypy: ignore-errors
"""Two entries."""

from chains.dsl.chainlet import chainlet


@chainlet(entry=True)
class Ears:
    #! (Ears) is one of 2 entries of this file; leave entry=True on one, or name it: two_entries.py:Ears
    async def hear(self, text: str) -> str:
        return text


@chainlet(entry=True)
class PhoneCall(Ears):
    #! (PhoneCall) is one of 2 entries of this file; leave entry=True on one, or name it: two_entries.py:PhoneCall
    async def run(self, text: str) -> str:
        return text
