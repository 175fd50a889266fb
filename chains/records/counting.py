"""Counts new spans into the percentiles per minute, and new turns into the shares of the critical path."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from chains.records import sketches
from chains.records.arrived import Arrived, Source, TurnEnd
from chains.records.names import OTHER, Names, Texts
from chains.records.schema import FOREIGN, HOP, MINUTE

EVERY = -1  # in paths.replica: the hop as a whole
MANY = 500
_MINUTES = 10
_NO_PARTS = bytes(20)
_MINUTE = MINUTE * 1_000_000_000


class Counting:
    """Counts spans that were just stored, inside the caller's transaction.

    Hops are counted under their chain, foreign spans under their service. Past 500 names of a minute foreign spans are
    counted as "(other)", so that names with ids in them do not fill the file.
    """

    def __init__(self, connection: sqlite3.Connection, names: Names) -> None:
        self._connection = connection
        self._names = names
        self._foreign: dict[int, set[sketches.Key]] = defaultdict(set)  # by minute: what has a row of its own

    def count(self, spans: Sequence[Arrived]) -> None:
        texts = self._names.texts
        groups: dict[sketches.Key, list[Arrived]] = defaultdict(list)
        paths: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0, 0.0])
        places: dict[tuple[Source, int], tuple[int, int, int, int]] = {}
        for span in spans:
            minute = (span.start + span.duration) // _MINUTE
            place = places.get((span.source, minute))
            if place is None:
                place = places[span.source, minute] = self._place(span.source, minute * MINUTE)
            if span.kind == HOP:
                groups[(*place, texts[span.name], texts[span.replica])].append(span)
            elif span.kind == FOREIGN:
                groups[self._foreign_key(place, span)].append(span)
            elif isinstance(span.detail, TurnEnd) and span.detail.state != "dropped":
                groups[(*place, 0, 0)].append(span)
                _count_path(texts, place, span.detail, paths)
        for key, members in groups.items():
            sketches.add(self._connection, key, _values(members), sum(map(_failed, members)))
        if paths:
            sketches.add_paths(self._connection, [(*key, *figures) for key, figures in paths.items()])
        for minute in sorted(self._foreign)[:-_MINUTES]:
            del self._foreign[minute]

    def _place(self, source: Source, bucket: int) -> tuple[int, int, int, int]:
        texts = self._names.texts
        return bucket, MINUTE, texts[source.chain or source.service], texts[source.version]

    def _foreign_key(self, place: tuple[int, int, int, int], span: Arrived) -> sketches.Key:
        key = (*place, self._names.foreign(span.name), self._names.texts[span.replica])
        known = self._foreign[place[0]]
        if key not in known:
            if len(known) >= MANY:
                return (*place, self._names.texts[OTHER], 0)
            known.add(key)
        return key


def _failed(span: Arrived) -> bool:
    return span.status == 2 or (isinstance(span.detail, TurnEnd) and span.detail.state == "failed")


def _values(spans: Sequence[Arrived]) -> sketches.Values:
    """A row of total and parts, in ms, for each span; the total of a turn is its latency."""
    totals = [s.detail.latency_ms if isinstance(s.detail, TurnEnd) else s.duration / 1e6 for s in spans]
    values = np.empty((len(spans), len(sketches.COLUMNS)), dtype=np.float32)
    values[:, 0] = totals
    parts = b"".join([span.parts or _NO_PARTS for span in spans])
    values[:, 1:] = np.frombuffer(parts, dtype="<f4").reshape(len(spans), -1)
    return values


def _count_path(texts: Texts, place: tuple[int, ...], turn: TurnEnd, paths: dict[tuple[int, ...], list[float]]) -> None:
    """A turn counts once for each (hop, replica, part) on its path, and once for each hop as a whole."""
    own: dict[tuple[int, int, int], float] = defaultdict(float)
    for hop, replica, part, ms in turn.shares:
        own[texts[hop], texts[replica], texts[part]] += ms
        own[texts[hop], EVERY, 0] += ms
    for key, ms in own.items():
        figures = paths[(*place, *key)]
        figures[0] += 1
        figures[1] += ms
