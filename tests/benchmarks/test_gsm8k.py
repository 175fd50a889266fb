"""The harness reads answers as they are meant, and counts what an endpoint gets right."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks import gsm8k
from tests.engines.llm.scripted import ScriptedEngine
from tests.engines.llm.served import serving


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 * 8 = 24\n#### 19\nQuestion: 5", 19),
        ("It is $1,250.50.", 1250.5),
        ("First 5, then -7", -7),
        ("#### none, but 12 before", 12),
        ("none", None),
    ],
)
def test_the_number_of_an_answer(text: str, number: float | None) -> None:
    assert gsm8k.answered(text) == number


def test_the_sample_problems_are_worked_right() -> None:
    problems = gsm8k.read_problems(gsm8k.SAMPLE)
    assert len(problems) >= 10
    for problem in problems:
        assert gsm8k.answered(gsm8k.without_sums(problem.answer)) == problem.number
        for sum_, result in __import__("re").findall(r"<<([\d+*/().-]+)=([\d.]+)>>", problem.answer):
            assert eval(sum_) == float(result)


def test_a_line_that_is_no_problem_is_named(tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text('{"question": "a", "answer": "#### 1"}\n\n{"question": "a"}\n')
    with pytest.raises(ValueError, match=r"problems\.jsonl:3 is no problem"):
        gsm8k.read_problems(file)


def test_the_interval_of_a_share() -> None:
    low, high = gsm8k.interval(50, 100)
    assert (round(low, 3), round(high, 3)) == (0.404, 0.596)
    assert gsm8k.interval(0, 10)[0] == 0.0 and gsm8k.interval(10, 10)[1] == 1.0
    assert gsm8k.interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("chat", [False, True])
async def test_problems_are_put_to_an_endpoint(chat: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine(context=4096)
    engine.text = "That makes 90.\n#### 90"
    async with serving(engine) as site:
        argv = ["--url", f"{site.url}/v1", "--model", "tiny", "--shots", "8", "--json", str(tmp_path / "rows.json")]
        assert await asyncio.to_thread(gsm8k.main, argv + ["--chat"] * chat) == 0
        rows = {row["name"]: row["ours"] for row in json.loads((tmp_path / "rows.json").read_text())}
        assert rows["right share"] == 0.5, "two of the last four problems come to 90"
        asked = engine.tokenizer.decode(engine.asked[0][0])
        assert asked.count("#### ") == 8 and "<<" not in asked and "Answer:" in asked.splitlines()[-1]
        assert await asyncio.to_thread(gsm8k.main, [*argv, "--model", "other"]) == 2
    assert "there is no model 'other'" in capsys.readouterr().err
