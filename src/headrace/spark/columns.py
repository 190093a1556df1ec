"""Converts the rows of a DataFrame to the columns that are sent, topic by topic.

    columns of a DataFrame → (interceptors → serializers or formats → partitioner) → for each topic: the columns to send
                           ↘ rows that can never be sent → dead letters, or an error

Plug-ins run on whole columns if they have one of these methods, else on one record at a time:

    Serializer.serialize_column(topic, column) → binary column, or None for "row by row"
    ProducerInterceptor.on_send_columns(topic, columns) → columns
    Partitioner.partition_column(topic, columns, partition_count) → int32 column, or None for "row by row"
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.producer.column_serializers import is_text_or_bytes
from headrace.spark.decisions import Fingerprint
from headrace.spark.errors import BadRowError, PlanError
from headrace.spark.plugin_columns import Columns, PluginColumns, Refuse
from headrace.spark.read_columns import SchemasByField
from headrace.spark.row_text import plain, row_texts
from headrace.spark.sink_options import DEAD_LETTER, SinkOptions
from headrace.wire.columns import HEADERS_TYPE, hash_rows
from headrace.wire.layout import HEADER_BYTES, RECORD_OVERHEAD_BYTES_MAX

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ROLES = ("key", "value", "headers", "topic", "partition", "timestamp")
TEXT = ("string", "binary")
HEADERS_SPARK = "array<struct<key:string,value:binary>>"
ALLOWED: dict[str, tuple[str, ...]] = {
    "key": TEXT,
    "value": TEXT,
    "headers": (HEADERS_SPARK,),
    "topic": TEXT,
    "partition": ("int",),
    "timestamp": ("timestamp", "bigint"),
}
"""Spark's names of the types that each column may have."""
DEAD_VALUE_BYTES_MAX = 64 * 1024
"""A value that is too large to be sent is cut to this in its dead letter."""
EXAMPLES_MAX = 3
HEADER_OVERHEAD_BYTES_MAX = 10
"""The lengths of key and value of a header."""
LOOK_UP_SECONDS_MIN = 5.0
"""Time between two lookups of a partition that does not exist, for one task and topic."""


class Sending(NamedTuple):
    """Rows to one topic."""

    topic: str
    columns: pa.RecordBatch


class BadRows(NamedTuple):
    """Rows of a batch that can never be sent, and why."""

    rows: pa.Array  # indexes in the batch, int64
    reason: str
    topic: str | None


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raise PlanError if these columns cannot be written."""
    types: dict[str, str] = {}
    if options.origins is not None:
        options.origins.check(schema)
    for column in schema.fields:
        role = column.name.lower()
        if role in ROLES and not _is_origin(column.name, options):
            if role in types:
                raise PlanError(
                    f"there are two columns {role!r}: column names are not case-sensitive; rename or drop one"
                )
            types[role] = column.dataType.simpleString()
    columns = ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in schema.fields) or "none"
    if "value" not in types:
        raise PlanError(f"there is no column 'value', which a record needs; the columns are: {columns}")
    if "topic" not in types and options.topic is None:
        raise PlanError(
            f"no topic to write to: set the option 'topic', or add a column 'topic'; the columns are: {columns}"
        )
    for role, kind in types.items():
        if kind == "void" or (role in ("key", "value") and f"{role}.serializer" in options.kafka):
            continue
        if options.formats is not None and role in options.formats.settings:
            continue  # the schema says which types it may have
        if kind not in ALLOWED[role]:
            remedy = f", or set {role}.format or kafka.{role}.serializer" if role in ("key", "value") else ""
            raise PlanError(
                f"column {role!r} is {kind}; it may be {' or '.join(ALLOWED[role])}: cast it (CAST({role} AS "
                f"{ALLOWED[role][0].upper()}){remedy})"
            )


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest record, and the partitions of the topics."""

    record_bytes_max: int
    partition_counts: Mapping[str, int]
    """By topic, as of planning, or up to metadata.max.age.ms before."""
    schemas: SchemasByField = field(default_factory=dict)
    """Of the option `topic`, for keys and values with a format."""


