"""The compiler's process: what is wrong with a grammar ends there, and the next grammar compiles."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

from engines.llm.compiler import Compiler, CompilerLimits
from engines.llm.errors import GrammarInvalid, GrammarUntried
from engines.llm.grammar import Grammars
from tests.engines.llm.vocabularies import END, trained_tokenizer

pytest.importorskip("xgrammar", reason="constrained output is the extra `grammar`")

SWELLS = json.dumps({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(900)}})
FINE = 'root ::= "yes" | "no"'


def compiler_with(limits: CompilerLimits) -> Compiler:
    tokenizer = trained_tokenizer(600)
    return Compiler(tokenizer, tokenizer.get_vocab_size(), [tokenizer.token_to_id(END)], limits)


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    compiler = compiler_with(CompilerLimits(seconds=10.0, memory=256 * 1024 * 1024, compiled=100_000))
    yield compiler
    compiler.close()


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "engines.llm.compiler" in " ".join(child.cmdline())]


@pytest.mark.slow
def test_a_grammar_that_swells_is_refused_and_the_next_compiles(compiler: Compiler) -> None:
    with pytest.raises(GrammarInvalid, match="more than 256 MiB to compile"):
        compiler.compile("json", SWELLS)
    assert compiler.compile("ebnf", FINE)


@pytest.mark.slow
def test_a_grammar_that_takes_too_long_is_refused_and_the_next_compiles() -> None:
    compiler = compiler_with(CompilerLimits(seconds=0.5, memory=16 * 1024 * 1024 * 1024))
    try:
        with pytest.raises(GrammarInvalid, match=r"longer than 0\.5 s"):
            compiler.compile("json", SWELLS)
        assert not children()
        assert compiler.compile("ebnf", FINE)
    finally:
        compiler.close()


def test_a_compiler_found_dead_is_started_again_and_asked_once_more(compiler: Compiler) -> None:
    assert compiler.compile("ebnf", FINE)
    (process,) = children()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert compiler.compile("ebnf", FINE)


@pytest.mark.parametrize("limit", ["seconds", "memory"])
def test_a_limit_that_was_gone_over_is_the_grammars_fault_and_is_not_tried_twice(limit: str) -> None:
    compiler = compiler_with(
        CompilerLimits(seconds=0.2, memory=16 << 30) if limit == "seconds" else CompilerLimits(memory=64 << 20)
    )
    try:
        with pytest.raises(GrammarInvalid, match="to compile") as caught:
            compiler.compile("json", SWELLS)
        assert not isinstance(caught.value, GrammarUntried)
        assert not children()
    finally:
        compiler.close()


@pytest.mark.slow
def test_a_compiler_that_dies_of_every_grammar_says_so_and_blames_none() -> None:
    """Killed each time it is asked, as where there is no memory: what is refused then may be asked again."""
    tokenizer = trained_tokenizer(600)
    grammars = Grammars(tokenizer, tokenizer.get_vocab_size(), [tokenizer.token_to_id(END)])
    asked = threading.Event()

    def kill_all() -> None:
        while not asked.is_set():
            for child in children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            asked.wait(0.05)

    killer = threading.Thread(target=kill_all)
    killer.start()
    try:
        with pytest.raises(GrammarUntried, match="broke the compiler"):
            grammars.compile("ebnf", FINE)
        asked.set()
        killer.join()
        assert grammars.compile("ebnf", FINE), "it was not remembered as bad"
    finally:
        asked.set()
        killer.join()
        grammars.close()


def test_a_result_that_is_too_big_is_refused(compiler: Compiler) -> None:
    with pytest.raises(GrammarInvalid, match="once compiled"):
        compiler.compile("regex", "[a-z]{1,3000}")


def test_closing_ends_the_process(compiler: Compiler) -> None:
    assert compiler.compile("ebnf", FINE)
    assert children()
    compiler.close()
    assert not children()


def test_a_compiler_that_is_forgotten_ends_its_process() -> None:
    forgotten = compiler_with(CompilerLimits())
    assert forgotten.compile("ebnf", FINE)
    assert children()
    del forgotten
    gc.collect()
    assert not children()
