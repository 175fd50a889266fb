"""Plans in, tokens out: pages, the token pool, chunks, guesses, sampling settings and plans that make no sense."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engines.llm.batch import BatchPlan, Row
from engines.llm.config import Sampling
from engines.llm.errors import PlanInvalid
from engines.llm.runner import Runner, RunnerSettings
from engines.llm.sampler import uniforms
from engines.llm.sequence import GREEDY, SamplingCode
from tests.engines.llm.hashing import HashModel

SETTINGS = RunnerSettings(slots=401, max_running=8, context=100)
PENALTIES = Sampling(repetition_penalty=1.5, presence_penalty=0.7, frequency_penalty=0.3, max_tokens=20)


@pytest.fixture
def runner() -> Runner:
    return Runner(HashModel(), SETTINGS)


class Script:
    """Plans by hand for sequences whose pages are scattered."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner, self.free = runner, list(range(1, SETTINGS.slots))
        random.Random(seed).shuffle(self.free)
        self.pages: dict[int, list[int]] = {}
        self.code: dict[int, SamplingCode] = {}
        self.step = 0

    def row(
        self, line: int, tokens: Sequence[int], sample: int = 1, code: SamplingCode | None = None,
        history: Sequence[int] = (), prompt: int = 0,
    ) -> Row:  # fmt: skip
        """The next tokens of line `line`; none: one from the pool. With a `code` it begins, behind its pages."""
        fresh, pages = code is not None, self.pages.setdefault(line, [])
        count, start = len(tokens) or 1, len(pages)
        slots = [self.free.pop() for _ in range(count)]
        prefix = tuple(pages) if fresh else ()
        pages += slots
        return Row(
            line, start, count, tuple(tokens), tuple(slots), sample, fresh, prefix, tuple(code or ()),
            tuple(history), prompt,
        )  # fmt: skip

    def run(self, *rows: Row) -> list[tuple[int, ...]]:
        self.step += 1
        return self.runner.sample(self.runner.forward(BatchPlan(self.step, rows))).tokens()


def model(runner: Runner) -> HashModel:
    assert isinstance(runner.model, HashModel)
    return runner.model


def test_prefill_then_decode_from_the_pool(runner: Runner) -> None:
    script, prompt = Script(runner), [3, 1, 4, 1, 5]
    said = [script.run(script.row(2, prompt, code=GREEDY))[0][0]]
    said += [script.run(script.row(2, ()))[0][0] for _ in range(9)]
    assert said == model(runner).greedy(prompt, 10)


def test_chunks_mix_with_decodes(runner: Runner) -> None:
    script, one, other = Script(runner), [7, 7, 2], list(range(12))
    first = script.run(script.row(1, one, code=GREEDY))
    assert script.run(script.row(1, ()), script.row(5, other[:5], sample=0, code=GREEDY)) == [
        (model(runner).greedy(one, 2)[1],)
    ]
    both = script.run(script.row(1, ()), script.row(5, other[5:]))
    assert [first[0][0], both[0][0]] == [model(runner).greedy(one, 3)[index] for index in (0, 2)]
    assert both[1][0] == model(runner).greedy(other, 1)[0]


def test_a_step_may_be_launched_before_the_last_was_collected(runner: Runner) -> None:
    script, prompt = Script(runner), [9, 9, 1]
    pending = [runner.sample(runner.forward(BatchPlan(1, (script.row(3, prompt, code=GREEDY),))))]
    for step in range(2, 7):
        forwarded = runner.forward(BatchPlan(step, (script.row(3, ()),)))
        pending.append(runner.sample(forwarded))
    assert [one.tokens()[0][0] for one in pending] == model(runner).greedy(prompt, 6)


def test_a_prefix_is_read_from_another_sequences_pages(runner: Runner) -> None:
    script, prompt = Script(runner), [2, 4, 6, 8, 10, 12]
    script.run(script.row(1, prompt, code=GREEDY))
    script.pages[4] = script.pages[1][:4]
    assert script.run(script.row(4, [33, 34], code=GREEDY))[0][0] == model(runner).greedy([2, 4, 6, 8, 33, 34], 1)[0]
    script.pages[6] = script.pages[1][:5]
    assert script.run(script.row(6, [12], code=GREEDY))[0][0] == model(runner).greedy(prompt, 1)[0], "one token left"


def test_guesses_are_sampled_at_each_position(runner: Runner) -> None:
    script, prompt = Script(runner), [1, 2, 3]
    right = model(runner).greedy(prompt, 3)
    script.run(script.row(1, prompt, code=GREEDY))
    sampled = script.run(script.row(1, [right[0], right[1], 39], sample=3))
    assert sampled[0][:2] == tuple(right[1:3])
    assert sampled[0][2] == model(runner).greedy([*prompt, right[0], right[1], 39], 1)[0]


