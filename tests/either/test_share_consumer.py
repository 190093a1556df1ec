"""headrace's share consumer, on the headrace broker and on Apache Kafka."""

from __future__ import annotations

import threading
import time

import pytest

from headrace import (
    AcknowledgeType,
    BrokerError,
    ConfigError,
    Consumer,
    DeserializationError,
    Deserializer,
    IllegalStateError,
    Producer,
    ShareConsumer,
    ShareRecord,
    WakeupError,
)
from headrace.client.admin import AdminClient
from headrace.client.admin.configs import ConfigResource, ResourceKind
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

SECONDS_MAX = 30


def prepare(broker, count, partitions=1):
    """Return a topic with records, and a group that starts at its first record."""
    topic, group = new_topic(broker, "share", partitions), unique("share-consumer")
    with AdminClient(broker.bootstrap) as admin:
        admin.alter_configs({ConfigResource(ResourceKind.GROUP, group): {"share.auto.offset.reset": "earliest"}})
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(count):
            producer.send(topic, str(number).encode(), partition=number % partitions)
    return topic, group


def read(consumer, count):
    records: list[ShareRecord] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(records) < count:
        assert time.monotonic() < deadline, f"timed out after {SECONDS_MAX} s with {len(records)} of {count} records"
        records += consumer.poll(1.0)
    return records


def test_records_are_accepted_by_the_next_poll(either):
    topic, group = prepare(either, 100, partitions=3)
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        records = read(consumer, 100)
        assert sorted(int(record.value) for record in records) == list(range(100))
        assert {record.delivery_count for record in records} == {1}
        assert consumer.poll(0.3) == []
        assert consumer.subscription() == {topic}
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(1.0) == []


def test_records_are_acknowledged_one_by_one(either):
    topic, group = prepare(either, 6)
    with ShareConsumer(
        bootstrap_servers=either.bootstrap,
        group_id=group,
        share_acknowledgement_mode="explicit",
        value_deserializer=lambda data: int(data),
    ) as consumer:
        consumer.subscribe([topic])
        records = consumer.poll(0) or read(consumer, 6)
        kinds = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT]
        for record in records[:-1]:
            consumer.acknowledge(record, kinds[record.value % 3])
        with pytest.raises(IllegalStateError, match="1 records of the last poll are not acknowledged"):
            consumer.poll(0)
        consumer.acknowledge(records[-1])
        with pytest.raises(IllegalStateError, match="acknowledged before"):
            consumer.acknowledge(records[-1])
        assert list(consumer.commit_sync().values()) == [None]
        again = read(consumer, 2)
        assert [(record.value, record.delivery_count) for record in again] == [(1, 2), (4, 2)]
        for record in again:
            consumer.acknowledge(record)
        assert list(consumer.commit_sync().values()) == [None]


class Raises(Deserializer):
    """Raises an error once, at a value."""

    def __init__(self, value, error):
        self.value, self.error = value, error

    def deserialize(self, topic, data, headers):
        if data == self.value and self.error is not None:
            error, self.error = self.error, None
            raise error
        return data


def test_ctrl_c_in_poll_accepts_no_record(either):
    topic, group = prepare(either, 6)
    deserializer = Raises(b"3", KeyboardInterrupt())
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group, value_deserializer=deserializer) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(KeyboardInterrupt):
            read(consumer, 6)
        records = read(consumer, 6)
    assert sorted(record.value for record in records) == [b"%d" % number for number in range(6)]


def test_an_exception_in_the_block_releases_the_records_of_the_last_poll(either):
    topic, group = prepare(either, 4)

    def work():
        with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
            consumer.subscribe([topic])
            read(consumer, 4)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        assert [record.delivery_count for record in read(consumer, 4)] == [2] * 4


def test_a_share_consumer_is_for_one_thread(either):
    topic, group = prepare(either, 0)
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        woken: list[Exception] = []

        def poll():
            try:
                consumer.poll(SECONDS_MAX)
            except WakeupError as error:
                woken.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            for call in (lambda: consumer.poll(0), consumer.close):
                with pytest.raises(IllegalStateError, match=r"for one thread at a time: call wakeup\(\)"):
                    eventually("a call while the other thread polls", call)
        finally:
            while thread.is_alive():
                consumer.wakeup()
                thread.join(0.1)
        assert woken


