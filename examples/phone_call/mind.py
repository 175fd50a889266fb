"""What the reception thinks: an intent check beside a reply, the one fact that matters, and the appointment's slots."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from chains import Control, Text, remote
from engines.llm.program import ChainletModel, Talk
from examples.phone_call import booking, prompts, records
from examples.phone_call.clinic import Clinic, Topic
from examples.phone_call.reply import Plan, Reply, Said

if TYPE_CHECKING:
    from examples.phone_call.call import PhoneCall

log = logging.getLogger("examples.phone_call")
_NAMING = ("name is", "name's", "this is", "i'm ", "i am ", "it's for", "under")


class Mind:
    """The thoughts of one conversation. A reply is thought up before it is certain that it will be said: what it
    changes (the request so far, an appointment) is its plan, and done by `carry_out` when the caller hears it.
    """

    def __init__(self, chain: PhoneCall, clinic: Clinic, call: str) -> None:
        self.chain = chain
        self.model = ChainletModel(chain.llm)
        self.clinic = clinic
        self.call = call
        self.request: booking.Request | None = None  # the appointment that the caller is being asked about

    async def words(self, reply: Reply) -> AsyncIterator[Text]:
        """The reply to what the caller said, as it is written. Three calls of models start side by side."""
        labels = Talk(self.model, prompts.intent(reply.heard)).score(list(prompts.LABELS), prompts.intent(""))
        found = await remote(self.chain.facts.find(reply.heard))
        likely = self._topic(found.topic)
        answer = self._say(likely, reply.heard)  # begun before the intent is known, which mostly agrees
        intent = prompts.decide(await labels, found.nearness)
        request = booking.read_request(reply.heard, self.clinic, self.request.missing if self.request else "")
        if self.request is not None and intent != "goodbye" and booking.given_up(reply.heard):
            reply.plan, topic = Plan(None), booking.let_go()
        elif intent == "book" or self._goes_on(intent, request, reply.heard):
            del answer
            topic = await self._book(reply, request)
        else:
            reply.hang_up = intent == "goodbye"
            topic = self.clinic.facts[found.fact] if intent == "question" else self.clinic.manners[intent]
        if topic is not likely:
            answer = self._say(topic, reply.heard)
        async for piece in answer:
            yield piece

    def _topic(self, key: str) -> Topic:
        manners = {str(manner): topic for manner, topic in self.clinic.manners.items()}
        return self.clinic.facts.get(key) or manners[key]

    async def taken(self, reply: Reply) -> AsyncIterator[Text]:
        """Instead of a reply whose appointment somebody else took in the last moment."""
        assert reply.plan is not None and reply.plan.booking is not None
        made = reply.plan.booking
        wanted = booking.Request(made.service, made.day, made.time, made.name)
        topic, self.request = booking.taken(wanted, made.doctor)
        async for piece in self._say(topic, reply.heard):
            yield piece

    async def carry_out(self, reply: Reply) -> list[Control]:
        """The caller hears the reply now: do what it says. What happened, for the caller's screen.

        Raises records.Taken when somebody else has the appointment, Unavailable when it cannot be written down.
        """
        plan = reply.plan
        if plan is None:
            return []
        events = []
        if plan.booking is not None:
            made = plan.booking
            number = await records.book(self.call, made)
            said = {"service": made.service, "doctor": made.doctor, "day": made.day, "time": made.time}
            events.append(Control("booked", {"number": number, **said, "name": made.name}))
        self.request = plan.request
        return events

    def _say(self, topic: Topic, heard: str) -> AsyncIterator[Text]:
        talk = Talk(self.model, prompts.reply(topic, heard))
        return _spoken(talk.stream(max_tokens=48, stop=prompts.STOPS))

    def _goes_on(self, intent: prompts.Intent, request: booking.Request, heard: str) -> bool:
        """Whether the words belong to the appointment that is being made."""
        if self.request is None or intent == "goodbye" or heard.rstrip().endswith("?"):
            return False
        return self.request.missing == "name" or bool(request.service or request.day or request.time)

    async def _book(self, reply: Reply, heard: booking.Request) -> Topic:
        """What to say of the appointment, with the slots so far: refuse, ask for what is missing, or confirm it."""
        before = self.request or booking.Request()
        request = before.with_(heard)
        if not heard.service and not before.service:
            request = replace(request, service=await self._which(reply.heard))
        if not request.name:
            request = replace(request, name=await self._name(reply.heard, before.missing == "name"))
        refusal = booking.refused(request, self.clinic)
        if refusal is None and not request.missing:
            made = self._appointment(request)
            if await records.free(made):
                reply.plan = Plan(None, made)
                return booking.confirmation(request, made.doctor)
            refusal = booking.taken(request, made.doctor)
        topic, request = refusal or (booking.question(request), request)
        reply.plan = Plan(request)
        return topic

    def _appointment(self, request: booking.Request) -> records.Booking:
        service = self.clinic.booking.services[request.service]
        return records.Booking(
            request.service, service.doctor, request.day, request.time, service.minutes, request.name
        )

    async def _which(self, heard: str) -> str:
        """The service, when the words name one: the model chooses among those that they may mean."""
        options = booking.candidates(heard, self.clinic)
        if len(options) < 2:
            return options[0] if options else ""
        talk = Talk(self.model, f"Services: {', '.join(options)}.\nCaller: {heard}\nService:")
        return (await talk.choose([f" {option}" for option in options])).strip()

    async def _name(self, heard: str, asked: bool) -> str:
        """The caller's name as the model reads it, kept only as far as it was really said and is no day or doctor."""
        low = heard.lower()
        if not asked and not any(sign in low for sign in _NAMING):
            return ""
        text = await Talk(self.model, prompts.name(heard)).gen(max_tokens=12, stop="\n")
        said = set(re.findall(r"[\w'-]+", low))
        other = {"i", "i'm", "i'd", "doctor", "dr", "yes", "no", *(day.lower() for day in booking.WEEKDAYS)}
        words = [word for word in re.findall(r"[\w'-]+", text) if word.lower() in said - other and word[:1].isupper()]
        return " ".join(words[:4])

    async def summarise(self, said: Sequence[Said]) -> None:
        """After the call, however it ended: one sentence on it, filed with the clinic's records."""
        lines = [(line.role, line.text) for line in said]
        text = ""
        if any(role == "user" for role, _ in lines):
            try:
                text = await Talk(self.model, prompts.summary(lines)).gen(max_tokens=60, stop="\n")
            except Exception as error:  # the call is filed all the same
                log.warning("call %s: no summary was written: %s", self.call, type(error).__name__)
        await records.file_call(self.call, len(lines), text.strip())


async def _spoken(pieces: AsyncIterator[str]) -> AsyncIterator[Text]:
    """The words as a voice takes them: pieces that are not final, then an empty one that is."""
    async with aclosing(cast(Any, pieces)):
        async for piece in pieces:
            yield Text(piece, final=False, role="assistant")
    yield Text("", final=True, role="assistant")
