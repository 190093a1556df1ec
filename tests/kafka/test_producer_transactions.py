"""Transactions on real brokers: atomic for read_committed consumers."""

from __future__ import annotations

import threading

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition

from headrace import (
    AbortableError,
    FatalError,
    GroupMetadata,
    IllegalStateError,
    Producer,
)
from headrace.wire.api.transactions import AddPartitionsToTxnRequest, EndTxnRequest
from tests.support.peers import librdkafka
from tests.support.stored import stored_batches
from tests.support.topics import new_topic, unique

SECONDS = 20


def committed(broker, topic, count, partition=0):
    records = librdkafka.consume(broker.bootstrap, topic, count, partition=partition, isolation="read_committed")
    return [record.value for record in records]


def transactional(broker, transactional_id=None, **options):
    return Producer(bootstrap_servers=broker.bootstrap, transactional_id=transactional_id or unique("txn"), **options)


def epochs_of(broker, topic):
    batches = stored_batches(broker, topic)
    return [batch.producer_epoch for batch in batches if batch.is_transactional and not batch.is_control]


@pytest.mark.behaviour("T13")
def test_a_read_committed_console_consumer_sees_committed_records_only(kafka):
    topic = new_topic(kafka, "seen")
    with transactional(kafka) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"one")
            producer.send(topic, b"two")
        producer.begin_transaction()
        producer.send(topic, b"never").result(SECONDS)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(topic, b"three")
    lines = kafka.console_consume(topic, records_max=3, isolation="read_committed")
    assert [line.split("\t")[-1] for line in lines] == ["one", "two", "three"]
    everything = [record.value for record in librdkafka.consume(kafka.bootstrap, topic, 4)]
    assert everything == [b"one", b"two", b"never", b"three"]


@pytest.mark.behaviour("T12")
def test_an_exception_in_the_block_aborts_and_the_producer_stays_usable(either):
    topic = new_topic(either, "block", 3)
    with transactional(either) as producer:
        producer.init_transactions()

        def fail():
            with producer.transaction():
                for partition in range(3):
                    producer.send(topic, b"never", partition=partition)
                producer.flush()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        with producer.transaction() as same:
            assert same is producer
            futures = [producer.send(topic, b"yes", partition=partition) for partition in range(3)]
        assert all(future.done() for future in futures)
    assert [committed(either, topic, 1, partition) for partition in range(3)] == [[b"yes"]] * 3


@pytest.mark.behaviour("P36")
def test_closing_in_the_middle_of_a_transaction_aborts_it(either):
    topic = new_topic(either, "left-open")
    with transactional(either) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"never").result(SECONDS)
    # Were it still open, a reader could not get beyond it.
    with transactional(either) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"yes")
    assert committed(either, topic, 1) == [b"yes"]


@pytest.mark.behaviour("T03")
def test_calls_in_a_wrong_state_raise_with_state_and_call(either):
    topic = new_topic(either, "order")
    with transactional(either) as producer:
        with pytest.raises(IllegalStateError, match=r"send\(\) while the producer is uninitialized: call init_trans"):
            producer.send(topic, b"v")
        with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) while the producer is uninitialized"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(IllegalStateError, match=r"send\(\) while the producer is ready: call begin_transaction"):
            producer.send(topic, b"v")
        with pytest.raises(IllegalStateError, match=r"commit_transaction\(\) while the producer is ready"):
            producer.commit_transaction()
        with producer.transaction():
            with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) while the producer is in transaction"):
                producer.begin_transaction()
            producer.send(topic, b"v")
        with producer.transaction():
            pass  # nothing in it
    with (
        Producer(bootstrap_servers=either.bootstrap) as plain,
        pytest.raises(IllegalStateError, match=r"init_transactions\(\) needs a transactional.id"),
    ):
        plain.init_transactions()
    assert committed(either, topic, 1) == [b"v"]


@pytest.mark.behaviour("T08")
def test_a_failed_record_fails_the_commit_and_an_abort_recovers(either):
    topic = new_topic(either, "too-large", max_message_bytes=1000)
    with transactional(either) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"small")
        producer.send(topic, b"x" * 5000)
        with pytest.raises(AbortableError, match="MESSAGE_TOO_LARGE"):
            producer.commit_transaction()
        producer.abort_transaction()
        with pytest.raises(AbortableError, match="MESSAGE_TOO_LARGE"), producer.transaction():
            producer.send(topic, b"x" * 5000)  # here the block aborts
        with pytest.raises(AbortableError, match=r"max\.request\.size"), producer.transaction():
            producer.send(topic, b"x" * 2_000_000)  # refused before it is queued
        with producer.transaction():
            producer.send(topic, b"again")
    assert committed(either, topic, 1) == [b"again"]


