"""Replies held to a grammar: whatever the model prefers, what comes out is what was asked for."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engines.llm.compiler import CompilerLimits
from engines.llm.errors import GrammarInvalid, GrammarStuck
from engines.llm.grammar import AHEAD, Compiled, Grammars, Matcher
from tests.engines.llm.vocabularies import END, packaged_tokenizer, trained_tokenizer

pytest.importorskip("xgrammar", reason="constrained output is the extra `grammar`")

PADDING = 37  # logits wider than the vocabulary, as padded models have them
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["dog", "cat"]},
    },
    "required": ["name", "age", "kind"],
}


class Loop:
    """A greedy loop over logits that depend on the tokens alone, as a model's do."""

    def __init__(self, tokenizer: Tokenizer, end: int, width: int) -> None:
        self.tokenizer, self.end, self.width = tokenizer, end, width

    def run(self, compiled: Compiled, seed: int, *, jump: bool = False, most: int = 200) -> tuple[list[int], int]:
        """The reply's tokens, and how often the model was asked."""
        matcher, tokens, steps = compiled.matcher(), [], 0
        while len(tokens) < most and not matcher.finished:
            if jump and (forced := matcher.forced()):
                for token in forced:
                    assert matcher.accept(token)
                tokens += forced
                continue
            token = self._likeliest(matcher, tokens, seed)
            assert matcher.accept(token)
            tokens.append(token)
            steps += 1
        return tokens, steps

    def _likeliest(self, matcher: Matcher, tokens: list[int], seed: int) -> int:
        row = torch.zeros((self.width + 31) // 32, dtype=torch.int32)
        matcher.fill(row)
        allowed = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[: self.width].astype(bool)
        logits = np.random.default_rng([seed, *tokens]).standard_normal(self.width)
        logits[self.end] += 2.0  # random texts would hardly ever end
        return int(np.where(allowed, logits, -np.inf).argmax())

    def text(self, tokens: list[int]) -> str:
        assert tokens[-1] == self.end, "the reply has not ended"
        return self.tokenizer.decode(tokens[:-1], skip_special_tokens=False)


@pytest.fixture(scope="module")
def loop() -> Loop:
    tokenizer = trained_tokenizer()
    return Loop(tokenizer, tokenizer.token_to_id(END), tokenizer.get_vocab_size() + PADDING)


@pytest.fixture(scope="module")
def grammars(loop: Loop) -> Iterator[Grammars]:
    grammars = Grammars(loop.tokenizer, loop.width, [loop.end], limits=CompilerLimits(seconds=2.0))
    yield grammars
    grammars.close()


def person(text: str) -> None:
    value = json.loads(text)
    assert set(value) == {"name", "age", "kind"}
    assert isinstance(value["name"], str) and 0 <= value["age"] <= 150 and value["kind"] in ("dog", "cat")


def test_a_schema_holds_whatever_the_model_prefers(loop: Loop, grammars: Grammars) -> None:
    compiled = grammars.compile("json", json.dumps(PERSON))
    for seed in range(5):
        person(loop.text(loop.run(compiled, seed)[0]))


def test_a_choice_is_one_of_them(loop: Loop, grammars: Grammars) -> None:
    choices = ["yes", 'no, "never"', "perhaps\nlater", "é€🙂"]
    compiled = grammars.compile("choice", json.dumps(choices))
    assert {loop.text(loop.run(compiled, seed)[0]) for seed in range(40)} == set(choices)


def test_an_expression_is_met(loop: Loop, grammars: Grammars) -> None:
    compiled = grammars.compile("regex", r"\+49 \d{3}-\d{4}")
    assert re.fullmatch(r"\+49 \d{3}-\d{4}", loop.text(loop.run(compiled, 1)[0]))


def test_a_grammar_is_met(loop: Loop, grammars: Grammars) -> None:
    compiled = grammars.compile("ebnf", 'root ::= "<" inner ">"\ninner ::= "a" | "(" inner ")"')
    assert re.fullmatch(r"<\(*a\)*>", loop.text(loop.run(compiled, 3)[0]))


def test_any_object_may_have_keys(loop: Loop, grammars: Grammars) -> None:
    matcher = grammars.compile("json_object", "").matcher()
    for token in loop.tokenizer.encode('{"a": [1, {"b": null}]}').ids:
        assert matcher.accept(token)
    assert matcher.accept(loop.end) and matcher.finished
    assert not grammars.compile("json_object", "").matcher().accept(loop.tokenizer.encode("[").ids[0])


def test_the_mask_is_as_wide_as_the_logits_and_padding_is_never_allowed(loop: Loop, grammars: Grammars) -> None:
    row = torch.zeros((loop.width + 31) // 32, dtype=torch.int32)
    grammars.compile("regex", ".*").matcher().fill(row)
    allowed = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")
    assert not allowed[loop.width - PADDING : loop.width].any() and allowed[loop.end]


def test_a_marker_cannot_be_written_as_text(loop: Loop, grammars: Grammars) -> None:
    marked = trained_tokenizer()
    marked.add_special_tokens(["<|user|>"])
    with_marker = Grammars(marked, marked.get_vocab_size(), [loop.end])
    try:
        matcher = with_marker.compile("regex", ".*").matcher()
        assert not matcher.accept(marked.token_to_id("<|user|>"))
        assert matcher.accept(marked.encode("hello").ids[0])
    finally:
        with_marker.close()


def test_rollback_takes_tokens_back(loop: Loop, grammars: Grammars) -> None:
    matcher = grammars.compile("json", json.dumps(PERSON)).matcher()
    before = matcher.forced()
    assert before, "the beginning of the object is known"
    for token in before:
        assert matcher.accept(token)
    after = matcher.forced()
    matcher.rollback(len(before))
    assert matcher.forced() == before
    for token in before:
        assert matcher.accept(token)
    assert matcher.forced() == after


def test_what_is_not_allowed_changes_nothing(loop: Loop, grammars: Grammars) -> None:
    matcher = grammars.compile("choice", '["yes", "no"]').matcher()
    wrong, right = loop.tokenizer.encode("maybe").ids[0], loop.tokenizer.encode("yes").ids
    assert not matcher.accept(wrong)
    assert all(matcher.accept(token) for token in right)
    assert matcher.accept(loop.end)
    assert matcher.finished and not matcher.accept(loop.end)


def test_a_grammar_without_a_way_on_says_so(loop: Loop, grammars: Grammars) -> None:
    matcher, row = (
        grammars.compile("ebnf", 'root ::= "a" | "b" dead\ndead ::= dead').matcher(),
        torch.zeros((loop.width + 31) // 32, dtype=torch.int32),
    )
    assert matcher.accept(loop.tokenizer.encode("b").ids[0])
    with pytest.raises(GrammarStuck, match="allows nothing"):
        matcher.fill(row)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("ebnf", "root ::= root"),
        ("ebnf", 'root ::= "a" root'),
        ("ebnf", 'root ::= "a" other | root\nother ::= "b" root'),
        ("json", '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'),
        ("json", '{"type": "array", "items": {"$ref": "#"}, "minItems": 1}'),
        (
            "json",
            '{"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#"}, "minItems": 2}}}',
        ),
        (
            "structural_tag",
            '{"type": "structural_tag", "format": {"type": "tag", "begin": "<", "end": ">", "content": {"type": '
            '"json_schema", "json_schema": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}}}',
        ),
    ],
)
def test_a_grammar_without_a_finite_text_is_refused(grammars: Grammars, kind: str, source: str) -> None:
    with pytest.raises(GrammarInvalid, match="no finite text"):
        grammars.compile(kind, source)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json", '{"type": "object", "properties": {"a": {"$ref": "#"}}}'),
        ("json", '{"type": "array", "items": {"$ref": "#"}}'),
        (
            "json",
            '{"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["a"]}',
        ),
        ("ebnf", 'root ::= "a" root | "b"'),
        ("ebnf", 'root ::= "a" root?'),
        ("ebnf", 'root ::= "[" root{0,3} "]"'),
        ("regex", "(a|b)*"),
    ],
)
def test_a_grammar_that_may_end_compiles(grammars: Grammars, kind: str, source: str) -> None:
    assert grammars.compile(kind, source)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("regex", "a{100000}"),
        ("regex", "(ab){50000}"),
        ("regex", "(the cat ){20000}"),
        ("ebnf", 'root ::= "x" | "y" deep\ndeep ::= "a" deep'),  # once in it, there is no end
        ("ebnf", 'root ::= "x" | "y" deep\ndeep ::= " cat" deep'),
    ],
)
def test_however_much_a_grammar_forces_little_of_it_is_looked_at(
    loop: Loop, grammars: Grammars, kind: str, source: str
) -> None:
    """The loop of all requests waits for it: neither memory nor time may grow with what is forced."""
    matcher = grammars.compile(kind, source).matcher()
    row = torch.zeros((loop.width + 31) // 32, dtype=torch.int32)
    if "deep" in source:
        assert matcher.accept(loop.tokenizer.encode("y").ids[0])
    before, started = psutil.Process().memory_info().rss, time.process_time()
    for _ in range(50):
        matcher.fill(row)
        forced = matcher.forced()
        assert len(loop.tokenizer.decode(list(forced))) <= AHEAD
        allowed = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")
        assert matcher.accept(int(allowed.argmax()))
    assert time.process_time() - started < 2.0
    assert psutil.Process().memory_info().rss - before < 64 * 1024 * 1024


@pytest.mark.parametrize(
    ("kind", "source", "found"),
    [
        ("json", '{"type": "frob"}', 'Unsupported type "frob"'),
        ("json", '{"type": ', "no JSON"),
        ("json", '{"$ref": "#/$defs/nobody"}', "nobody"),
        ("json", '{"type": "string", "not": {"const": "x"}}', "'not', which cannot be enforced"),
        ("regex", "((", "parenthesis"),
        ("regex", "(" * 200 + ")" * 200, "nests deeper"),
        ("ebnf", "root ::= nobody", '"nobody" is not defined'),
        ("choice", "[]", "no list of texts"),
        ("structural_tag", "{}", "structural tag"),
        ("prose", "", "no kind of grammar"),
        ("json", '"' + "x" * 200_000 + '"', "bytes, more than"),
    ],
)
def test_a_bad_grammar_says_what_is_wrong(grammars: Grammars, kind: str, source: str, found: str) -> None:
    for _ in range(2):  # the second time it is remembered
        with pytest.raises(GrammarInvalid, match="(?i)" + re.escape(found)) as caught:
            grammars.compile(kind, source)
        assert caught.value.mend
    assert grammars.compile("choice", '["yes", "no"]')


def test_compiled_grammars_are_kept_up_to_a_size(loop: Loop) -> None:
    grammars = Grammars(loop.tokenizer, loop.width, [loop.end], cache_bytes=1)
    try:
        first = grammars.compile("choice", '["a"]')
        assert grammars.compile("choice", '["a"]') is first
        grammars.compile("choice", '["b"]')
        assert grammars.compile("choice", '["a"]') is not first
    finally:
        grammars.close()


@pytest.mark.slow
def test_a_grammar_that_takes_too_long_to_follow_fails_its_reply(loop: Loop, grammars: Grammars) -> None:
    ambiguous = f'root ::= {"x " * 24}| "a" root\nx ::= "" | x x | "a"'
    matcher = grammars.compile("ebnf", ambiguous).matcher()
    row = torch.zeros((loop.width + 31) // 32, dtype=torch.int32)
    token, started = loop.tokenizer.encode("a").ids[0], time.process_time()
    with pytest.raises(GrammarInvalid, match="fewer ways"):
        for _ in range(5000):
            matcher.fill(row)
            assert matcher.accept(token)
    assert time.process_time() - started < 10.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), schema=st.sampled_from(["person", "tool", "choice", "mixed"]))
