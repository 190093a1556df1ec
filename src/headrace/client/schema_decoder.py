"""Keys or values that name their schema, decoded to Arrow columns.

    values → schema ids → registry → ColumnDecoder of each writer's schema → one column of the reader's type

If all values of a batch have the same schema id, as usual, they are decoded where they are. Otherwise the rows are
grouped by schema (with Protobuf also by message type), decoded group by group, and put into order again.

A row that cannot be decoded is null, with an error. Only what concerns all rows is an exception: a reader's schema that
is missing or invalid, and a registry that is unavailable or refuses access. Schemas that were used before need no
registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.caches import LruCache
from headrace.client.serde import RowCause, SerdeRowError, SerdeSettings, TopicSchema, TopicSchemas
from headrace.config.clock import SYSTEM_CLOCK, Clock
from headrace.errors import (
    ConfigError,
    RegistryError,
    SchemaDeletedError,
    SchemaError,
    SchemaFramingError,
    SchemaNotFoundError,
)
from headrace.schema import framing
from headrace.schema.codec import ColumnDecoder, ParsedSchema
from headrace.schema.formats import parse
from headrace.schema.types import Schema, SchemaFormat

if TYPE_CHECKING:
    from headrace.client.registry import SchemaRegistryClient

DECODERS_MAX = 1_000
UNKNOWN_IDS_MAX = 10_000
"""Unknown ids that are remembered."""
UNKNOWN_TTL_MS = 10_000
"""How long an unknown id is not requested again: registries may learn of a schema with a delay."""
UNKNOWN_PER_BATCH_MAX = 1_000
"""Requests for unknown ids in a batch. The rows of further ids that were never seen before are errors."""


class DecodedColumn(NamedTuple):
    """A decoded column, and the rows that could not be decoded, which are null in it."""

    column: pa.Array
    errors: list[SerdeRowError]


class DecodedObjects(NamedTuple):
    """Decoded Python objects, such as dicts, and the rows that could not be decoded, which are None."""

    objects: list[Any]
    errors: list[SerdeRowError]


class _Frame(NamedTuple):
    """What a value says about its schema."""

    schema_id: int | UUID
    message_indexes: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"schema {'GUID' if isinstance(self.schema_id, UUID) else 'id'} {self.schema_id}"


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why the values of a schema cannot be decoded."""

    cause: RowCause
    text: str


class _Group(NamedTuple):
    """Rows of a batch with the same schema; values from byte `skip` on. Without a frame: nulls and errors."""

    frame: _Frame | None
    rows: pa.Array | None
    """None: all rows of the batch."""
    values: pa.Array
    skip: int


@dataclass(slots=True)
class _Errors:
    """The errors of a batch."""

    rows: list[SerdeRowError] = field(default_factory=list)
    unknown_ids: int = 0
    """Ids that were requested, and that the registry does not have."""

    def in_order(self) -> list[SerdeRowError]:
        return sorted(self.rows, key=lambda error: error.row)


