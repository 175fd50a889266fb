"""Compiling grammars in a process of its own: what makes the compiler hang, swell or crash ends that process alone.

The process starts at the first grammar. It reads frames (4 bytes of length, then JSON) from its standard input and
answers each on its standard output: {"compiled": text} or {"invalid": message}.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from engines.llm.endless import endless
from engines.llm.errors import EngineError, GrammarInvalid, GrammarMissing, GrammarUntried

_HEADER = 4
_PLACE_IN_LIBRARY = re.compile(r"^\[[\d:]+\] \S+?:\d+: (?:Check failed: \(.*?\) is false: )?")
OUT_OF_MEMORY = "std::bad_alloc"
_MEMORY_EXIT = 12
BUSY = 10  # on a busy machine a second of the processor may take as many
INSTALL = "install it: pip install 'chains-serve[grammar]'"


@dataclass(frozen=True, slots=True)
class CompilerLimits:
    """Per grammar: seconds of the processor, bytes of source, of the result, and of memory while it is compiled."""

    seconds: float = 5.0
    source: int = 128 * 1024
    compiled: int = 32 * 1024 * 1024
    memory: int = 1024 * 1024 * 1024
    start_seconds: float = 60.0


class _Died(Exception):
    """The process is no more, with its exit code."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


class Compiler:
    """Compiles one grammar after the other, from any thread. `backend` is a `tokenizers.Tokenizer`."""

    def __init__(self, backend: Any, vocab: int, ends: Iterable[int], limits: CompilerLimits) -> None:
        self._start_frame = {"tokenizer": backend, "vocab": vocab, "ends": sorted(ends), "memory": limits.memory}
        self._limits = limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def compile(self, kind: str, source: str) -> str:
        """The compiled grammar as text for `CompiledGrammar.deserialize_json`.

        Raises GrammarInvalid with what is wrong, GrammarUntried where that is not known: it may be nothing.
        """
        frame = {"kind": kind, "source": source, "seconds": self._limits.seconds}
        with self._lock:
            try:
                answer = self._ask(self._process or self._start(), frame, BUSY * self._limits.seconds)
            except _Died:  # perhaps long ago, or for want of memory elsewhere: no fault of this grammar's
                answer = self._ask_again(frame)
        if "invalid" in answer:
            raise GrammarInvalid(answer["invalid"], mend=f"mend the {kind} and ask again")
        compiled: str = answer["compiled"]
        if len(compiled) > self._limits.compiled:
            raise GrammarInvalid(
                f"the {kind} takes {len(compiled) >> 20} MiB once compiled, more than {self._limits.compiled >> 20}",
                mend="ask for less at once",
            )
        return compiled

    def close(self) -> None:
        """End the process. The next grammar starts another."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engines.llm.compiler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the library writes callers' grammars there
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self._finalize = weakref.finalize(self, _end, self._process)  # for owners that forget to close
        tokenizer = self._start_frame["tokenizer"].to_str()
        answer = self._ask(self._process, {**self._start_frame, "tokenizer": tokenizer}, self._limits.start_seconds)
        if "missing" in answer:
            self._end()
            raise GrammarMissing(f"constrained output needs {answer['missing']}", mend=INSTALL)
        return self._process

    def _ask_again(self, frame: Mapping[str, Any]) -> Any:
        try:
            return self._ask(self._start(), frame, BUSY * self._limits.seconds)
        except _Died as died:
            raise GrammarUntried(
                f"the grammar broke the compiler (it ended with {died.code})", mend="ask again, or in other words"
            ) from None

    def _ask(self, process: subprocess.Popen[bytes], frame: Mapping[str, Any], seconds: float) -> Any:
        """Its answer. Raises _Died for a process that ended, unless it was by a limit that the grammar went over."""
        assert process.stdin is not None and process.stdout is not None
        try:
            _write(process.stdin, frame)
            answer = _read(process.stdout, time.monotonic() + seconds)
        except TimeoutError:
            self._end()
            raise GrammarUntried(
                f"the grammar took longer than {seconds:g} s to compile", mend="ask for less at once, or later"
            ) from None
        except OSError:
            answer = None
        if answer is None:
            code = self._end(patience=1.0)
            if why := _why(code, self._limits):
                raise GrammarInvalid(why, mend="ask for less at once")
            raise _Died(code)
        return answer

    def _end(self, *, patience: float = 0.0) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        self._finalize.detach()
        return _end(process, patience)


def _end(process: subprocess.Popen[bytes], patience: float = 0.0) -> int:
    """End the process if it has not by itself; its exit code."""
    assert process.stdin is not None and process.stdout is not None
    try:
        code = process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    for pipe in (process.stdin, process.stdout):
        try:
            pipe.close()
        except OSError:
            pass  # a frame that the process never read
    return code


def _why(code: int | None, limits: CompilerLimits) -> str:
    """The limit that the process ended by; "" for any other end."""
    if code == _MEMORY_EXIT:
        return f"the grammar takes more than {limits.memory >> 20} MiB to compile"
    if code == -signal.SIGPROF:
        return f"the grammar took longer than {limits.seconds:g} s to compile"
    return ""


def _write(pipe: BinaryIO | Any, frame: Mapping[str, Any]) -> None:
    data = json.dumps(frame).encode()
    pipe.write(len(data).to_bytes(_HEADER, "big") + data)
    pipe.flush()


def _read(pipe: BinaryIO | Any, deadline: float) -> Any:
    """The next frame; None at the end of the pipe. TimeoutError when it is not there in time."""
    data = bytearray()
    wanted = _HEADER
    while len(data) < wanted:
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        piece = os.read(pipe.fileno(), 1 << 20)
        if not piece:
            return None
        data += piece
        if len(data) >= _HEADER:
            wanted = _HEADER + int.from_bytes(data[:_HEADER], "big")
    return json.loads(data[_HEADER:])


def vocabulary(backend: Any, vocab: int, ends: Iterable[int]) -> Any:
    """The tokens as xgrammar wants them: `vocab` is the width of the logits, which may be more than there are tokens.

    Tokens that only mark (special ones) get no text, so that no grammar can be met by writing one.
    """
    import xgrammar

    try:
        found = xgrammar.TokenizerInfo._detect_metadata_from_hf(backend.to_str())
        tokens = [""] * vocab
        for token, index in backend.get_vocab(True).items():
            if index < vocab:
                tokens[index] = token
        for index, added in backend.get_added_tokens_decoder().items():
            if added.special and index < vocab:
                tokens[index] = ""
        return xgrammar.TokenizerInfo(
            tokens,
            found["vocab_type"],
            vocab_size=vocab,
            stop_token_ids=sorted(end for end in ends if end < vocab),
            add_prefix_space=found["add_prefix_space"],
        )
    except RuntimeError as error:
        raise EngineError(f"this tokenizer cannot be constrained: {plain(error)}") from error


def plain(error: BaseException) -> str:
    """A message of the library without the place in the library's own source."""
    return _PLACE_IN_LIBRARY.sub("", str(error)).strip()


