"""A chain's graph: which uses share a node, in what order nodes come, how they are made, drawn and loaded."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import Edge, build, load
from chains.dsl.specs import Autoscaling, CallOptions, Environment, Limits, Placement, Resources
from chains.errors import GraphError
from chains.messages import Audio, Control, Text

MADE: list[object] = []


@chainlet(resources=Resources(gpu="L4", memory="4GiB"), scaling=Autoscaling(min=1, max=8))
class Ears:
    def __init__(self, model: str = "tiny.en", beams: list[int] | None = None) -> None:
        self.model = model

    async def transcribe(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Text]:
        yield Text("")


@chainlet
class Facts:
    def look_up(self, question: str, limit: int = 3) -> list[str]:
        return []


@chainlet
class Brain:
    facts: Facts = depends(Facts)

    async def reply(self, text: str) -> AsyncIterator[Text]:
        yield Text("")


@chainlet(entry=True)
class PhoneCall:
    ears: Ears = depends(Ears, model="small.en")
    brain: Brain = depends(Brain, timeout=2.0)
    facts: Facts = depends(Facts, timeout=None)

    def __init__(self, greeting: str = "Hello", backup: Ears = depends(Ears)) -> None:
        MADE.append((self.ears, self.brain, self.facts, backup, greeting))

    async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio | Text | Control]:
        yield Text("")


def test_nodes_come_leaves_first_and_edges_say_how_they_are_held() -> None:
    graph = build(PhoneCall)
    assert graph.entry == "PhoneCall"
    assert list(graph.nodes) == ["Ears", "Facts", "Brain", "Ears.backup", "PhoneCall"]
    assert graph.nodes["PhoneCall"].edges == {
        "ears": Edge("ears", "Ears", CallOptions(), "attribute"),
        "brain": Edge("brain", "Brain", CallOptions(timeout=2.0), "attribute"),
        "facts": Edge("facts", "Facts", CallOptions(timeout=None), "attribute"),
        "backup": Edge("backup", "Ears.backup", CallOptions(), "init"),
    }
    assert graph.nodes["Ears"].arguments == {"model": "small.en"}
    assert graph.nodes["Ears.backup"].arguments == {}


def test_handles_of_the_class_are_there_before_init_runs() -> None:
    node = build(PhoneCall).nodes["PhoneCall"]
    MADE.clear()
    made = node.construct({"ears": "e", "brain": "b", "facts": "f", "backup": "second ears"})
    assert MADE == [("e", "b", "f", "second ears", "Hello")]
    assert made.ears == "e"
    assert build(PhoneCall).nodes["Ears"].construct({}).model == "small.en"


def test_a_dataclass_may_be_a_chainlet() -> None:
    @chainlet
    @dataclass
    class Call:
        ears: Ears = depends(Ears)
        greeting: str = "Hello"

        async def run(self, text: str) -> str:
            return text

    node = build(Call).nodes["Call"]
    assert node.edges["ears"].via == "init"
    made = node.construct({"ears": "handle"})
    assert (made.ears, made.greeting) == ("handle", "Hello")


def test_what_makes_two_uses_one_node() -> None:
    @chainlet
    class Call:
        first: Ears = depends(Ears)
        said_aloud: Ears = depends(Ears, model="tiny.en")
        other_options: Ears = depends(Ears, timeout=1.0)
        same_resources: Ears = depends(Ears, resources=Resources(gpu="L4", memory="4GiB"))
        listed: Ears = depends(Ears, beams=[1, 2])
        listed_again: Ears = depends(Ears, beams=[1, 2])
        other_list: Ears = depends(Ears, beams=[1, True])
        other_resources: Ears = depends(Ears, resources=Resources(cpu=2))
        other_limits: Ears = depends(Ears, limits=Limits(running=1))
        other_scaling: Ears = depends(Ears, scaling=Autoscaling(max=2))

        async def run(self, text: str) -> str:
            return text

    Call.other_list = depends(Ears, beams=[1])
    edges = build(Call).nodes["Call"].edges
    assert {name: edge.target for name, edge in edges.items()} == {
        "first": "Ears",
        "said_aloud": "Ears",
        "other_options": "Ears",
        "same_resources": "Ears",
        "listed": "Ears.listed",
        "listed_again": "Ears.listed",
        "other_list": "Ears.other_list",
        "other_resources": "Ears.other_resources",
        "other_limits": "Ears.other_limits",
        "other_scaling": "Ears.other_scaling",
    }


def test_the_same_attribute_in_two_parents_makes_two_names() -> None:
    @chainlet
    class One:
        ears: Ears = depends(Ears, model="one")

        async def run(self, text: str) -> str:
            return text

    @chainlet
    class Two:
        ears: Ears = depends(Ears, model="two")

        async def run(self, text: str) -> str:
            return text

    @chainlet
    class Call:
        plain: Ears = depends(Ears)
        one: One = depends(One)
        two: Two = depends(Two)

        async def run(self, text: str) -> str:
            return text

    assert list(build(Call).nodes) == ["Ears", "Ears.ears", "One", "Ears.ears2", "Two", "Call"]


def test_a_dependency_may_be_given_another_dependency() -> None:
    @chainlet
    class Desk:
        def __init__(self, ears: Ears = depends(Ears)) -> None: ...

        async def run(self, text: str) -> str:
            return text

    @chainlet
    class Call:
        one: Desk = depends(Desk)
        two: Desk = depends(Desk, ears=depends(Ears, model="large", timeout=9.0))
        three: Desk = depends(Desk, ears=depends(Ears, model="large", timeout=9.0))

        async def run(self, text: str) -> str:
            return text

    graph = build(Call)
    assert list(graph.nodes) == ["Ears", "Desk", "Ears.ears", "Desk.two", "Call"]
    assert graph.nodes["Desk.two"].edges["ears"] == Edge("ears", "Ears.ears", CallOptions(timeout=9.0), "init")
    assert graph.nodes["Call"].edges["three"].target == "Desk.two"


TREE = """\
PhoneCall  [cpu 1, 1 replica]
|  run(audio: stream of Audio) -> stream of Audio | Text | Control
|- ears: Ears(model='small.en')  [cpu 1, 4GiB, 1 L4, 1-8 replicas]
|     transcribe(audio: stream of Audio) -> stream of Text
|- brain: Brain  [cpu 1, 1 replica]  (timeout 2)
|  |  reply(text: str) -> stream of Text
|  `- facts: Facts  [cpu 1, 1 replica]
|        look_up(question: str, limit: int = 3) -> list[str]
|- facts: Facts, as above  (timeout none)
`- backup: Ears.backup  [cpu 1, 4GiB, 1 L4, 1-8 replicas]
      transcribe(audio: stream of Audio) -> stream of Text"""


def test_the_tree() -> None:
    assert build(PhoneCall).text() == TREE


def test_the_drawing_holds_everything_and_overlaps_nothing() -> None:
    graph = build(PhoneCall)
    root = ET.fromstring(graph.svg())
    space = "{http://www.w3.org/2000/svg}"
    boxes = [
        {key: float(rect.attrib[key]) for key in ("x", "y", "width", "height")} for rect in root.iter(f"{space}rect")
    ]
    assert len(boxes) == len(graph.nodes)
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    for index, one in enumerate(boxes):
        assert one["x"] + one["width"] <= width
        assert one["y"] + one["height"] <= height
        for other in boxes[index + 1 :]:
            apart_x = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            apart_y = one["y"] + one["height"] <= other["y"] or other["y"] + other["height"] <= one["y"]
            assert apart_x or apart_y
    texts = ["".join(text.itertext()) for text in root.iter(f"{space}text")]
    for words in ("PhoneCall", "Ears(model='small.en')", "cpu 1, 4GiB, 1 L4, 1-8 replicas", "backup"):
        assert words in texts
    for group in root.iter(f"{space}g"):
        rect = group.find(f"{space}rect")
        assert rect is not None
        longest = max(len("".join(text.itertext())) for text in group.iter(f"{space}text"))
        assert longest * 7.3 <= float(rect.attrib["width"])
    assert sum(1 for path in root.iter(f"{space}path") if path.attrib.get("class") == "edge") == 5
    assert "currentColor" in graph.svg()
    assert "prefers-color-scheme:dark" in graph.svg()
    assert "http" not in graph.svg().replace("http://www.w3.org/2000/svg", "")


def test_a_drawing_escapes_what_stands_in_it() -> None:
    @chainlet
    class Odd:
        def __init__(self, text: str = "") -> None: ...

        async def run(self, text: str = "<&>") -> str:
            return text

    @chainlet
    class Call:
        odd: Odd = depends(Odd, text="</svg>")

        async def run(self, text: str) -> str:
            return text

    assert len(list(ET.fromstring(build(Call).svg()).iter("{http://www.w3.org/2000/svg}rect"))) == 2


def test_secrets_among_the_arguments_are_not_shown() -> None:
    @chainlet
    class Brain:
        def __init__(self, api_key: str = "", max_tokens: int = 3, strange: object = None) -> None: ...

        async def run(self, text: str) -> str:
            return text

    class Strange:
        def __repr__(self) -> str:
            raise ValueError("no")

    @chainlet
    class Call:
        brain: Brain = depends(Brain, api_key="sk-1234", max_tokens=7, strange=Strange())

        async def run(self, text: str) -> str:
            return text

    graph = build(Call)
    for shown in (graph.text(), graph.svg(), json.dumps(graph.to_json())):
        assert "sk-1234" not in shown
    assert "Brain(api_key=..., max_tokens=7, strange=a Strange)" in graph.text()
    assert graph.nodes["Brain"].arguments["api_key"] == "sk-1234"
    Call.brain = depends(Brain, api_key=b"sk-1234")
    with pytest.raises(GraphError) as caught:
        build(Call)
    assert "sk-1234" not in str(caught.value)
    assert "gives Brain api_key=...: bytes of length 7, expected str" in str(caught.value)


def test_the_graph_as_json() -> None:
    plain = json.loads(json.dumps(build(PhoneCall).to_json()))
    assert plain["entry"] == "PhoneCall"
    assert plain["nodes"]["Ears"]["resources"] == {"cpu": 1.0, "memory": "4GiB", "gpu": "L4", "gpus": 1.0}
    assert plain["nodes"]["PhoneCall"]["edges"]["brain"]["options"]["timeout"] == 2.0
    assert plain["nodes"]["Facts"]["methods"]["look_up"]["params"]["limit"]["required"] is False


CHAIN = """\
from __future__ import annotations
from collections.abc import AsyncIterator
from chains.dsl.chainlet import chainlet, depends
import beside

