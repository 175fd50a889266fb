"""Speculative execution over HTTP: fewer requests, and never another text than each call alone would give."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import pytest

from engines.llm.config import Sampling
from engines.llm.engine import LLMEngine
from engines.llm.errors import RequestFailed, SettingInvalid
from engines.llm.program import Talk
from engines.llm.remote import RemoteModel
from tests.engines.llm.served import serving

FORM = "Call of Monday.\nName: Anna Bell\nService: filling\nDay: Friday\nPaid: no\n"


class Api:
    """An OpenAI-like API on a socket whose model knows FORM by heart: it writes on wherever a text stands in it."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.traces: list[str | None] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                api.bodies.append(body)
                api.traces.append(self.headers["traceparent"])
                status, answer = api.answer(self.path, body)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if body["model"] != "form":
            return 404, {"error": {"message": "no such model"}}
        if path == "/v1/chat/completions":
            said = body["messages"][-1]["content"]
            text = '{"day": "Friday"}' if "response_format" in body else f"You said {said}"
            return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
        rest = FORM[len(body["prompt"]) :] if FORM.startswith(body["prompt"]) else "?" * 200
        text, reason = rest[: body["max_tokens"]], "length" if len(rest) > body["max_tokens"] else "stop"
        for stop in body.get("stop", []):
            if stop in text:
                text, reason = text[: text.index(stop)], "stop"
        return 200, {"choices": [{"text": text, "finish_reason": reason}]}


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()
    yield api
    api.server.shutdown()
    api.server.server_close()


async def filled_in(talk: Talk, labels: tuple[str, ...] = ("Name", "Service", "Day", "Paid")) -> list[str]:
    fields = []
    for label in labels:
        talk.say(f"{label}:")
        fields.append(await talk.gen(stop="\n", max_tokens=32))
        talk.say("\n")
    return fields


async def test_later_calls_are_answered_from_what_the_first_wrote(api: Api) -> None:
    async with RemoteModel(api.url, "form") as plain, RemoteModel(api.url, "form", ahead=64) as ahead:
        expected = await filled_in(Talk(plain, "Call of Monday.\n"))
        assert await filled_in(Talk(ahead, "Call of Monday.\n")) == expected
        assert expected == [" Anna Bell", " filling", " Friday", " no"]
        assert (plain.calls, plain.matched) == (4, 0)
        assert (ahead.calls, ahead.matched) == (1, 3)


async def test_another_constant_in_between_is_another_call(api: Api) -> None:
    async with RemoteModel(api.url, "form", ahead=64) as model:
        fields = await filled_in(Talk(model, "Call of Monday.\n"), ("Name", "Doctor", "Day"))
        assert fields == [" Anna Bell", "?" * 32, "?" * 32]
        assert model.matched == 0


async def test_what_was_not_written_far_enough_is_asked_again(api: Api) -> None:
    async with RemoteModel(api.url, "form", ahead=8) as model:
        assert await filled_in(Talk(model, "Call of Monday.\n")) == [" Anna Bell", " filling", " Friday", " no"]
        assert 1 < model.calls <= 4


async def test_a_limit_of_tokens_holds_whatever_is_known(api: Api) -> None:
    async with RemoteModel(api.url, "form", ahead=64) as model:
        talk = Talk(model, "Call of Monday.\nName:")
        assert await talk.gen(stop="\n", max_tokens=4) == " Ann"
        assert [body["max_tokens"] for body in api.bodies] == [68, 4]


async def test_other_settings_are_another_call(api: Api) -> None:
    async with RemoteModel(api.url, "form", ahead=64) as model:
        for temperature in (0.0, 0.7):
            talk = Talk(model, "Call of Monday.\nName:")
            assert await talk.gen(stop="\n", temperature=temperature) == " Anna Bell"
        assert (model.calls, model.matched) == (2, 0)


async def test_messages_go_to_the_chat_and_types_are_read(api: Api) -> None:
    async with RemoteModel(api.url, "form", key="k", constrained=True) as model:
        talk = Talk(model, [{"role": "system", "content": "Be short."}])
        talk.ask("hello")
        assert await talk.gen() == "You said hello"
        talk.ask("Which day?")
        assert await talk.gen(dict[str, str]) == {"day": "Friday"}
        assert api.bodies[-1]["response_format"]["type"] == "json_schema"
        assert [message["role"] for message in api.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]
        talk = Talk(model, "Call of Monday.\nName: Anna Bell\nService:")
        assert await talk.gen(Literal["cleaning", "filling"], stop="\n") == "filling"  # type: ignore[arg-type]


async def test_each_request_bears_the_trace_of_whoever_asks(api: Api) -> None:
    traces = iter(["00-one", "00-two"])
    async with RemoteModel(api.url, "form", key="k", headers=lambda: {"traceparent": next(traces)}) as model:
        for _ in range(2):
            await Talk(model, "Call of Monday.\nName:").gen(stop="\n")
    assert api.traces == ["00-one", "00-two"]


async def test_a_server_that_refuses_or_is_not_there_is_an_error_with_a_mend(api: Api) -> None:
    async with RemoteModel(api.url, "other") as model:
        with pytest.raises(RequestFailed, match=r"404.*no such model"):
            await Talk(model, "x").gen()
    async with RemoteModel("http://127.0.0.1:9/v1", "form") as model:
        with pytest.raises(RequestFailed, match="cannot be reached"):
            await Talk(model, "x").gen()
    async with RemoteModel(api.url.removesuffix("/v1") + "/v2", "form") as model:
        with pytest.raises(SettingInvalid, match="logprobs"):
            await Talk(model, "x", Sampling(logprobs=2)).gen()
        with pytest.raises(SettingInvalid, match="probability"):
            await Talk(model, "x").choose(["a", "b"])


async def test_against_a_real_model_the_same_fields_come_of_fewer_requests(packaged: LLMEngine) -> None:
    shots = "Call: Anna Bell books a filling on Friday.\nName: Anna Bell\nService: filling\nDay: Friday\n\n"
    shots += "Call: Robert Stone books a cleaning on Tuesday.\nName: Robert Stone\nService: cleaning\nDay: Tuesday\n\n"
    call = f"{shots}Call: Tom Hill books a checkup on Monday.\n"
    async with (
        serving(packaged) as site,
        RemoteModel(f"{site.url}/v1", "tiny") as plain,
        RemoteModel(f"{site.url}/v1", "tiny", ahead=32) as ahead,
    ):
        labels = ("Name", "Service", "Day")
        expected = await filled_in(Talk(plain, call), labels)
        assert await filled_in(Talk(ahead, call), labels) == expected
    assert expected == [" Tom Hill", " checkup", " Monday"]
    assert (plain.calls, ahead.calls, ahead.matched) == (3, 1, 2)
