"""Grammars that never end are told from those that may."""

from __future__ import annotations

import pytest

from engines.llm.endless import endless

NEVER = {
    "itself": "root ::= ((root))",
    "a text and itself": 'root ::= (("a" root))',
    "each by the other": 'root ::= (("{" a "}"))\na ::= ((root)) (=("}"))',
    "every way on": 'root ::= (("a" a) | ("b" b))\na ::= ((root))\nb ::= ((a) | (b "x"))',
    "behind what may be nothing": 'root ::= ((a root))\na ::= ("" | ("x" a))',
    "in a group": 'root ::= "a" (root | "b" root)',
    "at least once": 'root ::= (("[" root{1, 3} "]"))',
    "once or more": 'root ::= "[" (root)+ "]"',
}
MAY = {
    "nothing": 'root ::= ("" | ("a" root))',
    "a text": 'root ::= (("a"))',
    "a class with brackets": 'root ::= (([^"\\]|(] "(root") | (root))',
    "a dead branch": 'root ::= (("a") | (dead))\ndead ::= (("x" dead))',
    "what only follows": 'root ::= (("a")) (=(dead))\ndead ::= (("x" dead))',
    "perhaps": 'root ::= (("[" root{0, 3} "]"))',
    "any number": 'root ::= "[" (root)* "]"',
    "or not": 'root ::= "[" root? "]"',
    "a construct of the library": 'root ::= TagDispatch(\n  ("<(", root),\n  loop_after_dispatch=true\n)',
    "what is not understood": "root ::= ((something else))",
}


@pytest.mark.parametrize("grammar", NEVER.values(), ids=NEVER)
def test_what_always_needs_itself_never_ends(grammar: str) -> None:
    assert endless(grammar)


@pytest.mark.parametrize("grammar", MAY.values(), ids=MAY)
def test_one_way_out_is_enough(grammar: str) -> None:
    assert not endless(grammar)


def test_a_long_chain_takes_no_longer_than_its_length() -> None:
    rules = [f'r{number} ::= (("a" r{number + 1}) | (root))' for number in range(20_000)]
    chain = "\n".join(["root ::= ((r0))", *rules])
    assert endless(chain + "\nr20000 ::= ((root))")
    assert not endless(chain + '\nr20000 ::= (("end"))')
