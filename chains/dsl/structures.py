"""Values with named fields: dataclasses, messages and pydantic models."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, ClassVar

from chains.dsl.kind import Fields, Kind, Wrong, described
from chains.errors import ChainsError


class Record(Kind):
    """A dataclass, or a message of ours: checked field by field, except that messages answer for themselves.

    A subclass is refused: over a process boundary it would lose what it adds.
    """

    MESSAGES: ClassVar[str] = "chains.messages"

    def __init__(self, cls: type) -> None:
        super().__init__(cls.__name__)
        self.cls, self.structure = cls, cls.__name__
        self.names = tuple(field.name for field in dataclasses.fields(cls) if field.init)
        self.kinds: dict[str, Kind] = {}
        self.message = cls.__module__ == self.MESSAGES
        self.types = frozenset({cls})
        self.arrays = not self.message  # until its fields are known: a list of itself inside it asks meanwhile
        if self.message:
            self.exact = frozenset({cls})

    def fill(self, kinds: dict[str, Kind]) -> None:
        """Give the fields their kinds; apart from making it, so that a structure may hold its own kind."""
        self.kinds = kinds
        self.arrays = not self.message and any(kind.arrays for kind in kinds.values())

    def check(self, value: Any) -> Any:
        if type(value) is not self.cls:
            more = f"write {type(value).__name__} in the annotation" if isinstance(value, self.cls) else ""
            raise Wrong(described(value), self.name, more)
        if self.message:
            return value
        changed: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            old = getattr(value, name)
            if type(old) in kind.exact:
                continue
            try:
                new = kind.check(old)
            except Wrong as wrong:
                raise wrong.under(f".{name}") from None
            if new is not old:
                changed[name] = new
        if not changed:
            return value
        twin = copy.copy(value)
        for name, new in changed.items():
            object.__setattr__(twin, name, new)
        return twin

    def parse(self, plain: Any, json: bool) -> Any:
        fields = ", ".join(self.names)
        if not _is_structure(plain, self.structure, json):
            raise Wrong(described(plain), f"{self.name} (an object with {fields})" if json else self.name)
        values = {}
        for name, item in plain.items():
            kind = self.kinds.get(name)
            if kind is None:
                raise Wrong(f"given an unknown field `{str(name)[:80]}`", f"{self.name} with {fields or 'no fields'}")
            try:
                values[name] = item if type(item) in kind.exact else kind.parse(item, json)
            except Wrong as wrong:
                raise wrong.under(f".{name}") from None
        try:
            return self.cls(**values)
        except TypeError:
            missing = [name for name in self._required() if name not in values]
            if not missing:
                raise Wrong("refused by its own __init__", self.name) from None
            raise Wrong("without " + ", ".join(f"`{name}`" for name in missing), self.name) from None
        except ChainsError as error:
            raise Wrong(f"refused ({error.message})", self.name, error.mend) from None
        except Exception as error:  # the user's __post_init__
            raise Wrong(f"refused by its own __post_init__ ({type(error).__name__})", self.name) from error

    def _required(self) -> list[str]:
        empty = dataclasses.MISSING
        fields = [field for field in dataclasses.fields(self.cls) if field.init]
        return [field.name for field in fields if field.default is empty and field.default_factory is empty]

    def dump(self, value: Any) -> Any:
        return {name: kind.dump(getattr(value, name)) for name, kind in self.kinds.items()}

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        if self.name not in defs:
            defs[self.name] = {}
            defs[self.name] = {
                "type": "object",
                "properties": {name: kind.schema(defs) for name, kind in self.kinds.items()},
                "required": self._required(),
                "additionalProperties": False,
            }
        return {"$ref": f"#/$defs/{self.name}"}


def _is_structure(plain: Any, name: str, json: bool) -> bool:
    """JSON has objects for all structures; the codec says which one it is."""
    return isinstance(plain, dict) if json else isinstance(plain, Fields) and plain.name == name


class Pydantic(Kind):
    """A pydantic model (checked when it was made), or a plain type that pydantic reads and writes, such as a
    date.
    """

    def __init__(self, cls: type, *, model: bool) -> None:
        super().__init__(cls.__name__)
        self.cls, self.model, self.exact = cls, model, frozenset({cls})
        if model:
            self.structure, self.names = cls.__name__, tuple(cls.model_fields)  # type: ignore[attr-defined]
        self._adapter: Any = None

    @property
    def adapter(self) -> Any:
        if self._adapter is None:
            from pydantic import TypeAdapter

            self._adapter = TypeAdapter(self.cls)
        return self._adapter

    def check(self, value: Any) -> Any:
        if type(value) is self.cls:
            return value
        more = f"write {type(value).__name__} in the annotation" if isinstance(value, self.cls) else ""
        raise Wrong(described(value), self.name, more)

    def parse(self, plain: Any, json: bool) -> Any:
        if type(plain) is self.cls:
            return plain
        if not (_is_structure(plain, self.structure, json) if self.model else isinstance(plain, str)):
            raise Wrong(described(plain), self.name)
        from pydantic import ValidationError

        try:
            by: dict[str, Any] = {} if json or not self.model else {"by_alias": True, "by_name": True}
            return self.adapter.validate_python(plain, **by)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
            raise Wrong("refused: " + first["msg"][:1].lower() + first["msg"][1:], self.name).under(path) from None
        except Exception as error:  # a validator of the user's that raises something else
            raise Wrong(f"refused by a validator ({type(error).__name__})", self.name) from error

    def dump(self, value: Any) -> Any:
        return self.adapter.dump_python(value, mode="json", by_alias=True)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = self.adapter.json_schema(ref_template="#/$defs/{model}")
        defs.update(own.pop("$defs", {}))
        if not self.model:
            return own
        defs.setdefault(self.name, own)
        return {"$ref": f"#/$defs/{self.name}"}


class Constrained(Kind):
    """Annotated[T, Field(ge=0)]: T, and what pydantic's constraints say."""

    def __init__(self, annotation: Any, inner: Kind) -> None:
        super().__init__(inner.name)
        self.inner, self.arrays, self.types = inner, inner.arrays, inner.types | inner.exact
        from pydantic import ConfigDict, TypeAdapter

        self.adapter: Any = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))

    def check(self, value: Any) -> Any:
        value = self.inner.check(value)
        from pydantic import ValidationError

        try:
            self.adapter.validate_python(value)
        except ValidationError as error:
            message = error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"]
            raise Wrong(described(value), f"{self.name} ({message[:1].lower()}{message[1:]})") from None
        return value

    def parse(self, plain: Any, json: bool) -> Any:
        return self.check(self.inner.parse(plain, json))

    def dump(self, value: Any) -> Any:
        return self.inner.dump(value)

    def schema(self, defs: dict[str, Any]) -> dict[str, Any]:
        own: dict[str, Any] = self.adapter.json_schema(ref_template="#/$defs/{model}")
        defs.update(own.pop("$defs", {}))
        return own
