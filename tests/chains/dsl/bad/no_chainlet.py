# ruff: noqa
#! holds no chainlet; write @chainlet(entry=True) above the class that callers talk to
# mypy: ignore-errors
"""Nothing here is a chainlet."""
