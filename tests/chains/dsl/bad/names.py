# ruff: noqa
# mypy: ignore-errors
"""Names in annotations that mean nothing at run time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from chains.dsl.chainlet import chainlet
from chains.messages import Audio, Text

if TYPE_CHECKING:
    from chains.messages import Control as Happening


@chainlet(entry=True)
class Names:
    async def typed_only(self, event: Happening) -> str:
        #! (Names.typed_only) parameter `event` is annotated `Happening`, where `Happening` means nothing; move `from chains.messages import Control as Happening` out of `if TYPE_CHECKING:`, since the type is needed at run time
        return ""

    async def misspelt(self, audio: AsyncIterator[Adio]) -> AsyncIterator[Text]:
        #! (Names.misspelt) parameter `audio` is annotated `AsyncIterator[Adio]`, where `Adio` means nothing; write Audio, or import Adio
        yield Text("")

    async def unknown(self, text: str) -> list[Zebra]:
        #! (Names.unknown) result is annotated `list[Zebra]`, where `Zebra` means nothing; import Zebra, or define it at the top level of the file
        return []

    async def no_python(self, text: "list[str") -> "3 +":
        #! (Names.no_python) parameter `text` is annotated `'list[str'`, which is no Python; write a type, e.g. list[str]
        #! (Names.no_python) result is annotated `'3 +'`, which is no Python; write a type, e.g. list[str]
        return ""

    async def not_a_generic(self, text: Text[int]) -> str:
        #! (Names.not_a_generic) parameter `text` has an annotation that cannot be used, `Text[int]`: type 'Text' is not subscriptable; write a type, e.g. list[str]
        return ""

    async def no_type(self, text: 5) -> "Audio | 'x'":
        #! (Names.no_type) parameter `text` is `5`, which cannot cross a hop; send plain data: a dataclass, a pydantic model, list, dict, str
        #! (Names.no_type) result has an annotation that cannot be used, `"Audio | 'x'"`: unsupported operand type(s) for |: 'type' and 'str'; write a type, e.g. list[str]
        return ""
