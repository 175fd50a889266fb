"""Listening: at which address, and why not."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress
from pathlib import Path

from chains.errors import SettingError

BACKLOG = 1024
"""Connections that wait in the kernel until they are accepted."""


def is_loopback(host: str) -> bool:
    """Whether a name or address, as it stands in a URL, is this machine's own."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int, *, shared: bool = False, option: str = "--port") -> socket.socket:
    """A listening socket; `shared` with others that are. Raises SettingError that says who has the port, or what is
    wrong with the host; `option` is where another port would be said."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise SettingError(f"host {host} is not known here", mend="use 127.0.0.1, or 0.0.0.0 for all") from None
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise _no_port(host, port, error, option) from error
    return sock


def _no_port(host: str, port: int, error: OSError, option: str) -> SettingError:
    if error.errno == errno.EADDRINUSE:
        by = _holder(port)
        return SettingError(
            f"port {port} is in use" + (f" by {by}" if by else ""),
            mend=f"stop that, or take another with {option} (0: any free one)",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return SettingError(f"port {port} may not be used by this user", mend=f"take one above 1023 with {option}")
    if error.errno == errno.EADDRNOTAVAIL:
        return SettingError(f"{host} is not an address of this machine", mend="use 127.0.0.1, or 0.0.0.0 for all")
    return SettingError(f"port {port} of {host} cannot be opened: {error.strerror}", mend=f"take another with {option}")


def _holder(port: int) -> str:
    """The process that listens on the port, as far as this user may see (Linux)."""
    inodes = set()
    for kernel_table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(kernel_table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""
