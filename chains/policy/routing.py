"""Which replica takes a call. Pure: no I/O and no clock; chance is handed in.

Of replicas elsewhere a caller knows what they reported a moment ago and, exactly, what it has sent them itself; of
those in its own process each report is of now.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from chains.errors import SettingError


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica in the address book: its name there, its machine, how many calls it runs at once.

    With a `tenant` it is dedicated: calls of that tenant come first to it, and nobody else's ever do.
    """

    name: str
    machine: str = ""
    slots: int = 1
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica reports: calls running and queued, how many of the queued are `batch`, and how many of all of
    them came from the caller that reads this (`mine`). `wait_ms` is the wait of the oldest that is queued.
    `open` is False when it takes no more: it drains.
    """

    running: int = 0
    queued: int = 0
    batch: int = 0
    mine: int = 0
    wait_ms: float = 0.0
    open: bool = True


@dataclass(frozen=True, slots=True)
class Wish:
    """What is known of a call before it has a place: its conversation, a digest of the prompt's beginning, its tenant
    and whether it is batch."""

    affinity: str = ""
    prefix: str = ""
    tenant: str = ""
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Routing:
    """Settings. A load of 1.0 is a replica whose slots are all taken.

    `choices` replicas are compared; the caller's own machine is preferred below a load of `near`; a conversation moves
    when its replica has no free slot and is `slack` above another; `wait_ms` of queueing weigh as much as all slots;
    a replica that failed is left alone for `backoff` seconds, twice as long each time, at most `backoff_most`.
    """

    choices: int = 2
    near: float = 0.75
    slack: float = 0.25
    wait_ms: float = 100.0
    backoff: float = 0.5
    backoff_most: float = 30.0

    def __post_init__(self) -> None:
        if type(self.choices) is not int or self.choices < 1:
            raise SettingError(
                f"Routing(choices={self.choices!r}) is no number of replicas to compare", mend="write choices=2"
            )
        for name in ("near", "slack", "wait_ms", "backoff", "backoff_most"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= 0 and (value > 0 or name != "wait_ms")):
                raise SettingError(f"Routing({name}={value!r}) makes no sense", mend=f"write e.g. {name}=0.5")
        if not self.backoff <= self.backoff_most:
            raise SettingError(
                f"Routing(backoff={self.backoff}, backoff_most={self.backoff_most}) has its least above its most",
                mend=f"write backoff_most={self.backoff} or more",
            )


class _Member:
    """A peer with what is known of it. `own` calls are the caller's, under way now."""

    __slots__ = ("failures", "load", "own", "peer", "trial", "until")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.load = Load()
        self.own = 0
        self.failures = 0
        self.until = 0.0
        self.trial = False

    def cost(self, batch: bool, wait_ms: float) -> float:
        """Its load: all calls there by their share of its slots, and the queue's wait. An interactive call goes past
        those of batch that wait. The wait counts while there is a queue: an old one would keep callers away for ever.
        It counts for all slots at most: the oldest may be one of a flood, behind which others do not queue.
        """
        load = self.load
        ahead = load.queued if batch else load.queued - load.batch
        calls = max(load.running + ahead - load.mine, 0) + self.own
        return calls / self.peer.slots + (min(load.wait_ms / wait_ms, 1.0) if ahead > 0 else 0.0)


@dataclass(slots=True)
class _Pool:
    """The replicas that a tenant's calls may go to now: on the caller's machine, elsewhere, and both."""

    near: list[_Member] = field(default_factory=list)
    far: list[_Member] = field(default_factory=list)
    ranked: dict[str, list[_Member]] = field(default_factory=dict)

    def members(self) -> list[_Member]:
        return self.near + self.far


