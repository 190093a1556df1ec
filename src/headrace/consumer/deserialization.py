"""Applies the deserializers of a consumer to what `poll` and `poll_arrow` return, and decides on bad records.

    records of a partition → Deserialization.records → the same with values; up to the first bad one
    columns                → Deserialization.columns → typed columns;        up to the first bad row

With on.bad.record=null or corrupt-column bad records are returned, without the key or value that cannot be read.
Application thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.client.plugins import PluginLoader, PrefixedLogger
from headrace.client.typed_records import CORRUPT_TYPE, ERROR_CHARS_MAX, corrupt_column
from headrace.config import Config
from headrace.config.serde_options import CORRUPT, BadRecords
from headrace.consumer import deserializers
from headrace.consumer.columns import COLUMN_TYPES
from headrace.consumer.deserializers import BytesDeserializer, Deserializer
from headrace.errors import DeserializationError, SchemaError
from headrace.schema.types import RecordField
from headrace.types import TopicPartition
from headrace.wire.layout import ConsumerRecord

TYPE_CHARS_MAX = 300
"""Of a type in an error."""


class BadRow(NamedTuple):
    """The first row of columns that cannot be deserialized."""

    row: int
    error: DeserializationError


class Deserialization:
    """The deserializers of keys and values."""

    def __init__(self, key: Deserializer, value: Deserializer, on_bad_record: BadRecords, log: PrefixedLogger) -> None:
        parts: dict[RecordField, Deserializer] = {"key": key, "value": value}
        # Those that do something.
        self._parts = {field: each for field, each in parts.items() if type(each) is not BytesDeserializer}
        self._on_bad_record = on_bad_record
        self._log = log

    @classmethod
    def load(cls, config: Config, plugins: PluginLoader, log: PrefixedLogger) -> Deserialization:
        """Return the deserialization of a consumer's options."""
        key, value = (
            plugins.load(option, config[option], deserializers.KIND, is_key=option.startswith("key"))
            for option in ("key.deserializer", "value.deserializer")
        )
        return cls(key, value, BadRecords(config.of(str, "on.bad.record")), log)

    @property
    def is_identity(self) -> bool:
        """Whether keys and values stay bytes."""
        return not self._parts

    @property
    def has_topic_types(self) -> bool:
        """Whether columns have a type for each topic, so that a batch is of one topic."""
        return any(part.has_topic_types for part in self._parts.values())

    # -- records -------------------------------------------------------------------------------

    def records(self, records: Sequence[ConsumerRecord]) -> tuple[list[ConsumerRecord], DeserializationError | None]:
        """Return records of one partition with their keys and values; up to the first bad one, with its error."""
        fails = self._on_bad_record is BadRecords.FAIL
        changed = list(records)
        bad: dict[int, tuple[RecordField, Exception]] = {}
        for field, part in self._parts.items():
            data: list[bytes | None] = [getattr(record, field) for record in records]
            objects, errors = part.deserialize_all(
                records[0].topic, data, [record.headers for record in records], stops=fails
            )
            if field == "key":
                changed = [record._replace(key=key) for record, key in zip(changed, objects, strict=False)]
            else:
                changed = [record._replace(value=value) for record, value in zip(changed, objects, strict=False)]
            for index, error in errors.items():
                if index not in bad:
                    bad[index] = (field, error)
        if not bad:
            return changed, None
        first = min(bad)
        failure = self._failure(records[first], *bad[first])
        if fails:
            return changed[:first], failure
        self._warn(len(bad), failure)
        return changed, None

    def _failure(self, record: ConsumerRecord, field: RecordField, error: Exception) -> DeserializationError:
        data = getattr(record, field)
        failure = self._error(
            field, TopicPartition(record.topic, record.partition), record.offset, f"({len(data)} bytes): {error}"
        )
        failure.__cause__ = error
        return failure

    def _error(self, field: RecordField, partition: TopicPartition, offset: int, reason: str) -> DeserializationError:
        name = type(self._parts[field]).__qualname__
        return DeserializationError(
            f"{name} does not accept the {field} at offset {offset} of {partition} {reason}; seek to offset "
            f"{offset + 1} to skip the record, or set on.bad.record to null",
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            deserializer=name,
        )

    def _warn(self, count: int, first: DeserializationError) -> None:
        self._log.warning(
            "%d records could not be deserialized, and were returned without the key or value (on.bad.record is %s); "
            "the first: %s",
            count,
            self._on_bad_record.value,
            first,
        )

    # -- columns -------------------------------------------------------------------------------

    def columns(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, BadRow | None]:
        """Return typed columns; up to the first bad row, with its error."""
        topic = batch.column("topic")[0].as_py()
        typed = batch
        errors: dict[int, str] = {}
        fields: dict[int, RecordField] = {}
        for field, part in self._parts.items():
            try:
                column, row_errors = part.deserialize_column(topic, batch.column(field), batch.column("headers"))
            except OverflowError as error:
                raise SchemaError(f"{field}s of topic {topic!r}: {error}, by a smaller fetch.max.bytes") from error
            typed = typed.set_column(typed.schema.get_field_index(field), field, column)
            for row_error in row_errors:
                text = f"{field}: {row_error.text}"[:ERROR_CHARS_MAX]
                row = row_error.row
                errors[row] = f"{errors[row]}; {text}" if row in errors else text
                fields.setdefault(row, field)
        if self._on_bad_record is BadRecords.CORRUPT_COLUMN and self._parts:
            typed = typed.append_column(CORRUPT, corrupt_column(batch, errors))
        if not errors:
            return typed, None
        row = min(errors)
        partition = TopicPartition(batch.column("topic")[row].as_py(), batch.column("partition")[row].as_py())
        failure = self._error(fields[row], partition, batch.column("offset")[row].as_py(), f"({errors[row]})")
        if self._on_bad_record is BadRecords.FAIL:
            return typed.slice(0, row), BadRow(row, failure)
        self._warn(len(errors), failure)
        return typed, None

    def schema(self, topics: Iterable[str]) -> pa.Schema:
        """Return the schema of the columns of these topics; raises SchemaError if they differ."""
        types = dict(COLUMN_TYPES)
        for field, part in self._parts.items():
            by_topic = {topic: part.column_type(topic) for topic in (topics if part.has_topic_types else [""])}
            kinds = list(dict.fromkeys(by_topic.values()))
            if len(kinds) != 1:
                shown = "; ".join(f"{topic}: {str(kind)[:TYPE_CHARS_MAX]}" for topic, kind in by_topic.items())
                raise SchemaError(
                    f"the {field}s of the topics have several types ({shown}): read each with a consumer of its own, "
                    f"or set reader.schema to the text of a schema that all can be converted to"
                )
            types[field] = kinds[0]
        if self._on_bad_record is BadRecords.CORRUPT_COLUMN and self._parts:
            types[CORRUPT] = CORRUPT_TYPE
        return pa.schema(list(types.items()))
