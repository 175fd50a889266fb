"""What Serve makes in its controller for each deployment of a chain.

It stands alone in this module: Serve sends a policy's module over as its code, so that each has one of its own, and
nothing of it can be shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ChainPolicy:
    """An autoscaling policy of Serve; `entry` names the chain's, `scaling` has the settings of all its chainlets."""

    def __init__(self, entry: str, scaling: Mapping[str, Mapping[str, Any]]) -> None:
        from chains.runtime.ray_serve.autoscaling import Member

        self._member = Member(entry, scaling)

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        """How many replicas the deployment is to have, and Serve's notes, of which there are none."""
        return self._member.decide(context), {}
