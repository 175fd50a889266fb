"""Chat templates write what transformers writes, and cannot leave their sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engines.llm import template
from engines.llm.errors import ModelBroken, SettingInvalid
from engines.llm.template import ChatTemplate

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, seen=false) %}
{%- for message in messages %}
    {%- if message.role == "tool" %}{%- set ns.seen = true %}
<tool_response>{{ message.content }}</tool_response>
    {%- elif message.tool_calls %}
        {%- for call in message.tool_calls %}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
        {%- endfor %}
    {%- else %}
{{ '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>\\n' }}
    {%- endif %}
    {%- if loop.index0 == ns.last %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{{- '\\n<think>' if enable_thinking is defined and enable_thinking else '' }}
{% endif %}"""

DATED = """{{- bos_token }}
{%- if not date is defined %}{% set date = strftime_now("%d %b %Y") %}{% endif %}
<|start_header_id|>system<|end_header_id|>

Today: {{ date }}
  {% for message in messages %}
    <|start_header_id|>{{ message['role'] }}<|end_header_id|>

  {% generation %}{{ message['content'] }}{% endgeneration %}<|eot_id|>
  {% endfor %}
{{ dict(a=1, b=[1, 2]) | tojson(indent=2) }}"""

STRICT = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}
{{ message['content'] + eos_token }}
{% endif %}
{% endfor %}"""

TALK = [
    {"role": "user", "content": "What is <b>the</b> price & “cost”?\n "},
    {"role": "assistant", "content": "It's 80 dollars."},
    {"role": "user", "content": "Grüezi 你好 🙂"},
]
TOOLS = [{"type": "function", "function": {"name": "book", "parameters": {"type": "object", "properties": {}}}}]
CALLED: list[dict[str, Any]] = [
    TALK[0],
    {"role": "assistant", "tool_calls": [{"function": {"name": "book", "arguments": {"day": "Mönday", "n": 2}}}]},
    {"role": "tool", "content": "booked <ok>"},
]
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("source", "messages", "tools", "variables"),
    [
        (CHATML, TALK, None, {}), (CHATML, CALLED, TOOLS, {}), (CHATML, TALK, None, {"enable_thinking": True}),
        (DATED, TALK, None, {"date": "today"}), (DATED, TALK, None, {}), (STRICT, TALK, None, {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reply", [True, False])
def test_every_style_is_written_as_transformers_writes_it(
    source: str, messages: list[dict[str, Any]], tools: Any, variables: dict[str, Any], reply: bool
) -> None:
    expected, _ = render_jinja_template(
        [messages], tools=tools, chat_template=source, add_generation_prompt=reply, **NAMED, **variables
    )
    found = ChatTemplate(source, NAMED).render(messages, tools=tools, reply=reply, variables=variables)
    assert found == expected[0]


def test_a_template_that_refuses_says_why() -> None:
    with pytest.raises(SettingInvalid, match="roles must alternate"):
        ChatTemplate(STRICT, NAMED).render(TALK[1:])
    with pytest.raises(SettingInvalid, match="TypeError"):
        ChatTemplate("{{ messages[0].content + 1 }}").render([{"role": "user", "content": "x"}])


def test_a_broken_template_is_a_broken_model() -> None:
    with pytest.raises(ModelBroken, match="line 2"):
        ChatTemplate("{{ x }}\n{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ raise_exception.__globals__['json'] }}",
    ],
)
def test_a_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(ModelBroken, match="may not"):
        ChatTemplate(source).render([])


def test_a_template_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MOST_TEXT", 10_000)
    endless = ChatTemplate("{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}")
    with pytest.raises(SettingInvalid, match="beyond all measure"):
        endless.render([])
    with pytest.raises(SettingInvalid):
        ChatTemplate("{% for a in range(999999) %}x{% endfor %}").render([])
