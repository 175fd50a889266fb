"""@chainlet, @method, depends and Model: what they leave on a class, and what a subclass has of its parent."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import pytest

from chains.dsl.chainlet import Model, chainlet, depends, is_chainlet, method, spec_of
from chains.dsl.graph import build
from chains.dsl.specs import Autoscaling, Batching, CallOptions, Limits, Resources
from chains.errors import GraphError, SettingError
from chains.messages import Audio, Text


def test_a_decorated_class_stays_as_it_is() -> None:
    class Ears:
        """Hears."""

        async def hear(self, text: str) -> str:
            return text

    before = dict(vars(Ears))
    assert chainlet(Ears) is Ears
    assert {name: value for name, value in vars(Ears).items() if name != "__chainlet__"} == before
    assert asyncio.run(Ears().hear("a")) == "a"
    assert is_chainlet(Ears)
    assert not is_chainlet(Ears())
    assert not is_chainlet(int)


def test_settings_stand_on_the_class() -> None:
    @chainlet(
        entry=True, name="Hearing", resources=Resources(gpu="L4"), scaling=Autoscaling(max=3), limits=Limits(2, 2)
    )
    class Ears:
        async def hear(self, text: str) -> str:
            return text

    spec = spec_of(Ears)
    assert (spec.name, spec.entry, spec.owner) == ("Hearing", True, Ears)
    assert (spec.resources, spec.scaling, spec.limits) == (Resources(gpu="L4"), Autoscaling(max=3), Limits(2, 2))


def test_a_subclass_inherits_settings_methods_and_dependencies() -> None:
    @chainlet
    class Mouth:
        async def speak(self, text: str) -> str:
            return text

    class Mixin:
        def untyped(self, anything):  # type: ignore[no-untyped-def]
            """No chainlet's, so nobody outside can call it."""

        @method(idempotent=True)
        async def marked(self, text: str) -> str:
            return text

    @chainlet(entry=True, resources=Resources(cpu=4), limits=Limits(running=3))
    class Base:
        mouth: Mouth = depends(Mouth)

        async def run(self, text: str) -> str:
            return text

        async def old(self, text: str) -> str:
            return text

    class Plain(Base, Mixin):
        old = None  # type: ignore[assignment]

        async def more(self, text: str) -> str:
            return text

    @chainlet(limits=Limits(running=9))
    class Again(Base):
        async def run(self, text: list[str]) -> str:  # type: ignore[override]
            return ""

    graph = build(Plain)
    node = graph.nodes["Plain"]
    assert graph.entry == "Plain"
    assert list(node.methods) == ["marked", "run", "more"]
    assert node.methods["marked"].idempotent
    assert list(node.edges) == ["mouth"]
    assert (node.spec.resources, node.spec.limits, node.spec.entry) == (Resources(cpu=4), Limits(running=3), False)
    again = build(Again).nodes["Again"]
    assert (again.spec.resources, again.spec.limits) == (Resources(cpu=4), Limits(running=9))
    assert again.methods["run"].bind((["a"],), {}) == {"text": ["a"]}
    assert build(Base).nodes["Base"].methods["old"].label == "Base.old"


def test_chainlet_on_something_else_is_refused_at_once() -> None:
    with pytest.raises(SettingError, match="which is no class; write @chainlet above a class"):
        chainlet(lambda: 1)  # type: ignore[call-overload]

    def answer(text: str) -> str:
        return text

    with pytest.raises(SettingError, match=r"^@chainlet stands on `answer`, which is no class"):
        chainlet(answer)  # type: ignore[call-overload]


@chainlet
class Ears:
    def __init__(self, model: str = "tiny", timeout_: float = 1.0) -> None:
        self.model = model

    async def hear(self, text: str) -> str:
        return text


def test_depends_takes_call_settings_replica_settings_and_arguments() -> None:
    @chainlet
    class Call:
        ears: Ears = depends(
            Ears,
            model="small",
            timeout=2.0,
            retries=0,
            options=CallOptions(idle=3.0, timeout=9.0),
            resources=Resources(cpu=2),
            limits=Limits(running=1),
        )

        async def run(self, text: str) -> str:
            return text

    node = build(Call).nodes["Call"]
    assert node.edges["ears"].options == CallOptions(timeout=2.0, idle=3.0, retries=0)
    ears = build(Call).nodes["Ears"]
    assert ears.arguments == {"model": "small"}
    assert (ears.spec.resources, ears.spec.limits) == (Resources(cpu=2), Limits(running=1))


def test_a_dependency_that_no_runtime_filled_in_says_so() -> None:
    @chainlet
    class Call:
        ears: Ears = depends(Ears)

        async def run(self, text: str) -> str:
            return await self.ears.hear(text)

    with pytest.raises(AttributeError, match=r"`hear` was asked of depends\(Ears\), which no runtime has filled in"):
        asyncio.run(Call().run("a"))
    assert not hasattr(Call.ears, "__len__")
    assert copy.copy(Call.ears).cls is Ears


