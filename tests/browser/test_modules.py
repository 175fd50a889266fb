"""The page's modules become one script in a saved file: that holds only while they keep to what the exporter reads."""

from __future__ import annotations

import re

import pytest

from chains.viewer.export import bundle
from chains.viewer.ui_files import UI

IMPORTED = re.compile(r'from "\./(\w+)\.js"')
TOP_LEVEL = re.compile(r"^(?:async )?(?:function|class|const|let)\s+(\w+)", re.MULTILINE)


def test_the_modules_of_the_saved_file_share_no_name() -> None:
    names = TOP_LEVEL.findall(bundle("callfile.js"))
    assert len(names) > 80
    assert sorted(names) == sorted(set(names))


def test_no_module_is_longer_than_a_reader_takes_in() -> None:
    long = {path.name for path in UI.glob("*.js") if len(path.read_text().splitlines()) > 450}
    assert not long


def closure(entry: str) -> set[str]:
    """The module and all that it imports, and what these import."""
    found, waiting = set[str](), [entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += IMPORTED.findall((UI / f"{name}.js").read_text())
    return found


@pytest.mark.parametrize("view", ["calls", "call", "chain", "compare"])
def test_all_modules_of_a_view_are_asked_for_at_once(view: str) -> None:
    shared = closure("main")
    listed = re.search(rf"^  {view}: \[(.*)\],$", (UI / "early.js").read_text(), re.MULTILINE)
    assert listed
    assert sorted(re.findall(r"\w+", listed[1])) == sorted(closure(view) - shared)
