# ruff: noqa
# mypy: ignore-errors
"""Dependencies that cannot be: no default, no chainlet, another class than annotated, unknown and wrong arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from chains.dsl.chainlet import chainlet, depends
from chains.dsl.specs import Limits, Resources


class Plain:
    pass


@chainlet
class Ears:
    def __init__(
        self, model: str, beam: int = 1, hints: list[str] = [], path: Plain | None = None, *, rate: float = 1.0
    ) -> None:
        pass

    async def hear(self, text: str) -> str:
        return text


@chainlet
class Mouth:
    def __init__(self, **anything: Any) -> None:
        pass

    async def speak(self, text: str) -> str:
        return text


@chainlet
class Patient:
    def __init__(self, timeout: float = 1.0, window: int = 3) -> None:
        #! (Patient.__init__) has a parameter `timeout`, which depends() keeps for itself; rename it, e.g. timeout_
        #! (Patient.__init__) has a parameter `window`, which depends() keeps for itself; rename it, e.g. window_
        pass

    async def wait(self, text: str) -> str:
        return text


@chainlet
class Waiting:
    def __init__(self, ears: Ears, mouth: Mouth = None, patient: Mouth = depends(Mouth, timeout=0)) -> None:
        #! (Waiting.__init__) has no default for the chainlet `ears`; write ears: Ears = depends(Ears)
        #! (Waiting.__init__) has the default None for the chainlet `mouth`; write mouth: Mouth = depends(Mouth)
        #! (Waiting.patient) has depends(timeout=0), which is not a number above 0; write seconds, e.g. timeout=2.0, or None for no limit
        pass

    async def run(self, text: str) -> str:
        return text


@chainlet
@dataclass
class Written:
    mouth: Mouth
    #! (Written.mouth) has no default; write mouth: Mouth = depends(Mouth)
    ears: Ears = depends(Ears, model="fine")

    async def run(self, text: str) -> str:
        return text


@chainlet(entry=True)
class PhoneCall:
    ignored: ClassVar[str] = "a class variable is no dependency"
    first: Ears
    #! (PhoneCall.first) has no default; write first: Ears = depends(Ears)
    second: Ears = None
    #! (PhoneCall.second) has the default None; write second: Ears = depends(Ears)
    third: Ears = depends(Ears)
    #! (PhoneCall.third) does not give `model`, which Ears needs; write depends(Ears, model=...)
    fourth: Ears = depends(Ears, modle="x")
    #! (PhoneCall.fourth) gives Ears an unknown argument `modle`; write model=...
    fifth: Ears = depends(Ears, model=5, beam=True, hints=["a", 2], rate=2)
    #! (PhoneCall.fifth) gives Ears model=5: int 5, expected str; write a value of `str`
    #! (PhoneCall.fifth) gives Ears beam=True: True, expected int; write a value of `int`
    #! (PhoneCall.fifth) gives Ears hints=['a', 2]: [1] is int 2, expected str; write a value of `list[str]`
    sixth: Ears = depends(Ears, model="x", path="somewhere")
    #! (PhoneCall.sixth) gives Ears path='somewhere': str, expected Plain | None; write path=Plain(...)
    seventh: Mouth = depends(Ears, model="x")
    #! (PhoneCall.seventh) is annotated `Mouth`, but depends on Ears; write seventh: Ears = depends(Ears)
    eighth: Plain = depends(Plain)
    #! (PhoneCall.eighth) depends on Plain, which is no chainlet; write @chainlet above class Plain (dependencies.py:14)
    ninth = depends("Ears")
    #! (PhoneCall.ninth) depends on 'Ears', which is no class; write depends(Ears), below class Ears: a class must stand above those that depend on it
    tenth: Ears = depends(
        #! (PhoneCall.tenth) has depends(timeout=-1), which is not a number above 0; write seconds, e.g. timeout=2.0, or None for no limit
        #! (PhoneCall.tenth) has depends(first='soon'), which is not a number above 0; write seconds, e.g. first=2.0, or None for no limit
        #! (PhoneCall.tenth) has depends(retries=1.5), which is not a whole number of at least 0; write e.g. retries=1
        #! (PhoneCall.tenth) has depends(resources={'cpu': 1}); write resources=Resources(...)
        #! (PhoneCall.tenth) has depends(limits=Resources(cpu=1.0, memory='', gpu='', gpus=0.0)); write limits=Limits(...)
        Ears,
        model="x",
        timeout=-1,
        retries=1.5,
        first="soon",
        resources={"cpu": 1},
        limits=Resources(),
    )
    eleventh: Mouth = depends(Mouth, any="thing", at="all")
    #! (PhoneCall.eleventh) is also a parameter `eleventh` of __init__; rename one of the two
    twelfth: Patient = depends(Patient)
    thirteenth: Waiting = depends(Waiting)
    fourteenth: Waiting = depends(Waiting, ears="model")
    #! (PhoneCall.fourteenth) gives Waiting ears='model', where it takes a chainlet; write ears=depends(Ears)
    fifteenth: Written = depends(Written)
    load: Mouth = depends(Mouth)
    #! (PhoneCall.load) is a dependency by the name of the hook `load`; give it another name
    warm_up: Ears = depends(
        #! (PhoneCall.warm_up) gives Ears an unknown argument `timeut`; write timeout=...
        Ears,
        model="x",
        timeut=3.0,
        limits=Limits(running=2),
    )

    def __init__(self, eleventh: str, name: str = "", /) -> None:
        #! (PhoneCall.__init__) takes `eleventh` by position only; leave out the `/`
        #! (PhoneCall.__init__) takes `name` by position only; leave out the `/`
        #! (PhoneCall.__init__) needs `eleventh`, and nobody gives an entry its arguments; write eleventh = ... with a default
        pass

    async def run(self, text: str) -> str:
        return text
