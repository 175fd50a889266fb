"""A core that is turned by hand, with the real scheduler and runner, and what it said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.llm.core import Core
from engines.llm.messages import Failure, Report, Submit
from engines.llm.runner import Runner, RunnerSettings
from engines.llm.scheduler import Scheduler, SchedulerSettings
from engines.llm.sequence import End, Request
from tests.engines.llm.hashing import HashModel

END = 0


class Rig:
    """A core that is turned by hand, and what it said."""

    def __init__(
        self, *, overlap: bool = False, slots: int = 300, guesses: int = 0, jump: bool = False, model: Any = None,
        max_waiting: int = 1000, **more: Any,
    ) -> None:  # fmt: skip
        self.model: Any = model or HashModel()
        self.scheduler = Scheduler(
            SchedulerSettings(
                slots=slots, max_running=8, token_budget=24, prefill_chunk=10, max_waiting=max_waiting, context=90,
                overlap=overlap, guesses=guesses, headroom=0,
            )
        )  # fmt: skip
        self.runner = Runner(self.model, RunnerSettings(slots, 8, 90))
        self.replies: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[Any]] = {}
        self.ends: dict[int, End | Failure] = {}
        self.probed: dict[int, tuple[float, ...]] = {}
        self.reports: list[Report] = []
        self.core = Core(self.scheduler, self.runner, self.hear, jump_forward=jump, **more)

    def hear(self, report: Report) -> None:
        self.reports.append(report)
        for token in report.tokens:
            assert token.id not in self.ends and token.index == len(self.replies.setdefault(token.id, []))
            self.replies[token.id].append(token.token)
            self.logprobs.setdefault(token.id, []).append((token.logprob, token.top))
        for probed in report.probed:
            assert probed.id not in self.ends
            self.probed[probed.id] = probed.logprobs
        for end in [*report.ends, *report.failures]:
            assert end.id not in self.ends, "one terminal event a request"
            self.ends[end.id] = end

    def submit(self, id: int, prompt: Sequence[int], most: int = 8, grammar: Any = None, **more: Any) -> None:
        more.setdefault("ends", frozenset({END}))
        self.core.put(Submit(Request(id, tuple(prompt), most, **more), grammar))

    def finish(self) -> None:
        for _ in range(3000):
            self.core.turn()
            if self.scheduler.idle:
                break
        assert self.scheduler.idle
        self.scheduler.check()

    def alone(self, prompt: Sequence[int], most: int) -> list[int]:
        said = self.model.greedy(list(prompt), most)
        return said[: said.index(END) + 1] if END in said else said

    def reason(self, id: int) -> str:
        end = self.ends[id]
        assert isinstance(end, End)
        return end.reason
