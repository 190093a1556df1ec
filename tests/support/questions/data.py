"""Questions about topics, records and where they lie."""

from __future__ import annotations

from typing import Any

from headrace.wire.layout import Record
from headrace.wire.records import BatchProducer, encode
from tests.support.questions.asking import ID_OF_NOBODY, NOBODY, TIME, Question, World

BATCHES = range(3, 100)
"""Apache Kafka 4 says that it has older versions, for a client that looks for them, and hangs up."""

QUESTIONS = {
    "metadata of two topics": Question(
        "Metadata",
        lambda w: {
            "topics": [{"name": w.topic}, {"name": NOBODY}],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": True,
            "include_cluster_authorized_operations": True,
        },
        range(4, 100),
    ),
    "metadata of no topic": Question("Metadata", lambda w: {"topics": []}, range(1, 100)),
    "metadata by id": Question(
        "Metadata",
        lambda w: {
            "allow_auto_topic_creation": False,
            "topics": [{"name": None, "topic_id": w.topic_id}, {"name": None, "topic_id": ID_OF_NOBODY}],
        },
        range(12, 100),
    ),
    "metadata of a bad name": Question("Metadata", lambda w: {"topics": [{"name": "no/name"}]}),
    "described partitions": Question(
        "DescribeTopicPartitions",
        lambda w: {"topics": [{"name": w.topic}, {"name": NOBODY}], "response_partition_limit": 100},
    ),
    "described partitions, one at a time": Question(
        "DescribeTopicPartitions", lambda w: {"topics": [{"name": w.topic}], "response_partition_limit": 1}
    ),
    "described partitions from a cursor on": Question(
        "DescribeTopicPartitions",
        lambda w: {"topics": [{"name": w.topic}], "cursor": {"topic_name": w.topic, "partition_index": 1}},
    ),
    "offsets of ends": Question("ListOffsets", lambda w: offsets(w.topic, *((n, -1, -1) for n in (0, 1, 7)))),
    "offsets by time": Question("ListOffsets", lambda w: offsets(w.topic, (0, TIME + 5, 0), isolation=1)),
    "offsets of nobody": Question("ListOffsets", lambda w: offsets(NOBODY, (0, -2, 0))),
    "offsets of an epoch to come": Question("ListOffsets", lambda w: offsets(w.topic, (0, -1, 5)), range(4, 100)),
    "offsets of an open transaction": Question("ListOffsets", lambda w: offsets(w.topic, (1, -1, -1), isolation=1)),
    "the offset with the highest time": Question("ListOffsets", lambda w: offsets(w.topic, (0, -3, -1)), range(7, 100)),
    "the end of an epoch": Question("OffsetForLeaderEpoch", lambda w: epoch_ends(w.topic, 0)),
    "the end of an epoch to come": Question("OffsetForLeaderEpoch", lambda w: epoch_ends(w.topic, 9)),
    "the end of nobody's epoch": Question("OffsetForLeaderEpoch", lambda w: epoch_ends(NOBODY, 0)),
    "fetched records": Question("Fetch", lambda w: fetch(w, 0, 0)),
    "fetched from the middle": Question("Fetch", lambda w: fetch(w, 0, 7)),
    "fetched at the end": Question("Fetch", lambda w: fetch(w, 0, 10)),
    "fetched past the end": Question("Fetch", lambda w: fetch(w, 0, 11)),
    "fetched from a partition that is not there": Question("Fetch", lambda w: fetch(w, 9, 0)),
    "fetched with an epoch to come": Question("Fetch", lambda w: fetch(w, 0, 0, current_leader_epoch=3), range(9, 100)),
    "fetched of an open transaction": Question("Fetch", lambda w: fetch(w, 1, 0, isolation_level=1)),
    "fetched by an unknown session": Question(
        "Fetch", lambda w: fetch(w, 0, 0, session_id=77, session_epoch=5), range(7, 100)
    ),
    "records with a bad checksum": Question("Produce", lambda w: produce(w, broken(batch())), BATCHES),
    "records for a partition that is not there": Question(
        "Produce", lambda w: produce(w, batch(), partition=9), BATCHES
    ),
    "records with acks that do not exist": Question("Produce", lambda w: produce(w, batch(), acks=7), BATCHES),
    "records that are none": Question("Produce", lambda w: produce(w, b""), BATCHES),
    "records that are too short": Question("Produce", lambda w: produce(w, batch()[:40]), BATCHES),
    "records with a sequence out of order": Question(
        "Produce", lambda w: produce(w, batch(BatchProducer(w.producer_id, 0, 55, False))), BATCHES
    ),
    "records of a transaction without its name": Question(
        "Produce", lambda w: produce(w, batch(BatchProducer(w.producer_id, 0, 0, True))), BATCHES
    ),
    "records of nobody's transaction": Question(
        "Produce",
        lambda w: produce(w, batch(BatchProducer(w.producer_id, 0, 0, True)), transactional_id=NOBODY),
        BATCHES,
    ),
    "records for the broker's own topic": Question(
        "Produce", lambda w: produce(w, batch(), topic="__consumer_offsets"), range(3, 13)
    ),
}


def offsets(topic: str, *requested: tuple[int, int, int], isolation: int = 0) -> dict[str, Any]:
    """Each is a partition, a time (or -1 and so on for an end), and the epoch that its leader is thought to have."""
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
