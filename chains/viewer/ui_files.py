"""The page's own files: read as they lie beside this module, with an ETag, compressed where the reader takes that."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from chains.errors import NotFound
from chains.viewer.answers import WORTH, takes_gzip

UI = Path(__file__).with_name("ui")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".woff2": "font/woff2",
}


def names(folder: Path = UI) -> set[str]:
    """The files that are served: those in the folder itself, of the kinds in TYPES."""
    return (
        {path.name for path in folder.iterdir() if path.is_file() and path.suffix in TYPES}
        if folder.is_dir()
        else set()
    )


def read(name: str, folder: Path = UI) -> bytes:
    """Raises NotFound, also for anything outside the folder."""
    if name not in names(folder):
        raise NotFound(f"the page has no file {name[:60]!r}", mend="open / and reload")
    return (folder / name).read_bytes()


def respond(request: Request, name: str, folder: Path = UI) -> Response:
    """The file, or 304 when the reader has it as it is. Raises NotFound."""
    body = read(name, folder)
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept-encoding"}
    known = {entry.strip().removeprefix("W/") for entry in request.headers.get("if-none-match", "").split(",")}
    if tag in known:
        return Response(status_code=304, headers=headers)
    if takes_gzip(request) and len(body) >= WORTH:
        body, headers["content-encoding"] = gzip.compress(body, 5), "gzip"
    return Response(body, 200, headers, TYPES[Path(name).suffix])
