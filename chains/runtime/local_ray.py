"""A Ray cluster of this machine alone, which goes on when the command that started it has ended.

Its address, its token and whose processes it has are written down in the user's state folder, readable by that user.
Ray listens on all interfaces; whoever has no token can do nothing there.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from chains.errors import StartError, Unavailable

KNOCK_S = 3.0
START_S = 120.0
STOP_S = 3.0
OBJECT_STORE = 200 * 2**20
"""Bytes of Ray's object store, through which nothing of ours goes."""


@dataclass(frozen=True, slots=True)
class Local:
    """A cluster that was started here. `session` is the Unix session of its processes."""

    address: str
    session: int
    token: str
    logs: str

    @property
    def processes(self) -> list[int]:
        return list(_members(self.session, self.logs))


def state_folder() -> Path:
    """Where it is written down: $XDG_STATE_HOME/chains, or ~/.local/state/chains."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "chains"


def running() -> Local | None:
    """The cluster that runs, None if there is none or not any more."""
    try:
        found = Local(**json.loads((state_folder() / "cluster.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.processes else None


def find(address: str = "") -> str:
    """The cluster that is meant: the one named, else $RAY_ADDRESS, else the one that `chains deploy` has started here,
    else one that `ray start` has; "" if there is none."""
    if named := address or os.environ.get("RAY_ADDRESS", ""):
        return named
    if (ours := running()) is not None and answers(ours.address):  # its head may be dead, and others of it not
        return ours.address
    with suppress(OSError):
        folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray"
        started = (folder / "ray_current_cluster").read_text().strip()
        if started and answers(started):
            return started
    return ""


def answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S):
            return True
    except (OSError, ValueError):
        return False


def start(cpus: int | None = None) -> Local:
    """Start one; what is left of one that answers no more is ended. Raises StartError with Ray's own last words."""
    if (left := running()) is not None:
        stop(left)
    folder = _made(state_folder(), "set XDG_STATE_HOME to a folder of your own")
    token, home = folder / "token", _private_folder()
    token.unlink(missing_ok=True)
    with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_urlsafe(32))
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--port=0", f"--temp-dir={home}"),
        *(
            "--include-dashboard=false",
            "--disable-usage-stats",
            "--log-color=false",
            f"--ray-client-server-port={_free_port()}",
        ),
        *("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"),
        *(f"--object-store-memory={OBJECT_STORE}", *([f"--num-cpus={cpus}"] if cpus is not None else [])),
    ]
    environ = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    with (folder / "start.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
        try:
            code = process.wait(START_S)
        except subprocess.TimeoutExpired:
            code = None
        except KeyboardInterrupt:
            _end(process.pid, str(home), STOP_S)  # nobody would know of it
            raise
    address = _read(home / "ray_current_cluster")
    logs = str((home / "session_latest").resolve())
    if code != 0 or not address:
        _end(process.pid, str(home), 2.0)
        last = "".join(f"\n  {line}" for line in _read(folder / "start.log").splitlines()[-8:])
        raise StartError(f"Ray did not start on this machine{last}", mend=f"all it said is in {folder / 'start.log'}")
    made = Local(address, process.pid, str(token), logs)
    (folder / "cluster.json").write_text(json.dumps(asdict(made)))
    return made


def stop(cluster: Local) -> int:
    """End all of its processes, and of nobody else's; how many there were. Raises Unavailable if some are left."""
    count = len(cluster.processes)
    if not _end(cluster.session, cluster.logs, STOP_S):
        left = ", ".join(map(str, cluster.processes))
        raise Unavailable(f"processes {left} of the cluster do not end", mend="look at them with ps")
    (state_folder() / "cluster.json").unlink(missing_ok=True)
    return count


def _end(session: int, home: str, seconds: float) -> bool:
    """SIGTERM, then SIGKILL. Whether all have gone."""
    for number, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in _members(session, home):
            with suppress(ProcessLookupError):
                os.kill(process, number)
        until = time.monotonic() + wait
        while time.monotonic() < until:
            if not any(True for _ in _members(session, home)):
                return True
            time.sleep(0.05)
    return False


def _members(session: int, home: str) -> Iterator[int]:
    """The living processes of a Unix session, if it is Ray's with this folder: numbers are given out again."""
    members, ours = [], False
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                members.append(int(folder.name))
                ours = ours or home in (folder / "cmdline").read_text()
    yield from members if ours else []


def _private_folder() -> Path:
    """Ray's folder for sockets and logs: short, since sockets lie in it, and nobody else's."""
    mend = "set RAY_TMPDIR to a short folder of your own"
    home = _made(Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / f"chains-{os.getuid()}", mend)
    if home.stat().st_uid != os.getuid():
        raise StartError(f"{home} belongs to somebody else", mend=mend)
    (home / "ray_current_cluster").unlink(missing_ok=True)
    return home


def _made(folder: Path, mend: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StartError(f"{folder} cannot be made: {error.strerror}", mend=mend) from None
    return folder


def _free_port() -> int:
    """For Ray's client server, which takes no 0."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
