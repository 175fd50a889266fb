"""The viewer as a child: it is there at once, comes again when it dies, and ends with its parent."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from chains.errors import SettingError
from chains.viewer.process import ViewerProcess, _relayed, read_settings
from chains.viewer.settings import ViewerSettings
from tests.chains.wire.hosted import eventually
from tests.shape.tree import ROOT

HEAVY = {"torch", "ray", "grpc", "transformers", "onnxruntime", "ctranslate2"}


def settings(folder: Path, **given: Any) -> ViewerSettings:
    return ViewerSettings(**{"traces": folder / "traces.sqlite", "port": 0, **given})


async def answers(url: str) -> bool:
    async with httpx.AsyncClient(timeout=20.0) as client:
        return (await client.get(f"{url}healthz")).status_code == 200


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state in "ZX"


async def test_the_first_request_need_not_wait_for_the_process(tmp_path: Path) -> None:
    async with ViewerProcess(settings(tmp_path)) as viewer:
        assert viewer.url == f"{viewer.endpoint}/" and ":0" not in viewer.url
        assert await answers(viewer.url)
        pid = viewer.pid
        assert pid is not None and os.getpriority(os.PRIO_PROCESS, pid) >= 10
        assert os.getsid(pid) == pid  # Ctrl-C in the parent's terminal is not for it
    assert gone(pid)
    with pytest.raises(httpx.ConnectError):
        await answers(viewer.url)


async def test_one_that_dies_comes_again_on_its_port_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "chains.viewer")
    async with ViewerProcess(settings(tmp_path)) as viewer:
        for _ in range(2):
            await eventually(lambda: viewer.pid is not None)
            assert await answers(viewer.url)
            pid = viewer.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda was=pid: viewer.pid != was)  # type: ignore[misc]
        assert await answers(viewer.url)
    assert [record.message for record in caplog.records] == [
        "the tracing page's process ended by itself (SIGKILL); it is started again"
    ]


async def test_one_that_no_other_start_would_help_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.WARNING, "chains.viewer")
    (tmp_path / "file").write_text("")
    async with ViewerProcess(settings(tmp_path, traces=tmp_path / "file" / "t.sqlite")) as viewer:
        await eventually(lambda: bool(caplog.records))
        with pytest.raises(httpx.ConnectError):  # whoever sends spans need not wait
            await answers(viewer.url)
        assert "file" in viewer.failed
    assert [record.getMessage() for record in caplog.records] == [
        f"there is no tracing page: {viewer.failed}; calls go on without it"
    ]
    assert not capfd.readouterr().err


async def test_one_that_cannot_start_is_given_up_with_its_last_error_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uvicorn.py").write_text(
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    import one_that_is_not_installed\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    caplog.set_level(logging.WARNING, "chains.viewer")
    async with ViewerProcess(settings(tmp_path)) as viewer:
        await eventually(lambda: bool(caplog.records))
        with pytest.raises(httpx.ConnectError):
            await answers(viewer.url)
        assert viewer.pid is None
    assert [record.getMessage() for record in caplog.records] == [
        "there is no tracing page: ModuleNotFoundError: No module named 'one_that_is_not_installed'; "
        "calls go on without it"
    ]
    assert not capfd.readouterr().err


async def test_what_it_says_is_in_the_log_a_traceback_as_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "chains.viewer")
    code = (
        "import sys, logging\ntry:\n    {}['a']\nexcept KeyError:\n    logging.exception('over a request')\n"
        "sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    relaying = asyncio.ensure_future(_relayed(process))
    await eventually(lambda: len(caplog.records) == 2)
    assert process.stdin is not None
    process.stdin.close()
    assert await relaying == "" and await process.wait() == 0
    assert [record.getMessage() for record in caplog.records] == [
        "the tracing page's process: ERROR:root:over a request", "the tracing page's process: KeyError: 'a'"
    ]  # fmt: skip


PARENT = """
import asyncio, sys
from pathlib import Path
from chains.viewer.process import ViewerProcess
from chains.viewer.settings import ViewerSettings

async def main():
    async with ViewerProcess(ViewerSettings(traces=Path(sys.argv[1]), port=0)) as viewer:
        while viewer.pid is None:
            await asyncio.sleep(0)
        print(viewer.pid, viewer.url, flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(  # noqa: ASYNC220  # a parent that ends without asking anybody
        [sys.executable, "-c", PARENT, str(tmp_path / "traces.sqlite")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid, url = (await asyncio.to_thread(parent.stdout.readline)).split()
        assert await answers(url)
        parent.kill()
        await eventually(lambda: gone(int(pid)))


async def test_a_port_in_use_is_no_obstacle_unless_it_was_asked_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port} is in use"):
            async with ViewerProcess(settings(tmp_path, port=port), exact=True):
                pass
        async with ViewerProcess(settings(tmp_path, port=port)) as viewer:
            assert viewer.moved.startswith(f"port {port} is in use by process {os.getpid()}")
            assert viewer.settings.port != port
            assert await answers(viewer.url)


def test_settings_cross_to_the_child() -> None:
    from chains.viewer import process

    given = ViewerSettings(traces=Path("/a/b"), keys=("k",), port=7, otlp_grpc=4317, host="::1")
    assert read_settings(process.msgspec.json.encode(process._plain(given))) == given
    assert ViewerProcess(given).settings == given


def test_the_child_loads_nothing_heavy() -> None:
    code = "import chains.viewer.__main__, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not (HEAVY & set(loaded.split()))
