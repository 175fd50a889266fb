# ruff: noqa
# mypy: ignore-errors
"""No entry, and a fault besides."""

from chains.dsl.chainlet import chainlet


@chainlet
class Ears:
    async def hear(self, text: str) -> str:
        return text


@chainlet
class PhoneCall:
    #! (PhoneCall) no chainlet of this file is the entry; write @chainlet(entry=True) above one of Ears, PhoneCall, or name it: no_entry.py:PhoneCall
    async def run(self, text) -> str:
        #! (PhoneCall.run) has no annotation on `text`; write async def run(self, text: str) -> str, or name it _run to keep it private
        return text
