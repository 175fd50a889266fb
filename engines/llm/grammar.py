"""Constrained output: a grammar compiled once, a matcher for each reply, the mask of the tokens that may come next.

xgrammar is imported when the first grammar is compiled; it is the extra `grammar`.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engines.llm import schema
from engines.llm.compiler import INSTALL, Compiler, CompilerLimits, vocabulary
from engines.llm.errors import GrammarInvalid, GrammarMissing, GrammarStuck, GrammarUntried

KINDS = ("json", "json_object", "regex", "ebnf", "choice", "structural_tag")
ANY_OBJECT = '{"type": "object", "additionalProperties": true}'
DEEPEST = 100  # brackets in brackets, of an expression
WINDOW = 32  # tokens that are tokenised again to see what a forced text becomes
AHEAD = 64  # bytes that are looked at for what is forced: it is done in the step loop
FAILURES = 256  # grammars remembered that could not be compiled
SLACK = 1.0  # seconds of the processor that a reply's grammar may take of the step loop in all,
SHARE = 0.01  # and a token on top
EVERYTHING = -1
NOTHING = -1  # no byte
_BITS = np.arange(32, dtype=np.int32)


class Grammars:
    """The grammars of one model. `backend` is its `tokenizers.Tokenizer`, `vocab` the width of the logits.

    Safe from many threads. `cache_bytes` bounds the compiled grammars that are kept; the oldest goes first.
    """

    def __init__(
        self,
        backend: Any,
        vocab: int,
        ends: Iterable[int],
        *,
        limits: CompilerLimits | None = None,
        cache_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._backend = backend
        self._vocab = vocab
        self._ends = frozenset(ends)
        self._limits = limits or CompilerLimits()
        self._compiler = Compiler(backend, vocab, self._ends, self._limits)
        self._cache_bytes = cache_bytes
        self._kept: OrderedDict[bytes, Compiled] = OrderedDict()
        self._failed: OrderedDict[bytes, tuple[str, str]] = OrderedDict()  # message and mend
        self._lock = threading.Lock()
        self._tokens: Any = None
        self._firsts = np.empty(0, np.int16)

    def compile(self, kind: str, source: str) -> Compiled:
        """A grammar of `kind`: "json" (a JSON schema), "json_object" (any object), "regex", "ebnf", "choice" (a JSON
        list of strings) or "structural_tag". Blocks until it is compiled, at most the time limit.

        Raises GrammarInvalid with what is wrong, GrammarMissing where xgrammar is not installed.
        """
        if find_spec("xgrammar") is None:
            raise GrammarMissing("constrained output needs xgrammar", mend=INSTALL)
        self._check_size(kind, source)
        key = hashlib.sha256(f"{kind}\0{source}".encode()).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            if key in self._failed:
                message, mend = self._failed[key]
                raise GrammarInvalid(message, mend=mend)
        try:
            compiled = self._compiled(kind, source)
        except GrammarUntried:
            raise  # it may be as good as any
        except GrammarInvalid as error:
            with self._lock:
                self._failed[key] = (error.message, error.mend)
                while len(self._failed) > FAILURES:
                    self._failed.popitem(last=False)
            raise
        self._keep(key, compiled)
        return compiled

    def close(self) -> None:
        """End the compiler's process; compiled grammars stay usable."""
        self._compiler.close()

    def _check_size(self, kind: str, source: str) -> None:
        if kind not in KINDS:
            raise GrammarInvalid(f"there is no kind of grammar {kind!r}", mend=f"write {', '.join(KINDS)}")
        size = len(source.encode())
        if size > self._limits.source:
            raise GrammarInvalid(
                f"the {kind} has {size} bytes, more than {self._limits.source}", mend="ask for less at once"
            )

    def _compiled(self, kind: str, source: str) -> Compiled:
        import xgrammar

        text = self._compiler.compile(*_prepared(kind, source))
        with self._lock:
            if self._tokens is None:
                self._tokens = vocabulary(self._backend, self._vocab, self._ends)
                self._firsts = _first_bytes(self._tokens)
        grammar = xgrammar.CompiledGrammar.deserialize_json(text, self._tokens)
        compiled = Compiled(grammar, self._backend, self._firsts)
        compiled.matcher().fill(torch.zeros(-(-self._vocab // 32), dtype=torch.int32))  # raises for no way to begin
        return compiled

    def _keep(self, key: bytes, compiled: Compiled) -> None:
        with self._lock:
            self._kept[key] = compiled
            while len(self._kept) > 1 and sum(one.size for one in self._kept.values()) > self._cache_bytes:
                self._kept.popitem(last=False)


def _prepared(kind: str, source: str) -> tuple[str, str]:
    """Kind and source as the compiler takes them; GrammarInvalid for what it would not notice or not survive."""
    if kind == "json":
        return kind, schema.prepared(source)
    elif kind == "json_object":
        return "json", ANY_OBJECT
    elif kind == "choice":
        return "ebnf", _choice(source)
    elif kind == "structural_tag":
        return kind, _with_schemas_prepared(source)
    elif kind in ("regex", "ebnf"):
        _check_depth(kind, source)
    return kind, source


def _choice(source: str) -> str:
    """A list of strings as a grammar that allows these and nothing else."""
    try:
        choices = json.loads(source)
    except json.JSONDecodeError as error:
        raise GrammarInvalid(f"the choice is no JSON: {error}", mend='write a list: ["yes", "no"]') from None
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
        raise GrammarInvalid("the choice is no list of texts", mend='write a list: ["yes", "no"]')
    return "root ::= " + " | ".join(json.dumps(one, ensure_ascii=False) for one in choices)


def _with_schemas_prepared(source: str) -> str:
    try:
        tag = json.loads(source)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GrammarInvalid(f"the structural tag is no JSON: {error}", mend="write a structural tag") from None
    parts = [tag]
    while parts:
        part = parts.pop()
        if isinstance(part, dict) and "json_schema" in part:
            schema.check(part["json_schema"])
            schema.with_lengths_as_patterns(part["json_schema"])
        elif isinstance(part, dict | list):
            parts += part.values() if isinstance(part, dict) else part
    return json.dumps(tag)


def _check_depth(kind: str, source: str) -> None:
    depth = 0
    for letter in source:
        depth += (letter in "([{") - (letter in ")]}")
        if depth > DEEPEST:
            raise GrammarInvalid(f"the {kind} nests deeper than {DEEPEST}", mend="write it flatter")


def _first_bytes(tokens: Any) -> NDArray[np.int16]:
    """The first byte of each token's text, NOTHING for those that have none; as many as a mask has bits."""
    firsts = [text[0] if text else NOTHING for text in tokens.decoded_vocab]
    for end in tokens.stop_token_ids:
        firsts[end] = NOTHING
    return np.array(firsts + [NOTHING] * (-len(firsts) % 32), np.int16)


def _lowest_bit(word: int) -> int:
    return (word & -word).bit_length() - 1


class Compiled:
    """A grammar that replies can be held to; shared by all that ask for it."""

    def __init__(self, grammar: Any, backend: Any, firsts: NDArray[np.int16]) -> None:
        self._grammar = grammar
        self._backend = backend
        self._firsts = firsts
        self.size: int = grammar.memory_size_bytes

    def matcher(self) -> Matcher:
        """The state of one reply, at its beginning."""
        return Matcher(self._grammar, self._backend, self._firsts)


class Matcher:
    """Where one reply stands in its grammar. Not safe from several threads at once.

    Where the grammar leaves a single text, its canonical tokens (those that the tokenizer would write) are the only
    ones that `fill` allows. So a loop that appends `forced` without asking the model gives the same tokens. At most
    AHEAD bytes of it are looked at: the library's own search has no bound, nor need the text have one.
    """

    def __init__(self, grammar: Any, backend: Any, firsts: NDArray[np.int16]) -> None:
        import xgrammar

        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._backend = backend
        self._firsts = firsts
        self._spent = 0.0
        self._row = torch.zeros(len(firsts) // 32, dtype=torch.int32)
        self._tokens: list[int] = []
        self._plans: list[tuple[int, ...] | None] = [None]  # before each token: what is forced; None: not yet looked at

    @property
    def finished(self) -> bool:
        """True once an end token was accepted."""
        return bool(self._matcher.is_terminated())

    def fill(self, row: torch.Tensor) -> None:
        """Write the mask of the next token into `row` (int32, on the CPU, one bit a token, of the logits' width).

        Raises GrammarStuck when nothing may come, not even the end; as all else here does, GrammarInvalid when to
        follow the grammar takes too long.
        """
        if self.finished:
            row.fill_(EVERYTHING)
            return
        forced = self.forced()
        if forced:
            word, bit = divmod(forced[0], 32)
            row.zero_()
            row[word] = (1 << bit) if bit < 31 else -(1 << 31)
            return
        with self._counted():
            some = self._matcher.fill_next_token_bitmask(row.unsqueeze(0), 0)
        if not some:
            row.fill_(EVERYTHING)
        elif not bool(row.any()):
            raise GrammarStuck("the grammar allows nothing to follow", mend="mend the grammar: it leads nowhere")

    def accept(self, token: int) -> bool:
        """Go on by one token; false, and nothing changed, when the grammar does not allow it."""
        with self._counted():
            if self.finished or not self._matcher.accept_token(token):
                return False
        plan = self._plans[-1]
        self._tokens.append(token)
        self._plans.append(plan[1:] if plan and plan[0] == token and len(plan) > 1 else None)
        return True

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back."""
        if count:
            self._matcher.rollback(count)
            del self._tokens[-count:]
            del self._plans[-count:]

    def forced(self) -> tuple[int, ...]:
        """The tokens that must come next, canonical ones only; often none. They still want to be accepted."""
        plan = self._plans[-1]
        if plan is None:
            with self._counted():
                plan = self._plans[-1] = () if self.finished else self._allowed(self._canonical())
        return plan

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Raises GrammarInvalid when the grammar holds the step loop, and so everybody's replies, for too long."""
        started = time.thread_time()
        yield
        self._spent += time.thread_time() - started
        if self._spent > SLACK + SHARE * len(self._tokens):
            raise GrammarInvalid(
                f"the grammar took {self._spent:.1f} s for {len(self._tokens)} tokens",
                mend="write it so that a text can be read in fewer ways, without repetitions in repetitions",
            )

    def _canonical(self) -> list[int]:
        """The tokens of the text that is forced, without those that may look otherwise once more text follows."""
        text = self._forced_text()
        if not text:
            return []
        window = self._tokens[-WINDOW:]
        written = self._backend.decode(window, skip_special_tokens=False) if window else ""
        encoding = self._backend.encode(written + text, add_special_tokens=False)
        if encoding.ids[: len(window)] != window:
            return []
        # Merges stay within a word of the pre-tokenizer, and only the last word can still grow.
        settled = len(encoding.ids) - 1
        while settled > len(window) and encoding.word_ids[settled - 1] == encoding.word_ids[-1]:
            settled -= 1
        return list(encoding.ids[len(window) : settled])

    def _forced_text(self) -> str:
        """The only text that may follow, whole characters of its first AHEAD bytes."""
        found = bytearray()
        try:
            while len(found) < AHEAD and (byte := self._forced_byte()) >= 0:
                if not self._matcher.accept_string(bytes((byte,))):
                    break
                found.append(byte)
        finally:
            if found:
                self._matcher.rollback(len(found))
        try:
            return codecs.getincrementaldecoder("utf-8")().decode(bytes(found))
        except UnicodeDecodeError:
            return ""  # it begins within a character

    def _forced_byte(self) -> int:
        """What every allowed token begins with, negative where they differ or the end is allowed."""
        if not self._matcher.fill_next_token_bitmask(self._row.unsqueeze(0), 0):
            return NOTHING
        words = self._row.numpy()
        some = np.flatnonzero(words)
        if not len(some):
            return NOTHING
        first, last = (int(place) * 32 + _lowest_bit(int(words[place])) for place in (some[0], some[-1]))
        if self._firsts[first] != self._firsts[last]:
            return NOTHING  # as nearly always
        places, bits = np.nonzero((words[some, None] >> _BITS) & 1)
        firsts = self._firsts[some[places] * 32 + bits]
        return int(firsts[0]) if (firsts == firsts[0]).all() else NOTHING

    def _allowed(self, tokens: list[int]) -> tuple[int, ...]:
        """As many of the tokens as the grammar takes."""
        count = 0
        while count < len(tokens) and self._matcher.accept_token(tokens[count]):
            count += 1
        if count:
            self._matcher.rollback(count)
        return tuple(tokens[:count])
