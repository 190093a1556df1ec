"""Interceptors, serializers and the partitioner of `kafka.*`, run over columns.

    on_send → serialize → partition, as in the producer's `send`; whole columns where the plug-in can, else row by row

In the sink they run on the executors, before rows are sorted into transactions: what they do is part of the batch. How
a row ended is not reported back to interceptors (`on_acknowledgement`): a batch ends as a whole, on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from headrace.producer import interceptors, partitioners, serializers
from headrace.producer.plugins import PluginLoader
from headrace.producer.records import ProducerRecord, checked_headers
from headrace.spark.errors import SinkError
from headrace.spark.sink_options import SinkOptions
from headrace.wire.columns import HEADERS_TYPE

log = logging.getLogger("headrace.spark")

Columns = dict[str, pa.Array]
Refuse = Callable[[pa.Array, str, Columns], None]
_AS_THEY_ARE = (serializers.BytesSerializer, serializers.StrSerializer)


class PluginColumns:
    """The plug-ins of one task."""

    def __init__(self, options: SinkOptions) -> None:
        config = options.plugin_config()
        self._loader = PluginLoader(config)
        load = self._loader.load
        self._serializers = {
            role: load(f"{role}.serializer", config[f"{role}.serializer"], serializers.KIND, is_key=role == "key")
            for role in ("key", "value")
        }
        self._interceptors = [
            load("interceptor.classes", given, interceptors.KIND) for given in config.of(tuple, "interceptor.classes")
        ]
        given = config["partitioner.class"]
        self._partitioner = None if given is None else load("partitioner.class", given, partitioners.KIND)

    def close(self) -> None:
        self._loader.close()

    def apply(
        self, topic: str, columns: Columns, numbers: pa.Array | None, count: Callable[[], int], refuse: Refuse
    ) -> tuple[Columns, pa.Array | None]:
        """The columns to send, and which rows of the batch they are; rows that a serializer refuses go to `refuse`."""
        for one in self._interceptors:
            columns = _intercept(one, topic, columns)
        before = columns  # partitioners see the values, too
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
        for role, serializer in self._serializers.items():
            column = columns.get(role)
            if column is None or (type(serializer) in _AS_THEY_ARE and _is_bytes(column.type)):
                continue  # text is UTF-8 in Arrow already
            whole = getattr(serializer, "serialize_column", None)
            if whole is not None:
                done[role] = whole(topic, column)
                continue
            if added is None:
                added = [[] for _ in range(rows)]
            done[role] = _by_row(serializer, topic, column, added, bad)
        if added is not None and any(added):
            done["headers"] = _with_headers(done.get("headers"), added)
        if not bad:
            return done, numbers, before
        places = pa.array(sorted(bad), pa.int64())
        for place in places.to_pylist():
            here = pa.array([place], pa.int64())
            refuse(here if numbers is None else numbers.take(here), bad[place], _take(columns, here))
        good = pa.array([place for place in range(rows) if place not in bad], pa.int64())
        return _take(done, good), good if numbers is None else numbers.take(good), _take(before, good)

    # -- the partitioner -------------------------------------------------------------------------

    def _partition(self, topic: str, columns: Columns, before: Columns, count: int) -> Columns:
        partitioner = self._partitioner
        assert partitioner is not None
        whole = getattr(partitioner, "partition_column", None)
        if whole is not None:
            chosen = whole(topic, pa.RecordBatch.from_pydict(columns), count)
        else:
            view = _Partitions(count)
            rows = len(columns["value"])
            nulls: list[Any] = [None] * rows
            lists = [
                found[role].to_pylist() if role in found else nulls
                for role, found in (("key", before), ("key", columns), ("value", before), ("value", columns))
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


class _Partitions:
    """All that a partitioner can be told of the cluster on an executor: partitions by number, all of them there."""

    def __init__(self, count: int) -> None:
        self._all = range(count)

    def partitions_for(self, topic: str) -> Sequence[int]:
        return self._all

    available_partitions_for = partitions_for


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_null(kind))


def _take(columns: Columns, places: pa.Array) -> Columns:
    return {role: column.take(places) for role, column in columns.items()}


def _by_row(
    serializer: serializers.Serializer,
    topic: str,
    column: pa.Array,
    added: list[list[tuple[str, bytes | None]]],
    bad: dict[int, str],
) -> pa.Array:
    out: list[bytes | None] = []
    for place, value in enumerate(column.to_pylist()):
        try:
            out.append(serializer.serialize(topic, value, added[place]))
        except Exception as error:  # it is the user's code: it may raise anything
            bad[place] = f"its serializer failed: {error}"
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
    """What an interceptor makes of the rows. One that fails is passed over, as in the producer."""
    whole = getattr(interceptor, "on_send_columns", None)
    if whole is not None:
        try:
            changed = whole(topic, pa.RecordBatch.from_pydict(columns))
        except Exception:
            log.exception("an interceptor failed: %r", interceptor)
            return columns
        if not isinstance(changed, pa.RecordBatch) or changed.num_rows != len(columns["value"]):
            raise SinkError(f"{interceptor!r} must give back a RecordBatch with as many rows as it was given")
        return dict(zip(changed.schema.names, changed.columns, strict=True))
    return _intercept_rows(interceptor, topic, columns)


def _intercept_rows(interceptor: interceptors.ProducerInterceptor, topic: str, columns: Columns) -> Columns:
    rows: list[ProducerRecord] = []
    for row in pa.RecordBatch.from_pydict(columns).to_pylist():
        headers = [(one["key"], one["value"]) for one in row.get("headers") or ()]
        stamp = row.get("timestamp")
        stamp_ms = stamp if stamp is None or isinstance(stamp, int) else int(stamp.timestamp() * 1000)
        record = ProducerRecord(topic, row["value"], row.get("key"), row.get("partition"), stamp_ms, headers)
        try:
            changed = interceptor.on_send(record)
        except Exception:
            log.exception("an interceptor failed: %r", interceptor)
            changed = record
        if changed.topic != topic:
            raise SinkError(f"{interceptor!r} sent a row to topic {changed.topic!r}: rows keep their topic in the sink")
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
    """The same type, if the values still are; else what they are now."""
    if column is not None:
        try:
            return pa.array(values, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            pass
    return pa.array(values)
