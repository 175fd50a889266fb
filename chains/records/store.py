"""Opening the file in which calls are kept."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import time
from pathlib import Path
from types import TracebackType

from chains.errors import SettingError
from chains.records.schema import MIGRATIONS, migrate, version_of

logger = logging.getLogger(__name__)

BUSY_MS = 5_000
_PAGE = 4_096
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def broken(error: sqlite3.Error) -> bool:
    """Whether the error says that the file itself is damaged, or no database at all."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN


class Store:
    """An open file of calls. `connection` is in autocommit; whoever writes begins and commits.

    A connection belongs to one thread at a time: open the store once for each thread.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        self._inode = _inode(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], readonly: bool = False) -> Store:
        """Open the file, made when it is not there (folder 0700, file 0600) and brought up to date.

        A damaged file is set aside under another name and a new one begun; with `readonly` it is an error, as is a
        file that is missing. A file of a newer version is a SettingError either way.
        """
        where = Path(path)
        try:
            return cls._readonly(where) if readonly else cls._writable(where)
        except (sqlite3.Error, OSError) as error:
            if not readonly and isinstance(error, sqlite3.Error) and broken(error):
                set_aside(where, str(error))
                return cls._writable(where)
            raise _explained(where, error) from None

    @classmethod
    def _writable(cls, path: Path) -> Store:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # Made here for its rights, which SQLite gives its side files too. One that is there, nobody may open but
        # SQLite: closing it drops every lock of this process on it, and another's last close takes the log away.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        os.chmod(path, 0o600)
        connection = _connect(path.as_posix())
        try:
            connection.execute(f"PRAGMA page_size = {_PAGE}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only an empty file takes these two
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA journal_size_limit = 67108864")
            connection.execute("PRAGMA cache_size = -32768")
            _refuse_newer(path, connection)
            migrate(connection)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection)

    @classmethod
    def _readonly(cls, path: Path) -> Store:
        if not path.exists():
            raise FileNotFoundError(2, "no such file")
        connection = _connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            _refuse_newer(path, connection)
            if version_of(connection) < len(MIGRATIONS):  # only its owner may bring it up to date
                connection.close()
                return cls._writable(path)
        except BaseException:
            connection.close()
            raise
        return cls(path, connection)

    def bytes(self) -> int:
        """What the file holds, free pages not counted."""
        pages, free, size = (
            int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def replaced(self) -> bool:
        """Whether another file lies at the path by now, or none: what is written here is seen by nobody."""
        return _inode(self.path) != self._inode

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def set_aside(path: Path, why: str) -> Path:
    """Give a damaged file, and what SQLite laid beside it, another name; say so in the log. Gives the new name."""
    stamp = f"damaged-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
    aside = path.with_name(f"{path.name}.{stamp}")
    for ending in ("", "-wal", "-shm"):
        try:
            path.with_name(path.name + ending).rename(aside.with_name(aside.name + ending))
        except FileNotFoundError:
            pass  # not every file has them
    logger.warning("%s is damaged (%s): it was set aside as %s, and a new file is begun", path, why, aside.name)
    return aside


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _connect(path: str, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_MS / 1e3, isolation_level=None, check_same_thread=False, cached_statements=256, uri=uri
    )
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _refuse_newer(path: Path, connection: sqlite3.Connection) -> None:
    found = version_of(connection)
    if found > len(MIGRATIONS):
        raise SettingError(
            f"{path} was written by a newer version (its schema is {found}, this one knows {len(MIGRATIONS)})",
            mend="upgrade chains, or name another file with --traces or CHAINS_TRACES",
        )


def _explained(path: Path, error: sqlite3.Error | OSError) -> SettingError:
    if isinstance(error, FileNotFoundError):
        return SettingError(f"{path} is not there", mend="name the file with --traces or CHAINS_TRACES")
    if isinstance(error, OSError):
        return SettingError(f"{path} cannot be opened: {error.strerror}", mend="check its folder and rights")
    if broken(error):
        return SettingError(
            f"{path} is no file of calls, or damaged: {error}",
            mend="name another file with --traces or CHAINS_TRACES; `chains view` sets a damaged one aside",
        )
    return SettingError(f"{path} cannot be opened: {error}", mend="check its folder, its rights and the disk's space")
