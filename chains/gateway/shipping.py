"""How recordings reach the viewer: one connection that is kept, batches in order, patience while it is away."""

from __future__ import annotations

import http.client
import logging
import threading
import time
from urllib.parse import urlsplit

import msgspec

from chains.errors import SettingError
from chains.otlp import header_can_hold, is_url, post
from chains.records.recorded import PATH, Batch, Row

log = logging.getLogger("chains.gateway")
TIMEOUT_S = 5.0
PATIENCE_S = 30.0
_PAUSES = (0.2, 0.5, 1.0, 2.0)


class Shipper:
    """Posts batches to the viewer at `url`. Used by one thread; `give_up` may be called from another."""

    def __init__(self, url: str, key: str = "") -> None:
        if not is_url(url):
            raise SettingError(f"viewer is {url!r}", mend="give its URL, e.g. http://127.0.0.1:4319")
        if not header_can_hold(key):
            raise SettingError("the viewer's key is more than one line of ASCII", mend="give the page's key alone")
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname or "", parts.port)
        self._path = parts.path.rstrip("/") + PATH
        self._headers = {"content-type": "application/msgpack", **({"authorization": f"Bearer {key}"} if key else {})}
        self._until = float("inf")
        self._leaving = threading.Event()
        self._warned = False

    def ship(self, rows: list[Row]) -> bool:
        """Whether the viewer took them. Waits while it cannot be reached; what it refuses is not sent again."""
        body = msgspec.msgpack.encode(Batch(1, rows))
        began = time.monotonic()
        for attempt in range(1000):
            status = self._post(body)
            if status in (200, 202, 204):
                if self._warned:
                    self._warned = False
                    log.info("the viewer takes recordings again")
                return True
            self._warn(status)
            now = time.monotonic()
            if status not in (0, 429, 503) or now > min(self._until, began + PATIENCE_S):
                return False
            pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
            if self._leaving.is_set():
                time.sleep(min(pause, max(0.0, self._until - now)))
            else:
                self._leaving.wait(pause)
        return False

    def give_up(self, at: float) -> None:
        """From this moment (monotonic seconds) on, wait for nobody."""
        self._until = at
        self._leaving.set()

    def close(self) -> None:
        self._connection.close()

    def _post(self, body: bytes) -> int:
        """The status, or 0 when nobody answered."""
        try:
            return post(self._connection, self._path, body, self._headers, self._patience())[0]
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0

    def _patience(self) -> float:
        """Seconds for one request: who is to end soon does not wait longer than that."""
        return min(TIMEOUT_S, max(0.5, self._until - time.monotonic()))

    def _warn(self, status: int) -> None:
        """Once, until it takes them again."""
        if not self._warned:
            self._warned = True
            why = f"answers with status {status}" if status else "cannot be reached"
            log.warning("the viewer %s; recordings wait for it, and what finds no room is lost and counted", why)