def test_a_closed_consumer_releases_what_it_did_not_acknowledge(either):
    topic, group = prepare(either, 4)
    options = {"bootstrap.servers": either.bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    with ShareConsumer(options) as consumer:
        consumer.subscribe([topic])
        consumer.acknowledge(read(consumer, 4)[0])
    with ShareConsumer(options) as consumer:
        consumer.subscribe([topic])
        records = read(consumer, 3)
        assert [(int(record.value), record.delivery_count) for record in records] == [(1, 2), (2, 2), (3, 2)]
        for record in records:
            consumer.acknowledge(record)


def test_close_accepts_nothing_by_itself(either):
    topic, group = prepare(either, 2)
    consumer = ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group)
    consumer.subscribe([topic])
    read(consumer, 2)
    consumer.close()
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        assert [record.delivery_count for record in read(consumer, 2)] == [2, 2]


def test_two_consumers_share_one_partition(either):
    topic, group = prepare(either, 0)
    made = [ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group, max_poll_records=5) for _ in range(2)]
    counts = [0, 0]
    stopping = threading.Event()

    def run(number):
        made[number].subscribe([topic])
        while not stopping.is_set():
            counts[number] += len(made[number].poll(0.2))
        made[number].close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        with Producer(bootstrap_servers=either.bootstrap, linger_ms=0) as producer:

            def send_some():
                producer.send(topic, b"x").result(10)
                return all(counts)

            eventually("records for both", send_some)
    finally:
        stopping.set()
        for thread in threads:
            thread.join(SECONDS_MAX)


def test_wakeup_interrupts_a_poll(either):
    topic, group = prepare(either, 0)
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        timer = threading.Timer(0.2, consumer.wakeup)
        timer.start()
        with pytest.raises(WakeupError):
            consumer.poll(SECONDS_MAX)
        timer.join()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "group.id is not set"),
        ({"group.id": "g", "auto.offset.reset": "earliest"}, "set share.auto.offset.reset on the group"),
        ({"group.id": "g", "enable.auto.commit": True}, "enable.auto.commit is not an option of share consumers"),
        ({"group.id": "g", "share.acknowledgement.mode": "lazy"}, "implicit, explicit"),
    ],
)
def test_options_that_share_groups_do_not_have_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        ShareConsumer({"bootstrap.servers": "127.0.0.1:1", **options})


class AcceptsNumbers(Deserializer):
    """Refuses values that are not numbers."""

    def deserialize(self, topic, data, headers):
        return int(data)


def test_a_bad_record_does_not_release_the_others(either):
    topic, group = prepare(either, 5)
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        producer.send(topic, b"bad")
        producer.send(topic, b"5")
    options = {"bootstrap_servers": either.bootstrap, "group_id": group, "value_deserializer": AcceptsNumbers()}
    with ShareConsumer(**options) as consumer:
        consumer.subscribe([topic])
        assert sorted(record.value for record in read(consumer, 6)) == list(range(6))
        with pytest.raises(DeserializationError, match="at offset 5 of"):
            read(consumer, 1)
        assert list(consumer.commit_sync().values()) in ([None], [])
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        assert [record.value for record in read(consumer, 1)] == [b"bad"]


def test_records_of_a_partition_that_has_moved_are_acknowledged(either):
    topic, group = prepare(either, 4, partitions=1)
    with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe([topic])
        assert len(read(consumer, 4)) == 4
        consumer.subscribe([new_topic(either, "share", 1)])  # the partition is not assigned any more

        def is_done():
            consumer.poll(0.2)
            with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as other:
                other.subscribe([topic])
                return other.poll(1.0) == []

        eventually("the records are accepted", is_done)


def test_an_error_of_the_group_is_raised_by_every_poll(either):
    group = unique("classic")
    with Consumer(bootstrap_servers=either.bootstrap, group_id=group) as consumer:
        consumer.subscribe([new_topic(either, "classic", 1)])
        eventually("a member", lambda: consumer.poll(0.1) is not None and consumer.assignment())
        with ShareConsumer(bootstrap_servers=either.bootstrap, group_id=group) as share:
            share.subscribe([new_topic(either, "share", 1)])
            for _ in range(2):
                with pytest.raises(BrokerError, match=r"use another group\.id"):
                    read(share, 1)
