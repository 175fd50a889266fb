"""The engine's logic on a tiny random model: what is remembered, cancelled, chosen or run at once changes no token."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from engines.llm import decoder as decoders
from engines.llm.config import EngineSettings, Sampling
from engines.llm.decoder import FusedDecoder, TransformersDecoder
from engines.llm.errors import ModelBroken, ModelMissing, PromptTooLong, SettingInvalid
from engines.llm.reference import GUESSES, ReferenceEngine, Turnstile
from engines.llm.seam import FinishEvent, Message, Prompt, TokenEvent

SYSTEM: Message = {"role": "system", "content": "You answer the phone of a clinic."}


def asked(text: str) -> Prompt:
    return [SYSTEM, Message(role="user", content=text)]


def collect(events: Iterator[TokenEvent | FinishEvent]) -> tuple[str, list[int], FinishEvent]:
    text, tokens = "", list[int]()
    for event in events:
        if isinstance(event, FinishEvent):
            return text, tokens, event
        text += event.text
        tokens += event.tokens
    raise AssertionError("no finish event")


def written_by_transformers(engine: ReferenceEngine, ids: list[int], count: int) -> list[int]:
    """The likeliest tokens by the library's plain forward, without any cache."""
    ids = list(ids)
    start = len(ids)
    with torch.inference_mode():
        for _ in range(count):
            logits = engine.decoder.model(input_ids=torch.tensor([ids])).logits  # type: ignore[attr-defined]
            ids.append(int(logits[0, -1].argmax()))
    return ids[start:]


def test_greedy_tokens_are_those_of_the_library(cold: ReferenceEngine) -> None:
    ids = cold.tokens(asked("Where are you, where are you?"))
    _, tokens, finish = collect(cold.generate(ids, Sampling(max_tokens=24)))
    assert tokens == written_by_transformers(cold, ids, 24)[: len(tokens)]
    assert finish.reason in ("length", "stop")


def test_a_remembered_prefix_changes_no_token(cold: ReferenceEngine) -> None:
    prompt = asked("When do you open?")
    first = collect(cold.generate(prompt, Sampling(max_tokens=16)))
    cold.close()
    warmed = cold.warm([SYSTEM])
    again = collect(cold.generate(prompt, Sampling(max_tokens=16)))
    assert again[:2] == first[:2]
    assert first[2].usage.cached == 0
    assert again[2].usage.cached == warmed
    assert again[2].usage.prompt == len(cold.tokens(prompt))
    assert again[2].usage.completion == len(again[1])


def test_logits_behind_a_remembered_prefix_are_the_cold_ones(cold: ReferenceEngine) -> None:
    ids = cold.tokens(asked("How much is it?"))
    fresh, _ = cold._begin(ids, 0)
    expected = cold._prefill(ids, fresh, lambda: False)
    cold.warm(ids[:20])
    cache, cached = cold._begin(ids, 0)
    found = cold._prefill(ids, cache, lambda: False)
    assert cached == 20
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_cancel_is_seen_within_one_step(cold: ReferenceEngine) -> None:
    cancel = threading.Event()
    seen = list[TokenEvent | FinishEvent]()
    for event in cold.generate(asked("Tell me all."), Sampling(max_tokens=200), cancel.is_set):
        seen.append(event)
        cancel.set()
    assert len(seen) == 2
    assert isinstance(seen[-1], FinishEvent)
    assert seen[-1].reason == "abort"
    assert seen[-1].usage.completion <= 1 + GUESSES


def test_a_cancel_before_the_start_runs_no_step(cold: ReferenceEngine) -> None:
    _, tokens, finish = collect(cold.generate(asked("Hi"), Sampling(), lambda: True))
    assert (tokens, finish.reason) == ([], "abort")


def test_a_closed_iterator_leaves_the_model_free(cold: ReferenceEngine) -> None:
    events = cold.generate(asked("Hi"), Sampling(max_tokens=50))
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert collect(cold.generate(asked("Hi"), Sampling(max_tokens=2)))[2].reason in ("length", "stop")


def test_many_requests_at_once_write_what_each_writes_alone(cold: ReferenceEngine) -> None:
    prompts = [asked(text) for text in ("Where?", "When do you open on Monday?", "How much?", "Who is it?")]
    alone = [collect(cold.generate(prompt, Sampling(max_tokens=12)))[1] for prompt in prompts]
    cold.close()
    together: dict[int, list[int]] = {}

    def run(place: int) -> None:
        together[place] = collect(cold.generate(prompts[place], Sampling(max_tokens=12)))[1]

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[place] for place in range(len(prompts))] == alone


