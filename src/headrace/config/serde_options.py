"""The options of keys and values with schemas: format, the schemas of readers and writers, subjects.

The producer, the fetcher, the Spark source and sink, and the command line read them. How to reach the registry is in
registry_options.py. Confluent's names are accepted, too, where they differ (`ALIASES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from headrace.config.option import NotEmpty, OneOf, Option
from headrace.config.resolved import Options
from headrace.errors import ConfigError

_CHOICE = "`latest`, a version of the subject, or the text of a schema"
_STRATEGIES = OneOf("TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy")


CORRUPT = "_corrupt"
"""The column with records that could not be decoded."""


class BadRecords(Enum):
    """What to do with a record that cannot be decoded: the values of on.bad.record."""

    FAIL = "fail"
    NULL = "null"
    CORRUPT_COLUMN = "corrupt-column"


class _StrategyName:
    """The name of a subject name strategy, with or without Java's package."""

    def __call__(self, value: object) -> object:
        return _STRATEGIES(str(value).rpartition(".")[2])

    def __str__(self) -> str:
        return str(_STRATEGIES)


def _options_of(field: str, prefix: str) -> tuple[Option, ...]:
    return (
        Option(
            f"{field}.format",
            "str",
            "none",
            f"The format of {field}s that have a schema in a registry; none: bytes.",
            OneOf("none", "avro", "protobuf", "json", ignore_case=True),
            "high",
        ),
        Option(
            f"{prefix}reader.schema",
            "str",
            None,
            f"The schema to which {field}s are converted when they are read: {_CHOICE}.",
            NotEmpty(),
            "high",
            accepts_mapping=True,
        ),
        Option(
            f"{prefix}writer.schema",
            "str",
            None,
            f"The schema with which {field}s are written: {_CHOICE}. Not set: derived from the data with "
            f"`schema.auto.register`, else the latest version.",
            NotEmpty(),
            "high",
            accepts_mapping=True,
        ),
        Option(
            f"{field}.record.name",
            "str",
            None,
            f"The full name of the type of {field}s, such as `shop.Order`: which message type of a Protobuf schema, "
            f"the name of a derived schema, and the subject with RecordNameStrategy. Not set: the first message type; "
            f"the name in the schema.",
            NotEmpty(),
        ),
        Option(
            f"{field}.subject.name.strategy",
            "str",
            "TopicNameStrategy",
            f"How the subject of the schema of {field}s is named.",
            _StrategyName(),
        ),
    )


SERDE_OPTIONS = Options(
    *_options_of("value", ""),
    *_options_of("key", "key."),
    Option(
        "schema.auto.register",
        "bool",
        False,
        "Register the schema with which data are written, if the subject does not have it.",
        None,
        "high",
    ),
    Option(
        "use.latest.version",
        "bool",
        False,
        "Write with the latest version of the subject: the same as `latest` for `writer.schema` and "
        "`key.writer.schema`, and instead of a text there.",
        None,
        "low",
    ),
    Option(
        "normalize.schemas",
        "bool",
        False,
        "Let the registry ignore differences of form, such as spaces, when it looks up or registers a schema.",
        None,
        "low",
    ),
)

ALIASES: Mapping[str, str] = {"auto.register.schemas": "schema.auto.register"}
"""Confluent's names."""


def serde_names(options: Mapping[str, object]) -> dict[str, object]:
    """Return the options of this module among others, with their declared names."""
    chosen: dict[str, object] = {}
    for given, value in options.items():
        name = ALIASES.get(given, given)
        if name not in SERDE_OPTIONS:
            continue
        if name in chosen:
            raise ConfigError(f"{name} is given twice, also as {given if given != name else _alias(name)}")
        chosen[name] = value
    return chosen


def _alias(name: str) -> str:
    return next(alias for alias, declared in ALIASES.items() if declared == name)
