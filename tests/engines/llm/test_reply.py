"""Tokens in, safe text out: stops, ends, what is held back, and the last event."""

from __future__ import annotations

from collections.abc import Sequence

from engines.llm.config import Sampling
from engines.llm.reply import Reply
from engines.llm.seam import FinishEvent, TokenEvent, Usage
from engines.llm.sequence import End, Token

END = 99


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


def reply(text: str, reason: str = "length", **settings: object) -> tuple[str, Reply, FinishEvent]:
    """All of a reply of these bytes, one token a byte."""
    made = Reply(decode, Sampling.read(settings), frozenset({END}), 7)
    shown = ""
    for index, byte in enumerate(text.encode()):
        made.push(Token(1, byte, None, (), index))
        if made.stopped:
            break
        event = made.take()
        shown += event.text if event else ""
    if reason == "stop":
        made.push(Token(1, END))
    *rest, last = made.finish(End(1, reason, 7, 3, len(text)))  # type: ignore[arg-type]
    assert isinstance(last, FinishEvent)
    return shown + "".join(event.text for event in rest if isinstance(event, TokenEvent)), made, last


def test_characters_are_whole() -> None:
    text, _, last = reply("añb €")
    assert text == "añb €"
    assert last == FinishEvent("length", Usage(7, 3, 8))


def test_a_stop_string_ends_the_text_and_what_comes_behind_it_does_not_count() -> None:
    text, made, last = reply("one. two. three", stop=(". t",))
    assert (text, made.stopped, last.reason, last.usage.completion) == ("one", True, "stop", 6)
    made.push(Token(1, 65))
    assert made.take() is None


def test_what_might_have_been_a_stop_string_is_shown_at_the_end() -> None:
    assert reply("one. ", stop=(". two",))[0] == "one. "
    assert reply("one. ", stop=(". two",), reason="stop")[0] == "one. "


def test_the_token_that_ends_a_reply_is_counted_and_not_shown() -> None:
    text, _, last = reply("ab", reason="stop")
    assert (text, last.reason, last.usage.completion) == ("ab", "stop", 3)


def test_logprobs_stay_with_their_tokens_across_held_text() -> None:
    made = Reply(decode, Sampling(logprobs=1, stop=("bc",)), frozenset(), 1)
    for index, byte in enumerate(b"ab"):
        made.push(Token(1, byte, -0.5 * index, ((byte, -0.5 * index),), index))
    event = made.take()
    assert event is not None and event.text == "a"
    assert [one.token for one in event.logprobs] == list(event.tokens)
