"""Where `chains trace` reads: the store that lies here, or a viewer; what goes wrong has a mend."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from chains.cli.traces import opened
from chains.errors import InvalidValue, NotFound, SettingError, Unauthenticated, Unavailable
from chains.viewer.settings import ViewerSettings
from tests.chains.records import made
from tests.chains.viewer.test_serving import running


def here(path: Path) -> argparse.Namespace:
    return argparse.Namespace(traces=str(path), url="", key="")


async def test_a_store_answers_as_a_viewer_does(tmp_path: Path) -> None:
    path = tmp_path / "traces.sqlite"
    made.stored(path, list(made.calls(3)))
    async with opened(here(path)) as traces:
        mine = await traces.get("/api/calls", limit=2)
        assert await traces.find("last") == "call-2"
        assert (await traces.call("slowest"))["call"]["id"] in ("call-0", "call-1", "call-2")
    async with running(ViewerSettings(traces=path, keys=("sesame",))) as client:
        url = str(client.base_url)
        async with opened(argparse.Namespace(traces="", url=url, key="sesame")) as traces:
            assert await traces.get("/api/calls", limit=2) == mine
            with pytest.raises(NotFound, match="no call 'nobody'"):
                await traces.call("nobody")
            with pytest.raises(InvalidValue, match="sort is"):
                await traces.get("/api/calls", sort="sideways")
        async with opened(argparse.Namespace(traces="", url=url, key="wrong")) as traces:
            with pytest.raises(Unauthenticated):
                await traces.find("last")


async def test_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no call has been kept in .*; run a chain"):
        async with opened(here(tmp_path / "none.sqlite")):
            pass
    made.stored(tmp_path / "empty.sqlite", [])
    async with opened(here(tmp_path / "empty.sqlite")) as traces:
        with pytest.raises(NotFound, match=r"there is no call in .*; make one"):
            await traces.find("last")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://no.such.host.invalid"])
async def test_nobody_answers(url: str) -> None:
    async with opened(argparse.Namespace(traces="", url=url, key="")) as traces:
        with pytest.raises(Unavailable, match="no viewer answers at"):
            await traces.find("last")


async def test_no_url() -> None:
    async with opened(argparse.Namespace(traces="", url="not a url", key="")) as traces:
        with pytest.raises((SettingError, Unavailable), match="not a url"):
            await traces.find("last")