def test_wrapped_methods_keep_the_signature_below() -> None:
    def traced(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    @chainlet
    class Call:
        @traced
        async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Text]:
            yield Text("")

        @traced
        def block(self, text: str) -> Iterator[int]:
            yield 1

    methods = build(Call).nodes["Call"].methods
    assert (methods["run"].streams_in, methods["run"].streams_out, methods["run"].blocking) == (True, True, False)
    assert (methods["block"].streams_out, methods["block"].blocking) == (True, True)


def test_local_classes_in_annotations_are_found() -> None:
    @dataclasses.dataclass
    class Point:
        x: float

    @chainlet
    class Call:
        async def run(self, point: Point) -> list[Point]:
            return [point]

    run = build(Call).nodes["Call"].methods["run"]
    assert run.bind((Point(1.0),), {})["point"] == Point(1.0)


def test_a_protocol_may_stand_for_a_chainlet() -> None:
    class Hears(Protocol):
        async def hear(self, text: str) -> str: ...

    @chainlet
    class Call:
        ears: Hears = depends(Ears)

        async def run(self, text: str) -> str:
            return text

    assert build(Call).nodes["Call"].edges["ears"].target == "Ears"


def load_words(words: str = "a b", *, upper: bool = False) -> list[str]:
    return (words.upper() if upper else words).split()


async def load_later(words: str) -> list[str]:
    return words.split()


def count(model: list[str], text: str, weight: int = 1) -> int:
    """How often the model's words stand in a text."""
    return sum(text.split().count(word) for word in model) * weight


def count_many(model: list[str], texts: list[str]) -> list[int]:
    return [count(model, text) for text in texts]


async def stream_words(model: list[str], text: str) -> AsyncIterator[str]:
    for word in model:
        yield word


def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
    instance = cls(*args, **kwargs)
    loading = instance.load()
    if loading is not None:
        asyncio.run(loading)
    return instance


def test_a_model_becomes_a_chainlet_with_two_functions() -> None:
    Counter = Model(
        load=load_words, predict=count, name="Counter", resources=Resources(cpu=2), limits=Limits(running=1)
    )
    graph = build(Counter)
    node = graph.nodes["Counter"]
    assert (node.spec.resources, node.spec.limits) == (Resources(cpu=2), Limits(running=1))
    predict = node.methods["predict"]
    assert predict.shape == "predict(text: str, weight: int = 1) -> int"
    assert predict.blocking
    assert predict.doc == "How often the model's words stand in a text."
    assert "test_chainlet.py" in predict.where
    assert list(node.methods) == ["predict"]
    assert made(node.cls, "b", upper=True).predict("a B B", weight=2) == 4


def test_a_model_s_arguments_come_from_its_load() -> None:
    Counter = Model(load=load_words, predict=count, name="Counter")

    @chainlet
    class Call:
        good = depends(Counter, words="b c")

        async def run(self, text: str) -> str:
            return text

    assert build(Call).nodes["Counter"].construct({})._arguments.arguments == {"words": "b c"}
    Call.good = depends(Counter, words=3, uper=True)
    with pytest.raises(GraphError) as caught:
        build(Call)
    assert "gives Counter words=3: int 3, expected str" in str(caught.value)
    assert "an unknown argument `uper`; write upper=..." in str(caught.value)


def test_models_load_async_batch_and_stream() -> None:
    Batched = Model(load=load_words, predict=count_many, batch=Batching(size=4))
    node = build(Batched).nodes["CountMany"]
    assert node.methods["predict"].shape == "predict(texts: str) -> int"
    assert node.methods["predict"].batch == Batching(size=4)
    assert made(node.cls).predict(["a", "a b"]) == [1, 2]
    Streaming = Model(load=load_later, predict=stream_words)
    predict = build_with_words(Streaming)
    assert (predict.streams_out, predict.blocking) == (True, False)

    async def words() -> list[str]:
        return [word async for word in made_model.predict("x")]

    made_model = made(Streaming, "a b")
    assert asyncio.run(words()) == ["a", "b"]


def build_with_words(cls: Any) -> Any:
    """The method of a model whose load needs an argument."""

    @chainlet
    class Call:
        model = depends(cls, words="a")

        async def run(self, text: str) -> str:
            return text

    return build(Call).nodes["StreamWords"].methods["predict"]


def test_a_model_of_lambdas_is_refused() -> None:
    with pytest.raises(SettingError, match=r"Model\(load=.*\) is no function written with def; write def load"):
        Model(load=lambda: 1, predict=count)
    with pytest.raises(SettingError, match=r"write def predict"):
        Model(load=load_words, predict=len)


def test_a_class_with_load_and_predict_is_a_model_too() -> None:
    @chainlet
    class Counter:
        def load(self) -> None:
            self.model = ["a"]

        def predict(self, text: str) -> int:
            return count(self.model, text)

    assert list(build(Counter).nodes["Counter"].methods) == ["predict"]
