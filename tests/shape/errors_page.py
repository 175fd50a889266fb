"""docs/errors.md, made from the classes themselves: `python -m tests.shape.errors_page` writes it anew."""

from __future__ import annotations

import inspect
from pathlib import Path

from chains import errors
from tests.shape.tree import ROOT

PAGE = ROOT / "docs" / "errors.md"
_HEAD = """# Errors

Made from `chains/errors.py` by `python -m tests.shape.errors_page`; do not edit by hand.

A user meets these and no others, whatever library failed underneath. `str(error)` says what was found and the mend;
`error.mend` is the advice alone. Over HTTP the body is `{"error": {"type", "message", "mend"}}`, over the websocket the
terminal frame is `{"type": "error", "error": {...}}`, followed by the close code.

| error | gRPC | HTTP | websocket | when |
|---|---|---|---|---|
"""
_TAIL = """
An error of a chainlet's own code comes back as itself when it is a builtin or the method lists it in
`@method(raises=...)`; anything else is a RemoteError with the original's type, message and the user's frames over all
hops, root cause last. The frames of a revived error are in `error.chains_frames`.
"""


def classes() -> list[type[errors.ChainsError]]:
    """Every error class, in the order of the file."""
    found = [
        one for _, one in inspect.getmembers(errors, inspect.isclass)
        if issubclass(one, errors.ChainsError) and one is not errors.ChainsError
    ]  # fmt: skip
    return sorted(found, key=lambda one: inspect.getsourcelines(one)[1])


def page() -> str:
    """The page's text."""
    rows = [
        f"| `{one.__name__}` | {one.grpc} | {one.http} | {one.ws} | {' '.join((one.__doc__ or '').split())} |\n"
        for one in classes()
    ]
    return _HEAD + "".join(rows) + _TAIL


if __name__ == "__main__":
    Path(PAGE).write_text(page())
