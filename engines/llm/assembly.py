"""From a model's files to a step loop: what fits is computed before it is loaded, the cache takes what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from engines.layers.decoder import Decoder
from engines.llm.batch import BatchPlan, Row
from engines.llm.card import precision_of, read_json
from engines.llm.config import EngineSettings, Kind, ModelSource, Precision
from engines.llm.core import Core, Grammars
from engines.llm.errors import ModelBroken, ModelTooLarge, SettingInvalid
from engines.llm.memory import refuse_what_does_not_fit
from engines.llm.messages import Report
from engines.llm.models import architecture_of, build
from engines.llm.runner import Model, Runner, RunnerSettings
from engines.llm.scheduler import Scheduler, SchedulerSettings
from engines.llm.sequence import GREEDY
from engines.llm.tokenizer import Tokenizer
from engines.weights.checkpoint import open_checkpoint
from engines.weights.errors import WeightsInvalid
from engines.weights.inventory import check_inventory

Progress = Callable[[int, int], None]
Emit = Callable[[Report], None]

BUFFERS = ("*.rotary_emb.inv_freq", "*.masked_bias", "*.attn.bias")
MOST_PAGES = 1 << 23  # each is an integer of the scheduler, whatever the device could hold
HISTORY_BYTES = 3  # of each line and token of the vocabulary, when penalties are asked for
GB = 1e9


@dataclass(frozen=True, slots=True)
class Facts:
    """What the front needs to know of a loaded model. `slots` are the tokens that its cache holds, `max_waiting` the
    most requests that one caller can have accepted at once where none runs yet.
    """

    vocabulary: int
    context: int
    slots: int
    device: str
    precision: str
    graphs: bool
    ends: tuple[int, ...]
    max_waiting: int


def device_kind(settings: EngineSettings) -> Kind:
    """Where the model runs: "cuda" when it was asked for, or when there is a GPU and nothing was said."""
    if settings.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if settings.device != "cpu" and not torch.cuda.is_available():
        raise SettingInvalid(f"device is {settings.device!r}, and torch finds no GPU", mend='write device="cpu"')
    return "cpu" if settings.device == "cpu" else "cuda"


def load_decoder(
    source: ModelSource, settings: EngineSettings, progress: Progress | None = None
) -> tuple[Decoder, EngineSettings]:
    """The model of these files, and the settings with all numbers filled in that need no measuring.

    Raises ModelBroken for files that cannot be used, ModelTooLarge when they do not fit.
    """
    path = source.directory / source.gguf if source.gguf else source.directory
    try:
        tensors = open_checkpoint(path, progress)
        config: dict[str, Any] = getattr(tensors, "config", None) or read_json(source.directory / "config.json")
        architecture = architecture_of(config)
        kind = device_kind(settings)
        chosen = settings.on(kind, _stored(config, kind))
        if chosen.threads:
            torch.set_num_threads(chosen.threads)
        device = torch.device(chosen.device)
        usable = chosen.memory_fraction if device.type == "cuda" else 1.0
        refuse_what_does_not_fit(architecture, chosen.precision, device, chosen.cache_tokens, usable)
        check_inventory(tensors, architecture, BUFFERS)
        decoder = build(architecture, tensors, precision=chosen.precision, device=chosen.device)
        tensors.finish(("*",))  # ends the reading; what is too much was refused above
        return decoder, chosen
    except WeightsInvalid as error:
        raise ModelBroken(error.message, mend=error.mend) from error


def put_together(
    model: Model,
    settings: EngineSettings,
    emit: Emit,
    *,
    grammars: Grammars | None = None,
    ends: Iterable[int] = (),
    free: int = 0,
) -> tuple[Core, Facts]:
    """The step loop of a loaded model. `settings` as `EngineSettings.on` fills them in; `free` are the bytes of the
    GPU that were free before its weights were loaded.
    """
    context = min(settings.context or model.architecture.context, model.architecture.context)
    cuda = settings.device.startswith("cuda")
    if settings.cache_tokens:
        slots = settings.cache_tokens + 1
    else:
        slots = _slots_left(model, settings, context, free)
    context = min(context, slots)
    runner = Runner(model, RunnerSettings(slots, settings.max_running, context, settings.device))
    if cuda and settings.cuda_graph_max_bs:
        runner.capture(settings.cuda_graph_max_bs)
    scheduler = Scheduler(
        SchedulerSettings(
            slots=slots, max_running=settings.max_running, token_budget=settings.token_budget,
            prefill_chunk=settings.prefill_chunk, max_waiting=settings.max_waiting, context=context,
            overlap=settings.overlap, guesses=0 if settings.overlap else settings.guesses,
            max_waiting_all=settings.max_waiting_all,
        )
    )  # fmt: skip
    core = Core(scheduler, runner, emit, grammars=grammars, jump_forward=settings.jump_forward)
    graphs = runner.graphs is not None
    facts = Facts(
        runner.vocabulary, context, slots, settings.device, settings.precision, graphs, tuple(sorted(set(ends))),
        min(settings.max_waiting, settings.max_waiting_all),
    )  # fmt: skip
    return core, facts


def assemble(
    source: ModelSource,
    settings: EngineSettings,
    emit: Emit,
    *,
    grammars: Callable[[int], Grammars | None] = lambda width: None,
    progress: Progress | None = None,
) -> tuple[Core, Facts]:
    """Load and put together. `grammars` makes what compiles grammars from the logits' width."""
    free = torch.cuda.mem_get_info()[0] if device_kind(settings) == "cuda" else 0
    decoder, chosen = load_decoder(source, settings, progress)
    ends = _ends(source, decoder.architecture.ends)
    return put_together(decoder, chosen, emit, grammars=grammars(decoder.architecture.vocab), ends=ends, free=free)


