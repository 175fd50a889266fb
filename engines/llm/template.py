"""Chat templates: the Jinja programs that come with a model and write its messages as text. Sandboxed, bounded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from engines.llm.errors import ModelBroken, SettingInvalid

MOST_SOURCE = 1 << 20
MOST_TEXT = 16 << 20


class ChatTemplate:
    """One compiled template, the same text as transformers' apply_chat_template writes. Raises ModelBroken."""

    def __init__(self, source: str, variables: Mapping[str, Any] | None = None) -> None:
        """`variables` are what every rendering sees, e.g. bos_token and eos_token."""
        if len(source) > MOST_SOURCE:
            raise ModelBroken(
                f"the chat template has {len(source)} characters, more than {MOST_SOURCE}", mend="use the model's own"
            )
        self.source = source
        self._variables = dict(variables or {})
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ModelBroken(
                f"the chat template cannot be read ({error.message}, line {error.lineno})",
                mend="take chat_template.jinja from the model's page again",
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        reply: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The messages as text; `reply` opens the assistant's turn behind them.

        Raises SettingInvalid when the template refuses the messages, or writes more than MOST_TEXT characters.
        """
        seen = {**self._variables, **(variables or {})}
        pieces, size = list[str](), 0
        try:
            for piece in self._template.generate(
                messages=list(messages), tools=tools, documents=None, add_generation_prompt=reply, **seen
            ):
                pieces.append(piece)
                size += len(piece)
                if size > MOST_TEXT:
                    raise SettingInvalid("the prompt grew beyond all measure", mend="send fewer or shorter messages")
        except SecurityError as error:
            raise ModelBroken(f"the chat template does what it may not ({error})", mend="use another model") from None
        except TemplateError as error:
            raise SettingInvalid(
                f"the model's chat template refuses these messages ({error})",
                mend="begin with the user (a system message may precede), and let user and assistant take turns",
            ) from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise SettingInvalid(
                f"the model's chat template cannot write these messages ({type(error).__name__}: {error})",
                mend="write messages with the fields that this model's template reads",
            ) from None
        return "".join(pieces)


class _Generation(Extension):
    """{% generation %} marks what the assistant wrote, for training; here its content is just written."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own way to name a tag

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """Jinja's namespace without names that begin with an underscore: with those a template could pose as a type."""

    def __init__(*args: Any, **values: Any) -> None:  # `self` may be the name of a value
        for name in dict(*args[1:], **values):
            _check_name(name)
        Namespace.__init__(*args, **values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace holds no {name!r}")


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is; Jinja's own filter writes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["dict"] = lambda *args, **values: dict(*args, **values)
    environment.globals["namespace"] = _Namespace
    return environment
