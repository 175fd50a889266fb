"""Calls are read out of a reply however it is cut into pieces, and a reply can be held to calls alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.llm.tools import (
    FORMATS,
    CallArguments,
    CallBegun,
    CallReader,
    Said,
    Tool,
    arguments_fault,
    constrained,
    format_of,
)

WEATHER = Tool("weather", "The weather", {"type": "object", "properties": {"city": {"type": "string"}}})
TIME = Tool("time")
NAMES = ("weather", "time")
PARIS = {"city": 'Paris {}[]<tool_call> " \\ é🙂'}
ROME = {"city": "Rome", "days": [1, {"deep": "}"}]}


def written(name: str) -> str:
    """Two calls as a family writes them, the first behind some words where it may."""
    paris, rome = json.dumps(PARIS, ensure_ascii=False), json.dumps(ROME)
    if name == "hermes":
        return (
            f'I look. \n<tool_call>\n{{"name": "weather", "arguments": {paris}}}\n</tool_call>\n'
            f'<tool_call>\n{{"arguments": {rome}, "name": "time"}}\n</tool_call>'
        )
    if name == "llama3":
        return f'{{"name": "weather", "parameters": {paris}}}; {{"name": "time", "parameters": {rome}}}'
    if name == "mistral":
        return f'[TOOL_CALLS][{{"name": "weather", "arguments": {paris}}}, {{"name": "time", "arguments": {rome}}}]'
    return (
        f"I look. <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{paris}\n```"
        f"<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>time<｜tool▁sep｜>{rome}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )


def read(name: str, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """What is said, and the calls with their arguments, out of a reply that comes in pieces."""
    reader = CallReader(FORMATS[name], NAMES)  # type: ignore[index]
    found = [one for piece in pieces for one in reader.push(piece)] + reader.finish()
    calls: list[tuple[str, str]] = []
    for one in found:
        if isinstance(one, CallBegun):
            assert one.index == len(calls) and len(one.id) == 9
            calls.append((one.name, ""))
        elif isinstance(one, CallArguments):
            assert one.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + one.text)
    return "".join(one.text for one in found if isinstance(one, Said)), calls


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_calls_are_read_however_they_are_cut(name: str, data: st.DataObject) -> None:
    text = written(name)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text) - 1), max_size=12)))
    said, calls = read(name, [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)])
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("weather", PARIS), ("time", ROME)]
    assert said == ("I look." if name in ("hermes", "deepseek") else "")


@pytest.mark.parametrize("name", FORMATS)
def test_letter_by_letter_gives_the_same(name: str) -> None:
    assert read(name, list(written(name))) == read(name, [written(name)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "a < b and <tool_box> or <tool_cal"),
        ("hermes", '<tool_call>{"name": "nobody", "arguments": {}}</tool_call> indeed '),
        ("hermes", "<tool_call> is how it is written"),
        ("hermes", '<tool_call>{"name": ["weather"], "arguments": {}}'),
        ("hermes", '<tool_call>{"name": {"weather": 1}}'),
        ("llama3", '{"arguments": {}, "name": null}'),
        ("hermes", ' {"name": "weather", "arguments": {}} \n'),
        ("llama3", '{"name": "nobody", "parameters": {}}'),
        ("llama3", '{"answer": 42}'),
        ("llama3", "{ well"),
        ("mistral", "[1, 2, 3]"),
        ("mistral", "[x] done"),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>nobody\n```json\n{}\n```"),
    ],
)
def test_what_is_no_call_is_text_and_nothing_of_it_is_lost(name: str, text: str) -> None:
    assert read(name, [text]) == (text, [])
    assert read(name, list(text)) == (text, [])


def test_arguments_can_always_be_sent() -> None:
    said, calls = read("hermes", ['<tool_call>{"arguments": {"city": "\\ud800 é"}, "name": "weather"}</tool_call>'])
    assert said == "" and [(name, json.loads(text)) for name, text in calls] == [("weather", {"city": "\ud800 é"})]
    assert calls[0][1].encode()


@pytest.mark.parametrize("schema", [{"required": 5}, {"properties": 5}, {"type": [{}]}, {"type": ["array", []]}])
def test_a_schema_that_is_none_judges_nothing(schema: dict[str, object]) -> None:
    assert arguments_fault('{"city": "Rome"}', Tool("weather", "", {"properties": {}, **schema})) == ""


def test_half_a_mark_is_never_shown() -> None:
    reader = CallReader(FORMATS["hermes"], NAMES)
    said = [piece.text for letter in written("hermes") for piece in reader.push(letter) if isinstance(piece, Said)]
    assert "".join(said) == "I look."
    assert reader.calls == 2


def test_arguments_stream_before_they_are_complete() -> None:
    reader = CallReader(FORMATS["hermes"], NAMES)
    begun = reader.push('<tool_call>{"name": "weather", "arguments": {"ci')
    assert isinstance(begun[0], CallBegun) and begun[1] == CallArguments(0, '{"ci')
    assert reader.push('ty": ') == [CallArguments(0, 'ty": ')]
    assert reader.finish() == []


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("<|python_tag|>", "llama3"),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", "mistral"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"),
    ],
)
def test_the_template_says_which_form(template: str, name: str) -> None:
    form = format_of(["plain", template])
    assert form is not None and form.name == name
    assert format_of(["plain"]) is None


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ('{"city": "Rome"}', ""),
        ('{"city": "Rome", "days": [1, 2.5]}', ""),
        ('{"city": "Rome", "unit": "C"}', ""),
        ('{"city": 5}', "arguments.city is 5, not string"),
        ('{"city"', "no JSON"),
        ("[]", "arguments is [], not object"),
        ("{}", "arguments lacks 'city'"),
        ('{"city": "Rome", "zip": 1}', "arguments has 'zip', which is not known"),
        ('{"city": "Rome", "unit": "K"}', 'arguments.unit is "K", not one of ["C", "F"]'),
        ('{"city": "Rome", "days": [1, true]}', "arguments.days[1] is true, not number"),
    ],
)
def test_arguments_are_checked_by_the_schema(arguments: str, fault: str) -> None:
    tool = Tool(
        "weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"enum": ["C", "F"]},
                "days": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    )
    assert fault in arguments_fault(tool, arguments)
    assert bool(fault) == bool(arguments_fault(tool, arguments))


@pytest.mark.parametrize("name", FORMATS)
def test_a_reply_held_to_calls_is_read_back(name: str) -> None:
    pytest.importorskip("xgrammar", reason="constrained output is the extra `grammar`")
    from engines.llm.grammar import Grammars
    from tests.engines.llm.vocabularies import END, trained_tokenizer

    tokenizer = trained_tokenizer(600)
    end, form = tokenizer.token_to_id(END), FORMATS[name]  # type: ignore[index]
    grammars = Grammars(tokenizer, tokenizer.get_vocab_size(), [end])
    try:
        matcher = grammars.compile("structural_tag", constrained(form, [WEATHER, TIME], parallel=True)).matcher()
        calls = [form.begin.replace("NAME", name) + arguments + form.end for name, arguments in (
            ("weather", '{"city": "Rome"}'), ("time", "{}"))]  # fmt: skip
        text = form.first + form.separator.join(calls) + form.last
        for token in tokenizer.encode(text).ids:
            assert matcher.accept(token), tokenizer.decode([token])
        assert matcher.accept(end)
        assert read(name, [text])[1] == [("weather", '{"city": "Rome"}'), ("time", "{}")]
        single = grammars.compile("structural_tag", constrained(form, [TIME], parallel=False)).matcher()
        assert not all(single.accept(token) for token in tokenizer.encode(text).ids)
    finally:
        grammars.close()
