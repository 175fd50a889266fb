"""`python -m chains` is the `chains` command."""

from __future__ import annotations

import sys

from chains.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