def grammars_of(source: ModelSource, width: int) -> Grammars | None:
    """What compiles grammars for this model; None when that part is not installed."""
    try:
        from engines.llm.grammar import Grammars as Compilers
    except ImportError:
        return None
    tokenizer = Tokenizer.load(source)
    found: Grammars = Compilers(tokenizer.backend, vocab=width, ends=tokenizer.ends)
    return found


def _slots_left(model: Model, settings: EngineSettings, context: int, free: int) -> int:
    """Pages for what memory_fraction leaves beside weights, graphs and the largest step, all of which are measured.

    The largest step and the graphs are tried on a small cache first: a cache that took their room would let the
    first long prompt fail.
    """
    device = torch.device(settings.device)
    taken = _taken(device)
    chunk = min(settings.prefill_chunk, settings.token_budget, context)
    small = chunk + 1
    trial = Runner(model, RunnerSettings(small, settings.max_running, context, settings.device))
    page = sum(layer.nbytes for layer in trial.cache) / small
    inputs = tuple(range(1, chunk + 1))
    row = Row(1, context - chunk, chunk, (0,) * chunk, inputs, 1, True, (1,) * (context - chunk), tuple(GREEDY))
    trial.sample(trial.forward(BatchPlan(1, (row,)))).tokens()
    if settings.cuda_graph_max_bs:
        trial.capture(settings.cuda_graph_max_bs)
    used = _taken(device) - taken + HISTORY_BYTES * (settings.max_running + 1) * trial.vocabulary
    del trial
    torch.cuda.empty_cache()
    budget = int(settings.memory_fraction * (free or torch.cuda.mem_get_info(device)[1]))
    weights = max((free or torch.cuda.mem_get_info(device)[1]) - torch.cuda.mem_get_info(device)[0], 0)
    slots = min(int((budget - weights - used) / page), MOST_PAGES)
    if slots <= settings.max_running:
        raise ModelTooLarge(
            f"{budget / GB:.2f} GB may be used, weights take {weights / GB:.2f} and steps {used / GB:.2f}: "
            "nothing is left for the cache",
            mend="raise memory_fraction, lower token_budget or cuda_graph_max_bs, or take a larger GPU",
        )
    return slots


def _taken(device: torch.device) -> int:
    """Bytes of the device that are taken now, after all steps."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _stored(config: dict[str, Any], kind: Kind) -> Precision:
    """The precision nearest to what a checkpoint is stored in; a GPU runs nothing wider than bf16."""
    stored = precision_of(config)
    if stored == "fp8":
        return "fp8"
    return "bf16" if stored == "bf16" or kind == "cuda" else "fp32"


def _ends(source: ModelSource, ends: Iterable[int]) -> set[int]:
    """Tokens that end a reply by the config, and by generation_config.json where there is one."""
    found = set(ends)
    file = source.directory / "generation_config.json"
    if not source.gguf and file.is_file():
        named = read_json(file).get("eos_token_id")
        found.update([named] if isinstance(named, int) else named or [])
    return found
