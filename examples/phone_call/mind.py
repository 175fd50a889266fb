"""What the reception thinks: an intent check beside a reply, the one fact that matters, and the appointment's slots."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from chains import Control, Text, remote
from examples.phone_call import booking, prompts, records
from examples.phone_call.clinic import Clinic, Topic

if TYPE_CHECKING:
    from examples.phone_call.call import PhoneCall
    from examples.phone_call.conversation import Reply, Said


class Mind:
    """The thoughts of one conversation. `events` are things that happened, for the caller's screen."""

    def __init__(self, chain: PhoneCall, clinic: Clinic, call: str) -> None:
        self.chain = chain
        self.clinic = clinic
        self.call = call
        self.request: booking.Request | None = None
        self.done = False
        self.events: list[Control] = []

    async def words(self, reply: Reply) -> AsyncIterator[Text]:
        """The reply to what the caller said, as it is written. Three calls of models start side by side."""
        self.done = False
        llm = self.chain.llm
        labels = remote(llm.score(prompts.intent(reply.heard), list(prompts.LABELS), prompts.intent("")))
        found = await remote(self.chain.facts.find(reply.heard))
        likely = self._topic(found.topic)
        answer = self._say(likely, reply.heard)  # begun before the intent is known, which mostly agrees
        intent = prompts.decide(await labels, found.nearness)
        request = booking.read_request(reply.heard, self.clinic)
        if intent == "book" or (self.request is not None and self._goes_on(intent, request, reply.heard)):
            del answer
            async for piece in self._book(reply, request):
                yield piece
            return
        topic = self.clinic.facts[found.fact] if intent == "question" else self.clinic.manners[intent]
        if topic is not likely:
            answer = self._say(topic, reply.heard)
        async for piece in answer:
            yield piece
        await reply.confirmed.wait()
        self.done = intent == "goodbye"

    def _topic(self, key: str) -> Topic:
        manners = {str(manner): topic for manner, topic in self.clinic.manners.items()}
        return self.clinic.facts.get(key) or manners[key]

    def _say(self, topic: Topic, heard: str) -> AsyncIterator[Text]:
        sampling = {"max_tokens": 48, "stop": list(prompts.STOPS)}
        return remote(self.chain.llm.reply(prompts.reply(topic, heard), sampling))

    def _goes_on(self, intent: prompts.Intent, request: booking.Request, heard: str) -> bool:
        """Whether the words belong to the appointment that is being made."""
        if intent == "goodbye" or self.request is None:
            return False
        if self.request.missing == "name" and not heard.rstrip().endswith("?"):
            return True
        return bool(request.service or request.day or request.time) and not heard.rstrip().endswith("?")

    async def _book(self, reply: Reply, heard: booking.Request) -> AsyncIterator[Text]:
        """The typed arguments so far; ask for what is missing, or make the appointment and say so."""
        before = self.request or booking.Request()
        request = before.with_(heard)
        if not heard.service and not before.service:
            request = replace(request, service=await self._which(reply.heard))
        if not request.name:
            request = replace(request, name=await self._name(reply.heard, before.missing == "name"))
        if request.missing:
            topic = booking.question(request)
        else:
            await reply.confirmed.wait()  # nothing is written down for a sentence that may go on
            topic, request = await self._write_down(request)
        async for piece in self._say(topic, reply.heard):
            yield piece
        await reply.confirmed.wait()
        self.request = None if not request.missing else request

    async def _write_down(self, request: booking.Request) -> tuple[Topic, booking.Request]:
        doctor = self.clinic.booking.services[request.service].doctor
        made = records.Booking(request.service, doctor, request.day, request.time, request.name)
        try:
            number = await records.book(self.call, made)
        except records.Taken:
            return booking.taken(request, doctor)
        data = {"number": number, "service": made.service, "doctor": doctor, "day": made.day, "time": made.time}
        self.events.append(Control("booked", {**data, "name": made.name}))
        return booking.confirmation(request, doctor), request

    async def _which(self, heard: str) -> str:
        """The service, when the words name one: the model chooses among those that they may mean."""
        options = booking.candidates(heard, self.clinic)
        if len(options) < 2:
            return options[0] if options else ""
        prompt = f"Services: {', '.join(options)}.\nCaller: {heard}\nService:"
        chosen = await remote(self.chain.llm.choose(prompt, [f" {option}" for option in options]))
        return chosen.strip()

    async def _name(self, heard: str, asked: bool) -> str:
        """The caller's name as the model reads it, kept only when those words were really said."""
        low = heard.lower()
        if not asked and not any(sign in low for sign in ("name is", "this is", "i'm ", "i am ", "it's for", "under")):
            return ""
        sampling = {"max_tokens": 12, "stop": ["\n"]}
        text = await remote(self.chain.llm.complete(prompts.name(heard), sampling))
        words = [w.strip(".,!? ") for w in text.split()]
        said = [w for w in words if w and w.lower() in low and w[:1].isupper()]
        return " ".join(said[:4])

    async def summarise(self, said: Sequence[Said]) -> None:
        """After the call, however it ended: one sentence on it, filed with the clinic's records."""
        lines = [(line.role, line.text) for line in said]
        text = ""
        if any(role == "user" for role, _ in lines):
            sampling = {"max_tokens": 60, "stop": ["\n"]}
            text = await remote(self.chain.llm.complete(prompts.summary(lines), sampling))
        await records.file_call(self.call, len(lines), text.strip())
