"""Choices: an answer's probability is the product of what was decided where answers part."""

from __future__ import annotations

from math import log

import pytest
import tokenizers

from engines.llm.choice import ChoiceTree, calibrate, end_of_turn
from engines.llm.errors import SettingInvalid
from engines.llm.tokenizer import Tokenizer

END = 0


def test_only_where_answers_part_is_anything_decided() -> None:
    tree = ChoiceTree.of([(1, 2, 3), (1, 2, 4), (5,)], END)
    assert tree.forks() == {(): [1, 5], (1, 2): [3, 4]}


def test_an_answer_may_begin_another() -> None:
    tree = ChoiceTree.of([(1,), (1, 2)], END)
    assert tree.forks() == {(1,): [END, 2]}
    assert tree.shares({(1,): [log(0.3), log(0.1)]}) == pytest.approx([0.75, 0.25])


def test_an_answer_that_begins_another_needs_an_end() -> None:
    with pytest.raises(SettingInvalid, match="one choice begins another"):
        ChoiceTree.of([(1,), (1, 2)], None)
    assert ChoiceTree.of([(1,), (2,)], None).forks() == {(): [1, 2]}


LLAMA3 = (
    "{% for message in messages %}<|start|>{{ message.role }}\n\n{{ message.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n\n{% endif %}"
)
PICKY = "{{ raise_exception('no') }}"


@pytest.mark.parametrize(("template", "end"), [(LLAMA3, "<|eot|>"), (PICKY, "<|text|>"), ("", "<|text|>")])
def test_the_end_of_a_turn_is_what_the_template_writes_there(template: str, end: str) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<?>": 2}, unk_token="<?>"))
    backend.add_special_tokens(["<|text|>", "<|eom|>", "<|eot|>", "<|start|>"])
    ends = frozenset(backend.token_to_id(text) for text in ("<|text|>", "<|eom|>", "<|eot|>"))
    templates = {"default": template} if template else {}
    tokenizer = Tokenizer(backend, named={}, ends=ends, templates=templates)
    assert end_of_turn(tokenizer, ends) == backend.token_to_id(end)


def test_where_nothing_ends_a_reply_there_is_no_end() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    assert end_of_turn(Tokenizer(backend, named={}, ends=frozenset(), templates={}), frozenset()) is None


def test_shares_are_products_of_decisions_and_sum_to_one() -> None:
    tree = ChoiceTree.of([(1, 2), (1, 3), (4, 9, 9, 9)], END)
    shares = tree.shares({(): [log(0.2), log(0.6)], (1,): [log(0.01), log(0.03)]})
    assert shares == pytest.approx([0.0625, 0.1875, 0.75])
    assert sum(tree.shares({(): [-900.0, -901.0], (1,): [-5.0, -2000.0]})) == pytest.approx(1.0)


def test_a_prior_divides_out_what_is_preferred_anyway() -> None:
    assert calibrate([0.9, 0.1], [0.9, 0.1]) == pytest.approx([0.5, 0.5])
    assert calibrate([0.5, 0.5], [0.8, 0.2]) == pytest.approx([0.2, 0.8])
    assert sum(calibrate([1.0, 0.0], [0.0, 1.0])) == pytest.approx(1.0)
