"""What can go wrong with a language model, free of `chains`; the chainlet turns these into the errors users meet.

EngineError
|-- SettingInvalid      a setting that is unknown or makes no sense
|-- ModelMissing        a model's files are not there
|-- ModelBroken         a model's files are there and cannot be used
|-- FetchFailed         the packaged model could not be put in place
|-- PromptTooLong       more tokens than the model's context holds
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


class FetchFailed(EngineError):
    """The packaged model could not be downloaded, verified, converted or stored."""


class PromptTooLong(EngineError, ValueError):
    """The prompt and the tokens asked for do not fit the model's context."""


class ResultInvalid(EngineError, ValueError):
    """The model's text is not of the type that was asked for. `text` is what it wrote, `expected` what was asked."""

    def __init__(self, text: str, expected: str, why: str) -> None:
        super().__init__(
            f"the model wrote {text!r}, which is not {expected}: {why}",
            mend="show the wanted form in the prompt, allow more tokens, or ask for a choice among fixed answers",
        )
        self.text = text
        self.expected = expected
