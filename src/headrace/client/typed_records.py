"""Fetched records with decoded keys and values.

Fetcher.poll → FetchedRecord → RecordDecoder.decode → TypedRecord: Python objects, or an error
Fetcher.poll_arrow → pa.RecordBatch → RecordDecoder.decode_batch → TypedBatch: typed columns, errors of rows
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.fetch_data import FetchedRecord
from headrace.client.schema_decoder import SchemaDecoder
from headrace.client.serde import SchemaChoice, SerdeRowError, SerdeSettings, registry_from
from headrace.errors import ConfigError
from headrace.schema.framing import SCHEMA_ID_HEADERS
from headrace.schema.types import RecordField
from headrace.wire.columns import HEADERS_TYPE
from headrace.wire.layout import Header

FIELDS: tuple[RecordField, ...] = ("key", "value")
CORRUPT_TYPE = pa.struct([("key", pa.binary()), ("value", pa.binary()), ("error", pa.string())])
"""The type of the column with records that could not be decoded."""
ERROR_CHARS_MAX = 2000


class TypedRecord(NamedTuple):
    """A record with decoded key and value: dicts, or what else the schema describes; bytes without a format."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Any
    value: Any
    headers: tuple[Header, ...]
    key_error: SerdeRowError | None = None
    """Why the key is None, if it could not be decoded."""
    value_error: SerdeRowError | None = None


class TypedBatch(NamedTuple):
    """Records in columns, and the rows of each column that could not be decoded."""

    batch: pa.RecordBatch
    key_errors: list[SerdeRowError]
    value_errors: list[SerdeRowError]


class RecordDecoder:
    """Decodes keys and values of fetched records. Without a decoder, keys or values stay bytes."""

    def __init__(self, key: SchemaDecoder | None = None, value: SchemaDecoder | None = None) -> None:
        self._decoders: dict[RecordField, SchemaDecoder] = {}
        if key is not None:
            self._decoders["key"] = key
        if value is not None:
            self._decoders["value"] = value

    @classmethod
    def from_options(cls, options: Mapping[str, object], *, default_reader: SchemaChoice | None = None) -> Self:
        """Return a decoder for `key.format`, `value.format` and the options that go with them."""
        settings = {
            field: SerdeSettings.from_options(options, field, default_reader=default_reader) for field in FIELDS
        }
        chosen = {field: each for field, each in settings.items() if each is not None}
        if not chosen:
            raise ConfigError("no format of keys or values: set value.format or key.format to avro, protobuf or json")
        registry = registry_from(options)
        decoders = {field: SchemaDecoder(registry, each) for field, each in chosen.items()}
        return cls(decoders.get("key"), decoders.get("value"))

    def decode(self, records: Sequence[FetchedRecord]) -> list[TypedRecord]:
        """Decode records. One that cannot be decoded has an error, and None instead of the key or value.

        Raises RegistryUnavailableError if a schema is needed that is not known yet: call it again later.
        """
        typed = [TypedRecord(*record) for record in records]
        rows_by_topic: defaultdict[str, list[int]] = defaultdict(list)
        for row, record in enumerate(records):
            rows_by_topic[record.topic].append(row)
        for topic, rows in rows_by_topic.items():
            for field, decoder in self._decoders.items():
                values = pa.array([getattr(records[row], field) for row in rows], pa.binary())
                headers = headers_column([records[row].headers for row in rows], field)
                objects, errors = decoder.decode_objects(topic, values, headers)
                for row, decoded in zip(rows, objects, strict=True):
                    typed[row] = _with_decoded(typed[row], field, decoded)
                for error in errors:
                    typed[rows[error.row]] = _with_error(typed[rows[error.row]], field, error)
        return typed

    def decode_batch(self, topic: str, batch: pa.RecordBatch) -> TypedBatch:
        """Decode the columns key and value of records in columns, with ids in headers if it has that column."""
        errors: dict[RecordField, list[SerdeRowError]] = {"key": [], "value": []}
        headers = batch.column("headers") if "headers" in batch.schema.names else None
        for field, decoder in self._decoders.items():
            column, errors[field] = decoder.decode(topic, batch.column(field), headers)
            batch = batch.set_column(batch.schema.get_field_index(field), field, column)
        return TypedBatch(batch, errors["key"], errors["value"])


def headers_column(headers: Sequence[tuple[Header, ...]], field: RecordField) -> pa.Array | None:
    """Return the headers that name schemas, as a column; None if there are none."""
    name = SCHEMA_ID_HEADERS[field]
    chosen = [[pair for pair in pairs if pair[0] == name] for pairs in headers]
    if not any(chosen):
        return None
    return pa.array([[{"key": key, "value": value} for key, value in pairs] for pairs in chosen], HEADERS_TYPE)


def _with_decoded(record: TypedRecord, field: RecordField, decoded: Any) -> TypedRecord:
    return record._replace(key=decoded) if field == "key" else record._replace(value=decoded)


def _with_error(record: TypedRecord, field: RecordField, error: SerdeRowError) -> TypedRecord:
    return record._replace(key_error=error) if field == "key" else record._replace(value_error=error)


def corrupt_column(rows: pa.RecordBatch, errors: Mapping[int, str]) -> pa.Array:
    """Return the column with the bytes and the reasons of rows that could not be decoded; null for the others."""
    if not errors:
        return pa.nulls(rows.num_rows, CORRUPT_TYPE)
    texts = pa.array([errors.get(row) for row in range(rows.num_rows)], pa.string())
    is_bad = texts.is_valid()
    children = [pc.if_else(is_bad, rows.column(name), None) for name in FIELDS]
    return pa.StructArray.from_arrays([*children, texts], fields=list(CORRUPT_TYPE), mask=pc.invert(is_bad))
