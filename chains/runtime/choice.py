"""Which replica of a node a hop goes to: the policy's Router, told what is known of the call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from random import Random

from chains.dsl.graph import Node
from chains.policy.quota import Quotas
from chains.policy.routing import Peer, Router, Routing, Wish, dedicate
from chains.runtime.attempt import Attempt
from chains.timing import Clock


class Choice:
    """One caller's choice among the replicas of `node`. See `Router`; `machine` is the caller's own."""

    def __init__(
        self, node: Node, clock: Clock, quotas: Quotas, routing: Routing | None = None, machine: str = ""
    ) -> None:
        self._slots = node.spec.limits.running
        self._clock = clock
        self._dedicated = quotas.dedicated
        self._router = Router(Random(), routing, machine)
        self.report = self._router.report

    def update(self, machines: Mapping[str, str]) -> None:
        """The replicas that there are, each with the machine it runs on."""
        owners = dedicate(machines, self._dedicated)
        self._router.update(
            Peer(name, machine, self._slots, owners.get(name, "")) for name, machine in machines.items()
        )

    def pick(self, attempt: Attempt, avoid: Collection[str]) -> str | None:
        """The replica's name; None when no other takes calls. `done` with it once the attempt has ended."""
        call, router = attempt.hop.call, self._router
        home = router.home(call.affinity)
        wish = Wish(call.affinity, attempt.prefix, call.tenant, call.priority == "batch")
        name = router.pick(wish, self._clock.now(), avoid)
        if name is None:
            return None
        if not home:
            call.on_cancel(lambda _: router.leave(wish.affinity))
        elif name == home:
            attempt.may_queue = True  # the router has weighed its load against being at home there
        return name

    def done(self, name: str, fault: bool) -> None:
        """An attempt there has ended. `fault`: the way there broke."""
        self._router.done(name, self._clock.now(), fault=fault)
