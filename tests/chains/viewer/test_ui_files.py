"""The page's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.errors import NotFound
from chains.viewer import ui_files
from tests.chains.viewer.served import serving


def test_only_files_of_the_folder_itself_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "ui"
    folder.mkdir()
    (folder / "main.js").write_text("export {};")
    (folder / "notes.txt").write_text("no kind that is served")
    (tmp_path / "secret.js").write_text("secret")
    assert ui_files.names(folder) == {"main.js"} and ui_files.read("main.js", folder) == b"export {};"
    for name in ("../secret.js", "..", "", "notes.txt", "/etc/passwd", "main.js/", "Main.js", "main.js\0"):
        with pytest.raises(NotFound):
            ui_files.read(name, folder)
    assert ui_files.names(tmp_path / "nothing") == set()


async def test_files_are_asked_for_anew_and_sent_only_when_they_changed(tmp_path: Path) -> None:
    async with serving(tmp_path / "t.sqlite") as client:
        first = await client.get("/ui/style.css")
        assert first.status_code == 200 and first.headers["content-type"].startswith("text/css")
        assert first.headers["cache-control"] == "no-cache" and first.headers["content-encoding"] == "gzip"
        again = await client.get("/ui/style.css", headers={"if-none-match": first.headers["etag"]})
        assert again.status_code == 304 and again.content == b""
        other = await client.get("/ui/style.css", headers={"if-none-match": '"something else"'})
        assert other.status_code == 200 and other.text == first.text
        script = await client.get("/ui/main.js")
        assert script.headers["content-type"].startswith("text/javascript")
        for name in ("..%2fweb.py", "%2e%2e%2fweb.py", "..%5cweb.py", "web.py"):
            assert (await client.get(f"/ui/{name}")).status_code == 404


def test_every_file_that_the_page_names_is_there() -> None:
    page = ui_files.read("index.html").decode()
    named = {word.split('"')[0] for word in page.split('"/ui/')[1:]}
    assert named and named <= ui_files.names()
