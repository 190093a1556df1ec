"""Arrow columns, and single Python values, encoded as keys or values that name their schema.

    column → schema of the topic (registry, given, or derived) → ColumnEncoder → schema id + payload
    value → schema of the topic (registry or given) → ValueEncoder → the same

The schema is settled before any row is encoded: a column that can never be written with it, and a schema that the
registry refuses, are exceptions. A row that cannot be encoded is null, with an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from headrace.client.caches import LruCache
from headrace.client.registry import LATEST
from headrace.client.serde import RowCause, SerdeRowError, SerdeSettings, TopicSchema, TopicSchemas
from headrace.errors import ConfigError, RegistryProtocolError, SchemaError, SchemaNotFoundError, SubjectNotFoundError
from headrace.schema import framing
from headrace.schema.formats import derive
from headrace.schema.types import RegisteredSchema, Schema

if TYPE_CHECKING:
    from headrace.client.registry import SchemaRegistryClient
    from headrace.schema.codec import ColumnEncoder
    from headrace.schema.values import ValueEncoder

ENCODERS_MAX = 1_000


class EncodedValues(NamedTuple):
    """An encoded column, and the rows that could not be encoded, which are null in it."""

    column: pa.Array
    errors: list[SerdeRowError]


@dataclass(frozen=True, slots=True)
class _Writer:
    encoder: ColumnEncoder
    prefix: bytes
    schema_id: int


@dataclass(frozen=True, slots=True)
class _ValueWriter:
    encode: ValueEncoder
    prefix: bytes
    schema_id: int
    subject: str | None
    """The subject whose latest version this is; None if the topic stays with its schema."""


class SchemaEncoder:
    """Encodes the keys or values of topics. Threads may share it.

    `pinned` has schemas by topic, as `topic_schema` returned them. Other topics follow the latest version of their
    subject, if that is what the settings choose.
    """

    def __init__(
        self,
        registry: SchemaRegistryClient,
        settings: SerdeSettings,
        *,
        pinned: Mapping[str, TopicSchema] | None = None,
    ) -> None:
        self.settings = settings
        self._registry = registry
        self._schemas = TopicSchemas(registry, settings)
        self._pinned = dict(pinned or {})
        self._writers = LruCache[tuple[str, int, pa.DataType], _Writer](ENCODERS_MAX)
        self._value_writers = LruCache[str, _ValueWriter](ENCODERS_MAX)  # By topic.
        self._derived = LruCache[tuple[str, pa.DataType], Schema](ENCODERS_MAX)

    def topic_schema(self, topic: str, arrow_type: pa.DataType) -> TopicSchema:
        """Return the schema with which columns of a type are written, registered if the settings say so.

        It can be pickled, and passed to other encoders as `pinned`.
        """
        if (pinned := self._pinned.get(topic)) is not None:
            return pinned
        choice = self.settings.writer
        if choice is None:
            choice = self._derived_schema(topic, arrow_type) if self.settings.auto_register else LATEST
        if isinstance(choice, Schema):
            return self._given(topic, choice)
        try:
            return self._schemas.version(topic, choice)
        except SubjectNotFoundError as error:
            raise SubjectNotFoundError(
                f"no schema for {self.settings.field}s of topic {topic!r}: {error}; register one, or set "
                f"schema.auto.register=true",
                status=error.status,
                code=error.code,
            ) from error

    def prepare(self, topic: str, arrow_type: pa.DataType) -> TopicSchema:
        """Check that columns of a type can be written to a topic, and return the schema.

        Raises SchemaError if not; IncompatibleSchemaError with the registry's words if it refuses the schema.
        """
        schema = self.topic_schema(topic, arrow_type)
        self._writer(topic, schema, arrow_type)
        return schema

    def encode(self, topic: str, column: pa.Array) -> EncodedValues:
        """Encode a column; null stays null."""
        writer = self._writer(topic, self.topic_schema(topic, column.type), column.type)
        values, errors = writer.encoder.encode(column, writer.prefix)
        return EncodedValues(
            values,
            [
                SerdeRowError(
                    error.row, RowCause.INVALID_DATA, writer.schema_id, f"schema id {writer.schema_id}: {error.text}"
                )
                for error in errors
            ],
        )

    def encode_value(self, topic: str, value: object) -> bytes:
        """Encode one Python value; raises SchemaError if it does not fit the schema."""
        writer = self._current_writer(topic) or self._new_value_writer(topic)
        try:
            return writer.prefix + writer.encode(value)
        except SchemaError as error:
            raise SchemaError(f"schema id {writer.schema_id}: {error}") from None

    def is_ready(self, topic: str) -> bool:
        """Return whether `encode_value` needs no request to the registry."""
        return self._current_writer(topic) is not None

    def prepare_values(self, topic: str) -> None:
        """Request what `encode_value` needs for a topic."""
        if self._current_writer(topic) is None:
            self._new_value_writer(topic)

    def _current_writer(self, topic: str) -> _ValueWriter | None:
        """Return the writer of a topic; None if there is none, or another version may be the latest."""
        writer = self._value_writers.get(topic)
        if writer is None or writer.subject is None:
            return writer
        latest = self._registry.known_latest(writer.subject)
        return writer if latest is not None and latest.id == writer.schema_id else None

    def _new_value_writer(self, topic: str) -> _ValueWriter:
        settings = self.settings
        if settings.writer is None and settings.auto_register and topic not in self._pinned:
            name = "writer.schema" if settings.field == "value" else "key.writer.schema"
            raise ConfigError(
                f"no schema for single {settings.field}s of topic {topic!r}: schema.auto.register=true derives one "
                f"from Arrow columns only; set {name} to the text of a schema or to latest, or use send_arrow"
            )
        schema = self.topic_schema(topic, pa.null())
        if schema.id is None:
            raise RegistryProtocolError(f"the schema registry returned no id for {schema}")
        known = self._value_writers.get(topic)
        if known is not None and known.schema_id == schema.id:
            return known
        parsed = schema.parsed()
        prefix = framing.encode_id(schema.id, parsed.message_indexes(settings.record_name))
        is_latest = topic not in self._pinned and settings.writer in (None, LATEST)
        subject = self._schemas.subject(topic) if is_latest else None
        encode = parsed.value_encoder(settings.record_name)
        return self._value_writers.put(topic, _ValueWriter(encode, prefix, schema.id, subject))

    def _writer(self, topic: str, schema: TopicSchema, arrow_type: pa.DataType) -> _Writer:
        if schema.id is None:
            raise RegistryProtocolError(f"the schema registry returned no id for {schema}")
        key = (topic, schema.id, arrow_type)
        if (known := self._writers.get(key)) is not None:
            return known
        parsed = schema.parsed()
        try:
            encoder = parsed.encoder(arrow_type, self.settings.record_name)
        except SchemaError as error:
            raise SchemaError(
                f"{self.settings.field}s of topic {topic!r} cannot be written with {schema}: {error}"
            ) from error
        prefix = framing.encode_id(schema.id, parsed.message_indexes(self.settings.record_name))
        return self._writers.put(key, _Writer(encoder, prefix, schema.id))

    def _derived_schema(self, topic: str, arrow_type: pa.DataType) -> Schema:
        key = (topic, arrow_type)
        if (known := self._derived.get(key)) is not None:
            return known
        name = self.settings.record_name or _record_name(f"{topic}_{self.settings.field}")
        return self._derived.put(key, derive(self.settings.format, arrow_type, name))

    def _given(self, topic: str, schema: Schema) -> TopicSchema:
        settings = self.settings
        source = self._schemas.complete(schema)
        subject = self._schemas.subject(topic, TopicSchema(source).parsed())
        registered: RegisteredSchema
        if settings.auto_register:
            registered = self._registry.register(subject, schema, normalize=settings.normalize)
        else:
            try:
                registered = self._registry.lookup(subject, schema, normalize=settings.normalize)
            except SchemaNotFoundError as error:
                raise SchemaNotFoundError(
                    f"subject {subject!r} does not have the given schema: {error}; register it, or set "
                    f"schema.auto.register=true",
                    status=error.status,
                    code=error.code,
                ) from error
        # The text is the user's: what the registry returns may be normalized.
        return TopicSchema(source, registered.id, registered.version, subject)


def _record_name(text: str) -> str:
    """Return a text as a name that all formats accept."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    return f"_{name}" if name[0].isdigit() else name
