"""A set of declared options, and a configuration resolved against it.

    profile, file, arguments  →  Options.resolve  →  Config   name → value, and the origin of each value

An undeclared name may belong to a plug-in, so it is not an error: `Config` records which of these names are read, and
`warn_of_unused` warns of the others, with the most similar declared name.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias, TypeVar

from headrace.config.option import Option, Secret
from headrace.errors import ConfigError

Log: TypeAlias = logging.Logger | logging.LoggerAdapter[logging.Logger]
log: Log = logging.getLogger("headrace")

T = TypeVar("T")
Origin = Literal["default", "profile", "file", "argument", "derived"]
Layer = tuple[Origin, Mapping[str, object]]


class Config(Mapping[str, object]):
    """Resolved options by name, with the origin of each; also undeclared ones, as given."""

    __slots__ = ("_extras", "_options", "_origins", "_read", "_values")

    def __init__(
        self,
        options: Options,
        values: Mapping[str, object],
        origins: Mapping[str, Origin],
        extras: Mapping[str, object],
    ) -> None:
        self._options = options
        self._values = dict(values)
        self._origins = dict(origins)
        self._extras = dict(extras)
        self._read: set[str] = set()  # Extras that were read.

    def __getitem__(self, name: str) -> object:
        if name in self._extras:
            self._read.add(name)
            return self._extras[name]
        return self._values[name]

    def __contains__(self, name: object) -> bool:  # Mapping's would count as a read
        return name in self._values or name in self._extras

    def __iter__(self) -> Iterator[str]:
        yield from self._values
        yield from self._extras

    def __len__(self) -> int:
        return len(self._values) + len(self._extras)

    def of(self, kind: type[T], name: str) -> T:
        """Return the value of a declared option that must be set."""
        value = self._values[name]
        if not isinstance(value, kind):
            raise ConfigError(f"{name} is not set; it may be {self._options[name].allowed}")
        return value

    def optional(self, kind: type[T], name: str) -> T | None:
        """Return the value of a declared option, or None."""
        return None if self._values[name] is None else self.of(kind, name)

    def revealed(self, name: str) -> str | None:
        """Return the text of a password, or None."""
        secret = self.optional(Secret, name)
        return None if secret is None else secret.reveal()

    def origin(self, name: str) -> Origin:
        """Return the origin of a value."""
        return self._origins[name]

    def given(self, name: str) -> bool:
        """Return whether the user set it, in a file or as an argument."""
        return self._origins.get(name) in ("file", "argument")

    def derived(self, changes: Mapping[str, object]) -> Config:
        """Return a copy with values that were derived from others."""
        origins: dict[str, Origin] = {**self._origins, **dict.fromkeys(changes, "derived")}
        copy = Config(self._options, {**self._values, **changes}, origins, self._extras)
        copy._read = self._read
        return copy

    @property
    def used(self) -> set[str]:
        """The given names that are declared or were read."""
        return {name for name in self._values if self.given(name)} | self._read

    @property
    def unused(self) -> set[str]:
        """The given names that are neither declared nor were read."""
        return self._extras.keys() - self._read

    def warn_of_unused(self, log: Log = log) -> None:
        """Warn of unused names. Call it after all plug-ins are configured, because they may read some."""
        for name in sorted(self.unused):
            log.warning("unknown option %r has no effect%s", name, self._options.suggestion(name))

    def rows(self) -> list[tuple[str, str, Origin]]:
        """Return name, value as text, and origin of every declared option."""
        return [(name, self._options[name].show(value), self._origins[name]) for name, value in self._values.items()]

    def __repr__(self) -> str:
        shown = [f"{name}={text}" for name, text, origin in self.rows() if origin != "default"]
        # A plug-in's option may be a password.
        return f"Config({', '.join([*shown, *(f'{name}=[hidden]' for name in self._extras)])})"


class Options(Mapping[str, Option]):
    """Declared options by name."""

    def __init__(self, *options: Option) -> None:
        self._by_name = {option.name: option for option in options}
        self._by_keyword = {option.keyword: option for option in options}
        if not len(self._by_name) == len(self._by_keyword) == len(options):
            raise ValueError("two options have the same name or the same keyword")

    def __getitem__(self, name: str) -> Option:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def suggestion(self, name: str) -> str:
        """Return the end of a message about an unknown name: the most similar declared one, if any."""
        near = difflib.get_close_matches(name.replace("_", "."), self._by_name, n=1, cutoff=0.75)
        return f"; did you mean {near[0]!r}?" if near else ""

    def named(self, keywords: Mapping[str, object]) -> dict[str, object]:
        """Return keyword arguments by option name; raises for an unknown keyword."""
        for keyword in keywords.keys() - self._by_keyword.keys():
            raise ConfigError(
                f"unknown option {keyword!r}{self.suggestion(keyword)} (pass options of plug-ins in the mapping)"
            )
        return {self._by_keyword[keyword].name: value for keyword, value in keywords.items()}

    def resolve(self, *layers: Layer) -> Config:
        """Return the defaults, overridden by each layer in turn. None means "not given"."""
        values: dict[str, object] = {name: option.default for name, option in self._by_name.items()}
        origins: dict[str, Origin] = dict.fromkeys(values, "default")
        extras: dict[str, object] = {}
        for origin, layer in layers:
            for name, value in self._declared_names(layer).items():
                option = self._by_name.get(name)
                if option is None:
                    extras[name] = value
                elif value is not None:
                    values[name] = option.parse(value)
                    origins[name] = origin
        return Config(self, values, origins, extras)

    def _declared_names(self, layer: Mapping[str, object]) -> dict[str, object]:
        """Return the layer with `batch_size` as `batch.size`."""
        named: dict[str, object] = {}
        for given, value in layer.items():
            if not isinstance(given, str):
                raise ConfigError(f"invalid option name: expected a str, got {given!r}")
            option = self._by_keyword.get(given)
            name = option.name if option else given
            if name in named:
                raise ConfigError(f"{name} is given twice, also as {name.replace('.', '_')}")
            named[name] = value
        return named

    def markdown(self) -> str:
        """Return a table of all options, for the docs."""
        lines = ["| option | type | default | allowed | what it does |", "|---|---|---|---|---|"]
        for option in self._by_name.values():
            default = f"`{option.show(option.default)}`" if option.show(option.default) else ""
            doc = f"{option.doc} No effect here: {option.no_effect}." if option.no_effect else option.doc
            lines.append(f"| `{option.name}` | {option.kind} | {default} | {option.allowed} | {doc} |")
        return "\n".join(lines) + "\n"