def test_a_seed_draws_by_position_whatever_runs_beside(runner: Runner) -> None:
    code = SamplingCode.of(Sampling(temperature=1.3, top_p=0.9, top_k=12, seed=77))
    warm = SamplingCode.of(Sampling(temperature=0.8, seed=1))

    def reply(script: Script, beside: bool) -> list[int]:
        rows = [script.row(2, [5, 6, 7], code=code)]
        if beside:
            rows = [script.row(7, [8], code=warm), *rows, script.row(1, [1, 2], code=GREEDY)]
        said = [script.run(*rows)[1 if beside else 0][0]]
        for _ in range(8):
            rows = [script.row(line, ()) for line in ((7, 2, 1) if beside else (2,))]
            said.append(script.run(*rows)[1 if beside else 0][0])
        return said

    alone = reply(Script(runner), False)
    assert reply(Script(Runner(HashModel(), SETTINGS), seed=5), True) == alone
    drawn = uniforms(np.array([77], np.uint64), np.array([3], np.uint64))[0]
    shares = torch.softmax(model(runner).after([5, 6, 7]).double() / 1.3, -1)
    ranked, order = shares.sort(descending=True)
    kept = order[:12][(ranked[:12].cumsum(0) - ranked[:12]) < 0.9 * ranked[:12].sum()].sort().values
    mass = shares[kept].cumsum(0)
    assert alone[0] == int(kept[int((mass <= drawn * mass[-1]).sum())])


def penalised(runner: Runner, prompt: list[int], reply: list[int]) -> int:
    scores = model(runner).after([*prompt, *reply]).clone()
    for token in range(len(scores)):
        value, count = float(scores[token]), reply.count(token)
        if token in prompt or count:
            value = value / 1.5 if value > 0 else value * 1.5
        scores[token] = value - 0.3 * count - 0.7 * (count > 0)
    return int(scores.argmax())


def test_penalties_follow_what_was_said_also_after_a_preemption(runner: Runner) -> None:
    script, prompt, code = Script(runner), [3, 3, 8], SamplingCode.of(PENALTIES)
    said = [script.run(script.row(1, prompt, code=code, history=prompt, prompt=3))[0][0]]
    said += [script.run(script.row(1, ()))[0][0] for _ in range(6)]
    script.pages[2] = []
    history = [*prompt, *said]
    said.append(script.run(script.row(2, history, code=code, history=history, prompt=3))[0][0])
    said += [script.run(script.row(2, ()))[0][0] for _ in range(4)]
    given = [11, 12]
    script.run(script.row(2, [said[-1], *given], sample=0))  # appended without asking, as a grammar may
    expected: list[int] = []
    for _ in range(len(said)):
        expected.append(penalised(runner, prompt, expected))
    assert said == expected
    assert script.run(script.row(2, [13]))[0][0] == penalised(runner, prompt, [*said, *given, 13])


def test_masks_logprobs_and_probes(runner: Runner) -> None:
    script = Script(runner)
    told = SamplingCode.of(Sampling(logprobs=2))
    plan = BatchPlan(1, (script.row(1, [4, 5], code=told), script.row(3, [6], code=GREEDY)))
    masks = torch.full((2, 2), -1, dtype=torch.int32)
    masks[1] = torch.tensor([1 << 9, 0])
    pending = runner.sample(runner.forward(plan), masks, {3: (1, 30)})
    first = model(runner).after([4, 5])
    assert pending.tokens() == [(int(first.argmax()),), (9,)]
    shares = torch.log_softmax(first, -1)
    ((logprob, top),) = pending.logprobs({1: 2})[1]
    assert logprob == pytest.approx(float(shares.max()))
    assert [token for token, _ in top] == shares.topk(2).indices.tolist()
    expected = torch.log_softmax(model(runner).after([6]), -1)[[1, 30]]
    assert pending.probed()[3] == pytest.approx(expected.tolist())


BAD = {
    "line 0": Row(0, 0, 1, (1,), (5,), 1, True, (), GREEDY),
    "line past the table": Row(9, 0, 1, (1,), (5,), 1, True, (), GREEDY),
    "page 0": Row(1, 0, 1, (1,), (0,), 1, True, (), GREEDY),
    "page past the cache": Row(1, 0, 1, (1,), (401,), 1, True, (), GREEDY),
    "token past the vocabulary": Row(1, 0, 1, (40,), (5,), 1, True, (), GREEDY),
    "position past the context": Row(1, 100, 1, (1,), (5,), 1),
    "prefix of another length": Row(1, 3, 1, (1,), (5,), 1, True, (7,), GREEDY),
    "fewer slots": Row(1, 0, 2, (1, 2), (5,), 1, True, (), GREEDY),
    "goes on and never began": Row(1, 0, 1, (1,), (5,), 1),
    "samples more than it runs": Row(1, 0, 1, (1,), (5,), 2, True, (), GREEDY),
}


@pytest.mark.parametrize("row", BAD.values(), ids=BAD.keys())
def test_a_bad_plan_is_refused_before_anything_is_launched(runner: Runner, row: Row) -> None:
    with pytest.raises(PlanInvalid):
        runner.forward(BatchPlan(1, (row,)))
    assert model(runner).forwards == 0
    assert not runner.lines.known.any()


def test_two_rows_on_one_line_are_refused(runner: Runner) -> None:
    script = Script(runner)
    rows = script.row(1, [1], code=GREEDY), script.row(1, [2])
    with pytest.raises(PlanInvalid, match="different lines"):
        runner.forward(BatchPlan(1, rows))