class ColumnPlan:
    """Prepares the batches of one task."""

    def __init__(self, options: SinkOptions, limits: Limits, where: str, count_partitions: CountPartitions) -> None:
        self._options = options
        self._limits = limits
        self._where = where  # batch and task, for errors
        self._count_partitions = count_partitions
        self._counts = dict(limits.partition_counts)
        self._looked_up_at: dict[str, float] = {}  # by topic, monotonic seconds: last lookup of an unknown partition
        self._first_row = 0
        self._plugins = None
        encoding = None
        if options.formats is not None:
            from headrace.spark.record_encoding import RecordEncoding  # imports the registry's client

            encoding = RecordEncoding(options.formats, limits.schemas, options.resolved().of(int, "max.block.ms"))
        if encoding is not None or any(name in options.kafka for name in PLUGIN_OPTIONS):
            self._plugins = PluginColumns(options, encoding)
        self.bad_count = 0
        self.fingerprint = Fingerprint()

    def prepare(self, batch: pa.RecordBatch) -> Iterator[Sending]:
        """Yield what is to be sent, topic by topic, rows in order; dead letters last."""
        columns = _by_role(batch, self._options)
        dead: list[pa.RecordBatch] = []
        for topic, part, numbers in self._by_topic(columns, dead):
            for ready in self._ready(topic, part, numbers, dead):
                yield Sending(topic, ready)
        self._first_row += batch.num_rows
        for letters in dead:
            assert self._options.dead_letter_topic is not None
            self.bad_count += letters.num_rows
            yield Sending(self._options.dead_letter_topic, letters)

    def close(self) -> None:
        if self._plugins is not None:
            self._plugins.close()

    def _by_topic(self, columns: Columns, dead: list[pa.RecordBatch]) -> Iterator[tuple[str, Columns, pa.Array | None]]:
        """Yield topic, rows, and the indexes of the rows in the batch (None: all of them)."""
        topics = columns.pop("topic", None)
        if self._options.topic is not None:
            self._add_to_fingerprint(self._options.topic, columns)
            yield self._options.topic, columns, None
            return
        assert topics is not None
        for topic in pc.unique(topics).to_pylist():
            mask = pc.is_null(topics) if topic is None else pc.fill_null(pc.equal(topics, topic), False)
            numbers = pc.indices_nonzero(mask).cast(pa.int64())
            whole = len(numbers) == len(topics)
            part = columns if whole else {role: column.take(numbers) for role, column in columns.items()}
            self._add_to_fingerprint(topic or "", part)
            if topic:
                yield topic, part, None if whole else numbers
            else:
                what = "its topic is null" if topic is None else "its topic is empty"
                self._refuse(BadRows(numbers, f"{what}, and the option 'topic' is not set", None), part, None, dead)

    def _add_to_fingerprint(self, topic: str, columns: Columns) -> None:
        """Add rows to the fingerprint as they come from Spark.

        What is sent may differ in a replay of the same rows: a plug-in adds the time or encrypts, the cause of dead
        letters is fixed, or the schema has a new version.
        """
        if not self._options.is_exactly_once:
            return
        formats = () if self._options.formats is None else self._options.formats.settings
        key, value = (
            _to_bytes(columns[role], has_format=role in formats) if role in columns else None
            for role in ("key", "value")
        )
        assert value is not None
        self.fingerprint += Fingerprint(len(value), hash_rows(topic, value, key=key, headers=columns.get("headers")))

    def _ready(
        self, topic: str, columns: Columns, numbers: pa.Array | None, dead: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        if self._plugins is not None:
            columns, numbers = self._plugins.apply(
                topic, columns, numbers, partial(self._count, topic), self._refuser(topic, dead)
            )
        columns, numbers = self._without_bad(topic, columns, numbers, dead)
        if len(columns["value"]):
            yield pa.RecordBatch.from_pydict(columns)

    def _count(self, topic: str, highest: int | None = None) -> int:
        """Return the number of partitions of a topic; look it up if it is unknown, or not above `highest`."""
        if topic not in self._counts:
            self._counts[topic] = self._count_partitions(topic, None)
        if highest is not None and highest >= self._counts[topic]:
            now = time.monotonic()
            if now - self._looked_up_at.get(topic, -math.inf) >= LOOK_UP_SECONDS_MIN:
                self._looked_up_at[topic] = now
                self._counts[topic] = self._count_partitions(topic, highest)
        return self._counts[topic]

    def _refuser(self, topic: str, dead: list[pa.RecordBatch]) -> Refuse:
        def refuse(numbers: pa.Array, reason: str, columns: Columns) -> None:
            self._refuse(BadRows(numbers, reason, topic), columns, None, dead)

        return refuse

    def _without_bad(
        self, topic: str, columns: Columns, numbers: pa.Array | None, dead: list[pa.RecordBatch]
    ) -> tuple[Columns, pa.Array | None]:
        for find in (
            partial(_too_large, bytes_max=self._limits.record_bytes_max),
            partial(_wrong_partition, count=partial(self._count, topic)),
        ):
            problem = find(columns)
            if problem is None:
                continue
            mask, reason = problem
            bad = pc.indices_nonzero(mask).cast(pa.int64())
            self._refuse(BadRows(bad if numbers is None else numbers.take(bad), reason, topic), columns, bad, dead)
            good = pc.indices_nonzero(pc.invert(mask)).cast(pa.int64())
            columns = {role: column.take(good) for role, column in columns.items()}
            numbers = good if numbers is None else numbers.take(good)
        return columns, numbers

    def _refuse(self, bad: BadRows, columns: Columns, indexes: pa.Array | None, dead: list[pa.RecordBatch]) -> None:
        if self._options.on_bad_row == DEAD_LETTER:
            part = columns if indexes is None else {role: column.take(indexes) for role, column in columns.items()}
            dead.append(_dead_letters(bad, part, self._limits, self._where, self._first_row))
            return
        examples = ", ".join(str(self._first_row + n) for n in bad.rows.slice(0, EXAMPLES_MAX).to_pylist())
        raise BadRowError(
            f"{self._where}, row {examples}{', …' if len(bad.rows) > EXAMPLES_MAX else ''}"
            f"{'' if bad.topic is None else f' to topic {bad.topic!r}'}: {bad.reason}. "
            f"{'Nothing of the batch is visible. ' if self._options.is_exactly_once else ''}"
            "Fix or filter such rows, or set on.bad.row=dead-letter and dead.letter.topic"
        )


CountPartitions = Callable[[str, int | None], int]
"""(topic, highest partition of a row or None) → number of partitions; from new metadata if that is not enough."""
PLUGIN_OPTIONS = ("key.serializer", "value.serializer", "interceptor.classes", "partitioner.class")


def _is_origin(name: str, options: SinkOptions) -> bool:
    return options.origins is not None and name in options.origins.names


def _by_role(batch: pa.RecordBatch, options: SinkOptions) -> Columns:
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        role = name.lower()
        is_written = role in ROLES and not _is_origin(name, options)
        if is_written and (role != "headers" or options.include_headers):
            columns[role] = column
    topics = columns.get("topic")
    if topics is not None and not pa.types.is_string(topics.type):
        columns["topic"] = topics.cast(pa.string())
    return columns


def _to_bytes(column: pa.Array, *, has_format: bool) -> pa.Array:
    """Return the column if it is binary or text, else each value as bytes, for the hash.

    The bytes of columns without a format have to stay as they are: the hash is in decisions.
    """
    kind = column.type
    if kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string(), pa.null()):
        return column
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    if has_format:
        from headrace.spark.record_encoding import row_bytes

        if (rows := row_bytes(column)) is not None:
            return rows
    try:
        values = column.to_pylist()
    except (OverflowError, ValueError):  # such as a date after the year 9999
        values = list(map(plain, column))
    return pa.array([None if value is None else repr(value) for value in values], pa.string())