@pytest.mark.behaviour("T02")
def test_a_second_instance_fences_the_first_and_ends_its_transaction(either):
    topic, transactional_id = new_topic(either, "fenced"), unique("fenced")
    first, second = transactional(either, transactional_id), transactional(either, transactional_id)
    try:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"never").result(SECONDS)
        second.init_transactions()
        with second.transaction():
            second.send(topic, b"yes")
        assert committed(either, topic, 1) == [b"yes"]
        with pytest.raises((AbortableError, FatalError), match=r"PRODUCER_FENCED|INVALID_PRODUCER_EPOCH|epoch"):
            first.commit_transaction()
        with pytest.raises((AbortableError, FatalError)), first.transaction():
            first.send(topic, b"never again")
    finally:
        first.close(2)
        second.close()


@pytest.mark.behaviour("T09")
def test_offsets_are_committed_with_the_transaction_and_only_then(either):
    source, target, group = new_topic(either, "source"), new_topic(either, "target"), unique("group")
    with Producer(bootstrap_servers=either.bootstrap) as plain:
        for n in range(5):
            plain.send(source, b"%d" % n)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": either.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )

    def offset():
        return consumer.committed([TopicPartition(source, 0)], timeout=SECONDS)[0].offset

    try:
        consumer.subscribe([source])
        messages = consumer.consume(5, timeout=SECONDS)
        assert len(messages) == 5
        with transactional(either) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(target, b"three of them")
            producer.send_offsets_to_transaction({(source, 0): 3}, GroupMetadata(group))
            producer.abort_transaction()
            assert offset() == confluent_kafka.OFFSET_INVALID
            with producer.transaction():
                producer.send(target, b"all of them")
                producer.send_offsets_to_transaction({(source, 0): (5, "note")}, GroupMetadata(group))
            assert offset() == 5
            refused = pytest.raises((AbortableError, FatalError), match=r"UNKNOWN_MEMBER_ID|FENCED|ILLEGAL_GENERATION")
            with refused, producer.transaction():
                producer.send_offsets_to_transaction({(source, 0): 2}, GroupMetadata(group, 77, "stranger"))
            assert offset() == 5
    finally:
        consumer.close()
    assert committed(either, target, 1) == [b"all of them"]


@pytest.mark.behaviour("T11")
def test_transactions_v2_on_4_3_add_no_partitions_and_bump_the_epoch_each_time(either, requests_sent):
    topic = new_topic(either, "v2")
    with transactional(either) as producer:
        producer.init_transactions()
        for n in range(3):
            with producer.transaction():
                producer.send(topic, b"%d" % n)
    keys = [api_key for _, api_key in requests_sent]
    assert AddPartitionsToTxnRequest.api_key not in keys
    assert keys.count(EndTxnRequest.api_key) == 3
    first, second, third = epochs_of(either, topic)
    assert (second, third) == (first + 1, first + 2)


@pytest.mark.behaviour("T05")
def test_transactions_v1_on_3_9_add_partitions_first_and_keep_the_epoch(kafka39, requests_sent):
    topic = new_topic(kafka39, "v1", 4)
    with transactional(kafka39) as producer:
        producer.init_transactions()
        for n in range(2):
            with producer.transaction():
                for partition in range(4):
                    producer.send(topic, b"%d" % n, partition=partition)
        producer.begin_transaction()
        producer.send(topic, b"never", partition=0).result(SECONDS)
        producer.abort_transaction()
    keys = [api_key for _, api_key in requests_sent]
    assert 3 <= keys.count(AddPartitionsToTxnRequest.api_key) <= 9
    assert keys.count(EndTxnRequest.api_key) == 3
    assert len(set(epochs_of(kafka39, topic))) == 1
    assert committed(kafka39, topic, 2) == [b"0", b"1"]


def test_a_transaction_over_many_partitions_and_batches_is_atomic(either):
    topic = new_topic(either, "wide", 8)
    with transactional(either, batch_size=500) as producer:
        producer.init_transactions()
        for commit in (True, False, True):
            producer.begin_transaction()
            for n in range(4000):
                producer.send(topic, b"%s %d" % (str(commit).encode(), n), partition=n % 8)
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    for partition in range(8):
        values = committed(either, topic, 1000, partition)
        assert [int(value.split()[1]) for value in values] == 2 * list(range(partition, 4000, 8))
        assert all(value.startswith(b"True") for value in values)


def test_threads_may_send_in_one_transaction(either):
    topic = new_topic(either, "shared", 2)
    with transactional(either) as producer:
        producer.init_transactions()
        with producer.transaction():
            threads = [
                threading.Thread(target=lambda: [producer.send(topic, b"v", b"%d" % n) for n in range(500)])
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        metrics = {name.name: value for name, value in producer.metrics().items() if name.group == "producer-metrics"}
    assert metrics["record-send-total"] == 2000
    assert metrics["txn-commit-time-ns-total"] > 0 < metrics["txn-init-time-ns-total"]
