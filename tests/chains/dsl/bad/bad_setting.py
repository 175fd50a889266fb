# ruff: noqa
# mypy: ignore-errors
"""A setting that refuses itself while the file is read."""

from chains.dsl.chainlet import chainlet
from chains.dsl.specs import Limits


@chainlet(entry=True, limits=Limits(running=0))
#! Limits(running=0) is not a whole number of at least 1; write e.g. running=1
class PhoneCall:
    async def run(self, text: str) -> str:
        return text