def test_a_short_request_passes_a_long_one(cold: ReferenceEngine) -> None:
    long = cold.generate(asked("All of it"), Sampling(max_tokens=100))
    next(long)
    assert collect(cold.generate(asked("Hi"), Sampling(max_tokens=2)))[2].reason in ("length", "stop")
    assert collect(long)[2].reason in ("length", "stop")


def test_the_turnstile_lets_waiting_threads_through_in_order() -> None:
    gate, order, ready = Turnstile(), list[int](), threading.Semaphore(0)

    def pass_through(place: int) -> None:
        with gate:
            order.append(place)

    with gate:
        threads = []
        for place in range(5):
            threads.append(threading.Thread(target=pass_through, args=(place,)))
            threads[-1].start()
            while len(gate._waiting) <= place:
                ready.acquire(timeout=0.001)
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_stop_strings_end_the_text_and_are_not_in_it(cold: ReferenceEngine) -> None:
    whole, _, _ = collect(cold.generate(asked("Go"), Sampling(max_tokens=30)))
    stop = whole[4:6]
    text, _, finish = collect(cold.generate(asked("Go"), Sampling(max_tokens=30, stop=(stop,))))
    assert text == whole[: whole.index(stop)]
    assert finish.reason == "stop"


def test_seeded_draws_repeat_and_differ_by_seed(cold: ReferenceEngine) -> None:
    def draw(seed: int) -> list[int]:
        sampling = Sampling(max_tokens=12, temperature=1.5, top_p=0.95, seed=seed)
        return collect(cold.generate(asked("Draw"), sampling))[1]

    assert draw(1) == draw(1)
    assert len({tuple(draw(seed)) for seed in range(4)}) > 1


def test_shares_of_choices_are_those_of_running_each_alone(cold: ReferenceEngine) -> None:
    prompt, choices = cold.tokens(asked("Yes?")), ["ab", "abc", "ax", "q"]
    scores = cold.score(prompt, choices)
    assert sum(scores.values()) == pytest.approx(1.0)

    def share(prefix: str, allowed: str) -> dict[str, float]:
        ids = [*prompt, *cold.tokenizer.encode(prefix, add_special_tokens=False)]
        with torch.inference_mode():
            logits = cold.decoder.model(input_ids=torch.tensor([ids])).logits[0, -1]  # type: ignore[attr-defined]
        tokens = [min(cold._ends) if a == "$" else cold.tokenizer.encode(a)[0] for a in allowed]
        return dict(zip(allowed, torch.softmax(logits[tokens], 0).tolist(), strict=True))

    start, second, third = share("", "aq"), share("a", "bx"), share("ab", "$c")
    expected = {
        "q": start["q"],
        "ax": start["a"] * second["x"],
        "ab": start["a"] * second["b"] * third["$"],
        "abc": start["a"] * second["b"] * third["c"],
    }
    assert scores == pytest.approx(expected, rel=1e-3)


def test_a_prior_divides_out_what_the_model_prefers_anyway(cold: ReferenceEngine) -> None:
    scores = cold.score(asked("Same"), ["x", "y", "z"], prior=asked("Same"))
    assert list(scores.values()) == pytest.approx([1 / 3] * 3, rel=1e-4)


@pytest.mark.parametrize("choices", [["one"], ["a", "a"], ["a", ""]])
def test_choices_that_are_none_are_refused(cold: ReferenceEngine, choices: list[str]) -> None:
    with pytest.raises(SettingInvalid, match="different"):
        cold.score("x", choices)


def test_a_prompt_past_the_context_is_refused_with_the_numbers(cold: ReferenceEngine) -> None:
    with pytest.raises(PromptTooLong, match="512"):
        cold.generate("x" * 600)
    with pytest.raises(SettingInvalid, match="empty"):
        cold.generate("")


