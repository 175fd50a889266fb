"""What others have written, as a terminal may show it."""

from __future__ import annotations


def plain(text: str) -> str:
    """Without characters that steer a terminal or turn its lines around; lines stay lines, as many characters."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)
