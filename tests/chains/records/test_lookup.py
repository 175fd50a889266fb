"""Finding a call by what people have of its id."""

from __future__ import annotations

from pathlib import Path

import pytest

from chains.errors import NotFound
from chains.records.lookup import find, json_list, lines, names_of, texts
from tests.chains.records import made
from tests.chains.records.shaped import kept


def test_a_call_is_found_by_its_id_its_trace_and_a_beginning(tmp_path: Path) -> None:
    spans = made.phone_call("4f2a-b", turns=1)
    others = [span for id in ("4f2a-b-after-c", "4f9") for span in made.phone_call(id, turns=1)]
    with kept(tmp_path / "t.sqlite", ([*spans, *others], made.RESOURCE)) as connection:
        for id in ("4f2a-b", spans[0].trace.hex(), "4f2a"):
            assert find(connection, id).id == "4f2a-b"
        assert find(connection, "4f2a-b-after").id == "4f2a-b-after-c"
        for id in ("4f", "nobody", "", "4f3a", "%", spans[0].trace.hex()[:31] + "g"):
            with pytest.raises(NotFound):
                find(connection, id)


def test_several_calls_of_one_beginning_are_not_guessed_between(tmp_path: Path) -> None:
    spans = [span for id in ("abcd-1", "abcd-2") for span in made.phone_call(id, turns=1)]
    with (
        kept(tmp_path / "t.sqlite", (spans, made.RESOURCE)) as connection,
        pytest.raises(NotFound, match="several calls begin with 'abcd'; give more of the id"),
    ):
        find(connection, "abcd")


def test_spans_come_in_the_order_of_their_starts_and_from_a_row_on(tmp_path: Path) -> None:
    with kept(tmp_path / "t.sqlite", (made.phone_call(turns=1), made.RESOURCE)) as connection:
        row = find(connection, "call-1").row
        everything = lines(connection, row)
        assert [line.start for line in everything] == sorted(line.start for line in everything)
        assert everything[0].name == "call" and any(line.rest for line in everything)
        bare = lines(connection, row, 3, rest=False)
        assert {line.row for line in bare} == {line.row for line in everything} - {1, 2, 3}
        assert all(line.rest is None for line in bare)
        span = everything[1]
        assert names_of(connection, row, [span.span, 42]) == {span.span: span.name}
        assert texts(connection, [0]) == {0: ""} and json_list([1, 2]) == "[1,2]"
