"""What can be set of the viewer, and where its store is when nobody says."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chains.errors import SettingError
from chains.sockets import is_loopback

PORT = 8001


def default_traces(environ: Mapping[str, str]) -> Path:
    """$CHAINS_TRACES, else $XDG_DATA_HOME/chains/traces.sqlite, else ~/.local/share/chains/traces.sqlite."""
    if named := environ.get("CHAINS_TRACES", ""):
        return Path(named).expanduser()
    home = environ.get("XDG_DATA_HOME", "") or Path.home() / ".local" / "share"
    return Path(home) / "chains" / "traces.sqlite"


@dataclass(frozen=True, slots=True)
class ViewerSettings:
    """All that can be set of a viewer. `traces` is the store. `port` 0 is any free one; `otlp_grpc` is the port of OTLP
    over gRPC (None: HTTP alone). `keys`: bearer keys, one of which must be shown (none: open, and then only on the
    loopback interface, unless `insecure`). Calls older than `max_age_days`, and the oldest beyond `max_bytes`, go.
    Raises SettingError.
    """

    traces: Path = field(default_factory=lambda: default_traces(os.environ))
    host: str = "127.0.0.1"
    port: int = PORT
    keys: tuple[str, ...] = field(default=(), repr=False)
    insecure: bool = False
    otlp_grpc: int | None = None
    max_age_days: float = 7.0
    max_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        for name in ("port", "otlp_grpc"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= 65535:
                raise SettingError(f"{name} is {port}", mend="give 1 to 65535, or 0 for any free one")
        if not 0 < self.max_age_days < math.inf:
            raise SettingError(f"max_age_days is {self.max_age_days:g}", mend="give days above 0, e.g. 7")
        if self.max_bytes < 1 << 20:
            raise SettingError(f"max_bytes is {self.max_bytes}", mend="give at least 1 MiB (1048576)")
        if any(not key or not key.isascii() for key in self.keys):
            raise SettingError("a key is empty or not ASCII", mend="give keys of ASCII characters")
        if not self.keys and not self.insecure and not self.loopback:
            raise SettingError(
                f"the page at host {self.host} is open to other machines and no key is set",
                mend="add --key KEY (browsers then open the link with ?key=KEY once), or stay on 127.0.0.1",
            )

    @property
    def loopback(self) -> bool:
        """Whether this machine alone can reach it."""
        return is_loopback(self.host)
