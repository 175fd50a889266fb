# ruff: noqa
# mypy: ignore-errors
"""An import that fails."""

import json

import a_package_that_is_not_there
#! cannot be imported (ModuleNotFoundError: No module named 'a_package_that_is_not_there'); run: pip install a_package_that_is_not_there, or put a_package_that_is_not_there.py beside the chain's file
