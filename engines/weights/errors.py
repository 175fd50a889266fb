"""What can be wrong with the weights of a model. The rooms above turn it into errors of theirs."""

from __future__ import annotations


class WeightsInvalid(Exception):
    """Weights that cannot be used: what was found, in which file or tensor, and how to mend it."""

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.message}; {self.mend}" if self.mend else self.message
