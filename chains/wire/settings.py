"""What a deployment decides about its wire: where it listens, who may talk, how it is encrypted, how much is taken."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from pathlib import Path

from chains.errors import SettingError

FRAME = 64 * 1024
"""The most bytes of one frame."""
MESSAGE = 1024 * 1024
"""The most bytes of one gRPC message, a batch of frames or a chunk."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. `cert` and `key` are this process's own, `ca` is what the other side's certificate is checked against.

    A server without `ca` asks its callers for none; with it, both sides show one (mTLS). `name` is what the server's
    certificate must be made out to, where that is not the address that was dialled.
    """

    cert: str = ""
    key: str = ""
    ca: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise SettingError("Tls has one of cert and key", mend="give both, or neither")
        for path in (self.cert, self.key, self.ca):
            if path and not Path(path).is_file():
                raise SettingError(f"Tls names {path}, which is no file", mend="give the path of a PEM file")

    def read(self, path: str) -> bytes | None:
        return Path(path).read_bytes() if path else None


@dataclass(frozen=True, slots=True)
class WireSettings:
    """`token` is the deployment's: who does not have it can do nothing. `bind` is the address to listen on, port 0 for
    one that is free; all interfaces only with `everywhere=True`.

    `direct` lets streams that are passed on go from their maker to their reader, not through the process between.
    `open_calls` is the most that a connection may have open, `connections` how many there may be, `queued_bytes` the
    most that may lie waiting for parts of larger values, `value_bytes` the largest value.

    `shared_memory`: large values between processes of one machine and user go through /dev/shm, of which each process
    takes at most `shared_bytes`. Where there is none, too little or no room, they go over the wire by themselves.
    """

    token: str
    bind: str = "127.0.0.1:0"
    everywhere: bool = False
    tls: Tls | None = None
    direct: bool = True
    open_calls: int = 4096
    connections: int = 1024
    queued_bytes: int = 64 * 2**20
    value_bytes: int = 2**30
    shared_memory: bool = True
    shared_bytes: int = 512 * 2**20

    def __post_init__(self) -> None:
        if len(self.token) < 16:
            raise SettingError("the token is shorter than 16 characters", mend="write token=new_token()")
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise SettingError("the token holds what no header may hold", mend="write token=new_token()")
        host, _, port = self.bind.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise SettingError(f"bind is {self.bind!r}", mend='write host:port, e.g. bind="127.0.0.1:0"')
        if _everywhere(host) and not self.everywhere:
            raise SettingError(
                f"bind={self.bind!r} listens on all interfaces", mend="name one address, or say everywhere=True"
            )
        if type(self.direct) is not bool:
            raise SettingError(f"direct is {self.direct!r}", mend="write True or False")
        for name in ("open_calls", "connections", "queued_bytes", "value_bytes", "shared_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise SettingError(f"{name} is {value!r}", mend="write a whole number of at least 1")

    def __repr__(self) -> str:
        return f"WireSettings(bind={self.bind!r}, tls={self.tls is not None})"  # the token goes into no log


def _everywhere(host: str) -> bool:
    bare = host.strip("[]")
    if bare in ("*", ""):
        return True
    try:
        return ipaddress.ip_address(bare).is_unspecified
    except ValueError:
        return False


def new_token() -> str:
    """A token nobody guesses: 256 bits."""
    return secrets.token_urlsafe(32)
