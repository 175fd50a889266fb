"""How answers and errors are written."""

from __future__ import annotations

import gzip

import msgspec

from chains.errors import InvalidValue, Overloaded, Unauthenticated
from chains.viewer.answers import WORTH, encode, error_response


def test_errors_carry_their_mend_and_status() -> None:
    answer = error_response(InvalidValue("limit is 0", mend="ask for 1"))
    assert answer.status_code == 422
    assert msgspec.json.decode(answer.body) == {
        "error": {"type": "InvalidValue", "message": "limit is 0", "mend": "ask for 1"}
    }
    assert error_response(InvalidValue("x"), 400).status_code == 400
    assert error_response(Overloaded("x")).headers["retry-after"] == "1"
    assert error_response(Unauthenticated("x")).headers["www-authenticate"] == "Bearer"
    assert "www-authenticate" not in error_response(Unauthenticated("x"), 403).headers


def test_small_answers_are_not_compressed() -> None:
    assert encode({"a": 1}, True) == (b'{"a":1}', False)
    large = ["x" * WORTH]
    body, packed = encode(large, True)
    assert packed and msgspec.json.decode(gzip.decompress(body)) == large
    assert encode(large, False) == (msgspec.json.encode(large), False)