def fused_and_plain(model: object, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of some steps by the fused forward (with exact linear layers) and by the library."""

    class Exact(torch.nn.Module):
        def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
            super().__init__()
            self.kept, self.bias = weight.detach(), bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.kept, self.bias)

    monkeypatch.setattr(decoders, "Int8Linear", Exact)
    plain = TransformersDecoder(model)
    results = []
    with torch.inference_mode():
        both: list[Any] = [FusedDecoder(model), plain]
        for decoder in both:
            cache = decoder.new_cache(4)
            rows = [decoder.forward(torch.arange(3, 12), cache, torch.arange(9))]
            cache.crop(7)
            rows += [decoder.forward(torch.tensor([token]), cache, torch.tensor([0])) for token in (4, 9)]
            results.append(torch.cat(rows))
    return results[0], results[1]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_fused_forward_computes_what_the_library_computes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    shape = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
    }
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**shape)).eval()
    else:
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=8, **shape)).eval()
    fused, plain = fused_and_plain(model, monkeypatch)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


def test_int8_rows_do_not_spoil_one_another() -> None:
    torch.manual_seed(0)
    layer, rows = decoders.Int8Linear(torch.randn(40, 32)), torch.randn(6, 32)
    alone = layer(rows[1:])
    rows[0] *= 1000
    assert float((layer(rows)[1:] - alone).norm() / alone.norm()) < 0.03


def test_a_mixture_of_experts_generates_through_the_same_engine(tmp_path: Path, tiny_directory: Path) -> None:
    torch.manual_seed(5)
    config = Qwen3MoeConfig(
        vocab_size=260, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
        initializer_range=0.4, eos_token_id=256,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tiny_directory / name).exists():
            shutil.copy(tiny_directory / name, tmp_path)
    engine = ReferenceEngine.load(tmp_path, EngineSettings(precision="fp32"))
    ids = engine.tokens(asked("Hi"))
    tokens = collect(engine.generate(ids, Sampling(max_tokens=6)))[1]
    assert tokens == written_by_transformers(engine, ids, 6)[: len(tokens)]


def test_missing_and_broken_files_say_what_to_do(tmp_path: Path, tiny_directory: Path) -> None:
    with pytest.raises(ModelMissing, match="nothing is downloaded"):
        ReferenceEngine.load(tmp_path / "nowhere")
    with pytest.raises(ModelMissing, match=r"lacks config\.json"):
        ReferenceEngine.load(tmp_path)
    with pytest.raises(ModelMissing, match="gguf"):
        ReferenceEngine.load(tmp_path / "none.gguf")
    broken = tmp_path / "broken"
    shutil.copytree(tiny_directory, broken)
    (broken / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ModelBroken, match="broken"):
        ReferenceEngine.load(broken)


def test_the_packaged_model_repeats_the_fact_it_was_given(packaged: ReferenceEngine) -> None:
    say = "A dental cleaning costs 80 dollars."
    shown = {"role": "user", "content": f"Caller: What is the price of a cleaning?\nFact: {say}"}
    prompt = [
        {"role": "system", "content": "You are the receptionist. Answer the caller with the fact."},
        shown, {"role": "assistant", "content": say},
        {"role": "user", "content": f"Caller: How much to get my teeth cleaned?\nFact: {say}"},
    ]  # fmt: skip
    text, _, finish = collect(packaged.generate(prompt, Sampling(max_tokens=30)))  # type: ignore[arg-type]
    assert "80" in text
    assert finish.reason == "stop"


def test_prefixes_that_are_prepared_are_known_afterwards(cold: ReferenceEngine) -> None:
    prefixes = ["one beginning, ", "another beginning, "]
    cold.prepare(prefixes).join()
    events = list(cold.generate("another beginning, and more", Sampling(max_tokens=2)))
    finish = events[-1]
    assert isinstance(finish, FinishEvent) and finish.usage.cached >= len("another beginning, ")


def test_a_closed_engine_prepares_no_further(cold: ReferenceEngine) -> None:
    before = cold._epoch
    with cold._model:  # nobody gets a step meanwhile
        thread = cold.prepare(["one beginning, ", "another beginning, ", "a third beginning, "])
        closing = threading.Thread(target=cold.close)
        closing.start()
        while cold._epoch == before:
            closing.join(0.001)
    closing.join()
    assert not thread.is_alive()
    finish = list(cold.generate("a third beginning, and more", Sampling(max_tokens=2)))[-1]
    assert isinstance(finish, FinishEvent) and finish.usage.cached == 0


def test_a_prefix_that_is_too_long_is_refused_before_any_is_prepared(cold: ReferenceEngine) -> None:
    with pytest.raises(PromptTooLong):
        cold.prepare(["short", "x" * 2_000])
