"""Numbers of texts and sources that come again and again. Numbers are never given anew, so they can be remembered."""

from __future__ import annotations

import sqlite3

from chains.records.arrived import Source

OTHER = "(other)"
MOST = 100_000
_REMEMBERED = 50_000


class Texts(dict[str, int]):
    """texts[text] is its number, given when it is new; inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __missing__(self, text: str) -> int:
        found = self.known(text)
        if found is None:
            row = self._connection.execute("INSERT INTO names (text) VALUES (?) RETURNING id", (text,)).fetchone()
            found = int(row[0])
        self[text] = found
        return found

    def known(self, text: str) -> int | None:
        """The number of a text that has one."""
        row = self._connection.execute("SELECT id FROM names WHERE text = ?", (text,)).fetchone()
        return None if row is None else int(row[0])


class Sources(dict[Source, int]):
    """sources[source] is its number, given when it is new; inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __missing__(self, source: Source) -> int:
        read = "SELECT id FROM sources WHERE service = ? AND version = ? AND instance = ? AND chain = ? AND app = ?"
        new = "INSERT INTO sources (service, version, instance, chain, app) VALUES (?, ?, ?, ?, ?) RETURNING id"
        row = self._connection.execute(read, source).fetchone() or self._connection.execute(new, source).fetchone()
        self[source] = int(row[0])
        return int(row[0])


class Names:
    """What a writer knows of both tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.texts = Texts(connection)
        self.sources = Sources(connection)

    def foreign(self, text: str) -> int:
        """The number of the name of a span that is not ours; of "(other)" when the file has 100,000 names.

        Names with ids in them would never end.
        """
        found = self.texts.get(text)
        if found is None:
            found = self.texts.known(text)
            (last,) = self._connection.execute("SELECT max(id) FROM names").fetchone()
            found = self.texts[text if found is not None or last < MOST else OTHER]
        return found

    def forget(self) -> None:
        """After a transaction that was undone."""
        self.texts.clear()
        self.sources.clear()

    def trim(self) -> None:
        """Forget when too many are remembered."""
        if len(self.texts) + len(self.sources) > _REMEMBERED:
            self.forget()
