# ruff: noqa
# mypy: ignore-errors
"""An import that only works inside a package."""

from . import dependencies
#! cannot be imported (ImportError: attempted relative import with no known parent package); import what stands beside the file by its plain name, without the dot
