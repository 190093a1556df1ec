"""Raw requests for known broker bugs, on Apache Kafka and on the headrace broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.errors import Code
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from headrace.wire.api.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponsePartition,
)
from headrace.wire.api.metadata import ApiVersionsRequest, MetadataRequest
from headrace.wire.api.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection, batches_of
from tests.support.raw_producer import RawProducer, plain_batch
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

SEQUENCE_MAX = 2**31 - 1
LATEST = -1


@pytest.fixture
def link(either: Broker) -> Iterator[Connection]:
    with Connection(either.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(either: Broker) -> str:
    return new_topic(either, "checks")


@pytest.fixture
def idempotent(link: Connection, topic: str) -> RawProducer:
    producer = RawProducer(link, topic)
    assert producer.init().error_code == 0
    return producer


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def producer(request: pytest.FixtureRequest, link: Connection, topic: str) -> RawProducer:
    """Return a transactional producer, for both transaction versions."""
    producer = RawProducer(link, topic, unique("checks"), transactions=request.param)
    assert producer.init().error_code == 0
    return producer


def begin(producer: RawProducer, *partitions: int) -> None:
    """The first version has to announce what it will write to."""
    if producer.transactions == 1:
        assert producer.add(*(partitions or (0,))) == [0] * max(1, len(partitions))


def written(producer: RawProducer, sequence: int, *values: bytes) -> int:
    """Return the base offset of a batch that must be accepted."""
    partition_data = producer.write(sequence, *values)
    assert partition_data.error_code == 0, partition_data
    return partition_data.base_offset


def values(partition_data: PartitionData) -> list[bytes | None]:
    return [r.value for batch in batches_of(partition_data) if not batch.header.is_control for r in batch.records()]


def stable_end(link: Connection, topic: str) -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1,
        topics=[ListOffsetsTopic(name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)])],
    )
    response = link.call(request, 7)
    ((row,),) = (row.partitions for row in response.topics)
    assert row.error_code == 0
    return row.offset


def until_stable(link: Connection, topic: str, offset: int) -> None:
    eventually(f"a last stable offset of {offset}", lambda: stable_end(link, topic) == offset)


def raw_fetch(link: Connection, topic: str, offset: int, bytes_max: int) -> PartitionData:
    fetch_row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=bytes_max,
        topics=[FetchTopic(topic=topic, partitions=[fetch_row])],
    )
    response = link.call(request, 12)
    ((partition_data,),) = (topic_response.partitions for topic_response in response.responses)
    return partition_data


def test_a_retry_of_any_of_the_last_five_batches_gets_the_first_offset(idempotent: RawProducer) -> None:
    offsets = [written(idempotent, 2 * n, b"a", b"b") for n in range(7)]

    assert offsets == [0, 2, 4, 6, 8, 10, 12]
    assert [written(idempotent, 2 * n, b"a", b"b") for n in range(2, 7)] == offsets[2:]
    assert idempotent.write(0, b"a", b"b").error_code in (
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.DUPLICATE_SEQUENCE_NUMBER,
    )
    assert written(idempotent, 14, b"next") == 14


def test_a_gap_is_out_of_order_and_the_sequence_may_wrap(idempotent: RawProducer) -> None:
    written(idempotent, SEQUENCE_MAX - 2, b"a", b"b")  # a producer that is not known yet may begin anywhere

    assert idempotent.write(0, b"too far").error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert written(idempotent, SEQUENCE_MAX, b"c", b"has the sequence 0") == 2
    assert written(idempotent, 1, b"d") == 4
    assert idempotent.write(3, b"gap").error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_begins_at_zero_and_the_old_one_is_refused(idempotent: RawProducer) -> None:
    written(idempotent, 0, b"a")

    assert idempotent.write(1, b"b", epoch=1).error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert idempotent.write(0, b"c", epoch=1).error_code == 0
    assert idempotent.write(1, b"d", epoch=0).error_code == Code.INVALID_PRODUCER_EPOCH


def test_the_last_stable_offset_is_the_first_of_an_open_transaction(
    link: Connection, topic: str, producer: RawProducer
) -> None:
    link.produce(topic, plain_batch(b"plain"))
    begin(producer)
    assert written(producer, 0, b"one", b"two") == 1
    link.produce(topic, plain_batch(b"after"))

    assert stable_end(link, topic) == 1
    partition_data = link.fetch(topic, committed=True)
    assert (partition_data.last_stable_offset, partition_data.high_watermark) == (1, 4)
    assert values(partition_data) == [b"plain"]

    assert producer.end(True).error_code == 0
    until_stable(link, topic, 5)
    partition_data = link.fetch(topic, committed=True)
    assert values(partition_data) == [b"plain", b"one", b"two", b"after"]
    assert not partition_data.aborted_transactions


def test_aborted_transactions_are_listed_for_read_committed_fetches_only(
    link: Connection, topic: str, producer: RawProducer
) -> None:
    begin(producer)
    assert written(producer, 0, b"a", b"b") == 0
    link.produce(topic, plain_batch(b"between"))
    assert written(producer, 2, b"c") == 3
    producer_id = producer.producer_id
    assert producer.end(False).error_code == 0
    until_stable(link, topic, 5)

    assert values(link.fetch(topic)) == [b"a", b"b", b"between", b"c"]
    for offset in range(4):  # the whole transaction, for any fetch offset in it
        partition_data = link.fetch(topic, offset=offset, committed=True)
        assert [(a.producer_id, a.first_offset) for a in partition_data.aborted_transactions or ()] == [
            (producer_id, 0)
        ]
    partition_data = link.fetch(topic, offset=4, committed=True)
    (marker,) = batches_of(partition_data)
    assert marker.header.is_control


def test_the_aborted_list_holds_across_segments(either: Broker, link: Connection) -> None:
    topic = new_topic(either, "segments", segment_bytes=1024 * 1024)
    producer = RawProducer(link, topic, unique("segments"))
    assert producer.init().error_code == 0
    identities = []
    for _ in range(3):  # each of them reaches over a segment's end
        identities.append((producer.producer_id, written(producer, 0, b"x" * 600_000)))
        written(producer, 1, b"y" * 600_000)
        assert producer.end(False).error_code == 0
    written(producer, 0, b"kept")
    assert producer.end(True).error_code == 0
    until_stable(link, topic, 11)

    base_offsets = []
    offset = 0
    seen: set[tuple[int, int]] = set()
    while offset < 11:
        partition_data = link.fetch(topic, offset=offset, committed=True)
        seen |= {(a.producer_id, a.first_offset) for a in partition_data.aborted_transactions or ()}
        part = batches_of(partition_data)
        base_offsets += [b.header.base_offset for b in part if not b.header.is_control]
        offset = part[-1].header.last_offset + 1
    assert seen == set(identities)
    assert base_offsets == [0, 1, 3, 4, 6, 7, 9]


def test_a_plain_write_inside_an_open_transaction_is_refused(producer: RawProducer) -> None:
    begin(producer)
    written(producer, 0, b"a")

    assert producer.write(1, b"b", transactional=False).error_code == Code.INVALID_TXN_STATE
    written(producer, 1, b"c")
    assert producer.end(True).error_code == 0


def test_a_late_end_of_one_transaction_does_not_touch_the_next(link: Connection, topic: str) -> None:
    producer = RawProducer(link, topic, unique("late"))
    producer.init()
    written(producer, 0, b"first")
    first_epoch = producer.epoch
    assert producer.end(True).error_code == 0
    written(producer, 0, b"second")

    late = producer.end(False, epoch=first_epoch, patient=False)

    assert late.error_code != 0
    assert producer.end(True).error_code == 0
    until_stable(link, topic, 4)
    assert values(link.fetch(topic, committed=True)) == [b"first", b"second"]


def test_a_retried_end_gets_the_same_response(link: Connection, topic: str) -> None:
    producer = RawProducer(link, topic, unique("retried"))
    producer.init()
    written(producer, 0, b"a")
    epoch = producer.epoch
    first = producer.end(True)
    again = producer.end(True, epoch=epoch)

    assert (first.error_code, again.error_code) == (0, 0)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, first.producer_epoch)


def test_a_late_write_of_an_ended_transaction_is_refused_and_leaves_nothing_open(
    link: Connection, topic: str, producer: RawProducer
) -> None:
    begin(producer)
    written(producer, 0, b"a")
    late = producer.batch(1, b"late")
    assert producer.end(False).error_code == 0
    until_stable(link, topic, 2)

    assert producer.send(late, 0, patient=False).error_code != 0
    assert stable_end(link, topic) == 2


def test_a_second_client_with_the_same_id_fences_the_first(link: Connection, topic: str, producer: RawProducer) -> None:
    begin(producer)
    written(producer, 0, b"a")
    second = RawProducer(link, topic, producer.transactional_id, transactions=producer.transactions)

    assert second.init().error_code == 0

    assert second.epoch > producer.epoch
    until_stable(link, topic, 2)
    aborted = link.fetch(topic, committed=True).aborted_transactions or ()
    assert [a.first_offset for a in aborted] == [0]
    assert producer.write(1, b"b", patient=False).error_code == Code.INVALID_PRODUCER_EPOCH
    fenced = producer.end(True, patient=False).error_code
    assert fenced in (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH)
    begin(second)
    written(second, 0, b"c")
    assert second.end(True).error_code == 0


def test_a_transaction_that_takes_too_long_is_aborted(link: Connection, topic: str) -> None:
    producer = RawProducer(link, topic, unique("slow"))
    assert producer.init(timeout_ms=1).error_code == 0
    written(producer, 0, b"a")

    until_stable(link, topic, 2)
    partition_data = link.fetch(topic, committed=True)
    assert [a.first_offset for a in partition_data.aborted_transactions or ()] == [0]
    assert producer.end(True, patient=False).error_code != 0


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60 * 1000 + 1])
def test_a_timeout_out_of_bounds_is_refused(link: Connection, topic: str, timeout_ms: int) -> None:
    producer = RawProducer(link, topic, unique("timeout"))
    assert producer.init(timeout_ms=timeout_ms).error_code == Code.INVALID_TRANSACTION_TIMEOUT


def fetched_offset(link: Connection, group: str, topic: str, stable: bool) -> OffsetFetchResponsePartition:
    request = OffsetFetchRequest(
        group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[0])], require_stable=stable
    )
    response = link.call(request, 7)
    ((row,),) = (row.partitions for row in response.topics)
    return row


def test_offsets_of_a_transaction_are_seen_when_it_is_committed(
    link: Connection, topic: str, producer: RawProducer
) -> None:
    group = unique("group")
    begin(producer)
    written(producer, 0, b"a")
    assert producer.commit_offsets(group, 41) == 0

    assert fetched_offset(link, group, topic, stable=False).committed_offset == -1
    assert fetched_offset(link, group, topic, stable=True).error_code == Code.UNSTABLE_OFFSET_COMMIT

    assert producer.end(True).error_code == 0
    eventually("the offset", lambda: fetched_offset(link, group, topic, stable=True).committed_offset == 41)

    begin(producer)
    assert producer.commit_offsets(group, 99) == 0
    assert producer.end(False).error_code == 0
    eventually("the end", lambda: fetched_offset(link, group, topic, stable=True).error_code == 0)
    assert fetched_offset(link, group, topic, stable=True).committed_offset == 41


def test_offset_commits_of_an_unknown_member_are_refused(producer: RawProducer) -> None:
    begin(producer)
    assert producer.commit_offsets(unique("group"), 1, generation=5, member="nobody") in (
        Code.ILLEGAL_GENERATION,
        Code.UNKNOWN_MEMBER_ID,
    )


def test_a_fetch_returns_whole_batches_also_from_an_offset_inside_a_batch(link: Connection, topic: str) -> None:
    for _ in range(3):
        link.produce(topic, plain_batch(*[b"x" * 1000] * 10))

    assert [b.header.base_offset for b in batches_of(raw_fetch(link, topic, 0, bytes_max=100))] == [0]
    assert [b.header.base_offset for b in batches_of(raw_fetch(link, topic, 15, bytes_max=100))] == [10]
    assert [b.header.base_offset for b in batches_of(raw_fetch(link, topic, 15, bytes_max=1 << 20))] == [10, 20]
    assert raw_fetch(link, topic, 30, bytes_max=100).error_code == 0
    assert raw_fetch(link, topic, 31, bytes_max=100).error_code == Code.OFFSET_OUT_OF_RANGE
    assert raw_fetch(link, topic, -5, bytes_max=100).error_code == Code.OFFSET_OUT_OF_RANGE


def test_a_compacted_topic_refuses_records_without_a_key(either: Broker, link: Connection) -> None:
    topic = new_topic(either, "compacted", cleanup_policy="compact")

    assert link.produce(topic, plain_batch(b"no key")).error_code == Code.INVALID_RECORD


def test_acks_0_gets_no_response_and_responses_keep_the_request_order(link: Connection, topic: str) -> None:
    records = [PartitionProduceData(partition_index=0, records=plain_batch(b"silent"))]
    silent = ProduceRequest(acks=0, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=records)])
    first = link.send(silent, 9)
    wait = FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)
    requests = [
        (link.send(ApiVersionsRequest(), 0), 18, 0),
        (
            link.send(
                FetchRequest(max_wait_ms=300, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[wait])]), 11
            ),
            1,
            11,
        ),
        (link.send(MetadataRequest(topics=None), 1), 3, 1),
        (link.send(ApiVersionsRequest(), 0), 18, 0),
    ]

    responses = [link.receive(key, version)[0] for _, key, version in requests]

    assert first not in responses
    assert responses == [correlation_id for correlation_id, _, _ in requests]
    assert values(link.fetch(topic)) == [b"silent"]


def test_invalid_acks_are_refused(link: Connection, topic: str) -> None:
    records = [PartitionProduceData(partition_index=0, records=plain_batch(b"x"))]
    request = ProduceRequest(acks=2, timeout_ms=1000, topic_data=[TopicProduceData(name=topic, partition_data=records)])
    response = link.call(request, 9)
    assert response.responses[0].partition_responses[0].error_code == Code.INVALID_REQUIRED_ACKS