class Router:
    """The replicas of one chainlet as one caller sees them.

    `update` with the address book, `report` what replicas say of their load. Each `pick` is followed by exactly one
    `done`, whatever became of the call; `accepted` may come between. `leave` when a conversation has ended.
    """

    def __init__(self, chance: Random, settings: Routing | None = None, machine: str = "") -> None:
        self.settings = settings or Routing()
        self.machine = machine
        self._chance = chance
        self._members: dict[str, _Member] = {}
        self._homes: dict[str, str] = {}
        self._pools: dict[str, _Pool] | None = None
        self._changes = math.inf

    # what the caller learns

    def update(self, peers: Iterable[Peer]) -> None:
        """The address book as it is now. What is known of a replica that stays is kept."""
        known, self._members = self._members, {}
        for peer in peers:
            member = known.get(peer.name) or _Member(peer)
            member.peer = peer
            self._members[peer.name] = member
        self._pools = None

    def report(self, name: str, load: Load) -> None:
        """A replica's own word. It came over a carrier that stands, so an ejected one is back."""
        member = self._members.get(name)
        if member is None:
            return
        if member.load.open != load.open or member.failures:
            self._pools = None
        member.load = load
        member.failures, member.trial = 0, False

    def accepted(self, name: str) -> None:
        """It runs the call: a replica on probation has passed."""
        member = self._members.get(name)
        if member is not None and member.failures:
            member.failures, member.trial = 0, False
            self._pools = None

    def done(self, name: str, now: float, *, fault: bool = False) -> None:
        """The call's end there. `fault`: the way there broke, so the replica is ejected at once."""
        member = self._members.get(name)
        if member is None:
            return
        member.own = max(0, member.own - 1)
        if fault and not (member.failures and now < member.until):  # all its calls fail together: that is one failure
            wait = self.settings.backoff * 2.0 ** min(member.failures, 16)
            member.until = now + min(wait, self.settings.backoff_most)
            member.failures += 1
            member.load = Load(open=member.load.open)
            self._pools = None
        elif member.trial:
            self._pools = None
        member.trial = False

    def home(self, affinity: str) -> str:
        """The replica that this conversation had last, "" for none."""
        return self._homes.get(affinity, "")

    def leave(self, affinity: str) -> None:
        """The conversation has ended: forget its replica."""
        self._homes.pop(affinity, None)

    # the choice

    def pick(self, wish: Wish, now: float, tried: Collection[str] = ()) -> str | None:
        """The replica for this call, or None when none takes calls. Those in `tried` are left out."""
        if self._pools is None or now >= self._changes:
            self._pools = self._sorted(now)
        member = self._choice(self._pool(wish.tenant, tried), wish, tried) or self._last_resort(wish.tenant, tried)
        if member is None:
            return None
        member.own += 1
        if member.failures:  # on probation: one call at a time
            member.trial = True
            self._pools = None
        if wish.affinity:
            self._homes[wish.affinity] = member.peer.name
        return member.peer.name

    def _sorted(self, now: float) -> dict[str, _Pool]:
        """Who takes calls now, by tenant; also notes when that next changes by itself."""
        pools: dict[str, _Pool] = {"": _Pool()}
        self._changes = math.inf
        for member in self._members.values():
            if member.failures and now < member.until:
                self._changes = min(self._changes, member.until)
            elif member.load.open and not member.trial:
                pool = pools.setdefault(member.peer.tenant, _Pool())
                near = bool(self.machine) and member.peer.machine == self.machine
                (pool.near if near else pool.far).append(member)
        return pools

    def _pool(self, tenant: str, tried: Collection[str]) -> _Pool:
        """The tenant's own replicas while one of them takes calls, else the shared ones."""
        assert self._pools is not None
        own = self._pools.get(tenant)
        if own is not None and tenant and any(member.peer.name not in tried for member in own.members()):
            return own
        return self._pools[""]

    def _choice(self, pool: _Pool, wish: Wish, tried: Collection[str]) -> _Member | None:
        home = self._home(pool, wish, tried)
        if home is not None and self._cost(home, wish) < 1.0:
            return home
        best = self._hashed(pool, wish, tried) if wish.prefix else None
        best = best or self._compared(pool, wish, tried)
        if home is None or best is None:
            return best
        return home if self._cost(home, wish) <= self._cost(best, wish) + self.settings.slack else best

    def _home(self, pool: _Pool, wish: Wish, tried: Collection[str]) -> _Member | None:
        """Where the conversation was before, if that still takes calls."""
        name = self._homes.get(wish.affinity) if wish.affinity else None
        member = self._members.get(name) if name is not None and name not in tried else None
        if member is None or member.failures or not member.load.open:
            return None
        return member if member.peer.tenant in ("", wish.tenant) else None

    def _hashed(self, pool: _Pool, wish: Wish, tried: Collection[str]) -> _Member | None:
        """The two replicas that the prefix's digest names (the same for every caller, without a word between them):
        the better one, if it has a free slot."""
        if wish.prefix not in pool.ranked:
            if len(pool.ranked) >= 1024:
                pool.ranked.clear()
            ranked = sorted(pool.members(), key=lambda member: _rank(member.peer.name, wish.prefix))
            pool.ranked[wish.prefix] = ranked[: max(2, self.settings.choices)]
        found = [member for member in pool.ranked[wish.prefix] if member.peer.name not in tried]
        best = min(found, key=lambda member: self._cost(member, wish), default=None)
        return best if best is not None and self._cost(best, wish) < 1.0 else None

    def _compared(self, pool: _Pool, wish: Wish, tried: Collection[str]) -> _Member | None:
        """The best of a few of the same machine, if it is not too busy; else of a few of all."""
        near = self._sampled(pool.near, wish, tried)
        if near is not None and self._cost(near, wish) < self.settings.near:
            return near
        far = self._sampled(pool.far, wish, tried)
        if near is None or far is None:
            return far or near
        return near if self._cost(near, wish) <= self._cost(far, wish) else far

    def _sampled(self, members: list[_Member], wish: Wish, tried: Collection[str]) -> _Member | None:
        """The least loaded of `choices` at random; when it has no free slot, of as many others too."""
        if tried:
            members = [member for member in members if member.peer.name not in tried]
        few = self._few(members)
        best = min(few, key=lambda member: self._cost(member, wish), default=None)
        if best is not None and len(few) < len(members) and self._cost(best, wish) >= 1.0:
            others = self._few([member for member in members if member not in few])
            best = min((best, *others), key=lambda member: self._cost(member, wish))
        return best

    def _few(self, members: list[_Member]) -> list[_Member]:
        """In any order: of those that are equally loaded, the first is taken."""
        if len(members) < 2:
            return members
        return self._chance.sample(members, min(self.settings.choices, len(members)))

    def _last_resort(self, tenant: str, tried: Collection[str]) -> _Member | None:
        """Nobody is left but those that failed: the one whose time is up first. Suspicion alone refuses no call."""
        left = [
            member
            for member in self._members.values()
            if member.load.open and member.peer.name not in tried and member.peer.tenant in ("", tenant)
        ]
        return min(left, key=lambda member: member.until, default=None)

    def _cost(self, member: _Member, wish: Wish) -> float:
        return member.cost(wish.batch, self.settings.wait_ms)


