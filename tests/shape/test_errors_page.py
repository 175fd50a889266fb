"""The page on errors is what the classes say."""

from __future__ import annotations

from chains import errors
from tests.shape.errors_page import PAGE, classes, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.shape.errors_page"


def test_the_tree_in_the_docstring_names_every_class() -> None:
    tree = errors.__doc__ or ""
    assert not [one.__name__ for one in classes() if one.__name__ not in tree]
