"""Each file in bad/ is a chain with faults. A `#!` comment below a line is a fault that must be told of that line, word
for word; and there must be no others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chains.dsl.chainlet import chainlet, depends
from chains.dsl.graph import build, load
from chains.errors import GraphError

BAD = Path(__file__).parent / "bad"


def expected(file: Path) -> list[str]:
    """The faults that a file's comments promise."""
    faults, line = [], 0
    for number, text in enumerate(file.read_text().splitlines(), 1):
        if text.strip().startswith("#! "):
            faults.append(f"{file.name}:{line} {text.strip()[3:]}")
        else:
            line = number
    return faults


@pytest.mark.parametrize("name", sorted(file.name for file in BAD.glob("*.py")))
def test_all_faults_of_a_file_with_line_and_mend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BAD)
    wanted = expected(BAD / name)
    assert wanted, f"{name} promises no fault"
    with pytest.raises(GraphError) as caught:
        load(name)
    assert [str(fault) for fault in caught.value.faults] == wanted


def test_every_fault_says_what_to_write() -> None:
    for file in BAD.glob("*.py"):
        assert all("; " in fault for fault in expected(file))


def test_the_error_s_text_shows_count_and_all_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BAD)
    with pytest.raises(GraphError) as caught:
        load("no_entry.py")
    lines = str(caught.value).splitlines()
    assert lines[0] == "2 faults in chain no_entry.py"
    assert lines[1].startswith(
        "  no_entry.py:15 (PhoneCall) no chainlet of this file is the entry; write @chainlet(entry=True)"
    )


def test_the_example_of_the_design_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = """\
        from collections.abc import AsyncIterator
        from chains.dsl.chainlet import chainlet, depends
        @chainlet
        class Ears:
            async def hear(self, text: str) -> str: return text
        @chainlet(entry=True)
        class PhoneCall:
            ears: Ears
            async def run(self, text: str) -> AsyncIterator[object]:
                yield text
    """
    Path("call.py").write_text(re.sub("^ {8}", "", code, flags=re.M))
    with pytest.raises(GraphError) as caught:
        load("call.py")
    assert str(caught.value) == (
        "2 faults in chain PhoneCall\n"
        "  call.py:8 (PhoneCall.ears) has no default; write ears: Ears = depends(Ears)\n"
        "  call.py:9 (PhoneCall.run) yields `object`; stream a message type, e.g. AsyncIterator[Audio]"
    )


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("x = 1\ndef f(:\n    pass\n", 2, "is no valid Python (invalid syntax): `def f(:`; mend this line"),
        ("class A:\npass\n", 2, "is no valid Python (expected an indented block after class definition on line 1)"),
        ("x = '\n", 1, "is no valid Python (unterminated string literal"),
        ("import json\nfrom json import nothing_of_that_name\n", 2, "cannot be imported (ImportError:"),
        ("x = 1\n\n1 / 0\n", 3, "cannot be imported (ZeroDivisionError: division by zero); mend this line"),
    ],
)
def test_a_file_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, line: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("call.py").write_text(code)
    with pytest.raises(GraphError) as caught:
        load("call.py")
    (fault,) = caught.value.faults
    assert fault.where == f"call.py:{line}"
    assert words in str(fault)
    assert caught.value.__cause__ is not None  # for --debug


def test_an_error_in_a_sibling_names_the_sibling_s_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("call.py").write_text("import sibling_with_fault\n")
    Path("sibling_with_fault.py").write_text("\n\nraise KeyError('x')\n")
    with pytest.raises(GraphError) as caught:
        load("call.py")
    assert caught.value.faults[0].where == "sibling_with_fault.py:3"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("cal.py", "cal.py does not exist; write call.py"),
        ("nowhere/call.py", "nowhere/call.py does not exist; write the path of a chain's file"),
        (".", ". is a folder; name the chain's file, e.g. call.py"),
        ("call.txt", "call.txt is no Python file; name a file that ends in .py"),
        ("call.py:PhoneCal", "call.py:1 has no chainlet `PhoneCal`; write call.py:PhoneCall"),
        ("call.py:Other", "call.py:1 has no chainlet `Other`; its chainlets are PhoneCall"),
        ("call.py:Plain", "call.py:5 (Plain) is no chainlet; write @chainlet(entry=True) above class Plain"),
        ("no_such_package.module:Class", "no module" + " named"),
        (
            "what is this",
            "what is this is neither a file nor a module; write chain.py, chain.py:Class or package.module:Class",
        ),
    ],
)
def test_a_target_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("call.txt").write_text("")
    Path("call.py").write_text(
        "from chains.dsl.chainlet import chainlet\n@chainlet(entry=True)\nclass PhoneCall:\n"
        "    async def run(self, x: str) -> str: return x\nclass Plain: pass\n"
    )
    with pytest.raises(GraphError) as caught:
        load(target)
    (fault,) = caught.value.faults
    assert words.lower() in str(fault).lower()


def test_an_installed_library_s_fault_is_told_at_the_user_s_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("call.py").write_text("import json\n\nDATA = json.loads('{')\n")
    with pytest.raises(GraphError) as caught:
        load("call.py")
    assert str(caught.value.faults[0]).startswith(
        "call.py:3 cannot be imported (JSONDecodeError: Expecting property name"
    )


def test_a_file_that_is_no_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("call.py").write_bytes(b'x = "\xff\xfe"\n')
    with pytest.raises(GraphError) as caught:
        load("call.py")
    assert caught.value.faults[0].where == "call.py:1"


def test_build_of_something_else_than_a_chainlet() -> None:
    class Plain:
        def f(self) -> None: ...

    with pytest.raises(
        GraphError,
        match=r"test_faults.py:\d+ \(Plain\) is no chainlet; write @chainlet\(entry=True\) above class Plain",
    ):
        build(Plain)
    with pytest.raises(GraphError, match="3, which is no class"):
        build(3)  # type: ignore[arg-type]


def test_a_class_without_source_still_has_its_faults_told() -> None:
    names: dict[str, object] = {"__name__": "made_up", "chainlet": chainlet}
    exec("@chainlet\nclass Made:\n    async def run(self, x) -> str: return x\n", names)
    with pytest.raises(GraphError) as caught:
        build(names["Made"])  # type: ignore[arg-type]
    assert "(Made.run) has no annotation on `x`; write async def run(self, x: str) -> str" in str(caught.value)


def test_a_name_that_only_a_function_knows_is_explained() -> None:
    def local() -> type:
        @chainlet
        class Inner:
            async def run(self, x: Later) -> str:  # noqa: F821
                return ""

        return Inner

    with pytest.raises(
        GraphError, match="where `Later` means nothing; import Later, or define it at the top level of the file"
    ):
        build(local())


def test_faults_of_a_shared_chainlet_are_told_once() -> None:
    @chainlet
    class Ears:
        async def hear(self, text) -> str:  # type: ignore[no-untyped-def]
            return ""

    @chainlet
    class PhoneCall:
        one: Ears = depends(Ears)
        two: Ears = depends(Ears, timeout=3)

        async def run(self, text: str) -> AsyncIterator[str]:
            yield text

    with pytest.raises(GraphError) as caught:
        build(PhoneCall)
    assert len(caught.value.faults) == 1


def test_no_traceback_of_the_loader_in_what_a_user_sees(tmp_path: Path) -> None:
    (tmp_path / "call.py").write_text("def f(:\n")
    code = (
        "from chains.dsl.graph import load\nfrom chains.errors import GraphError\n"
        "try: load('call.py')\nexcept GraphError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == "1 fault\n  call.py:1 is no valid Python (invalid syntax): `def f(:`; mend this line\n"
