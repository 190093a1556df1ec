"""Runs interceptors, serializers and the partitioner of `kafka.*` on columns, and encodes those with a format.

    on_send → serialize, or encode → partition, as in the producer's `send`
    on whole columns if the plug-in can, else row by row

The built-in serializers and partitioners can, for columns of the types that they expect.

They run on the executors, before rows are sent. `on_acknowledgement` of interceptors is not called: the driver commits
a batch as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.client.plugins import PluginLoader
from headrace.producer import interceptors, partitioners, serializers
from headrace.producer.records import ProducerRecord, checked_headers
from headrace.spark.errors import SinkError
from headrace.spark.sink_options import SinkOptions
from headrace.wire.columns import HEADERS_TYPE

if TYPE_CHECKING:
    from headrace.spark.record_encoding import RecordEncoding

log = logging.getLogger("headrace.spark")

Columns = dict[str, pa.Array]
"""Columns by role: key, value, headers, partition, timestamp."""
Refuse = Callable[[pa.Array, str, Columns], None]
"""Called with the indexes of bad rows, the reason, and the rows."""


class PluginColumns:
    """The plug-ins of one task."""

    def __init__(self, options: SinkOptions, encoding: RecordEncoding | None = None) -> None:
        config = options.plugin_config()
        self._encoding = encoding
        encoded = () if encoding is None else encoding.roles
        self._loader = PluginLoader(config)
        load = self._loader.load
        self._serializers = {
            role: load(f"{role}.serializer", config[f"{role}.serializer"], serializers.KIND, is_key=role == "key")
            for role in ("key", "value")
            if role not in encoded
        }
        self._interceptors = [
            load("interceptor.classes", name, interceptors.KIND) for name in config.of(tuple, "interceptor.classes")
        ]
        name = config["partitioner.class"]
        self._partitioner = None if name is None else load("partitioner.class", name, partitioners.KIND)

    def close(self) -> None:
        self._loader.close()

    def apply(
        self, topic: str, columns: Columns, numbers: pa.Array | None, count: Callable[[], int], refuse: Refuse
    ) -> tuple[Columns, pa.Array | None]:
        """Return the columns to send and the indexes of their rows; rows that a serializer refuses go to `refuse`."""
        for interceptor in self._interceptors:
            columns = _intercept(interceptor, topic, columns)
        before = columns  # partitioners also get the values before serialization
        columns, numbers, before = self._serialize(topic, columns, numbers, before, refuse)
        if self._partitioner is not None and len(columns["value"]):
            columns = self._partition(topic, columns, before, count())
        return columns, numbers

    # -- serializers -----------------------------------------------------------------------------

    def _serialize(
        self, topic: str, columns: Columns, numbers: pa.Array | None, before: Columns, refuse: Refuse
    ) -> tuple[Columns, pa.Array | None, Columns]:
        rows = len(columns["value"])
        bad: dict[int, str] = {}
        done = dict(columns)
        added: list[list[tuple[str, bytes | None]]] | None = None
        if self._encoding is not None:
            for field in self._encoding.roles:
                if field in columns:
                    done[field] = self._encoding.encode(topic, field, columns[field], bad)
        for role, serializer in self._serializers.items():
            column = columns.get(role)
            if column is None:
                continue
            serialize = column_method(serializer, "serialize_column", "serialize")
            serialized = None if serialize is None else serialize(topic, column)
            if serialized is not None:
                done[role] = serialized
                continue
            if added is None:
                added = [[] for _ in range(rows)]
            done[role] = _by_row(serializer, topic, column, added, bad)
        if added is not None and any(added):
            done["headers"] = _with_headers(done.get("headers"), added)
        if not bad:
            return done, numbers, before
        for reason, indexes in _by_reason(bad).items():
            refuse(indexes if numbers is None else numbers.take(indexes), reason, _take(columns, indexes))
        good = pa.array([index for index in range(rows) if index not in bad], pa.int64())
        return _take(done, good), good if numbers is None else numbers.take(good), _take(before, good)

    # -- the partitioner -------------------------------------------------------------------------

    def _partition(self, topic: str, columns: Columns, before: Columns, count: int) -> Columns:
        partitioner = self._partitioner
        assert partitioner is not None
        choose = column_method(partitioner, "partition_column", "partition")
        chosen = None if choose is None else choose(topic, pa.RecordBatch.from_pydict(columns), count)
        if chosen is None:
            view = partitioners.AllAvailable(count)
            rows = len(columns["value"])
            nulls: list[Any] = [None] * rows
            serialized: Columns = {
                role: columns[role].cast(pa.binary()) for role in ("key", "value") if role in columns
            }
            lists = [
                values[role].to_pylist() if role in values else nulls
                for role, values in (("key", before), ("key", serialized), ("value", before), ("value", serialized))
            ]
            chosen = pa.array(
                [
                    partitioner.partition(topic, key, key_bytes, value, value_bytes, view)
                    for key, key_bytes, value, value_bytes in zip(*lists, strict=True)
                ],
                pa.int32(),
            )
        given = columns.get("partition")
        if given is not None and not pa.types.is_null(given.type):
            chosen = pa.compute.coalesce(given, chosen.cast(given.type))
        return {**columns, "partition": chosen}


def column_method(plugin: object, name: str, row_name: str) -> Callable[..., Any] | None:
    """Return the method of a plug-in for whole columns; None if it has none, or overrides only the one for rows.

    A subclass of a built-in serializer that overrides `serialize` has a `serialize_column` that does something else.
    """
    for namespace in (getattr(plugin, "__dict__", {}), *map(vars, type(plugin).__mro__)):
        if name in namespace:
            method: Callable[..., Any] | None = getattr(plugin, name)
            return method
        if row_name in namespace:
            return None
    return None


def _take(columns: Columns, indexes: pa.Array) -> Columns:
    return {role: column.take(indexes) for role, column in columns.items()}


def _by_reason(bad: dict[int, str]) -> dict[str, pa.Array]:
    """Return the indexes of bad rows by reason, in order of the first row of each."""
    indexes: dict[str, list[int]] = {}
    for index in sorted(bad):
        indexes.setdefault(bad[index], []).append(index)
    return {reason: pa.array(rows, pa.int64()) for reason, rows in indexes.items()}


def _by_row(
    serializer: serializers.Serializer,
    topic: str,
    column: pa.Array,
    added: list[list[tuple[str, bytes | None]]],
    bad: dict[int, str],
) -> pa.Array:
    out: list[bytes | None] = []
    for index, value in enumerate(column.to_pylist()):
        try:
            out.append(serializer.serialize(topic, value, added[index]))
        except Exception as error:  # user code may raise anything
            bad[index] = f"its serializer failed: {error}"
            out.append(None)
    return pa.array(out, pa.binary())


def _with_headers(column: pa.Array | None, added: list[list[tuple[str, bytes | None]]]) -> pa.Array:
    own = [None] * len(added) if column is None else column.to_pylist()
    rows = [
        list(old or ()) + [{"key": name, "value": value} for name, value in new]
        for old, new in zip(own, added, strict=True)
    ]
    return pa.array(rows, HEADERS_TYPE)


def _intercept(interceptor: interceptors.ProducerInterceptor, topic: str, columns: Columns) -> Columns:
    """Return the rows from an interceptor. A failing interceptor is skipped, as in the producer."""
    whole = column_method(interceptor, "on_send_columns", "on_send")
    if whole is not None:
        try:
            changed = whole(topic, pa.RecordBatch.from_pydict(columns))
        except Exception:
            log.exception("an interceptor failed: %r", interceptor)
            return columns
        if not isinstance(changed, pa.RecordBatch) or changed.num_rows != len(columns["value"]):
            raise SinkError(f"{interceptor!r} must return a RecordBatch with the same number of rows")
        return dict(zip(changed.schema.names, changed.columns, strict=True))
    return _intercept_rows(interceptor, topic, columns)


def _intercept_rows(interceptor: interceptors.ProducerInterceptor, topic: str, columns: Columns) -> Columns:
    rows: list[ProducerRecord] = []
    for row in pa.RecordBatch.from_pydict(columns).to_pylist():
        headers = [(header["key"], header["value"]) for header in row.get("headers") or ()]
        stamp = row.get("timestamp")
        stamp_ms = stamp if stamp is None or isinstance(stamp, int) else int(stamp.timestamp() * 1000)
        record = ProducerRecord(topic, row["value"], row.get("key"), row.get("partition"), stamp_ms, headers)
        try:
            changed = interceptor.on_send(record)
        except Exception:
            log.exception("an interceptor failed: %r", interceptor)
            changed = record
        if changed.topic != topic:
            raise SinkError(
                f"{interceptor!r} changed the topic of a row to {changed.topic!r}, which the sink does not support"
            )
        rows.append(changed)
    out: Columns = {
        "value": _like(columns["value"], [row.value for row in rows]),
        "timestamp": pa.array([row.timestamp_ms for row in rows], pa.int64()),
        "partition": pa.array([row.partition for row in rows], pa.int32()),
    }
    if "key" in columns or any(row.key is not None for row in rows):
        out["key"] = _like(columns.get("key"), [row.key for row in rows])
    if any(row.headers for row in rows):
        pairs = [[{"key": name, "value": value} for name, value in checked_headers(row.headers)] for row in rows]
        out["headers"] = pa.array(pairs, HEADERS_TYPE)
    return out


def _like(column: pa.Array | None, values: list[Any]) -> pa.Array:
    """Return the values with the type of the column if they fit, else with their own type."""
    if column is not None:
        try:
            return pa.array(values, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            pass
    return pa.array(values)
