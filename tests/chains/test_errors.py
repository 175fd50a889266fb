"""The error tree, and how an error crosses a hop."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

from chains import errors
from chains.errors import (
    OURS,
    Cancelled,
    ChainsError,
    ErrorDetail,
    Fault,
    Frame,
    GraphError,
    NotFound,
    RemoteError,
    describe,
    how_to_install,
    revive,
)

GRPC = {
    "UNKNOWN", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "OUT_OF_RANGE", "UNAUTHENTICATED", "NOT_FOUND", "CANCELLED",
    "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL",
}  # fmt: skip
TREE = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ChainsError)]


class Listed(Exception):
    pass


class NeedsTwo(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one, two)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def crossed(error: BaseException, *raises: type[BaseException]) -> BaseException:
    return revive(describe(raised(error), "Node"), raises)


@pytest.mark.parametrize("cls", TREE, ids=lambda cls: cls.__name__)
def test_each_error_has_its_codes(cls: type[ChainsError]) -> None:
    assert cls.grpc in GRPC
    assert 400 <= cls.http < 600
    assert 1000 < cls.ws < 1016
    assert cls.__doc__


def test_every_leaf_that_a_hop_may_carry_is_known_by_name() -> None:
    assert {cls.__name__ for cls in TREE} - set(OURS) == {"ChainsError", "GraphError", "RemoteError"}


def test_the_mend_is_part_of_the_text() -> None:
    error = NotFound("no chainlet Eers", mend="did you mean Ears?")
    assert str(error) == "no chainlet Eers; did you mean Ears?"
    assert str(NotFound("nothing here")) == "nothing here"


@pytest.mark.parametrize(
    "error",
    [
        NotFound("a", mend="b"),
        Cancelled("barge-in", mend="c"),
        GraphError([Fault("a.py:3", "is wrong", "write x")], chain="Call"),
        RemoteError("ValueError", "no such day", [Frame("Ears", "a.py", 3, "f", "x = 1")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_copies_and_processes(error: ChainsError) -> None:
    for twin in (copy.copy(error), copy.deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert twin.__dict__ == error.__dict__


def test_graph_error_shows_every_fault() -> None:
    error = GraphError([Fault("a.py:3", "has no type", "write x: int"), Fault("a.py:9", "is unknown")], chain="Call")
    assert str(error).splitlines() == [
        "2 faults in chain Call",
        "  a.py:3 has no type; write x: int",
        "  a.py:9 is unknown",
    ]
    assert str(GraphError([])) == "0 faults"


@pytest.mark.parametrize("error", [ValueError("no such day"), KeyError("doctor"), TimeoutError(), OSError(2, "gone")])
def test_builtin_errors_keep_type_and_text_over_any_number_of_hops(error: Exception) -> None:
    once = crossed(error)
    twice = crossed(once)
    assert type(once) is type(twice) is type(error)
    assert str(once) == str(twice) == str(error)


@pytest.mark.parametrize(
    "cls", [cls for name, cls in OURS.items() if name != "Cancelled"], ids=lambda cls: cls.__name__
)
def test_ours_keep_type_message_and_mend(cls: type[ChainsError]) -> None:
    back = crossed(crossed(cls("found", mend="mend")))
    assert type(back) is cls
    assert (back.message, back.mend) == ("found", "mend")


def test_cancelled_keeps_its_reason() -> None:
    back = crossed(crossed(Cancelled("barge-in")))
    assert isinstance(back, Cancelled)
    assert (back.reason, str(back)) == ("barge-in", "cancelled: barge-in")
    assert str(crossed(Cancelled())) == "cancelled"


def test_what_is_listed_comes_back_as_itself_and_nothing_else_does() -> None:
    assert type(crossed(Listed("as listed"), Listed)) is Listed
    other = crossed(Listed("as listed"))
    assert isinstance(other, RemoteError)
    assert other.type_name.endswith("test_errors.Listed")
    assert other.text == "as listed"


def test_an_error_that_cannot_be_made_from_its_text_is_remote() -> None:
    back = crossed(NeedsTwo("a", "b"), NeedsTwo)
    assert isinstance(back, RemoteError)
    assert back.type_name.endswith("NeedsTwo")
    assert isinstance(crossed(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")), RemoteError)


@pytest.mark.parametrize("error", [StopIteration("x"), StopAsyncIteration("x"), SystemExit(3), KeyboardInterrupt()])
def test_what_would_end_an_iteration_or_a_process_is_remote(error: BaseException) -> None:
    back = crossed(error)
    assert isinstance(back, RemoteError)
    assert back.type_name == type(error).__name__


@pytest.mark.parametrize("name", ["os.system", "int", "print", "chains.errors.ChainsError", "", "Exception()"])
def test_a_peers_name_is_only_a_name(name: str) -> None:
    assert isinstance(revive(ErrorDetail(name, "x")), RemoteError)


def test_frames_tell_the_way_with_the_root_cause_last() -> None:
    def inner() -> None:
        raise Listed("deep")

    def outer() -> None:
        try:
            inner()
        except Listed as error:
            raise revive(describe(error, "Inner")) from None

    for _ in range(2):  # the same again: nothing is kept between errors
        with pytest.raises(RemoteError) as caught:
            outer()
        back = revive(describe(caught.value, "Outer"))
        assert isinstance(back, RemoteError)
        hops = [frame.hop for frame in back.frames]
        assert hops == sorted(hops, reverse=True), f"Outer's before Inner's: {hops}"
        assert back.frames[-1].function == "inner"
        assert back.frames[-1].source == 'raise Listed("deep")'
        assert "[Inner] File" in str(back)


def test_library_frames_are_left_out() -> None:
    async def fails() -> None:
        raise ValueError("x")

    try:
        asyncio.run(fails())
    except ValueError as error:
        files = {frame.file for frame in describe(error, "Node").frames}
    assert files == {__file__}


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("onnxruntime", 'pip install "chains-serve[speech]"'),
        ("faster_whisper.audio", 'pip install "chains-serve[speech]"'),
        ("torch", 'pip install "chains-serve[llm]"'),
        ("transformers", 'pip install "chains-serve[llm]"'),
        ("somebody_elses", "pip install somebody_elses"),
    ],
)
def test_what_to_install_for_a_module_that_is_missing(module: str, command: str) -> None:
    assert how_to_install(module) == f"run: {command}"