def dedicate(names: Iterable[str], counts: Mapping[str, int]) -> dict[str, str]:
    """Which replica is whose: {name: tenant} for so many of each tenant; the others are shared.

    The same on every caller, and a replica that comes or goes moves few of the others. One replica is always left
    to the rest. Raises SettingError for a count below 0.
    """
    left, owner = set(names), dict[str, str]()
    for tenant, count in sorted(counts.items()):
        if count < 0 or not tenant:
            raise SettingError(f"dedicated={{{tenant!r}: {count}}}", mend='write e.g. dedicated={"clinic": 2}')
        ranked = sorted(left, key=lambda name: _rank(name, tenant))
        for name in ranked[: min(count, len(left) - 1)]:
            owner[name] = tenant
            left.discard(name)
    return owner


def digest(prompt: object) -> str:
    """Of how a prompt begins, for `Wish.prefix`: of the first 1024 characters of a text; of a list the first item,
    which conversations of one kind share (the system's message); of a list of numbers (tokens) the first 256."""
    if isinstance(prompt, list | tuple) and prompt:
        prompt = prompt[:256] if isinstance(prompt[0], int) else prompt[0]
    return hashlib.blake2b(str(prompt)[:1024].encode("utf-8", "replace"), digest_size=8).hexdigest()


def _rank(name: str, key: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()