class SchemaDecoder:
    """Decodes the keys or values of topics. Threads may share it.

    `columns` names the fields to decode (`a.b` for a field inside a field). `pinned` has readers' schemas by topic, as
    `topic_schema` returned them. The reader's schema of a topic is determined once, so its type does not change.
    """

    def __init__(
        self,
        registry: SchemaRegistryClient,
        settings: SerdeSettings,
        *,
        columns: Iterable[str] | None = None,
        pinned: Mapping[str, TopicSchema] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings
        self._registry = registry
        self._schemas = TopicSchemas(registry, settings)
        self._columns = None if columns is None else tuple(columns)
        self._clock = clock
        self._pinned = dict(pinned or {})  # Entries are only added.
        self._readers = LruCache[str, ParsedSchema](DECODERS_MAX)
        self._decoders = LruCache[tuple[str, _Frame], "ColumnDecoder | _Failure"](DECODERS_MAX)
        # With the time until which it holds.
        self._unknown = LruCache[int | UUID, tuple[float, _Failure]](UNKNOWN_IDS_MAX)

    # -- the reader's schema -----------------------------------------------------------------------

    def topic_schema(self, topic: str) -> TopicSchema:
        """Return the reader's schema of a topic. It can be pickled, and passed to other decoders as `pinned`."""
        if topic not in self._pinned:
            self._pinned[topic] = self._find_schema(topic)
        return self._pinned[topic]

    def arrow_type(self, topic: str) -> pa.DataType:
        """Return the type of the columns that `decode` returns for a topic."""
        return self._reader(topic).arrow_type(self._columns, self.settings.record_name)

    def _find_schema(self, topic: str) -> TopicSchema:
        reader = self.settings.reader
        if reader is None:
            raise ConfigError(
                f"no reader's schema for topic {topic!r}: set reader.schema to latest, a version or a schema's text"
            )
        if isinstance(reader, Schema):
            return TopicSchema(self._schemas.complete(reader))
        return self._schemas.version(topic, reader)

    def _reader(self, topic: str) -> ParsedSchema:
        reader = self._readers.get(topic)
        return reader or self._readers.put(topic, self.topic_schema(topic).parsed())

    def _has_reader(self, topic: str) -> bool:
        return self.settings.reader is not None or topic in self._pinned

    # -- batches -------------------------------------------------------------------------------------

    def decode(self, topic: str, values: pa.Array, headers: pa.Array | None = None) -> DecodedColumn:
        """Decode a binary column to the reader's type.

        `headers` are the records' headers (a list of structs with key and value), for values whose schema id is in a
        header. Without a reader's schema, all values must have the same Arrow type, else a SchemaError is raised.
        """
        errors = _Errors()
        pieces: list[tuple[pa.Array, pa.Array | None]] = []
        for group in self._groups(values, headers, errors):
            column = self._decode_group(topic, group, errors)
            if group.rows is None:
                return DecodedColumn(self._nulls(topic, len(values)) if column is None else column, errors.rows)
            pieces.append((group.rows, column))
        return DecodedColumn(self._assemble(topic, pieces), errors.in_order())

    def decode_objects(self, topic: str, values: pa.Array, headers: pa.Array | None = None) -> DecodedObjects:
        """Decode a binary column to Python objects. Without a reader's schema, their types may differ."""
        errors = _Errors()
        objects: list[Any] = [None] * len(values)
        for group in self._groups(values, headers, errors):
            column = self._decode_group(topic, group, errors)
            if column is None:
                continue
            if group.rows is None:
                return DecodedObjects(column.to_pylist(), errors.rows)
            for row, decoded in zip(group.rows.to_pylist(), column.to_pylist(), strict=True):
                objects[row] = decoded
        return DecodedObjects(objects, errors.in_order())

    def _decode_group(self, topic: str, group: _Group, errors: _Errors) -> pa.Array | None:
        """Return the decoded rows of a group; None if none can be decoded."""
        frame = group.frame
        if frame is None:
            return None
        decoder = self._decoder(topic, frame, errors)
        rows = group.rows
        if isinstance(decoder, _Failure):
            failed = range(len(group.values)) if rows is None else rows.to_pylist()
            valid = group.values.is_valid().to_pylist()
            errors.rows.extend(
                SerdeRowError(row, decoder.cause, frame.schema_id, decoder.text)
                for row, is_valid in zip(failed, valid, strict=True)
                if is_valid
            )
            return None
        column, row_errors = decoder.decode(group.values, group.skip)
        for error in row_errors:
            row = error.row if rows is None else rows[error.row].as_py()
            errors.rows.append(SerdeRowError(row, RowCause.INVALID_DATA, frame.schema_id, f"{frame}: {error.text}"))
        return column

    def _assemble(self, topic: str, pieces: Sequence[tuple[pa.Array, pa.Array | None]]) -> pa.Array:
        """Return the decoded pieces in the order of their rows; null for rows that were not decoded."""
        types = {column.type for _, column in pieces if column is not None}
        if len(types) > 1:
            shown = " and ".join(sorted(map(str, types)))
            raise SchemaError(
                f"values of topic {topic!r} have several types: {shown[:500]}; set reader.schema to convert them to one"
            )
        null_type = types.pop() if types else None
        columns = [self._nulls(topic, len(rows), null_type) if column is None else column for rows, column in pieces]
        if not columns:
            return self._nulls(topic, 0)
        order = pa.concat_arrays([rows for rows, _ in pieces])
        try:
            column = pa.concat_arrays(columns)
        except pa.ArrowInvalid as error:
            raise OverflowError(f"the decoded column is too large: {error}; pass fewer rows") from error
        return column.take(pc.sort_indices(order))

    def _nulls(self, topic: str, count: int, data_type: pa.DataType | None = None) -> pa.Array:
        """Return nulls as decoders return them: the columns inside have values where they are not nullable."""
        if self._has_reader(topic):
            reader = self._reader(topic)
            decoder = reader.decoder(
                reader,
                self._columns,
                message=self.settings.record_name,
                reader_message=self.settings.record_name,
            )
            return decoder.decode(pa.nulls(count, pa.binary()))[0]
        return pa.nulls(count, data_type)

    # -- schemas of writers --------------------------------------------------------------------------

    def _decoder(self, topic: str, frame: _Frame, errors: _Errors) -> ColumnDecoder | _Failure:
        key = (topic, frame)
        if (known := self._decoders.get(key)) is not None:
            return known
        unknown = self._unknown.get(frame.schema_id)
        if unknown is not None and self._clock.monotonic_ms() < unknown[0]:
            return unknown[1]
        if errors.unknown_ids >= UNKNOWN_PER_BATCH_MAX:
            return _Failure(
                RowCause.UNKNOWN_SCHEMA,
                f"{frame}: not requested, after {UNKNOWN_PER_BATCH_MAX:,} unknown schema ids in a batch of topic "
                f"{topic!r}: its {self.settings.field}s were probably not written with a schema registry's serializer",
            )
        reader = self._reader(topic) if self._has_reader(topic) else None
        try:
            writer = self._writer(topic, frame)
        except SchemaNotFoundError as error:
            errors.unknown_ids += 1
            is_deleted = isinstance(error, SchemaDeletedError)
            failure = _Failure(
                RowCause.DELETED_SCHEMA if is_deleted else RowCause.UNKNOWN_SCHEMA,
                f"{frame}: {error}; if it was written with another registry, change schema.registry.url",
            )
            self._unknown.put(frame.schema_id, (self._clock.monotonic_ms() + UNKNOWN_TTL_MS, failure))
            return failure
        except RegistryError:
            raise
        except SchemaError as error:
            return self._decoders.put(key, _Failure(RowCause.INVALID_SCHEMA, f"{frame}: {error}"))
        if isinstance(writer, _Failure):
            return self._decoders.put(key, writer)
        return self._decoders.put(key, self._resolved(frame, writer, reader))

    def _writer(self, topic: str, frame: _Frame) -> ParsedSchema | _Failure:
        schema_id = frame.schema_id
        pinned = self._pinned.get(topic)
        if pinned is not None and pinned.id == schema_id:  # a new process needs no registry for the usual records
            return self._reader(topic)
        if isinstance(schema_id, UUID):
            schema = self._registry.get_schema_by_guid(schema_id).schema
        elif schema_id < 0:
            raise SchemaNotFoundError("a negative number is not a schema id")
        else:
            schema = self._registry.get_schema(schema_id).schema
        if schema.format is not self.settings.format:
            return _Failure(
                RowCause.OTHER_FORMAT,
                f"{frame}: the schema's format is {schema.format.value.lower()}, {self.settings.field}.format is "
                f"{self.settings.format.value.lower()}",
            )
        return parse(self._schemas.complete(schema))

    def _resolved(self, frame: _Frame, writer: ParsedSchema, reader: ParsedSchema | None) -> ColumnDecoder | _Failure:
        try:
            message = None if frame.message_indexes is None else writer.message_at(frame.message_indexes)
        except SchemaError as error:
            return _Failure(RowCause.INVALID_SCHEMA, f"{frame}: {error}")
        try:
            return writer.decoder(reader, self._columns, message=message, reader_message=self.settings.record_name)
        except SchemaError as error:
            return _Failure(RowCause.INCOMPATIBLE_SCHEMA, f"{frame}: {error}")

    # -- groups of rows with the same schema -----------------------------------------------------------

    def _groups(self, values: pa.Array, headers: pa.Array | None, errors: _Errors) -> Iterator[_Group]:
        """Yield each row once, in groups of the same schema."""
        values = framing.binary_column(values)
        named = None if headers is None else _named_in_headers(headers, framing.SCHEMA_ID_HEADERS[self.settings.field])
        if named is None:
            if (common := self._common_frame(values)) is not None:
                yield _Group(common[0], None, values, common[1])
                return
            rows = pa.array(range(len(values)), pa.int64())
        else:
            in_headers, ids = named
            yield from self._groups_by_header(in_headers, ids, values, errors)
            rows = pc.indices_nonzero(pc.invert(pc.is_in(pa.array(range(len(values)), pa.int64()), in_headers)))
            values = values.take(rows)
        yield from self._groups_by_prefix(rows.cast(pa.int64()), values, errors)

    def _common_frame(self, values: pa.Array) -> tuple[_Frame, int] | None:
        """Return the frame that all values have, and its bytes; None if they differ or are invalid."""
        row = 0 if not values.null_count else pc.index(values.is_valid(), True).as_py()
        if not 0 <= row < len(values):
            return None
        first = values[row].as_buffer()
        try:
            schema_id, payload = framing.decode(first, with_message_indexes=self._has_message_indexes)
        except SchemaFramingError:
            return None
        if schema_id.id is None:
            return None
        size = len(first) - len(payload)
        prefix = first[:size].to_pybytes()
        if not pc.all(pc.starts_with(values, pattern=prefix), min_count=0).as_py():
            return None
        return _Frame(schema_id.id, schema_id.message_indexes), size

    def _groups_by_prefix(self, rows: pa.Array, values: pa.Array, errors: _Errors) -> Iterator[_Group]:
        ids, invalid, payload = framing.split_column(values)
        self._add_prefix_errors(rows, values, invalid, errors)
        codes = ids.dictionary_encode()
        numbers = codes.indices.cast(pa.int64())
        lists: list[tuple[int, ...] | None] = [None]
        if self._has_message_indexes:
            indexes, invalid_indexes, payload = framing.split_message_indexes(payload)
            self._add_prefix_errors(rows, values, invalid_indexes, errors)
            lists = [tuple(each) for each in indexes.dictionary.to_pylist()]
            numbers = pc.add(pc.multiply(numbers, max(1, len(lists))), indexes.indices.cast(pa.int64()))
        for number, members in _members(numbers):
            frame = None
            if number is not None:
                code, position = divmod(number, max(1, len(lists)))
                frame = _Frame(codes.dictionary[code].as_py(), lists[position])
            group = values.take(members)
            common = self._common_frame(group)
            if common is None:  # invalid, or message indexes that are written in two ways
                yield _Group(frame, rows.take(members), payload.take(members), 0)
            else:  # positions in errors count from the start of the value
                yield _Group(frame, rows.take(members), group, common[1])

    def _groups_by_header(self, rows: pa.Array, ids: pa.Array, values: pa.Array, errors: _Errors) -> Iterator[_Group]:
        codes = ids.dictionary_encode()
        for number, members in _members(codes.indices):
            header = b"" if number is None else codes.dictionary[number].as_py()
            frame, group = None, rows.take(members)
            try:
                schema_id, _ = framing.decode(header, with_message_indexes=self._has_message_indexes)
                known = schema_id.guid if schema_id.id is None else schema_id.id
                assert known is not None
                frame = _Frame(known, schema_id.message_indexes)
            except SchemaFramingError as error:
                name = framing.SCHEMA_ID_HEADERS[self.settings.field]
                written = group.filter(values.take(group).is_valid())  # tombstones need no schema
                errors.rows.extend(
                    SerdeRowError(row, RowCause.NO_SCHEMA_ID, None, f"header {name}: {error}")
                    for row in written.to_pylist()
                )
            yield _Group(frame, group, values.take(group), 0)

    @property
    def _has_message_indexes(self) -> bool:
        return self.settings.format is SchemaFormat.PROTOBUF

    def _add_prefix_errors(self, rows: pa.Array, values: pa.Array, invalid: pa.Array, errors: _Errors) -> None:
        for index in pc.indices_nonzero(invalid).to_pylist():
            value = values[index].as_buffer()
            try:
                framing.decode(value, with_message_indexes=self._has_message_indexes)
                problem = framing.prefix_problem(value)
            except SchemaFramingError as error:
                problem = str(error)
            errors.rows.append(SerdeRowError(rows[index].as_py(), RowCause.NO_SCHEMA_ID, None, problem))


def _members(numbers: pa.Array) -> Iterator[tuple[int | None, pa.Array]]:
    """Yield each distinct number with the indexes that have it; null last."""
    order = pc.sort_indices(numbers)
    start = 0
    counts = pc.value_counts(numbers.take(order))
    for entry in counts.to_pylist():
        yield entry["values"], order.slice(start, entry["counts"])
        start += entry["counts"]


def _named_in_headers(headers: pa.Array, name: str) -> tuple[pa.Array, pa.Array] | None:
    """Return the rows with a header of a name, and its last value in each; None if there are none."""
    entries = headers.flatten()
    is_named = pc.equal(pc.struct_field(entries, 0), name)
    if not pc.any(is_named, min_count=0).as_py():
        return None
    rows = pc.list_parent_indices(headers).filter(is_named).cast(pa.int64())
    ids = pc.struct_field(entries, 1).filter(is_named)
    if len(rows) > 1:
        is_last = pc.not_equal(rows[:-1], rows[1:])
        keep = pa.concat_arrays([is_last, pa.array([True])])
        rows, ids = rows.filter(keep), ids.filter(keep)
    return rows, framing.binary_column(ids)
