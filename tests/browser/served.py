"""A viewer in a process of its own, over a store that a test fills: `python -m tests.browser.served TRACES`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from chains.records.store import Store
from chains.viewer import forgetting
from chains.viewer.settings import ViewerSettings
from chains.viewer.web import create_app
from tests.chains.records import made
from tests.shape.tree import ROOT


@dataclass(frozen=True)
class Viewer:
    """The viewer's address, and its store."""

    url: str
    traces: Path

    def keep(self, spans: Sequence[made.Span], version: str = "0badf00d", **resource: str) -> None:
        """Put spans of that version of the chain into the store, as the receiver would."""
        made.stored(self.traces, spans, {**made.RESOURCE, "service.version": version, **resource})


@contextmanager
def viewer(traces: Path) -> Iterator[Viewer]:
    """A viewer over `traces`, which is made where it is missing."""
    Store.open(traces).close()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.browser.served", str(traces)]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "the viewer did not start"
            yield Viewer(f"http://127.0.0.1:{port}", traces)
        finally:
            process.terminate()
            process.wait(20)


def main(traces: str) -> None:
    """Serve until told to end; prints the port."""
    path = Path(traces)
    app = create_app(path, ViewerSettings(traces=path), routes=forgetting.routes(path))
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
