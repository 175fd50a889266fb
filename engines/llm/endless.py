"""Whether a grammar has any finite text at all: one that always leads back to itself never ends a reply."""

from __future__ import annotations

import re
from collections import defaultdict

_PIECE = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]) | (?P<count>\{\s*\d+[^}]*\}) | (?P<call>[A-Za-z_]\w*\()
    | (?P<rule>[^\s()|"\[\]{}*+?=,]+)(?P<begins>\s*::=)? | (?P<mark>\(=|[()|*+?]) | \s+ | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def endless(grammar: str) -> bool:
    """Whether `root` has no finite text. `grammar` is as xgrammar prints it; what is not understood may end."""
    return "root" in _endless(_Reader(grammar).alternatives())


def _endless(alternatives: list[tuple[str, set[str]]]) -> set[str]:
    """The rules of which every alternative needs a rule that never ends, itself included."""
    left = {name for name, _ in alternatives}
    waiting, needed_by = [len(needs & left) for _, needs in alternatives], defaultdict[str, list[int]](list)
    for number, (_, needs) in enumerate(alternatives):
        for name in needs:
            needed_by[name].append(number)
    ends = [name for (name, _), count in zip(alternatives, waiting, strict=True) if not count]
    while ends:
        name = ends.pop()
        if name not in left:
            continue
        left.remove(name)
        for number in needed_by[name]:
            waiting[number] -= 1
            if not waiting[number]:
                ends.append(alternatives[number][0])
    return left


class _Reader:
    """Reads rules as alternatives (rule, what it needs); a group within one is a rule of its own."""

    def __init__(self, grammar: str) -> None:
        self._pieces = _PIECE.finditer(grammar)
        self._found: list[tuple[str, set[str]]] = []

    def alternatives(self) -> list[tuple[str, set[str]]]:
        open_: list[tuple[str, set[str]]] = []  # rules that are being read, the innermost last
        last = ""  # the name read last, to which a count or mark may belong
        for piece in self._pieces:
            kind, found = piece.lastgroup, piece.group()
            if kind == "begins":
                self._close_all(open_)
                open_.append((piece["rule"], set()))
            elif kind == "rule" and open_:
                open_[-1][1].add(last := found)
            elif found == "(" and open_:
                open_.append((f"({piece.start()}", set()))
            elif kind == "call" or found == "(=":  # what may follow, and the library's own constructs, need nothing
                self._skip()
                last = ""
            elif found == "|" and open_:
                self._found.append(open_[-1])
                open_[-1] = (open_[-1][0], set())
            elif found == ")" and len(open_) > 1:
                self._found.append(open_.pop())
                open_[-1][1].add(last := self._found[-1][0])
            elif (found in ("*", "?") or (kind == "count" and re.match(r"\{\s*0", found))) and open_:
                open_[-1][1].discard(last)  # it may be left out
            elif found.strip() and found != "+" and kind != "count":
                last = ""
        self._close_all(open_)
        return self._found

    def _close_all(self, open_: list[tuple[str, set[str]]]) -> None:
        while open_:
            self._found.append(open_.pop())

    def _skip(self) -> None:
        """Past the bracket that closes the one just opened."""
        depth = 1
        for piece in self._pieces:
            if piece.lastgroup in ("call", "mark"):
                depth += piece.group().startswith("(") or piece.lastgroup == "call"
                depth -= piece.group() == ")"
            if not depth:
                return
