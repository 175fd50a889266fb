"""A hop's account goes over the wire and adds up on another clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from chains.timing import Timing
from chains.wire.accounts import HOPS, Accounts, shorten, write_account, write_progress
from chains.wire.pb import carrier_pb2 as pb


def account_of(hop: Timing, now: float, hops: list[Timing], streams: Mapping[Timing, int]) -> Any:
    """What goes back with a hop that ends `now`."""
    account = pb.Account()
    write_account(account, hop, now, hops, streams)
    return account


def callee() -> tuple[Timing, Timing, Timing]:
    """A hop of 10 s that queued for 1 s and waited 4 s for another, which another one made in turn."""
    hop = Timing("1", None, "call", 2, "Relay", "say", 100.0)
    hop.arrive(100.0, "Relay#0")
    hop.accepted = 101.0
    inner = Timing("2", hop, "call", 2, "Probe", "say", 103.0)
    inner.arrive(103.5, "Probe#0")
    inner.accepted = 104.0
    deeper = Timing("3", inner, "call", 2, "Deep", "say", 104.0)
    deeper.finish(105.0, "error", "ValueError")
    inner.finish(107.0, "done")
    hop.end_wait(hop.begin_wait(103.0, "hop", inner, 2), 107.0)
    hop.serialise = 0.5
    return hop, inner, deeper


def test_the_parts_add_up_at_the_caller() -> None:
    hop, inner, deeper = callee()
    account = account_of(hop, 110.0, [deeper, inner], {})
    mine = Timing("9", None, "call", 2, "Relay", "say", 5.0)
    mine.serialise = 0.25
    made = Accounts(mine).end(account, 17.0, [])
    mine.finish(17.0, "done")
    parts = mine.parts()
    assert sum(parts.values()) == pytest.approx(12.0)
    assert parts["queue"] == pytest.approx(1.0) and parts["wait"] == pytest.approx(4.0)
    assert parts["serialise"] == pytest.approx(0.75) and parts["wire"] == pytest.approx(1.75)
    assert [one.label for one in made] == ["Probe.say", "Deep.say"]
    assert made[0].parent is mine and made[1].parent is made[0]
    assert mine.waits[0].on is made[0] and made[1].error == "ValueError"


def test_a_hop_that_goes_on_is_accounted_until_now() -> None:
    hop = Timing("1", None, "call", 0, "Desk", "run", 0.0)
    open_ = Timing("2", hop, "call", 0, "Ears", "hear", 1.0)
    open_.arrive(1.0, "Ears#0")
    open_.accepted = 1.5
    open_.begin_wait(2.0, "input", None, 0)
    mine = Timing("9", None, "call", 0, "Desk", "run", 0.0)
    [made] = Accounts(mine).end(account_of(hop, 5.0, [open_], {}), 5.0, [])
    assert (made.outcome, made.ended, made.waited) == ("cancelled", 5.0, 3.0)
    assert sum(made.parts().values()) == pytest.approx(4.0)


def test_an_input_leads_back_to_its_producer() -> None:
    hop = Timing("1", None, "call", 0, "Probe", "total", 1.0)
    producer, microphone = Timing("", None, "call", 0, "", "", 1.0), Timing("7", None, "call", 0, "Mic", "run", 0.0)
    hop.end_wait(hop.begin_wait(1.0, "input", producer, 0), 2.0)
    mine = Timing("9", None, "call", 0, "Probe", "total", 0.0)
    Accounts(mine).end(account_of(hop, 3.0, [], {producer: 1}), 4.0, [microphone])
    assert mine.waits[0].on is microphone and mine.waits[0].kind == "input"


def test_a_callee_that_claims_more_than_there_was_makes_no_negative_part() -> None:
    hop = Timing("1", None, "call", 0, "Probe", "say", 0.0)
    account = account_of(hop, 1000.0, [], {})
    account.wait = account.queue = account.serialise = 5000.0
    mine = Timing("9", None, "call", 0, "Probe", "say", 0.0)
    Accounts(mine).end(account, 1.0, [])
    mine.finish(1.0, "done")
    assert min(mine.parts().values()) >= 0.0
    assert sum(mine.parts().values()) == pytest.approx(1.0)


def test_what_is_told_on_the_way_and_what_comes_with_the_end_are_one_tree() -> None:
    """The inner hop ends after the one that it called, is told after it, and is its parent all the same."""
    hop, inner, deeper = callee()
    first, last = pb.Account(), pb.Account()
    inner.note("tokens", 3)
    inner.note("reasons", ["stop"])
    write_progress(first, hop, 106.0, [deeper])
    write_account(last, hop, 110.0, [inner], {})
    mine = Timing("9", None, "call", 2, "Relay", "say", 5.0)
    mine.arrive(5.5, "Relay#0")
    mine.accepted = 6.5
    accounts = Accounts(mine)
    [early] = accounts.progress(first, 12.5)
    assert early.label == "Deep.say" and (early.span, early.turn) == (deeper.span, 2)
    assert early.ended - early.opened == pytest.approx(1.0) and early.opened == pytest.approx(9.5)
    assert not mine.ended and mine.items_in == 0, "it goes on"
    [late] = accounts.end(last, 17.0, [])
    assert late.span == inner.span and early.parent is late and late.parent is mine
    assert late.label == "Probe.say" and late.notes == {"tokens": 3, "reasons": ("stop",)}
    assert mine.waits[0].on is late
    again = Timing("8", None, "call", 2, "Relay", "say", 5.0)
    assert Accounts(again).progress(first, 12.5)[0].opened == pytest.approx(10.5), "as near as its own way says"


def test_an_account_fits_into_its_frame() -> None:
    hop = Timing("1", None, "call", 0, "Relay", "say", 0.0)
    hops = [Timing(str(number), hop, "call", 0, "Probe", "say", 1.0) for number in range(HOPS)]
    for one in hops:
        for number in range(16):
            one.note(f"note {number}", "x" * 1000)
        one.finish(2.0, "done")
    account = pb.Account()
    write_progress(account, hop, 3.0, hops)
    shorten(account, 60_000)
    assert account.ByteSize() <= 60_000 and len(account.hops) == HOPS, "without their notes"
    shorten(account, 100)
    assert account.ByteSize() <= 100 and account.elapsed == 3.0
