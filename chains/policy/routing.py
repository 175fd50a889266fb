"""Which replica takes a call. Pure: loads in, an index out."""

from __future__ import annotations

from collections.abc import Sequence


def choose(loads: Sequence[int], preferred: int | None = None, slack: int = 2) -> int | None:
    """Index of the replica with the fewest calls running and queued; None when there is none to choose from.

    `preferred` (the replica that this conversation had before) is kept while it is at most `slack` calls above the
    least loaded. A load below zero marks a replica that takes nothing now.
    """
    open_ = [(load, index) for index, load in enumerate(loads) if load >= 0]
    if not open_:
        return None
    best = min(open_)
    if preferred is not None and 0 <= preferred < len(loads) and 0 <= loads[preferred] <= best[0] + slack:
        return preferred
    return best[1]
