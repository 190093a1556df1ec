"""Transactions with our producer, librdkafka and explicit requests."""

from __future__ import annotations

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from headrace import (
    AbortableError,
    FatalError,
    GroupMetadata,
    HeadraceError,
    Producer,
    SerializationError,
)
from headrace.broker import EmbeddedBroker
from headrace.client import admin as admin_client
from headrace.client.admin import AdminClient
from headrace.errors import Code
from headrace.wire.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, EndTxnRequest
from headrace.wire.layout import Record
from tests.support.peers import librdkafka
from tests.support.peers.connection import Connection
from tests.support.raw_producer import RawProducer, plain_batch
from tests.support.topics import unique
from tests.support.visible import visible
from tests.support.waiting import eventually

SECONDS = 20
NOTHING = Record(0, 0, None, None, ())


def state_of(broker, name):
    with AdminClient(broker.bootstrap) as admin:
        return admin.describe_transactions([name])[name].state


@pytest.mark.parametrize("client", ["ours", "librdkafka"])
def test_committed_records_are_visible_and_aborted_ones_are_not(connection, broker, topic, client, request):
    if client == "ours":
        ours = Producer(bootstrap_servers=broker.bootstrap, transactional_id=unique("txn"))
        request.addfinalizer(ours.close)
        ours.init_transactions()
        begin, commit, abort = ours.begin_transaction, ours.commit_transaction, ours.abort_transaction

        def write(value):
            ours.send(topic, value).result(SECONDS)
    else:
        theirs = librdkafka.transactional(broker.bootstrap, unique("txn"))
        begin, commit, abort = theirs.begin_transaction, theirs.commit_transaction, theirs.abort_transaction

        def write(value):
            librdkafka.append(theirs, topic, [NOTHING._replace(value=value)])

    for n in range(6):
        begin()
        write(b"%d a" % n)
        write(b"%d b" % n)
        (abort if n % 3 == 1 else commit)()
    expected = [b"%d %c" % (n, c) for n in (0, 2, 3, 5) for c in b"ab"]
    eventually("the last commit", lambda: visible(connection, topic) == expected)
    assert visible(connection, topic, committed=False) == [b"%d %c" % (n, c) for n in range(6) for c in b"ab"]


REFUSED = {
    "too large": (lambda producer, topic: producer.send(topic, b"x" * 5000), "max.request.size"),
    "too large in columns": (
        lambda producer, topic: producer.send_arrow(topic, pa.table({"value": [b"x" * 5000]})),
        "max.request.size",
    ),
    "unknown partition": (lambda producer, topic: producer.send(topic, b"v", partition=99), "partition 99"),
    "invalid topic": (lambda producer, topic: producer.send("no spaces", b"v"), "INVALID_TOPIC"),
}


@pytest.mark.behaviour("P50", "T08")
@pytest.mark.parametrize("kind", REFUSED)
def test_a_rejected_record_fails_the_commit(connection, broker, topic, kind):
    send, said = REFUSED[kind]
    options = {"max.request.size": 4000, "max.block.ms": 1000, "transactional.id": unique("txn")}
    with Producer(options, bootstrap_servers=broker.bootstrap) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"before").result(SECONDS)
        with pytest.raises(HeadraceError, match=said):
            send(producer, topic).result(0)
        with pytest.raises(AbortableError, match=said):
            producer.send(topic, b"after")  # also with an open batch
        with pytest.raises(AbortableError, match=said):
            producer.commit_transaction()
        producer.abort_transaction()
        with pytest.raises(AbortableError, match=said), producer.transaction():
            send(producer, topic)  # the future is not checked: the commit fails
        with producer.transaction():
            producer.send(topic, b"again")
    eventually("the commit", lambda: visible(connection, topic) == [b"again"])


