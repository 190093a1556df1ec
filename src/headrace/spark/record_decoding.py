"""Decodes keys and values that have a format, on an executor.

    key, value, headers of a batch → SchemaDecoder → Arrow columns → arrow_types.conform → columns for Spark
                                                   ↘ records that cannot be decoded: on.bad.record

A worker process keeps its decoders, with the schemas that they know, between tasks.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.client.schema_decoder import DecodedColumn, SchemaDecoder
from headrace.client.serde import RowCause, SerdeRowError
from headrace.client.typed_records import CORRUPT_TYPE, ERROR_CHARS_MAX, corrupt_column
from headrace.config.serde_options import CORRUPT, BadRecords
from headrace.spark.arrow_types import arrow_type, conform_rows
from headrace.spark.errors import BadRecordError
from headrace.spark.format_options import when_available
from headrace.spark.source_options import SourceOptions
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.schema.types import RecordField
    from headrace.spark.planning import OffsetRange
    from headrace.spark.read_columns import ReadColumns, TypedColumn

log = logging.getLogger("headrace")

DECODERS_MAX = 32
"""Decoders that a process keeps; beyond that, all are made anew."""

_decoders: dict[bytes, SchemaDecoder] = {}  # Guarded by _lock.
_lock = threading.Lock()


def _kept_decoder(options: SourceOptions, column: TypedColumn, topic: str) -> SchemaDecoder:
    """Return the decoder of this process for a column of a topic."""
    assert options.formats is not None
    schema = column.schema(topic)
    registry = sorted(options.formats.registry_options.items())
    key = pickle.dumps((os.getpid(), registry, column.settings, column.fields, topic, schema))
    with _lock:
        if key not in _decoders:
            if len(_decoders) >= DECODERS_MAX:
                _decoders.clear()
            _decoders[key] = SchemaDecoder(
                options.formats.registry(), column.settings, columns=column.fields, pinned={topic: schema}
            )
        return _decoders[key]


class RecordDecoding:
    """Decodes the records of one task."""

    def __init__(self, options: SourceOptions, columns: ReadColumns, whole: OffsetRange) -> None:
        self._options = options
        self._whole = whole
        self._name = TopicPartition(whole.topic, whole.partition)
        self._decoders = {name: _kept_decoder(options, column, whole.topic) for name, column in columns.typed.items()}
        self.types: dict[str, pa.DataType] = {CORRUPT: CORRUPT_TYPE}
        self.types |= {name: arrow_type(column.type) for name, column in columns.typed.items()}
        self._bad_count = 0
        self._first_bad = ""

    def decode(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the typed columns; with on.bad.record=corrupt-column, also `_corrupt`.

        Raises OverflowError if the columns would be too large: pass fewer rows, down to one.
        """
        decoded: dict[str, pa.Array] = {}
        errors: dict[int, str] = {}
        for name, decoder in self._decoders.items():
            column, row_errors = self._column(name, decoder, rows)
            decoded[name] = column
            for error in row_errors:
                self._refuse(name, error, rows)
                text = f"{name}: {error.text}"[:ERROR_CHARS_MAX]
                errors[error.row] = f"{errors[error.row]}; {text}" if error.row in errors else text
        if self._options.on_bad_record is BadRecords.CORRUPT_COLUMN:
            decoded[CORRUPT] = corrupt_column(rows, errors)
        self._bad_count += len(errors)
        return decoded

    def log_bad_records(self) -> None:
        """Log how many records of the task could not be decoded."""
        if self._bad_count:
            log.warning(
                "%s: %d records could not be decoded, and are null (on.bad.record is %s); the first: %s",
                self._whole,
                self._bad_count,
                self._options.on_bad_record.value,
                self._first_bad,
            )

    def _column(
        self, name: RecordField, decoder: SchemaDecoder, rows: pa.RecordBatch
    ) -> tuple[pa.Array, Sequence[SerdeRowError]]:
        try:
            decoded = self._decoded(name, decoder, rows)
        except OverflowError as error:
            if rows.num_rows > 1:
                raise
            text = f"the decoded {name} is too large: {error}"
            return pa.nulls(1, self.types[name]), [SerdeRowError(0, RowCause.INVALID_DATA, None, text)]
        column, out_of_range = conform_rows(decoded.column, self.types[name])
        errors = decoded.errors + [
            SerdeRowError(row, RowCause.INVALID_DATA, None, "a time or number is out of the range of Spark's type")
            for row in out_of_range
        ]
        return column, errors

    def _decoded(self, name: RecordField, decoder: SchemaDecoder, rows: pa.RecordBatch) -> DecodedColumn:
        offset = rows.column("offset")[0].as_py()
        return when_available(
            lambda: decoder.decode(self._whole.topic, rows.column(name), rows.column("headers")),
            self._options.poll_timeout_ms,
            f"the schema of a {name} of {self._name}, from offset {offset} (kafkaConsumer.pollTimeoutMs)",
        )

    def _refuse(self, name: str, error: SerdeRowError, rows: pa.RecordBatch) -> None:
        """Raise if a record that cannot be decoded ends the query."""
        if self._first_bad and self._options.on_bad_record is not BadRecords.FAIL:
            return
        offset = rows.column("offset")[error.row].as_py()
        self._first_bad = (
            f"{self._name}, offset {offset}: its {name} cannot be decoded ({error.cause.value}): "
            f"{error.text[:ERROR_CHARS_MAX]}"
        )
        if self._options.on_bad_record is BadRecords.FAIL:
            raise BadRecordError(
                f"{self._first_bad}. To go on without such records, set on.bad.record to null or corrupt-column"
            )
