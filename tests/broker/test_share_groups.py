"""Share groups over a socket: delivery, acknowledgement, locks, limits, sessions and restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Producer, ShareConsumer, ShareRecord
from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient
from headrace.client.admin.configs import ConfigResource, ResourceKind
from headrace.wire.api.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    ShareGroupHeartbeatRequest,
)
from tests.support.share_member import ACCEPT, REJECT, RELEASE, RENEW, ShareMember
from tests.support.topics import unique

LOCK_MS = 1_000
SECONDS_MAX = 20
OPTIONS = {
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.min.record.lock.duration.ms": LOCK_MS,
    "group.share.delivery.count.limit": 3,
    "group.share.assignment.interval.ms": 0,
}


@pytest.fixture(scope="module")
def share_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(num_partitions=1, config=OPTIONS) as running:
        yield running


def fill(broker: EmbeddedBroker, topic: str, count: int, first: int = 0) -> None:
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(first, first + count):
            producer.send(topic, str(number).encode())
        producer.flush()


def prepare(broker: EmbeddedBroker, count: int, partitions: int = 1) -> tuple[str, str]:
    """Return a topic with records, and a group that starts at its first record."""
    topic, group = broker.create_topic(unique("share"), partitions), unique("share-group")
    with AdminClient(broker.bootstrap) as admin:
        admin.alter_configs({ConfigResource(ResourceKind.GROUP, group): {"share.auto.offset.reset": "earliest"}})
    fill(broker, topic, count)
    return topic, group


def values(deliveries) -> list[int]:
    return [int(delivery.value) for delivery in deliveries]


def test_accepted_records_are_delivered_once(share_broker):
    topic, group = prepare(share_broker, 10)
    member = ShareMember(share_broker.bootstrap, group, topic).join()
    deliveries = member.fetch_until(10)
    assert values(deliveries) == list(range(10))
    assert {delivery.deliveries for delivery in deliveries} == {1}
    assert member.acknowledge(deliveries) == [0]
    assert member.fetch(wait_ms=LOCK_MS + 500) == []


def test_members_share_the_records_of_one_partition(share_broker):
    topic, group = prepare(share_broker, 0)
    members = [ShareMember(share_broker.bootstrap, group, topic).join() for _ in range(2)]
    for member in members:
        member.fetch(wait_ms=0)
    seen = []
    for number in range(6):
        fill(share_broker, topic, 1, first=number)
        seen.append(members[number % 2].fetch_until(1))
    assert [values(row) for row in seen] == [[number] for number in range(6)]


def test_a_released_record_comes_again_with_a_higher_count(share_broker):
    topic, group = prepare(share_broker, 3)
    member = ShareMember(share_broker.bootstrap, group, topic).join()
    deliveries = member.fetch_until(3)
    member.acknowledge(deliveries[1:2], RELEASE)
    member.acknowledge([deliveries[0], deliveries[2]], ACCEPT)
    again = member.fetch_until(1)
    assert [(int(row.value), row.deliveries) for row in again] == [(1, 2)]


def test_a_lock_that_ends_releases_its_record(share_broker):
    topic, group = prepare(share_broker, 1)
    first, second = (ShareMember(share_broker.bootstrap, group, topic).join() for _ in range(2))
    (delivery,) = first.fetch_until(1)
    (again,) = second.fetch_until(1)
    assert (again.offset, again.deliveries) == (delivery.offset, 2)
    assert first.acknowledge([delivery]) == [121]  # INVALID_RECORD_STATE
    assert second.acknowledge([again]) == [0]


def test_a_renewed_lock_lasts_longer(share_broker):
    topic, group = prepare(share_broker, 1)
    first, second = (ShareMember(share_broker.bootstrap, group, topic).join() for _ in range(2))
    (delivery,) = first.fetch_until(1)
    second.fetch(wait_ms=0)
    for _ in range(4):
        assert second.fetch(wait_ms=LOCK_MS // 2) == []
        assert first.acknowledge([delivery], RENEW) == [0]
    assert first.acknowledge([delivery]) == [0]


def test_a_record_at_the_delivery_limit_is_archived(share_broker):
    topic, group = prepare(share_broker, 1)
    member = ShareMember(share_broker.bootstrap, group, topic).join()
    counts = []
    for _ in range(3):
        (delivery,) = member.fetch_until(1)
        counts.append(delivery.deliveries)
        assert member.acknowledge([delivery], RELEASE) == [0]
    assert counts == [1, 2, 3]
    assert member.fetch(wait_ms=300) == []
    fill(share_broker, topic, 1, first=7)
    assert values(member.fetch_until(1)) == [7]


def test_a_rejected_record_does_not_come_again(share_broker):
    topic, group = prepare(share_broker, 2)
    member = ShareMember(share_broker.bootstrap, group, topic).join()
    deliveries = member.fetch_until(2)
    assert member.acknowledge(deliveries[:1], REJECT) == [0]
    assert member.acknowledge(deliveries[1:], RELEASE) == [0]
    assert values(member.fetch_until(1)) == [1]


def test_a_closed_connection_releases_its_records(share_broker):
    topic, group = prepare(share_broker, 5)
    dead = ShareMember(share_broker.bootstrap, group, topic).join()
    assert len(dead.fetch_until(5)) == 5
    dead.close()
    deliveries = ShareMember(share_broker.bootstrap, group, topic).join().fetch_until(5, seconds=LOCK_MS / 1000 * 0.9)
    assert {delivery.deliveries for delivery in deliveries} == {2}


def test_a_strict_fetch_gets_no_more_than_max_records(share_broker):
    topic, group = prepare(share_broker, 10)
    member = ShareMember(share_broker.bootstrap, group, topic).join()
    assert values(member.fetch(wait_ms=5_000, records_max=3, mode=1)) == [0, 1, 2]
    assert values(member.fetch(wait_ms=5_000, records_max=3, mode=1)) == [3, 4, 5]


def test_the_start_offset_and_lag_follow_acknowledgements(share_broker):
    topic, group = prepare(share_broker, 10)
    member = ShareMember(share_broker.bootstrap, group, topic).join()
    deliveries = member.fetch_until(10)
    member.acknowledge(deliveries[:4])
    member.acknowledge(deliveries[6:7])
    row = offsets_of(member)
    assert (row.start_offset, row.lag) == (4, 5)


def offsets_of(member):
    request = DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=member.group, topics=None)]
    )
    (described,) = member.connection.call(request, 1).groups
    assert not described.error_code, described
    ((row,),) = (topic.partitions for topic in described.topics)
    return row


@pytest.mark.behaviour("B19")
def test_state_survives_a_killed_broker(tmp_path: Path):
    broker = EmbeddedBroker(num_partitions=1, config=OPTIONS, data_dir=tmp_path)
    with broker:
        topic, group = prepare(broker, 10)
        member = ShareMember(broker.bootstrap, group, topic).join()
        deliveries = member.fetch_until(10)
        assert member.acknowledge([*deliveries[:3], deliveries[5]]) == [0]
        assert member.acknowledge(deliveries[7:8], RELEASE) == [0]
        broker.kill()
        broker.restart()
        member = ShareMember(broker.bootstrap, group, topic).join()
        again = member.fetch_until(6)
        assert sorted(values(again)) == [3, 4, 6, 7, 8, 9]
        assert {int(row.value): row.deliveries for row in again}[7] == 2


def test_aborted_records_are_not_delivered_with_read_committed(share_broker):
    topic, group = share_broker.create_topic(unique("share"), 1), unique("share-group")
    options = {"share.auto.offset.reset": "earliest", "share.isolation.level": "read_committed"}
    with AdminClient(share_broker.bootstrap) as admin:
        admin.alter_configs({ConfigResource(ResourceKind.GROUP, group): options})
    with Producer(bootstrap_servers=share_broker.bootstrap, transactional_id=unique("share")) as producer:
        producer.init_transactions()
        for number in range(6):
            producer.begin_transaction()
            producer.send(topic, str(number).encode())
            (producer.abort_transaction if number % 2 else producer.commit_transaction)()
        producer.begin_transaction()
        producer.send(topic, b"6")
        producer.flush()
        with ShareConsumer(bootstrap_servers=share_broker.bootstrap, group_id=group) as consumer:
            consumer.subscribe([topic])
            records: list[ShareRecord] = []
            deadline = time.monotonic() + SECONDS_MAX
            while len(records) < 3:
                assert time.monotonic() < deadline, records
                records += consumer.poll(1.0)
            assert [int(record.value) for record in records] == [0, 2, 4]
            assert consumer.poll(0.3) == []  # the last transaction is open
            producer.commit_transaction()
            assert [int(record.value) for record in consumer.poll(SECONDS_MAX)] == [6]
            consumer.commit_sync()
        member = ShareMember(share_broker.bootstrap, group, topic).join()
        assert offsets_of(member).lag == 0


def test_a_share_group_refuses_other_protocols(share_broker):
    topic, group = prepare(share_broker, 0)
    member = ShareMember(share_broker.bootstrap, group, topic).join()
    request = ShareGroupHeartbeatRequest(group_id=group, member_id="x", member_epoch=5)
    assert member.connection.call(request, 1).error_code == 25  # UNKNOWN_MEMBER_ID