@pytest.mark.behaviour("P50")
def test_an_invalid_call_does_not_change_the_transaction(connection, broker, topic):
    options = {"transactional.id": unique("txn"), "value.serializer": "str"}
    with Producer(options, bootstrap_servers=broker.bootstrap) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, "one")
            with pytest.raises(SerializationError):
                producer.send(topic, b"bytes")
            producer.send(topic, "two")
    eventually("the commit", lambda: visible(connection, topic) == [b"one", b"two"])


@pytest.mark.behaviour("B04")
@pytest.mark.parametrize("transactions", [1, 2])
def test_an_open_transaction_blocks_read_committed(connection, broker, topic, transactions):
    writer = RawProducer(connection, topic, unique("txn"), transactions=transactions)
    writer.init()
    if transactions == 1:
        assert writer.add(0) == [0]
    assert writer.write(0, b"one").error_code == 0
    assert visible(connection, topic) == []
    assert visible(connection, topic, committed=False) == [b"one"]
    epoch = writer.epoch
    assert writer.end(True).error_code == 0
    assert writer.epoch == epoch + (transactions == 2)
    eventually("the commit", lambda: visible(connection, topic) == [b"one"])


@pytest.mark.behaviour("B04")
def test_a_second_producer_fences_the_first_and_aborts_its_transaction(connection, broker, topic):
    name = unique("txn")
    first = Producer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"never").result(SECONDS)
    second = Producer(bootstrap_servers=broker.bootstrap, transactional_id=name)
    second.init_transactions()
    with second.transaction():
        second.send(topic, b"second")
    with pytest.raises((AbortableError, FatalError)):
        first.commit_transaction()
    eventually("the commit", lambda: visible(connection, topic) == [b"second"])
    first.close(0)
    second.close()


@pytest.mark.behaviour("B04")
@pytest.mark.parametrize("transactions", [1, 2])
def test_late_requests_do_not_affect_the_next_transaction(connection, broker, topic, transactions):
    name = unique("txn")
    writer = RawProducer(connection, topic, name, transactions=transactions)
    writer.init()
    if transactions == 1:
        writer.add(0)
    writer.write(0, b"one")
    late = writer.epoch
    delayed = writer.batch(1, b"delayed")
    writer.end(False)
    # A batch after the abort must not open a transaction that never ends.
    refused = writer.send(delayed, 0).error_code
    assert (
        refused
        in ((Code.INVALID_TXN_STATE, Code.TRANSACTION_ABORTABLE), (Code.INVALID_PRODUCER_EPOCH,))[transactions - 1]
    )
    if transactions == 2:
        writer.write(0, b"two")
        for end in (True, False):
            assert writer.end(end, epoch=late).error_code == Code.PRODUCER_FENCED
        assert state_of(broker, name) == "Ongoing"
        writer.end(True)
        eventually("the commit", lambda: visible(connection, topic) == [b"two"])
    assert visible(connection, topic) == [b"two"][: transactions - 1]


def test_a_retried_end_gets_the_same_response(connection, broker, topic):
    name = unique("txn")
    writer = RawProducer(connection, topic, name)
    writer.init()
    writer.write(0, b"one")
    request = EndTxnRequest(
        transactional_id=name,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        committed=True,
    )
    first = connection.call(request, 5)
    assert (first.error_code, first.producer_epoch) == (0, writer.epoch + 1)
    again = eventually("a response", lambda: _unless_busy(connection.call(request, 5)))
    assert again == first


def _unless_busy(response):
    return None if response.error_code == Code.CONCURRENT_TRANSACTIONS else response


@pytest.mark.behaviour("B04")
@pytest.mark.parametrize("ends_with", ["commit", "abort"])
def test_offsets_of_a_group_are_part_of_the_transaction(broker, topic, ends_with):
    group = unique("group")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "isolation.level": "read_committed", "log_level": 0}
    )
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=unique("txn")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"out")
        producer.send_offsets_to_transaction({(topic, 0): 7}, GroupMetadata(group))
        (producer.commit_transaction if ends_with == "commit" else producer.abort_transaction)()
    (result,) = consumer.committed([TopicPartition(topic, 0)], SECONDS)
    assert result.offset == (7 if ends_with == "commit" else confluent_kafka.OFFSET_INVALID)
    consumer.close()


