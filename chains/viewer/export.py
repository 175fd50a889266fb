"""A call to hand on: all that is known of it as JSON, or as one HTML file that needs no server."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from chains.records import call, recordings, span
from chains.records.lookup import find
from chains.viewer import ui_files

ENTRY = "callfile.js"
STYLES = ("style.css", "call.css")
HEARD = 64 << 20  # bytes of sound up to which it is put in
DETAILED = 5_000  # spans whose attributes the page carries
_IMPORT = re.compile(r"""^import\s+(?:\{([^}]*)\}\s+from\s+)?["']\./([\w.-]+)["'];?[ \t]*$""", re.MULTILINE)
_EXPORT = re.compile(r"^export\s+(?=(?:async\s+)?(?:function\*?|class|const|let)\s+([\w$]+))", re.MULTILINE)


def document(connection: sqlite3.Connection, id: str) -> dict[str, Any]:
    """The call as the page gets it, and `details`: each span's attributes and events by its id. Raises NotFound."""
    body = call.detail(connection, id)
    return {**body, "details": span.details(connection, id)}


def page(connection: sqlite3.Connection, id: str) -> bytes:
    """The call's page with its data, script and style inside. Raises NotFound."""
    body = call.detail(connection, id)
    if body["call"]["spans"] <= DETAILED:
        body["details"] = span.details(connection, id)
    if body["audio"]["ms"]:
        body |= _sound(connection, id, body["audio"])
    data = "window.CHAINS_CALL = " + _in_script(msgspec.json.encode(body).decode()) + ";"
    script = _in_script_file(bundle(ENTRY))
    style = "\n".join(ui_files.read(name).decode() for name in STYLES).replace("</", "<\\/")
    title = html.escape(f"{body['call']['chain']} {body['call']['id']}")
    policy = html.escape(_policy(data, script))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>'
        f'<style>{style}</style></head><body><main id="view" data-view="call"></main>'
        f"<script>{data}</script><script>{script}</script></body></html>"
    ).encode()


def _sound(connection: sqlite3.Connection, id: str, audio: Mapping[str, Any]) -> dict[str, Any]:
    """How loud each side was, and what was heard unless it is very long."""
    row = find(connection, id).row
    bins = int(min(max(audio["ms"] / 20, 200), 20_000))
    found: dict[str, Any] = {
        "peaks": {side: recordings.peaks(connection, row, side, bins) for side in ("caller", "reply") if audio[side]}
    }
    if recordings.wav_size(connection, row, "both") <= HEARD:
        sound = base64.b64encode(recordings.wav(connection, row, "both").data).decode()
        found["wav"] = f"data:audio/wav;base64,{sound}"
    return found


def bundle(entry: str, folder: Path = ui_files.UI) -> str:
    """The module and those it imports, each once and before who needs it, as one script.

    They import by name from "./x.js" in one line, and export at the declaration.
    """
    scopes: dict[str, str] = {}
    _collect(entry, folder, scopes, set())
    return '(() => {\n"use strict";\n' + "\n".join(scopes.values()) + "\n})();"


def _collect(name: str, folder: Path, scopes: dict[str, str], entered: set[str]) -> None:
    entered.add(name)
    source = ui_files.read(name, folder).decode()
    for _, other in _IMPORT.findall(source):
        if other not in entered:
            _collect(other, folder, scopes, entered)
    exported = ", ".join(_EXPORT.findall(source))
    body = _EXPORT.sub("", _IMPORT.sub(_import, source))
    scopes[name] = f"const {_scope(name)} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();"


def _scope(name: str) -> str:
    return "of_" + re.sub(r"\W", "_", name)


def _import(found: re.Match[str]) -> str:
    names, other = found.groups()
    return f"const {{{names.replace(' as ', ': ')}}} = {_scope(other)};" if names else ""


def _in_script(json: str) -> str:
    """JSON that cannot end the script it stands in, nor begin a comment of HTML."""
    return json.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _in_script_file(source: str) -> str:
    return re.sub(r"</(?=script)", r"<\\/", source, flags=re.IGNORECASE).replace("<!--", "<\\!--")


def _policy(*scripts: str) -> str:
    """Only these scripts run, nothing is fetched."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; media-src data: blob:; "
        "connect-src data: blob:"
    )


def headers(id: str, ending: str) -> Mapping[str, str]:
    """So that a browser keeps the file, and would run nothing of it as this site's."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", id)[:80]
    return {
        "content-disposition": f'attachment; filename="call-{name}.{ending}"',
        "content-security-policy": "sandbox",
    }