def test_jumping_forward_changes_nothing_but_the_steps(loop: Loop, grammars: Grammars, seed: int, schema: str) -> None:
    compiled = grammars.compile(*_SCHEMAS[schema])
    plain, asked = loop.run(compiled, seed)
    jumped, asked_less = loop.run(compiled, seed, jump=True)
    assert jumped == plain
    assert asked_less <= asked and (schema == "choice" or asked_less < asked)


_SCHEMAS = {
    "person": ("json", json.dumps(PERSON)),
    "tool": (
        "structural_tag",
        json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "tag",
                    "begin": '<tool_call>\n{"name": "weather", "arguments": ',
                    "content": {"type": "json_schema", "json_schema": PERSON},
                    "end": "}\n</tool_call>",
                },
            }
        ),
    ),
    "choice": ("choice", json.dumps(["I would like to book", "I would like to cancel", "é€🙂 and more", "é€🙁"])),
    "mixed": ("regex", r"Dear (Ada|Adam|Bob), the price is \d{1,3} € for 🙂🙃 and (é|è){1,2} days"),
}


def test_forced_tokens_are_those_that_the_tokenizer_writes() -> None:
    tokenizer = packaged_tokenizer()
    end = tokenizer.token_to_id("<|im_end|>")
    grammars = Grammars(tokenizer, tokenizer.get_vocab_size(), [end])
    try:
        matcher = grammars.compile(*_SCHEMAS["tool"]).matcher()
        forced = matcher.forced()
        text = '<tool_call>\n{"name": "weather", "arguments": {"name": "'
        assert list(forced) == tokenizer.encode(text, add_special_tokens=False).ids[: len(forced)]
        assert len(text) - len(tokenizer.decode(list(forced))) <= len(' "')
    finally:
        grammars.close()
