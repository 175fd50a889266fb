"""Which share of a model a process holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranks:
    """Process `rank` of `size` that hold one model together."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of {self.size} processes; ranks count from 0")

    def share(self, count: int, unit: int = 1) -> slice:
        """This rank's range of `count` equal things of `unit` rows each. Raises ValueError where they do not divide."""
        if count % self.size:
            raise ValueError(f"{count} cannot be divided among {self.size} processes; use a divisor of {count}")
        each = count // self.size * unit
        return slice(self.rank * each, (self.rank + 1) * each)