def _too_large(columns: Columns, bytes_max: int) -> tuple[pa.Array, str] | None:
    limit = bytes_max - HEADER_BYTES - RECORD_OVERHEAD_BYTES_MAX
    parts = [columns[role] for role in ("key", "value", "headers") if role in columns]
    if sum(part.nbytes for part in parts) <= limit:
        return None
    sizes = _sizes(columns["value"])
    if "key" in columns:
        sizes = pc.add(sizes, _sizes(columns["key"]))
    if "headers" in columns:
        sizes = pc.add(sizes, _header_sizes(columns["headers"]))
    mask = pc.greater(sizes, limit)
    largest = pc.max(sizes).as_py()
    if largest is None or largest <= limit:
        return None
    return mask, (
        f"it has {largest} bytes of key, value and headers, but kafka.max.request.size is {bytes_max}, which includes "
        "the overhead of a request"
    )


def _sizes(column: pa.Array) -> pa.Array:
    if pa.types.is_null(column.type):
        return pa.repeat(pa.scalar(0, pa.int64()), len(column))
    return pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0)


def _header_sizes(column: pa.Array) -> pa.Array:
    """Return an upper bound of the bytes of the headers of each row."""
    if pa.types.is_null(column.type):
        return pa.repeat(pa.scalar(0, pa.int64()), len(column))
    items = column.values
    sizes = pc.add(pc.add(_sizes(items.field("key")), _sizes(items.field("value"))), HEADER_OVERHEAD_BYTES_MAX)
    totals = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])  # of the headers before each
    offsets = column.offsets
    rows = pc.subtract(totals.take(offsets.slice(1)), totals.take(offsets.slice(0, len(column))))
    return pc.if_else(column.is_valid(), rows, 0)


