"""The caller's part in a stream that goes past it: it asks the maker to keep the items for whoever has the token, and
asks for what was not taken of them when that one has ended or cannot get at them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

from chains.runtime.attempt import Attempt
from chains.wire.carrier import Carrier
from chains.wire.pb import carrier_pb2 as pb

TOKEN = 16
"""Bytes of a token: nobody guesses 128 bits."""


class Maker(Protocol):
    """The call that makes the stream, at its caller's end. Once it is `over` nothing can be asked of it."""

    attempt: Attempt
    carrier: Carrier
    number: int
    loans: dict[bytes, Loan]

    @property
    def over(self) -> bool: ...


class Loan:
    """One stream lent to one call elsewhere. `lent` holds while the maker keeps the items, until they are recalled."""

    def __init__(self, maker: Maker, address: str, first: float | None, idle: float | None) -> None:
        self.reference = pb.StreamReference(address=address, token=secrets.token_bytes(TOKEN))
        self.lent = False
        self._maker = maker
        self._lend = pb.Direct(step=pb.Direct.LEND, token=self.reference.token, first=first, idle=idle)
        self._woken: Callable[[], None] = lambda: None
        self._begun = False

    def begin(self, woken: Callable[[], None]) -> None:
        """Ask the maker; `woken` is called once it keeps the items, and all that it had sent before are here."""
        if not self._maker.over:
            self._begun = True
            self._woken = woken
            self._maker.loans[self.reference.token] = self
            self._tell(self._lend)

    def given(self) -> None:
        self.lent = True
        self._maker.attempt.delivered = True  # from now on nobody here knows what was delivered and what was not
        self._woken()

    def recall(self, taken: int) -> None:
        """The maker shall send here again what comes after the first `taken` items."""
        if self._begun:
            self._begun = self.lent = False
            del self._maker.loans[self.reference.token]
            if not self._maker.over:
                self._tell(pb.Direct(step=pb.Direct.RECALL, token=self.reference.token, taken=taken))
            self._woken()

    def counted(self, items: int) -> None:
        """So many more were taken without passing here."""
        hop = self._maker.attempt.hop
        hop.timing.items_out += items
        if not hop.timing.first_item:
            hop.timing.first_item = hop.clock.now()

    def _tell(self, direct: pb.Direct) -> None:
        self._maker.carrier.send(self._maker.number, pb.Frame(call=self._maker.number, direct=direct))
