# ruff: noqa
# mypy: ignore-errors
"""Runs the program while it is imported."""

import sys

sys.exit(3)
#! ends the program while it is imported; put what runs the program under `if __name__ == "__main__":`
