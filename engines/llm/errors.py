"""What can go wrong with a language model, free of `chains`; the chainlet turns these into the errors users meet.

EngineError
|-- SettingInvalid      a setting that is unknown or makes no sense
|-- ModelMissing        a model's files are not there
|-- ModelBroken         a model's files are there and cannot be used
|-- ModelTooLarge       a model needs more memory than there is
|-- FetchFailed         the packaged model could not be put in place
|-- PromptTooLong       more tokens than the model's context holds
|-- GrammarInvalid      a grammar that says nothing that can be kept to; its own request fails and no other
|   |-- GrammarStuck    a grammar that leaves the reply no way on
|   `-- GrammarUntried  a grammar that was not judged: the compiler took too long, or ended
|-- GrammarMissing      what constrained output needs is not installed
|-- RequestFailed       the engine, or a remote one, could not go on with a request
|-- Refused             a request that can never fit
|   `-- QueueFull       a request that comes while too many wait
|-- PlanInvalid         bytes that are no plan of a step
`-- ResultInvalid       the model's text is not of the type that was asked for
"""

from __future__ import annotations


class EngineError(Exception):
    """What was found, and how to mend it. `str(error)` is the whole of it."""

    def __init__(self, message: str, *, mend: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.mend = mend

    def __str__(self) -> str:
        return f"{self.message}; {self.mend}" if self.mend else self.message


class SettingInvalid(EngineError, ValueError):
    """A setting that is unknown, of the wrong kind, or makes no sense."""


class ModelMissing(EngineError, FileNotFoundError):
    """A model's files are not where they were said to be."""


class ModelBroken(EngineError):
    """A model's files are there, but damaged or of a kind that cannot be used."""


class ModelTooLarge(EngineError):
    """The weights and their cache need more memory than there is; says how much more, and what would do."""


class FetchFailed(EngineError):
    """The packaged model could not be downloaded, verified, converted or stored."""


class PromptTooLong(EngineError, ValueError):
    """The prompt and the tokens asked for do not fit the model's context."""


class GrammarInvalid(EngineError, ValueError):
    """A JSON schema, expression, grammar or list of choices that cannot be kept to, and why."""


class GrammarStuck(GrammarInvalid):
    """A grammar that allows no token and no end where the reply stands."""


class GrammarUntried(GrammarInvalid):
    """The compiler said nothing of the grammar: it took too long on a busy machine, or ended. Ask again."""


class GrammarMissing(EngineError):
    """Constrained output was asked for where the library for it is not installed."""


class RequestFailed(EngineError):
    """The engine could not go on with a request that it had accepted, or a remote one refused it."""


class Refused(EngineError):
    """A request that the scheduler does not take, since it can never fit."""


class QueueFull(Refused):
    """A request that is not taken for now: too many wait already, of its tenant or of all."""


class PlanInvalid(EngineError, ValueError):
    """Bytes that are no plan of a step, or a plan that contradicts itself."""


class ResultInvalid(EngineError, ValueError):
    """The model's text is not of the type that was asked for. `text` is what it wrote, `expected` what was asked."""

    def __init__(self, text: str, expected: str, why: str) -> None:
        super().__init__(
            f"the model wrote {text!r}, which is not {expected}: {why}",
            mend="show the wanted form in the prompt, allow more tokens, or ask for a choice among fixed answers",
        )
        self.text = text
        self.expected = expected
