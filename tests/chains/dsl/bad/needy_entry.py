# ruff: noqa
# mypy: ignore-errors
"""An entry whose constructor nobody can call."""

from chains.dsl.chainlet import chainlet


@chainlet(entry=True)
class PhoneCall:
    def __init__(self, model: str, size: int = 3) -> None:
        #! (PhoneCall.__init__) needs `model`, and nobody gives an entry its arguments; write model = ... with a default
        pass

    async def run(self, text: str) -> str:
        return text
