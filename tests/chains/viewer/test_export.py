"""A call as one file."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from chains.viewer import export, ui_files
from tests.chains.records import made
from tests.chains.records.shaped import kept
from tests.chains.viewer.served import serving

NASTY = "</script><script>alert(1)</script><!-- \u2028"


def data_of(page: str) -> object:
    """What the page's own script would find in window.CHAINS_CALL."""
    found = re.search(r"<script>window\.CHAINS_CALL = (.*?);</script>", page, re.DOTALL)
    assert found
    return msgspec.json.decode(found[1])


def test_names_that_would_end_the_script_stay_names(tmp_path: Path) -> None:
    spans = made.phone_call("call-0", 1)
    spans[3].name = NASTY
    spans[4].attributes["chains.note"] = NASTY
    with kept(tmp_path / "t.sqlite", (spans, made.RESOURCE)) as connection:
        page = export.page(connection, "call-0").decode()
        told = export.document(connection, "call-0")
    assert page.count("<script>") == page.count("</script>") == 2 and "alert(1)</script>" not in page
    data = data_of(page)
    assert isinstance(data, dict) and data["call"]["id"] == "call-0"
    assert NASTY in {row[3] for row in data["spans"]}
    assert NASTY in {one["attributes"].get("chains.note") for one in data["details"].values()}
    assert data == msgspec.json.decode(msgspec.json.encode(told))


def test_only_its_own_two_scripts_may_run_and_nothing_is_fetched(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (made.phone_call("call-0", 1), made.RESOURCE)) as connection:
        page = export.page(connection, "call-0").decode()
    policy = page.split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"&#x27;sha256-{digest}&#x27;" in policy
    assert "default-src &#x27;none&#x27;" in policy and "http" not in policy
    assert not re.search(r"<(?:link|script|img)[^>]+(?:src|href)=", page)


def test_the_modules_become_one_script_each_in_a_scope_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.js").write_text('import { b, c as other } from "./b.js";\nimport "./c.js";\nconst a = b + other;\n')
    (tmp_path / "b.js").write_text('import { c } from "./c.js";\nexport const b = 1;\nexport async function f() {}\n')
    (tmp_path / "c.js").write_text("// export of c\nconst a = 0;\nexport const c = 1;\nexport class C {}\n")
    assert export.bundle("a.js", tmp_path) == (
        '(() => {\n"use strict";\n'
        "const of_c_js = (() => {\n// export of c\nconst a = 0;\nconst c = 1;\nclass C {}\n\n"
        "return { c, C };\n})();\n"
        "const of_b_js = (() => {\nconst { c } = of_c_js;\nconst b = 1;\nasync function f() {}\n\n"
        "return { b, f };\n})();\n"
        "const of_a_js = (() => {\nconst { b, c: other } = of_b_js;\n\nconst a = b + other;\n\n"
        "return {  };\n})();\n})();"
    )


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_bundle_is_a_script_that_parses(tmp_path: Path) -> None:
    (tmp_path / "bundle.js").write_text(export.bundle(export.ENTRY))
    done = subprocess.run(["node", "--check", str(tmp_path / "bundle.js")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_import_or_export_is_left_in_the_bundle() -> None:
    made_of = export.bundle(export.ENTRY)
    assert not re.search(r"^\s*(?:import|export)\b", made_of, re.MULTILINE)
    assert len(made_of) > 10_000 and export.ENTRY in ui_files.names()


async def test_exports_are_kept_by_the_browser_and_run_nothing_here(tmp_path: Path) -> None:
    async with serving(tmp_path / "t.sqlite", made.phone_call("call-0", 1)) as client:
        for ending, kind in (("json", "application/json"), ("html", "text/html; charset=utf-8")):
            answer = await client.get(f"/calls/call-0.{ending}")
            assert answer.headers["content-disposition"] == f'attachment; filename="call-call-0.{ending}"'
            assert answer.headers["content-type"] == kind and answer.headers["content-security-policy"] == "sandbox"
        assert (await client.get("/calls/call-0.json")).json()["details"]
        odd = await client.get("/calls/call-0%22%0d%0ax.json")
        assert odd.status_code == 404