@chainlet
class Ears:
    async def hear(self, text: str) -> str:
        return text

@chainlet(entry=True)
class PhoneCall:
    ears: Ears = depends(Ears)
    async def run(self, text: str) -> str:
        return beside.WORD
"""


def test_a_file_loads_with_what_stands_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "call.py").write_text(CHAIN)
    (tmp_path / "deep" / "beside.py").write_text("WORD = 'here'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    path = list(sys.path)
    graph = load("deep/call.py")
    assert graph.entry == "PhoneCall"
    assert list(graph.nodes) == ["Ears", "PhoneCall"]
    assert sys.path == path
    module = graph.nodes["PhoneCall"].cls.__module__
    assert module.startswith("chain_call_")
    assert sys.modules[module].beside.WORD == "here"
    assert graph.nodes["PhoneCall"].methods["run"].where == "deep/call.py:14"
    assert load("deep/call.py:Ears").entry == "Ears"
    assert load(str(tmp_path / "deep" / "call.py") + ":PhoneCall").entry == "PhoneCall"


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "call.py").write_text(CHAIN.replace("import beside", "").replace("beside.WORD", "'x'"))
    one, other = (load(str(tmp_path / folder / "call.py")) for folder in ("a", "b"))
    assert one.nodes["Ears"].cls is not other.nodes["Ears"].cls
    assert one.nodes["Ears"].cls.__module__ != other.nodes["Ears"].cls.__module__


def test_a_file_that_was_mended_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "call.py"
    text = CHAIN.replace("import beside", "").replace("beside.WORD", "'x'")
    file.write_text(
        text.replace("(self, text: str) -> str:\n        return text", "(self, text) -> str:\n        return text")
    )
    with pytest.raises(GraphError, match="no annotation on `text`"):
        load(str(file))
    file.write_text("\n\n" + text)
    assert load(str(file)).nodes["PhoneCall"].methods["run"].where.endswith(":16")


def test_a_module_of_a_package_loads_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_chains").mkdir()
    (tmp_path / "my_chains" / "__init__.py").write_text("")
    (tmp_path / "my_chains" / "call.py").write_text(CHAIN.replace("import beside", "from . import beside"))
    (tmp_path / "my_chains" / "beside.py").write_text("WORD = 'x'\n")
    monkeypatch.chdir(tmp_path)
    assert load("my_chains.call:PhoneCall").entry == "PhoneCall"
    assert load("my_chains.call").entry == "PhoneCall"
    with pytest.raises(GraphError, match=r"has no chainlet `PhoneCal`; write my_chains.call:PhoneCall"):
        load("my_chains.call:PhoneCal")


def test_an_imported_entry_is_not_this_file_s_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_of_call.py").write_text(CHAIN.replace("import beside", "").replace("beside.WORD", "'x'"))
    (tmp_path / "whole.py").write_text(
        "from chains.dsl.chainlet import chainlet, depends\nfrom parts_of_call import PhoneCall\n"
        "@chainlet(entry=True)\nclass Whole:\n    part: PhoneCall = depends(PhoneCall)\n"
        "    async def run(self, text: str) -> str: return text\n"
    )
    monkeypatch.chdir(tmp_path)
    assert list(load("whole.py").nodes) == ["Ears", "PhoneCall", "Whole"]
    assert load("whole.py:PhoneCall").entry == "PhoneCall"


@chainlet
class Hints:
    def __init__(self, words: Sequence[str], table: Mapping[str, int]) -> None:
        self.words, self.table = words, table

    async def count(self) -> int:
        return len(self.words)


def test_an_abstract_collection_takes_what_is_one() -> None:
    @chainlet(entry=True)
    class Listener:
        hints: Hints = depends(Hints, words=["a", "b"], table={"a": 1})

        async def run(self, text: str) -> str:
            return text

    assert build(Listener).nodes["Hints"].arguments["words"] == ["a", "b"]


def test_an_abstract_collection_refuses_what_is_none() -> None:
    @chainlet(entry=True)
    class Listener:
        hints: Hints = depends(Hints, words=7, table={"a": 1})

        async def run(self, text: str) -> str:
            return text

    with pytest.raises(GraphError, match=r"words=7: int, expected Sequence\[str\]"):
        build(Listener)


def test_a_model_may_be_annotated_any() -> None:
    @chainlet(entry=True)
    class Desk:
        facts: Any = depends(Facts)

        async def run(self, text: str) -> str:
            return text

    assert build(Desk).nodes["Desk"].edges["facts"].target == "Facts"


def test_uses_that_are_placed_otherwise_or_need_another_environment_are_other_nodes() -> None:
    @chainlet(environment=Environment(pip=["torch"]))
    class Model:
        def answer(self, text: str) -> str:
            return text

    @chainlet(entry=True)
    class Front:
        one: Model = depends(Model)
        same: Model = depends(Model, placement=Placement())
        near: Model = depends(Model, placement=Placement(with_caller=True))
        other: Model = depends(Model, environment=Environment(env={"API_KEY": "abc", "MODE": "fast"}, secrets=["HF"]))

        async def run(self, text: str) -> str:
            return text

    graph = build(Front)
    assert list(graph.nodes) == ["Model", "Model.near", "Model.other", "Front"]
    assert graph.nodes["Model.near"].spec.environment.pip == ("torch",)
    nodes = graph.to_json()["nodes"]
    assert nodes["Model.near"]["placement"] == {"prefer": "spread", "per_node": 0, "with_caller": True}
    assert nodes["Model.other"]["environment"] == {
        "pip": [],
        "env": {"API_KEY": "...", "MODE": "'fast'"},
        "secrets": ["HF"],
    }
    text = graph.text()
    assert "1 replica, with its caller, pip torch]" in text and "env API_KEY MODE HF]" in text
    assert "abc" not in text + json.dumps(graph.to_json())


def test_an_entry_has_no_caller_to_be_with() -> None:
    @chainlet(entry=True, placement=Placement(with_caller=True))
    class Front:
        async def run(self, text: str) -> str:
            return text

    with pytest.raises(
        GraphError, match="is the entry, which no chainlet calls, and has with_caller=True; leave it out"
    ):
        build(Front)
