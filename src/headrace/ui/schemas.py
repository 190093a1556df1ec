"""What the live view shows of schemas: decoded messages, and the schemas of a topic with their versions.

    FetchedRecord → schema id → registry: format → SchemaDecoder → JSON text
    topic → subjects <topic>-key, <topic>-value → versions

The format of a message is that of its schema; a message without a schema id is shown as bytes. All calls block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace.client.fetch_data import FetchedRecord
from headrace.client.registry import SchemaRegistryClient
from headrace.client.schema_decoder import SchemaDecoder
from headrace.client.serde import SerdeSettings
from headrace.client.typed_json import to_text
from headrace.client.typed_records import RecordDecoder
from headrace.errors import RegistryError, SchemaError, SchemaFramingError, SchemaNotFoundError
from headrace.schema import framing
from headrace.schema.types import RecordField, RegisteredSchema, SchemaFormat

FIELDS: tuple[RecordField, ...] = ("key", "value")
VERSIONS_SHOWN_MAX = 50
_PATIENCE = {"schema.registry.request.timeout.ms": 3_000, "schema.registry.max.retries": 0}
"""People wait for the page: unless the options say otherwise, do not retry."""


class DecodedField(NamedTuple):
    """A key or value of a message that has a schema."""

    text: str | None
    """As JSON; None if it could not be decoded."""
    note: str
    """The schema, or why it could not be decoded."""


class SchemaViewer:
    """Decodes messages and lists schemas, with one registry. Threads may share it."""

    def __init__(self, options: Mapping[str, object]) -> None:
        self.registry = SchemaRegistryClient(options={**_PATIENCE, **options})
        self._decoders = {
            (field, format): SchemaDecoder(self.registry, SerdeSettings(field, format))
            for field in FIELDS
            for format in SchemaFormat
        }

    def decode(self, records: Sequence[FetchedRecord]) -> list[dict[RecordField, DecodedField]]:
        """Return what could be decoded of each record; nothing for keys and values without a schema id."""
        decoded: list[dict[RecordField, DecodedField]] = [{} for _ in records]
        for field in FIELDS:
            by_format: dict[SchemaFormat, list[int]] = {}
            for row, record in enumerate(records):
                try:
                    if (format := self._format(record, field)) is not None:
                        by_format.setdefault(format, []).append(row)
                except RegistryError as error:
                    decoded[row][field] = DecodedField(None, str(error))
            for format, rows in by_format.items():
                self._decode_rows(field, format, rows, records, decoded)
        return decoded

    def _decode_rows(
        self,
        field: RecordField,
        format: SchemaFormat,
        rows: Sequence[int],
        records: Sequence[FetchedRecord],
        decoded: list[dict[RecordField, DecodedField]],
    ) -> None:
        decoder = self._decoders[field, format]
        records_decoder = RecordDecoder(key=decoder) if field == "key" else RecordDecoder(value=decoder)
        try:
            typed = records_decoder.decode([records[row] for row in rows])
        except SchemaError as error:
            for row in rows:
                decoded[row][field] = DecodedField(None, str(error))
            return
        for row, record in zip(rows, typed, strict=True):
            value, failure = (record.key, record.key_error) if field == "key" else (record.value, record.value_error)
            if failure is not None:
                decoded[row][field] = DecodedField(None, failure.text)
            else:
                name = _schema_name(records[row], field)
                decoded[row][field] = DecodedField(to_text(value), f"{format.value.capitalize()}, {name}")

    def _format(self, record: FetchedRecord, field: RecordField) -> SchemaFormat | None:
        """Return the format of a key or value, None if it names no schema of the registry."""
        schema_id = _schema_id(record, field)
        if schema_id is None:
            return None
        try:
            if schema_id.guid is not None:
                return self.registry.get_schema_by_guid(schema_id.guid).schema.format
            return self.registry.get_schema(schema_id.id or 0).schema.format
        except SchemaNotFoundError:
            return None  # most likely bytes that only look like an id

    def versions(self, topic: str, field: RecordField) -> list[RegisteredSchema]:
        """Return the newest versions of the schema of a topic's keys or values, the newest first."""
        subject = f"{topic}-{field}"
        try:
            numbers = sorted(self.registry.get_versions(subject), reverse=True)
        except SchemaNotFoundError:
            return []
        return [self.registry.get_version(subject, number) for number in numbers[:VERSIONS_SHOWN_MAX]]


def _schema_id(record: FetchedRecord, field: RecordField) -> framing.SchemaId | None:
    data = record.key if field == "key" else record.value
    if data is None:
        return None
    named = [value for name, value in record.headers if name == framing.SCHEMA_ID_HEADERS[field]]
    try:
        schema_id, _ = framing.decode(named[-1] or b"" if named else data)
    except SchemaFramingError:
        return None
    if not named and (schema_id.id is None or schema_id.id < 0):
        return None
    return schema_id


def _schema_name(record: FetchedRecord, field: RecordField) -> str:
    schema_id = _schema_id(record, field)
    assert schema_id is not None
    return f"schema id {schema_id.id}" if schema_id.guid is None else f"schema GUID {schema_id.guid}"
