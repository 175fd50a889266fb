"""The bar of bytes: drawn on a terminal, silent elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from chains.cli.progress import bytes_bar


def drawn(*, terminal: bool) -> str:
    out = io.StringIO()
    with bytes_bar("reading", Console(file=out, force_terminal=terminal, width=100)) as told:
        told(1_500_000_000, 3_000_000_000)
        told(3_000_000_000, 3_000_000_000)
    return out.getvalue()


def test_a_terminal_sees_how_much_and_how_fast() -> None:
    text = drawn(terminal=True)
    assert "reading" in text and "3.0/3.0 GB" in text and "/s" in text


def test_without_a_terminal_nothing_is_drawn() -> None:
    assert drawn(terminal=False).strip() == ""
