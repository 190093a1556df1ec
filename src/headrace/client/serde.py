"""What the decoder and the encoder of keys and values share: settings, the schema of a topic, errors of rows.

    options → SerdeSettings.from_options → SchemaDecoder (schema_decoder.py), SchemaEncoder (schema_encoder.py)
    topic → subject → registry → TopicSchema

A `TopicSchema` can be pickled: a Spark driver finds it out once, and all workers use the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias
from uuid import UUID

from headrace.client.registry import LATEST, SchemaRegistryClient
from headrace.config.registry_options import PREFIX
from headrace.config.resolved import Config
from headrace.config.serde_options import ALIASES, SERDE_OPTIONS, serde_names
from headrace.errors import ConfigError, SchemaError
from headrace.schema.codec import ParsedSchema
from headrace.schema.formats import parse
from headrace.schema.types import (
    CompleteSchema,
    RecordField,
    RegisteredSchema,
    Schema,
    SchemaFormat,
    SubjectNameStrategy,
)

SchemaChoice: TypeAlias = Literal["latest"] | int | Schema
"""The latest version of the topic's subject, a version of it, or a schema of the user's."""


class RowCause(Enum):
    """Why a row could not be decoded or encoded."""

    NO_SCHEMA_ID = "no schema id"
    """Another magic byte, or a value that is too short: not written by a registry's serializer."""
    UNKNOWN_SCHEMA = "unknown schema"
    """The registry has no schema with the id."""
    DELETED_SCHEMA = "deleted schema"
    OTHER_FORMAT = "other format"
    """The schema is of another format than the option `value.format` or `key.format` says."""
    INVALID_SCHEMA = "invalid schema"
    """The schema of the registry cannot be parsed, or has no such message type."""
    INCOMPATIBLE_SCHEMA = "incompatible schema"
    """Values of the writer's schema can never be read with the reader's."""
    INVALID_DATA = "invalid data"
    """The bytes do not fit the schema, or the row cannot be written with it."""


@dataclass(frozen=True, slots=True)
class SerdeRowError:
    """A row that could not be decoded or encoded, with the id of its schema, if it is known."""

    row: int
    cause: RowCause
    schema_id: int | UUID | None
    text: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.text}"


@dataclass(frozen=True, slots=True)
class SerdeSettings:
    """The options of keys, or of values, as typed values."""

    field: RecordField
    format: SchemaFormat
    reader: SchemaChoice | None = None
    """None: each value is read with the schema it was written with."""
    writer: SchemaChoice | None = None
    """None: derived from the data if `auto_register` is set, else the latest version."""
    auto_register: bool = False
    normalize: bool = False
    strategy: SubjectNameStrategy = SubjectNameStrategy.TOPIC
    record_name: str | None = None

    @classmethod
    def from_options(
        cls, options: Mapping[str, object], field: RecordField, *, default_reader: SchemaChoice | None = None
    ) -> SerdeSettings | None:
        """Return the settings of keys or values; None if they have no format. Other options are ignored."""
        config = SERDE_OPTIONS.resolve(("argument", serde_names(options)))
        name = config.of(str, f"{field}.format")
        if name == "none":
            _reject_without_format(config, field)
            return None
        format = SchemaFormat(name.upper())
        prefix = "" if field == "value" else "key."
        reader = _choice(config, f"{prefix}reader.schema", format)
        writer = _choice(config, f"{prefix}writer.schema", format)
        if config.of(bool, "use.latest.version"):
            writer = LATEST
        return cls(
            field,
            format,
            default_reader if reader is None else reader,
            writer,
            auto_register=config.of(bool, "schema.auto.register"),
            normalize=config.of(bool, "normalize.schemas"),
            strategy=SubjectNameStrategy.named(config.of(str, f"{field}.subject.name.strategy")),
            record_name=config.optional(str, f"{field}.record.name"),
        )


