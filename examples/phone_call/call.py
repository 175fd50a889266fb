"""The reception of a small clinic, as a chain: it hears, thinks and speaks.

chains run examples/phone_call/call.py
"""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncIterator
from contextlib import aclosing

from chains import Audio, Control, Resources, Text, chainlet, current, depends, remote
from engines.asr.chainlet import Asr
from engines.llm.chainlet import LLM
from engines.tts.chainlet import Tts
from engines.vad.chainlet import Vad
from examples.phone_call import prompts, records
from examples.phone_call.clinic import read_clinic
from examples.phone_call.conversation import Conversation, Manners
from examples.phone_call.facts import Facts
from examples.phone_call.mind import Mind

CLINIC = read_clinic()
MODEL = os.environ.get("CLINIC_LLM") or "default-moe"  # a Hugging Face directory or a .gguf file: one setting away
X86 = platform.machine() in ("x86_64", "AMD64")
PRECISION = os.environ.get("CLINIC_PRECISION") or ("int8" if X86 else "auto")  # on a GPU write "auto"
NAMES = sorted({service.doctor for service in CLINIC.booking.services.values()})


@chainlet(entry=True, resources=Resources(cpu=0.2))
class PhoneCall:
    """One call a stream: the caller's audio in; the reply's audio, both sides' text, and what happened out."""

    vad: Vad = depends(Vad, end_ms=320)
    asr: Asr = depends(Asr, hotwords=[CLINIC.name, *NAMES], partial_ms=0)
    facts: Facts = depends(Facts, timeout=20.0)
    # No first word after 10 seconds: then the caller hears an apology, not silence. Answers repeat their facts: guess.
    llm: LLM = depends(LLM, model=MODEL, precision=PRECISION, guesses=4, timeout=20.0, first=10.0)
    loading: LLM = depends(LLM, model=MODEL, precision=PRECISION, guesses=4, timeout=180.0)  # the same, while it loads
    tts: Tts = depends(Tts)

    def __init__(self, patience: float = 12.0) -> None:
        self.manners = Manners(CLINIC.greeting, patience=patience)

    async def warm(self) -> None:
        """What every prompt begins with is computed before the first caller waits for it; the records are ready."""
        await records.check()
        await remote(self.loading.remember(prompts.intent_prefix()))
        await remote(self.llm.prepare(prompts.reply_prefixes(CLINIC)))  # while the greeting is said
        labels = list(prompts.LABELS)
        await remote(self.llm.score(prompts.intent("Hello."), labels, prompts.intent("")))
        await remote(self.facts.find("Hello."))

    async def run(self, audio: AsyncIterator[Audio]) -> AsyncIterator[Audio | Text | Control]:
        call = current().call
        mind = Mind(self, CLINIC, call.id)
        conversation = Conversation(self, mind, call, self.manners)
        current().after(lambda: mind.summarise(conversation.said))
        async with aclosing(conversation.run(audio)) as items:  # closed before the summary is written
            async for item in items:
                yield item