def _wrong_partition(columns: Columns, count: Callable[[int], int]) -> tuple[pa.Array, str] | None:
    column = columns.get("partition")
    if column is None or pa.types.is_null(column.type):
        return None
    ends = pc.min_max(column).as_py()
    if ends["min"] is None:
        return None
    partitions = count(ends["max"])
    if ends["min"] >= 0 and ends["max"] < partitions:
        return None
    mask = pc.or_(pc.less(column, 0), pc.greater_equal(column, partitions))
    wrong = ends["min"] if ends["min"] < 0 else ends["max"]
    return pc.fill_null(mask, False), f"its partition is {wrong}, but the topic has partitions 0 to {partitions - 1}"


def _dead_letters(bad: BadRows, columns: Columns, limits: Limits, where: str, first_row: int) -> pa.RecordBatch:
    """Return bad rows as records: key and value, cut if they are too large, and the reason in the headers."""
    headers = []
    kept = columns.get("headers")
    numbers = bad.rows.to_pylist()
    room = max(0, limits.record_bytes_max // 2)
    originals = kept.to_pylist() if kept is not None and pa.types.is_list(kept.type) else [None] * len(numbers)
    for number, own in zip(numbers, originals, strict=True):
        more = [("headrace.error", bad.reason), ("headrace.where", f"{where}, row {first_row + number}")]
        if bad.topic is not None:
            more.append(("headrace.topic", bad.topic))
        size = sum(len(header["key"]) + len(header["value"] or b"") for header in own or ())
        row = list(own or ()) if size < room // 2 else []
        headers.append(row + [{"key": name, "value": text.encode()} for name, text in more])
    letters: dict[str, Any] = {
        role: _cut(columns[role], min(room // 2, DEAD_VALUE_BYTES_MAX), room)
        for role in ("key", "value")
        if role in columns
    }
    letters["headers"] = pa.array(headers, HEADERS_TYPE)
    return pa.RecordBatch.from_pydict(letters)


def _cut(column: pa.Array, cut_bytes: int, bytes_max: int) -> pa.Array:
    """Cut values that are too large. Values that are not bytes become text, structs and lists JSON."""
    if pa.types.is_null(column.type):
        return column
    if not is_text_or_bytes(column.type):
        texts = row_texts(column)
        return pa.array([None if text is None else text[:cut_bytes].encode() for text in texts], pa.binary())
    if (pc.max(_sizes(column)).as_py() or 0) < bytes_max // 2:
        return column.cast(pa.binary())
    values = column.cast(pa.binary()).to_pylist()
    return pa.array(
        [value if value is None or len(value) < bytes_max // 2 else value[:cut_bytes] for value in values], pa.binary()
    )