def plugin_settings(
    config: Mapping[str, object], field: RecordField, format: SchemaFormat, role: str
) -> tuple[SerdeSettings, dict[str, object]]:
    """Return the settings of a serializer or deserializer (`role`), and its options among those of a client."""
    options = {
        name: config[name] for name in config if name.startswith(PREFIX) or name in SERDE_OPTIONS or name in ALIASES
    }
    format_name = format.value.lower()
    if options.setdefault(f"{field}.format", format_name) != format_name:
        raise ConfigError(f"{field}.{role} is {format_name}, {field}.format is {options[f'{field}.format']}")
    settings = SerdeSettings.from_options(options, field)
    assert settings is not None
    return settings, options


def registry_from(options: Mapping[str, object]) -> SchemaRegistryClient:
    """Return a client for the `schema.registry.*` options among others."""
    chosen = {name: value for name, value in options.items() if name.startswith(PREFIX)}
    if chosen.get(f"{PREFIX}url") is None:
        raise ConfigError("schema.registry.url is not set; key.format and value.format need a schema registry")
    return SchemaRegistryClient(options=chosen)


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The schema of the keys or values of a topic, complete with what it refers to. It can be pickled."""

    source: CompleteSchema
    id: int | None = None
    """None: a schema of the user's, which only readers use."""
    version: int | None = None
    subject: str | None = None

    def parsed(self) -> ParsedSchema:
        return parse(self.source)

    def __str__(self) -> str:
        if self.subject is None:
            return "the given schema"
        return f"schema id {self.id} (version {self.version} of subject {self.subject!r})"


@dataclass(slots=True)
class TopicSchemas:
    """Finds the schemas of topics in a registry."""

    registry: SchemaRegistryClient
    settings: SerdeSettings
    pinned: Mapping[str, TopicSchema] = field(default_factory=dict)
    """By topic: used instead of a request to the registry."""

    def complete(self, schema: Schema) -> CompleteSchema:
        """Return a schema with those that it refers to."""
        return CompleteSchema(schema, self.registry.resolve_references(schema) if schema.references else {})

    def subject(self, topic: str, schema: ParsedSchema | None = None) -> str:
        """Return the subject of a topic's schema, by the strategy of the settings."""
        settings = self.settings
        name = settings.record_name
        if schema is not None and settings.strategy is not SubjectNameStrategy.TOPIC:
            name = schema.record_name(settings.record_name)
        if name is None and settings.strategy is not SubjectNameStrategy.TOPIC:
            raise ConfigError(
                f"{settings.strategy.value} needs the name of the record type: set {settings.field}.record.name, or "
                f"give the text of the schema"
            )
        return settings.strategy.subject(topic, settings.field, name)

    def version(self, topic: str, version: Literal["latest"] | int) -> TopicSchema:
        """Return a version of the topic's subject."""
        subject = self.subject(topic)
        if version == LATEST:
            return self.registered(self.registry.get_latest(subject))
        return self.registered(self.registry.get_version(subject, int(version)))

    def registered(self, schema: RegisteredSchema) -> TopicSchema:
        """Return a schema of the registry; raises SchemaError if it has another format than the settings."""
        if schema.schema.format is not self.settings.format:
            raise SchemaError(
                f"subject {schema.subject!r} has a schema of format {schema.schema.format.value.lower()}, "
                f"{self.settings.field}.format is {self.settings.format.value.lower()}; change the option"
            )
        return TopicSchema(self.complete(schema.schema), schema.id, schema.version, schema.subject)


def _choice(config: Config, option: str, format: SchemaFormat) -> SchemaChoice | None:
    text = config.optional(str, option)
    if text is None:
        return None
    if text == LATEST:
        return LATEST
    if text.isascii() and text.isdigit():
        return int(text)
    if text.isidentifier() and text not in ("true", "false"):  # which are JSON schemas; no other schema is a bare word
        raise ConfigError(f"{option} is {text!r}; it may be latest, a version (a number), or the text of a schema")
    return Schema(text, format)


def _reject_without_format(config: Config, field: RecordField) -> None:
    """Raise if schemas are chosen for a field that has no format: the option would have no effect."""
    prefix = "" if field == "value" else "key."
    for name in (f"{prefix}reader.schema", f"{prefix}writer.schema", f"{field}.record.name"):
        if config.given(name):
            raise ConfigError(f"{name} is set, but {field}.format is none; set it to avro, protobuf or json")
