"""What `chains trace` does: tables and drawings of what the page's API answers."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from chains.cli import difference, waterfall
from chains.cli.plain import plain
from chains.cli.traces import Traces, opened, quoted
from chains.errors import NotFound, SettingError

POLL_S = 1.0


_LIST = {
    "state": "list", "min_ms": "list", "app": "list", "version": "list", "hop": "list", "replica": "list",
    "search": "list", "since": "list", "until": "list", "slowest": "list", "limit": "list", "follow": "list",
}  # fmt: skip
_FOR = {
    **_LIST, "chain": "list diff", "turn": "list draw", "html": "draw", "json": "list draw diff",
    "recording": "delete", "yes": "delete",
}  # fmt: skip
"""What each option is for."""
_NAMED = {
    "list": "chains trace",
    "draw": "chains trace CALL",
    "diff": "chains trace diff",
    "delete": "chains trace delete",
}


def trace(arguments: argparse.Namespace) -> int:
    what = list(arguments.what)
    _check(arguments, what[0] if what and what[0] in ("diff", "delete") else "draw" if what else "list")
    if not what:
        return asyncio.run(_list(arguments))
    if what[0] == "diff":
        return asyncio.run(_diff(arguments, *_two(what[1:])))
    if what[0] == "delete":
        return asyncio.run(_delete(arguments, what[1:]))
    if len(what) > 1:
        raise SettingError(f"{len(what)} calls are too many to draw", mend=f"chains trace diff {what[0]} {what[1]}")
    return asyncio.run(_draw(arguments, what[0]))


def _check(arguments: argparse.Namespace, doing: str) -> None:
    """An option that would be of no effect is an error."""
    for name, where in _FOR.items():
        if getattr(arguments, name) != arguments.usual[name] and doing not in where.split():
            option = getattr(arguments, name) if name == "state" else name.replace("_", "-")
            fitting = " or ".join(f"`{_NAMED[one]}`" for one in where.split())
            raise SettingError(f"--{option} is not for `{_NAMED[doing]}`", mend=f"it goes with {fitting}")
    if arguments.html and (arguments.json or arguments.turn is not None):
        raise SettingError("--html writes the call's whole page", mend="leave --json and --turn out, or --html")


def console(width: int) -> Console:
    """Colours in a terminal, none in a file; lines are cut, never wrapped."""
    columns = width or shutil.get_terminal_size((100, 24)).columns
    return Console(width=max(columns, 40), highlight=False, soft_wrap=True)


def show(out: Console, line: Text | str) -> None:
    """Names are whatever somebody has sent: none of them steers the terminal."""
    text = line if isinstance(line, Text) else Text(line)
    text.plain = plain(text.plain)
    out.print(text)


async def _list(arguments: argparse.Namespace) -> int:
    filters = {name: getattr(arguments, name) for name in ("chain", "app", "version", "hop", "replica", "turn")}
    asked = {
        **filters,
        "q": arguments.search,
        "state": arguments.state,
        "min_ms": arguments.min_ms,
        "from": arguments.since,
        "to": arguments.until,
        "sort": "slowest" if arguments.slowest else "started",
        "limit": arguments.limit,
    }
    async with opened(arguments) as store:
        answer = await store.get("/api/calls", **asked)
        if arguments.json and not arguments.follow:
            print(json.dumps({**answer, "rows": _named(answer)}, indent=2))
            return 0
        out = console(arguments.width)
        _table(out, answer, store.where)
        newest = (
            await store.get("/api/calls", **asked | {"sort": "started", "limit": 200}) if arguments.follow else answer
        )
        shown = {row["id"]: (row["live"], row["spans"]) for row in _named(newest)}
        while arguments.follow:
            await asyncio.sleep(POLL_S)
            answer = await store.get("/api/calls", **asked | {"sort": "started", "limit": 200})
            news = [row for row in _named(answer) if shown.get(row["id"]) != (row["live"], row["spans"])]
            shown |= {row["id"]: (row["live"], row["spans"]) for row in news}
            for row in reversed([row for row in news if not row["live"]]):
                columns = _columns(out.width, len(row["id"]))
                print(json.dumps(row)) if arguments.json else show(out, _line(row, out.width, columns))
            sys.stdout.flush()
    return 0


def _named(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


_COLUMNS = {"call": 16, "started": 13, "chain": 15, "version": 9, "slowest": 8, "lasted": 8}
"""How wide each is; from where there is no room for all, the first of _LESS go."""
_LESS = ("version", "chain", "started")
_NOTES, _LONGEST = 22, 48


def _table(out: Console, answer: Mapping[str, Any], where: str) -> None:
    rows = _named(answer)
    if not rows:
        show(out, f"no call in {where} is like that")
        return
    shown = _columns(out.width, max(len(row["id"]) for row in rows))
    show(out, Text(_cells({name: name for name in (*_COLUMNS, "notes")}, shown)[: out.width], "bold"))
    for row in rows:
        show(out, _line(row, out.width, shown))
    if answer["total"] > len(rows):
        show(out, f"{len(rows)} of {answer['total']} (--limit, --since, --slow, --hop ... choose others)")


def _columns(width: int, id: int) -> dict[str, int]:
    """Those that there is room for beside a call's notes; an id is shown whole, so that it can be asked for."""
    left = {**_COLUMNS, "call": min(max(id, _COLUMNS["call"]), _LONGEST)}
    for name in _LESS:
        if sum(left.values()) + 2 * len(left) + _NOTES > width:
            del left[name]
    return left


