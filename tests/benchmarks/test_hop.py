"""The table of the hop: what its rows are made of, and that every side makes the same hop."""

from __future__ import annotations

import pytest

from benchmarks.hop import MIB, ROWS, Bench, Command, commands, rows_of
from benchmarks.peers import raw
from benchmarks.peers.loops import TOKENS, WIDE, Side
from benchmarks.peers.ours import Caller, Ours, started
from chains.dsl.graph import build


def test_each_row_is_made_of_samples_that_a_command_leaves() -> None:
    kinds = {"wide": ("rate", "cpu"), "say": ("s", "cpu"), "put": ("s",), "repeat": ("s", "first"), "paced": ("delay",)}
    left = {f"{command.name} {kind}" for command in commands(False) for kind in kinds[command.op]}
    assert {name for row in ROWS for name in row[1:3]} <= left


def test_a_row_without_its_peer_is_left_out_and_a_goal_bounds_the_ratio() -> None:
    rows = rows_of({"ours say s": [0.001], "raw say s": [0.002], "ours wide rate": [400.0], "raw wide rate": [100.0]})
    assert [(row.ratio, row.met) for row in rows] == [(0.5, True), (4.0, False)], "more calls per second are better"


@pytest.mark.slow
async def test_ours_and_raw_grpc_make_the_same_hop() -> None:
    other = await raw.start()
    try:
        async with started("processes", build(Caller)) as runtime:
            sides: dict[str, Side] = {"ours": await Ours(runtime).find(), "raw": other}
            bench = Bench(sides)
            for side in sides:
                await bench.work(Command(side, "wide", WIDE))(True)
                for op, size in (("say", 0), ("repeat", 0), ("paced", 0), ("put", MIB)):
                    await bench.work(Command(side, op, 3, size))(True)
    finally:
        await other.close()
    for side in sides:
        assert [len(bench.kept[f"{side} {kind}"]) for kind in ("say s", "repeat s", "put 1 MB s")] == [3, 3, 3]
        assert 0 < bench.kept[f"{side} repeat first"][0] <= bench.kept[f"{side} repeat s"][0] < TOKENS
        assert all(delay > 0 for delay in bench.kept[f"{side} paced delay"])
        assert bench.kept[f"{side} wide rate"][0] > 0 and bench.kept[f"{side} say cpu"][0] > 0
