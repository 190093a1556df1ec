"""The Spark source without Spark: driver and executor calls of a query, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from headrace.client.admin import AdminClient
from headrace.spark.planning import OffsetRange
from headrace.spark.source import BatchReader, StreamReader
from headrace.spark.source_options import schema
from headrace.types import TopicPartition
from headrace.wire.layout import Record
from tests.support.peers.broker import Broker
from tests.support.waiting import eventually

ALL_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
TIME_MS = 1_700_000_000_000


def options_of(broker: Broker, topic: str | None, **options: object) -> dict[str, str]:
    """Return options as a user sets them; `kafka_group_id` sets kafka.group.id, and so on."""
    given = {"kafka.bootstrap.servers": broker.bootstrap}
    if topic is not None:
        given["subscribe"] = topic
    for name, value in options.items():
        given[name.replace("_", ".")] = str(value).lower() if isinstance(value, bool) else str(value)
    return given


def batch_reader(
    broker: Broker, topic: str | None, columns: Sequence[str] = ALL_COLUMNS, **options: object
) -> BatchReader:
    return BatchReader(options_of(broker, topic, **options), schema(columns))


def stream_reader(
    broker: Broker, topic: str | None, columns: Sequence[str] = ALL_COLUMNS, **options: object
) -> StreamReader:
    return StreamReader(options_of(broker, topic, **options), schema(columns))


def ranges_of(reader: BatchReader) -> list[OffsetRange]:
    """Return the range of each task of a batch."""
    return [partition.value for partition in reader.partitions()]


def read_all(reader: BatchReader) -> list[dict[str, Any]]:
    """Return the rows of a batch, task by task."""
    return rows_of(batch for partition in reader.partitions() for batch in reader.read(partition))


def read_between(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a micro-batch."""
    return rows_of(batch for partition in reader.partitions(start, end) for batch in reader.read(partition))


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def values_of(rows: Iterable[dict[str, Any]]) -> list[bytes | None]:
    return [row["value"] for row in rows]


def records(count: int, start: int = 0) -> list[Record]:
    """Return records whose value, time and key are made from their number."""
    return [Record(n, TIME_MS + n * 1000, b"k%d" % (n % 7), b"row %d" % n, ()) for n in range(start, start + count)]


def numbered(numbers: Iterable[int]) -> list[bytes]:
    """Return the values of `records`."""
    return [b"row %d" % n for n in numbers]


def delete_before(broker: Broker, topic: str, offset: int, partition: int = 0) -> None:
    """Delete the records before an offset."""
    with AdminClient(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition(topic, partition): offset})


def delete_topic(broker: Broker, topic: str) -> None:
    with AdminClient(broker.bootstrap) as admin:
        admin.delete_topics([topic])


def topic_id(broker: Broker, topic: str) -> str:
    """Return the topic id, as the source formats it."""
    with AdminClient(broker.bootstrap) as admin:
        return str(admin.describe_topics([topic])[topic].topic_id)


def recreate_topic(broker: Broker, topic: str, partitions: int = 1) -> tuple[str, str]:
    """Delete a topic, create it again, and return the old and the new topic id."""
    old = topic_id(broker, topic)
    delete_topic(broker, topic)
    with AdminClient(broker.bootstrap) as admin:
        eventually("the topic is deleted", lambda: topic not in admin.list_topics())
    broker.create_topic(topic, partitions)
    return old, topic_id(broker, topic)


def grow_topic(broker: Broker, topic: str, partitions: int) -> None:
    with AdminClient(broker.bootstrap) as admin:
        admin.create_partitions({topic: partitions})
