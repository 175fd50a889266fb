"""Events find the one who waits for them, each request's last one closes its box."""

from __future__ import annotations

import asyncio
import threading

from engines.llm.mailbox import LoopMailbox, Mailboxes, ThreadMailbox
from engines.llm.sequence import End, Token


def test_items_of_one_caller_come_together_and_end_once() -> None:
    boxes, mine, others = Mailboxes(), ThreadMailbox(), ThreadMailbox()
    boxes.open(1, mine, 3)
    boxes.open(2, mine, 3)
    boxes.open(3, others, 3)
    boxes.deliver([Token(1, 7), Token(3, 8), Token(2, 9), End(1, "stop", 3, 0, 1)])
    assert [item.id for item in mine.get()] == [1, 2, 1]
    boxes.deliver([Token(1, 7), End(1, "stop", 3, 0, 1), Token(9, 9)])
    assert mine.get(timeout=0) == [], "it has ended, and nobody asked for 9"
    assert boxes.forget(2) and not boxes.forget(2)
    assert len(boxes) == 1
    boxes.end_all("it is gone")
    (token,), (end,) = others.get(), others.get()
    assert token == Token(3, 8)
    assert end == End(3, "error", 3, 0, 0, "it is gone")
    assert not len(boxes)


async def test_a_task_is_woken_from_another_thread() -> None:
    mailbox = LoopMailbox()
    threading.Timer(0, mailbox.put, args=([Token(1, 2)],)).start()
    assert await asyncio.wait_for(mailbox.get(), 5) == [Token(1, 2)]


def test_a_loop_that_was_closed_is_passed_over() -> None:
    async def make() -> LoopMailbox:
        return LoopMailbox()

    asyncio.run(make()).put([Token(1, 2)])
