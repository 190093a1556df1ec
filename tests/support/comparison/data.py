"""Requests about topics, records and offsets."""

from __future__ import annotations

from typing import Any

from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer, encode
from tests.support.comparison.comparing import ID_OF_NOBODY, NOBODY, TIME, RequestCase, World

BATCHES = range(3, 100)
"""Apache Kafka 4 advertises older versions for librdkafka (KAFKA-18659), and closes the connection on them."""

CASES = {
    "metadata of two topics": RequestCase(
        "Metadata",
        lambda w: {
            "topics": [{"name": w.topic}, {"name": NOBODY}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
        range(4, 100),
    ),
    "metadata of no topic": RequestCase("Metadata", lambda w: {"topics": []}, range(1, 100)),
    "metadata by id": RequestCase(
        "Metadata",
        lambda w: {
            "allow_auto_topic_creation": False,
            "topics": [{"name": None, "topic_id": w.topic_id}, {"name": None, "topic_id": ID_OF_NOBODY}],
        },
        range(12, 100),
    ),
    "metadata of a bad name": RequestCase("Metadata", lambda w: {"topics": [{"name": "no/name"}]}),
    "described partitions": RequestCase(
        "DescribeTopicPartitions",
        lambda w: {"topics": [{"name": w.topic}, {"name": NOBODY}], "response_partition_limit": 100},
    ),
    "described partitions, one at a time": RequestCase(
        "DescribeTopicPartitions", lambda w: {"topics": [{"name": w.topic}], "response_partition_limit": 1}
    ),
    "described partitions from a cursor on": RequestCase(
        "DescribeTopicPartitions",
        lambda w: {"topics": [{"name": w.topic}], "cursor": {"topic_name": w.topic, "partition_index": 1}},
    ),
    "offsets of ends": RequestCase("ListOffsets", lambda w: offsets(w.topic, *((n, -1, -1) for n in (0, 1, 7)))),
    "offsets by time": RequestCase("ListOffsets", lambda w: offsets(w.topic, (0, TIME + 5, 0), isolation=1)),
    "offsets of nobody": RequestCase("ListOffsets", lambda w: offsets(NOBODY, (0, -2, 0))),
    "offsets of an epoch to come": RequestCase("ListOffsets", lambda w: offsets(w.topic, (0, -1, 5)), range(4, 100)),
    "offsets of an open transaction": RequestCase("ListOffsets", lambda w: offsets(w.topic, (1, -1, -1), isolation=1)),
    "the offset with the highest time": RequestCase(
        "ListOffsets", lambda w: offsets(w.topic, (0, -3, -1)), range(7, 100)
    ),
    "the end of an epoch": RequestCase("OffsetForLeaderEpoch", lambda w: epoch_ends(w.topic, 0)),
    "the end of an epoch to come": RequestCase("OffsetForLeaderEpoch", lambda w: epoch_ends(w.topic, 9)),
    "the end of nobody's epoch": RequestCase("OffsetForLeaderEpoch", lambda w: epoch_ends(NOBODY, 0)),
    "fetched records": RequestCase("Fetch", lambda w: fetch(w, 0, 0)),
    "fetched from the middle": RequestCase("Fetch", lambda w: fetch(w, 0, 7)),
    "fetched at the end": RequestCase("Fetch", lambda w: fetch(w, 0, 10)),
    "fetched past the end": RequestCase("Fetch", lambda w: fetch(w, 0, 11)),
    "fetched from a partition that is not there": RequestCase("Fetch", lambda w: fetch(w, 9, 0)),
    "fetched with an epoch to come": RequestCase(
        "Fetch", lambda w: fetch(w, 0, 0, current_leader_epoch=3), range(9, 100)
    ),
    "fetched of an open transaction": RequestCase("Fetch", lambda w: fetch(w, 1, 0, isolation_level=1)),
    "fetched by an unknown session": RequestCase(
        "Fetch", lambda w: fetch(w, 0, 0, session_id=77, session_epoch=5), range(7, 100)
    ),
    "records with a bad checksum": RequestCase("Produce", lambda w: produce(w, broken(batch())), BATCHES),
    "records for a partition that is not there": RequestCase(
        "Produce", lambda w: produce(w, batch(), partition=9), BATCHES
    ),
    "records with acks that do not exist": RequestCase("Produce", lambda w: produce(w, batch(), acks=7), BATCHES),
    "records that are none": RequestCase("Produce", lambda w: produce(w, b""), BATCHES),
    "records that are too short": RequestCase("Produce", lambda w: produce(w, batch()[:40]), BATCHES),
    "records with a sequence out of order": RequestCase(
        "Produce", lambda w: produce(w, batch(BatchProducer(w.producer_id, 0, 55, False))), BATCHES
    ),
    "records of a transaction without its name": RequestCase(
        "Produce", lambda w: produce(w, batch(BatchProducer(w.producer_id, 0, 0, True))), BATCHES
    ),
    "records of nobody's transaction": RequestCase(
        "Produce",
        lambda w: produce(w, batch(BatchProducer(w.producer_id, 0, 0, True)), transactional_id=NOBODY),
        BATCHES,
    ),
    "records for the broker's own topic": RequestCase(
        "Produce", lambda w: produce(w, batch(), topic="__consumer_offsets"), range(3, 13)
    ),
}


def offsets(topic: str, *requested: tuple[int, int, int], isolation: int = 0) -> dict[str, Any]:
    """Each row is a partition, a timestamp (negative: an end), and the current leader epoch."""
    names = ("partition_index", "timestamp", "current_leader_epoch")
    partitions = [dict(zip(names, values, strict=True)) for values in requested]
    return {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": topic, "partitions": partitions}]}


def epoch_ends(topic: str, epoch: int) -> dict[str, Any]:
    partition = {"partition": 0, "leader_epoch": epoch, "current_leader_epoch": -1}
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}


def fetch(
    world: World, partition: int, offset: int, *, current_leader_epoch: int = -1, **fields: Any
) -> dict[str, Any]:
    fetch_partition = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": 1_000_000,
        "current_leader_epoch": current_leader_epoch,
    }
    topic = {"topic": world.topic, "topic_id": world.topic_id, "partitions": [fetch_partition]}
    return {"max_wait_ms": 10, "min_bytes": 1, "topics": [topic], **fields}


def batch(producer: BatchProducer | None = None) -> bytes:
    records = [Record(0, TIME, b"key", b"value", ())]
    return bytes(encode(records) if producer is None else encode(records, producer=producer))


def broken(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def produce(
    world: World,
    data: bytes,
    *,
    topic: str | None = None,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
) -> dict[str, Any]:
    topic_fields = {"name": topic or world.topic, "topic_id": world.topic_id}
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": 5000,
        "topic_data": [{**topic_fields, "partition_data": [{"partition_index": partition, "records": data}]}],
    }
