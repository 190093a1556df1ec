"""The declaration of an option, and the parsing and validation of its values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.errors import ConfigError

Kind = Literal["bool", "short", "int", "long", "double", "str", "list", "password", "class", "classes"]
Importance = Literal["high", "medium", "low"]

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_INTEGER_MAX = {"short": 2**15 - 1, "int": INT_MAX, "long": LONG_MAX}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


class Secret:
    """A password. Its repr is `[hidden]`; `reveal()` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "[hidden]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


class Check(Protocol):
    """A validator: returns the canonical value, or raises ValueError."""

    def __call__(self, value: object) -> object: ...

    def __str__(self) -> str:
        """Return what is allowed, to end the sentence "it may be …"."""
        ...


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`, or `also`."""

    low: float | None = None
    high: float | None = None
    also: int | None = None

    def __call__(self, value: object) -> object:
        assert isinstance(value, int | float)
        if value != self.also and (
            (self.low is not None and value < self.low) or (self.high is not None and value > self.high)
        ):
            raise ValueError(str(self))
        return value

    def __str__(self) -> str:
        text = f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"
        return text if self.also is None else f"{text}, or {self.also}"


class OneOf:
    """One of several words."""

    __slots__ = ("_canonical", "_fold", "choices")

    def __init__(self, *choices: str, ignore_case: bool = False) -> None:
        self.choices = choices
        self._fold = ignore_case
        self._canonical = {self._key(choice): choice for choice in choices}

    def _key(self, word: str) -> str:
        return word.lower() if self._fold else word

    def __call__(self, value: object) -> object:
        canonical = self._canonical.get(self._key(str(value)))
        if canonical is None:
            raise ValueError(str(self))
        return canonical

    def __str__(self) -> str:
        return ", ".join(choice or "empty" for choice in self.choices)


class NotEmpty:
    """A text or list that is not empty."""

    def __call__(self, value: object) -> object:
        if not value:
            raise ValueError(str(self))
        return value

    def __str__(self) -> str:
        return "anything but empty"


@dataclass(frozen=True, slots=True)
class Option:
    """An option. A default of None means: not set."""

    name: str
    kind: Kind
    default: object
    doc: str
    check: Check | None = None
    importance: Importance = "medium"
    no_effect: str = ""
    """Why setting the option has no effect, if it has none."""
    accepts_mapping: bool = False
    """Whether a mapping is accepted, too. It is converted to JSON."""

    @property
    def keyword(self) -> str:
        return self.name.replace(".", "_")

    @property
    def allowed(self) -> str:
        return str(self.check) if self.check else _ALLOWED[self.kind]

    def parse(self, value: object) -> object:
        """Return the value in its canonical type, or raise ConfigError."""
        if self.accepts_mapping and isinstance(value, Mapping):
            value = json.dumps(dict(value))
        try:
            parsed = _PARSERS[self.kind](value)
        except ValueError as error:
            raise self._error(value, _ALLOWED[self.kind]) from error
        limit = _INTEGER_MAX.get(self.kind)
        if limit is not None and isinstance(parsed, int) and not -limit - 1 <= parsed <= limit:
            raise self._error(value, f"{-limit - 1} to {limit}")
        if self.check is None:
            return parsed
        try:
            return self.check(parsed)
        except ValueError as error:
            raise self._error(value, str(self.check)) from error

    def _error(self, value: object, allowed: str) -> ConfigError:
        shown = f"a value of type {type(value).__name__}" if self.kind == "password" else repr(value)
        return ConfigError(f"{self.name} is {shown}; it may be {allowed}")

    def show(self, value: object) -> str:
        """Return a value as in a `.properties` file."""
        if value is None or isinstance(value, Secret):
            return "" if value is None else repr(value)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ",".join(map(self.show, value))
        if self.kind in ("class", "classes") and not isinstance(value, str):
            cls = value if isinstance(value, type) else type(value)
            return f"{cls.__module__}.{cls.__qualname__}"
        return str(value)


def _parse_bool(value: object) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    if word is True or word == "true":
        return True
    if word is False or word == "false":
        return False
    raise ValueError(value)


def _parse_integer(value: object) -> int:
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(value)


def _parse_double(value: object) -> float:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number):
            return number
    raise ValueError(value)


def _parse_str(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):  # acks=1 is the same as acks="1"
        raise ValueError(value)
    return str(value).strip()


def _parse_list(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(item.strip() for item in value.split(",")) if value.strip() else ()
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(item.strip() for item in value)
    raise ValueError(value)


def _parse_password(value: object) -> Secret:
    if isinstance(value, Secret):
        return value
    if isinstance(value, str):
        return Secret(value.strip())
    raise ValueError("not a text")  # without the value, which is secret


def _parse_class(value: object) -> object:
    if isinstance(value, str):
        value = value.strip()
    if value == "" or isinstance(value, bytes | int | float | list | tuple | dict):
        raise ValueError(value)
    return value


def _parse_classes(value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        return _parse_list(value)
    return tuple(map(_parse_class, value)) if isinstance(value, list | tuple) else (value,)


_PARSERS: dict[Kind, Callable[[object], object]] = {
    "bool": _parse_bool,
    "short": _parse_integer,
    "int": _parse_integer,
    "long": _parse_integer,
    "double": _parse_double,
    "str": _parse_str,
    "list": _parse_list,
    "password": _parse_password,
    "class": _parse_class,
    "classes": _parse_classes,
}
_ALLOWED: dict[Kind, str] = {
    "bool": "true or false",
    "short": "a whole number",
    "int": "a whole number",
    "long": "a whole number",
    "double": "a number",
    "str": "a text",
    "list": "a list, or a text with commas between the items",
    "password": "a text",
    "class": "an object, a class, or the path of a class",
    "classes": "objects, classes, or paths of classes with commas between them",
}
