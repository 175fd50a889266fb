"""The tables, and how a file that an older version wrote is brought up to date.

`PRAGMA user_version` says how many of MIGRATIONS a file has seen. A migration is never changed once it was released:
what comes later is another one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

# Span kinds, as they stand in spans.kind.
FOREIGN, HOP, TURN, CALL = 0, 1, 2, 3
KINDS = ("span", "hop", "turn", "call")

# Widths of a bucket in seconds: minutes are merged to hours after a day.
MINUTE, HOUR = 60, 3_600

_FIRST = """
-- Texts that come again and again; number 0 is the empty one.
CREATE TABLE names (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
INSERT INTO names VALUES (0, '');

-- Processes that export: an OTLP resource.
CREATE TABLE sources (
  id INTEGER PRIMARY KEY, service TEXT NOT NULL, version TEXT NOT NULL, instance TEXT NOT NULL, chain TEXT NOT NULL,
  app TEXT NOT NULL, UNIQUE (service, version, instance, chain, app));

-- call: chains.call, or the trace's id in hex where no chain of ours took part. Times are nanoseconds since 1970.
-- outcome: live | done | error | cancelled | lost (its process died). latest: the last end of a span of it so far.
-- theirs: 1 where no chain of ours took part.
CREATE TABLE calls (
  id INTEGER PRIMARY KEY AUTOINCREMENT, call TEXT NOT NULL UNIQUE, trace BLOB NOT NULL, source INTEGER NOT NULL,
  started INTEGER NOT NULL, ended INTEGER, latest INTEGER NOT NULL, seen INTEGER NOT NULL,
  method TEXT NOT NULL DEFAULT '', tenant TEXT NOT NULL DEFAULT '', outcome TEXT NOT NULL DEFAULT 'live',
  reason TEXT NOT NULL DEFAULT '', turns INTEGER NOT NULL DEFAULT 0, interrupted INTEGER NOT NULL DEFAULT 0,
  dropped INTEGER NOT NULL DEFAULT 0, errors INTEGER NOT NULL DEFAULT 0, spans INTEGER NOT NULL DEFAULT 0,
  slowest_ms REAL NOT NULL DEFAULT 0, recorded INTEGER NOT NULL DEFAULT 0, theirs INTEGER NOT NULL DEFAULT 0);
CREATE INDEX calls_by_trace ON calls (trace);
CREATE INDEX calls_by_start ON calls (started);
CREATE INDEX calls_live ON calls (seen) WHERE outcome = 'live';

-- span and parent are the 64 bits of the OpenTelemetry ids, signed; parent 0 is none. start in ns since 1970,
-- duration in ns. parts: 5 float32 of ms (serialise, wire, queue, compute, wait). rest: see packing.py.
CREATE TABLE spans (
  id INTEGER PRIMARY KEY, call INTEGER NOT NULL, span INTEGER NOT NULL, parent INTEGER NOT NULL,
  name INTEGER NOT NULL, kind INTEGER NOT NULL, turn INTEGER NOT NULL, source INTEGER NOT NULL,
  replica INTEGER NOT NULL, start INTEGER NOT NULL, duration INTEGER NOT NULL, status INTEGER NOT NULL,
  parts BLOB, rest BLOB);
CREATE UNIQUE INDEX spans_by_call ON spans (call, span);

-- state: answered | interrupted | dropped | failed. path: see packing.py.
CREATE TABLE turns (
  call INTEGER NOT NULL, number INTEGER NOT NULL, started INTEGER NOT NULL, ended INTEGER NOT NULL,
  latency_ms REAL NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, path BLOB,
  PRIMARY KEY (call, number)) WITHOUT ROWID;

-- chain, version, hop and replica are names. The row of hop 0 is of turns and their latency.
CREATE TABLE sketches (
  bucket INTEGER NOT NULL, width INTEGER NOT NULL, chain INTEGER NOT NULL, version INTEGER NOT NULL,
  hop INTEGER NOT NULL, replica INTEGER NOT NULL, count INTEGER NOT NULL, errors INTEGER NOT NULL,
  sums BLOB NOT NULL, sketch BLOB NOT NULL,
  PRIMARY KEY (bucket, width, chain, version, hop, replica)) WITHOUT ROWID;

-- Shares of critical paths, of turns that were not dropped. part is a name; the row of replica -1 and part 0 is the
-- hop as a whole: on how many turns' path it was, and for how long.
CREATE TABLE paths (
  bucket INTEGER NOT NULL, width INTEGER NOT NULL, chain INTEGER NOT NULL, version INTEGER NOT NULL,
  hop INTEGER NOT NULL, replica INTEGER NOT NULL, part INTEGER NOT NULL, turns INTEGER NOT NULL, ms REAL NOT NULL,
  PRIMARY KEY (bucket, width, chain, version, hop, replica, part)) WITHOUT ROWID;

-- side: 0 caller, 1 reply. at_ms: since the call was opened. ms, rate, pieces: of audio alone, its length, samples a
-- second, and what is read without its samples (before them, so that the long rows are not read through). See sound.py.
CREATE TABLE recordings (
  call INTEGER NOT NULL, seq INTEGER NOT NULL, side INTEGER NOT NULL, stream INTEGER NOT NULL, at_ms REAL NOT NULL,
  kind TEXT NOT NULL, turn INTEGER NOT NULL, ms REAL NOT NULL, rate INTEGER NOT NULL, pieces BLOB, data BLOB,
  PRIMARY KEY (call, seq));

-- Spans that were not kept, by who sent them and why.
CREATE TABLE drops (
  source TEXT NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (source, reason)) WITHOUT ROWID;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST,)


def version_of(connection: sqlite3.Connection) -> int:
    """How many migrations the file has seen; 0 is an empty file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Run what the file has not seen, each in a transaction of its own; another process may do the same meanwhile."""
    for number in range(version_of(connection), len(migrations)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if version_of(connection) == number:  # nobody was faster
                for statement in _statements(migrations[number]):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def _statements(script: str) -> list[str]:
    """The script's statements (executescript would end the transaction)."""
    found: list[str] = []
    text = ""
    for line in script.splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            found.append(text)
            text = ""
    return found