def compile_with(compiler: Any, kind: str, source: str) -> str:
    """One grammar, by the library; what it raises is the caller's fault."""
    if kind == "json":
        compiled = compiler.compile_json_schema(source, any_whitespace=False)
    elif kind == "regex":
        compiled = compiler.compile_regex(source)
    elif kind == "structural_tag":
        compiled = compiler.compile_structural_tag(_on_one_line(json.loads(source)))
    else:
        compiled = compiler.compile_grammar(source)
    if endless(str(compiled.grammar)):
        raise ValueError("it allows no finite text: whatever is written, it needs itself once more")
    return compiled.serialize_json()  # type: ignore[no-any-return]


def _on_one_line(part: Any) -> Any:
    """A structural tag whose schemas, as those that stand alone, leave no choice of white space."""
    import xgrammar

    if isinstance(part, list):
        return [_on_one_line(one) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "json_schema" and "json_schema" in part:
        schema = json.dumps(part["json_schema"])
        return {"type": "grammar", "grammar": str(xgrammar.Grammar.from_json_schema(schema, any_whitespace=False))}
    return {name: _on_one_line(value) for name, value in part.items()}


def main() -> None:
    """The process: the first frame describes the tokens, each further one is a grammar."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = sys.stdin.buffer
    forever = float(10**9) + time.monotonic()
    start = _read(requests, forever)
    if start is None:
        return
    try:
        import xgrammar
        from tokenizers import Tokenizer
    except ImportError as error:
        _write(answers, {"missing": error.name or str(error)})
        return
    tokens = vocabulary(Tokenizer.from_str(start["tokenizer"]), start["vocab"], start["ends"])
    compiler = xgrammar.GrammarCompiler(tokens, max_threads=1, cache_enabled=False)
    _bound_memory(start["memory"])
    _write(answers, {})
    while (frame := _read(requests, forever)) is not None:
        # Should the caller be gone, nobody else ends a compilation that hangs.
        signal.setitimer(signal.ITIMER_REAL, 2 * BUSY * frame["seconds"])
        signal.setitimer(signal.ITIMER_PROF, frame["seconds"])
        try:
            answer = {"compiled": compile_with(compiler, frame["kind"], frame["source"])}
        except (RuntimeError, ValueError, TypeError, MemoryError) as error:
            answer = {"invalid": plain(error) or type(error).__name__}
            if isinstance(error, MemoryError) or OUT_OF_MEMORY in answer["invalid"]:
                os._exit(_MEMORY_EXIT)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, answer)


def _bound_memory(more: int) -> None:
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115
    most = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