@pytest.mark.behaviour("B04")
def test_a_timed_out_transaction_is_aborted_and_readers_continue():
    interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with EmbeddedBroker(interval) as broker, Connection(broker.bootstrap) as connection:
        topic = broker.create_topic("topic")
        writer = RawProducer(connection, topic, "slow", transactions=1)
        writer.init(timeout_ms=200)
        writer.add(0)
        writer.write(0, b"never")
        connection.produce(topic, plain_batch(b"after"))
        eventually("the abort", lambda: state_of(broker, "slow") == "CompleteAbort")
        assert visible(connection, topic) == [b"after"]
        assert writer.end(True).error_code == Code.PRODUCER_FENCED
        assert writer.init(timeout_ms=900_001).error_code == Code.INVALID_TRANSACTION_TIMEOUT


def test_a_hanging_transaction_is_found_and_aborted():
    """A transaction that is open in a partition but unknown to its coordinator; verification would prevent it."""
    with (
        EmbeddedBroker({"transaction.partition.verification.enable": False}) as broker,
        Connection(broker.bootstrap) as connection,
        AdminClient(broker.bootstrap) as admin,
    ):
        topic = broker.create_topic("topic")
        partition = admin_client.TopicPartition(topic, 0)
        writer = RawProducer(connection, topic, "careless", transactions=1)
        writer.init()
        assert writer.write(0, b"hanging").error_code == 0
        connection.produce(topic, plain_batch(b"after"))
        assert visible(connection, topic) == []
        (result,) = admin.find_hanging_transactions([partition], older_than_ms=0)
        producer = result.producer
        assert (producer.producer_id, producer.producer_epoch) == (writer.producer_id, writer.epoch)
        admin.abort_transaction(partition, producer.producer_id, producer.producer_epoch)
        assert visible(connection, topic) == [b"after"]
        assert admin.find_hanging_transactions([partition], older_than_ms=0) == []


@pytest.mark.parametrize("version", [0, 3])
def test_one_unknown_partition_prevents_adding_the_others(connection, broker, topic, version):
    name = unique("txn")
    writer = RawProducer(connection, topic, name, transactions=1)
    writer.init()
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=writer.producer_id,
        v3_and_below_producer_epoch=writer.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0, 5])],
    )
    (response,) = connection.call(request, version).results_by_topic_v3_and_below
    codes = [row.partition_error_code for row in response.results_by_partition]
    assert codes == [Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION]
    assert state_of(broker, name) == "Empty"


def test_a_transaction_over_many_partitions_ends_in_all_of_them(connection, broker):
    topic = broker.create_topic(unique("wide"), 40)
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=unique("txn")) as producer:
        producer.init_transactions()
        with producer.transaction():
            for n in range(40):
                producer.send(topic, b"%d" % n, partition=n)
    expected = [[b"%d" % n] for n in range(40)]
    eventually("the commit", lambda: [visible(connection, topic, n) for n in range(40)] == expected)


def test_a_deleted_topic_does_not_block_its_transaction(connection, broker, topic):
    gone = broker.create_topic(unique("gone"))
    name = unique("txn")
    writer = RawProducer(connection, topic, name)
    writer.init()
    writer.write(0, b"kept")
    RawProducer.write(_elsewhere(writer, gone), 0, b"lost")
    broker.delete_topic(gone)
    assert writer.end(True).error_code == 0
    eventually("the end", lambda: state_of(broker, name) == "CompleteCommit")
    assert visible(connection, topic) == [b"kept"]


def _elsewhere(writer, topic):
    other = RawProducer(writer.connection, topic, writer.transactional_id, transactions=writer.transactions)
    other.producer_id, other.epoch = writer.producer_id, writer.epoch
    return other