def _cells(row: Mapping[str, str], columns: Mapping[str, int]) -> str:
    cells = [
        f"{row[name][:width]:>{width}}" if name in ("slowest", "lasted") else f"{row[name][:width]:<{width}}"
        for name, width in columns.items()
    ]
    return "  ".join([*cells, row["notes"]]).rstrip()


def _line(row: Mapping[str, Any], width: int, columns: Mapping[str, int]) -> Text:
    started = datetime.fromtimestamp(row["started_ms"] / 1e3)
    cells = {
        "call": row["id"],
        "started": started.strftime("%H:%M:%S" if started.date() == datetime.now().date() else "%d %b %H:%M"),
        "chain": row["chain"],
        "version": row["version"],
        "slowest": waterfall.seconds(row["slowest_ms"]) if row["slowest_ms"] else "",
        "lasted": waterfall.seconds(row["ms"]),
        "notes": ", ".join(_notes(row)),
    }
    text = _cells(cells, columns)
    if len(text) > width:
        text = text[: width - 1] + "…"
    failed = row["errors"] or row["outcome"] == "error"
    return Text(text, "red" if failed else "green" if row["live"] else "")


def _notes(row: Mapping[str, Any]) -> Iterator[str]:
    if row["turns"]:
        yield f"{row['turns']} turn{'s' * (row['turns'] != 1)}"
    for name in ("interrupted", "dropped"):
        if row[name]:
            yield f"{row[name]} {name}"
    if row["errors"]:
        yield f"{row['errors']} error{'s' * (row['errors'] > 1)}"
    if row["live"] or (row["outcome"] != "done" and not row["errors"]):
        yield waterfall.became(row)
    if row["recorded"]:
        yield "recorded"


async def _draw(arguments: argparse.Namespace, wanted: str) -> int:
    async with opened(arguments) as store:
        detail = await store.call(wanted)
        id = detail["call"]["id"]
        if arguments.html:
            page = await store.text(f"/calls/{quoted(id)}.html")
            _write(Path(arguments.html), page)
            print(f"written to {arguments.html}: it needs nothing else, any browser opens it", file=sys.stderr)
            return 0
    if arguments.turn is not None and arguments.turn not in [turn["number"] for turn in detail["turns"]]:
        known = ", ".join(str(turn["number"]) for turn in detail["turns"]) or "none"
        raise NotFound(f"call {id} has no turn {arguments.turn}", mend=f"its turns are {known}")
    if arguments.json:
        print(json.dumps(_one_turn(detail, arguments.turn), indent=2))
        return 0
    out = console(arguments.width)
    for line in waterfall.draw(detail, out.width, arguments.turn):
        show(out, line)
    return 0


def _one_turn(detail: dict[str, Any], turn: int | None) -> dict[str, Any]:
    if turn is None:
        return detail
    of = detail["columns"].index("turn")
    return {
        **detail,
        "turns": [one for one in detail["turns"] if one["number"] == turn],
        "spans": [span for span in detail["spans"] if span[of] == turn],
    }


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}", mend="check its folder and rights") from None


def _two(what: list[str]) -> tuple[str, str]:
    if len(what) != 2:
        raise SettingError(f"diff compares two, here are {len(what)}", mend="chains trace diff A B")
    return what[0], what[1]


async def _diff(arguments: argparse.Namespace, first: str, second: str) -> int:
    async with opened(arguments) as store:
        specs = [await _spec(store, one, arguments.chain) for one in (first, second)]
        answer = await store.get("/api/compare", a=specs[0], b=specs[1])
        calls = [await store.call(one.partition(":")[2]) for one in specs if one.startswith("call:")]
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return 0
    out = console(arguments.width)
    for line in difference.lines(answer, calls, out.width):
        show(out, line)
    return 0


async def _spec(store: Traces, text: str, chain: str) -> str:
    """What the API calls it: a bare text is a range (A..B), a version that is known, or else a call."""
    kind, colon, rest = text.partition(":")
    also = f";chain={chain}" if chain else ""
    if colon and kind in ("version", "range"):
        return text + also
    if ".." in text:
        return f"range:{text}{also}"
    if not colon:
        known = (await store.get("/api/info"))["chains"]
        if any(version["version"] == text for one in known for version in one["versions"]):
            return f"version:{text}{also}"
    found = await store.call(rest if colon and kind == "call" else text)
    return f"call:{found['call']['id']}"


async def _delete(arguments: argparse.Namespace, wanted: list[str]) -> int:
    if len(wanted) != 1:
        raise SettingError("delete takes one call", mend="chains trace delete CALL")
    async with opened(arguments) as store:
        id = (await store.call(wanted[0]))["call"]["id"]
        what = f"what was recorded of call {id}" if arguments.recording else f"call {id}, with all that was kept of it"
        if not arguments.yes and not await asyncio.to_thread(_sure, plain(f"delete {what}?")):
            return 1
        await store.delete(id, recording=arguments.recording)
    print(plain(f"{what} is gone"))
    return 0


def _sure(question: str) -> bool:
    if not sys.stdin.isatty():
        raise SettingError(f"{question} nobody is there to answer", mend="add --yes")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
