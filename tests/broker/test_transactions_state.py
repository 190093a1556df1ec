"""Errors of AddPartitionsToTxn, and the transaction log on disk."""

from __future__ import annotations

import asyncio
import re

import pytest

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, ConfigResource, ResourceKind
from headrace.errors import Code
from headrace.wire.api.access import AclCreation, CreateAclsRequest
from headrace.wire.api.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tests.support.broker_in_loop import broker_in_loop, hold_markers
from tests.support.peers import java
from tests.support.peers.connection import Connection
from tests.support.raw_producer import RawProducer
from tests.support.topics import unique
from tests.support.waiting import eventually

STATE_TOPIC = "__transaction_state"
TOPIC, TRANSACTIONAL_ID = 2, 5
LITERAL, WRITE, DENY = 3, 4, 2


def add(connection, name, producer_id, epoch, *partitions, version=3):
    topics = [AddPartitionsToTxnTopic(name=topic, partitions=[index]) for topic, index in partitions]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=topics,
    )
    response = connection.call(request, version)
    return [
        row.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]


def deny(connection, kind, name):
    rule = AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=LITERAL,
        principal="User:ANONYMOUS",
        host="*",
        operation=WRITE,
        permission_type=DENY,
    )
    (result,) = connection.call(CreateAclsRequest(creations=[rule]), 3).results
    assert result.error_code == 0


@pytest.mark.behaviour("B02")
def test_adding_partitions_fails_with_the_code_of_each_reason():
    options = {"authorizer.class.name": "acl", "super.users": "", "allow.everyone.if.no.acl.found": "true"}
    with EmbeddedBroker(options) as broker, Connection(broker.bootstrap) as connection:
        for name in ("open", "closed"):
            broker.create_topic(name, 2)
        writer = RawProducer(connection, "open", "payments", transactions=1)
        assert writer.init().error_code == 0
        who = (writer.producer_id, writer.epoch)
        deny(connection, TOPIC, "closed")
        deny(connection, TRANSACTIONAL_ID, "forbidden")

        # Permissions and unknown partitions.
        assert add(connection, "forbidden", 0, 0, ("open", 0)) == [Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
        codes = add(connection, "payments", *who, ("open", 0), ("closed", 0), ("open", 2), ("nowhere", 0))
        assert codes == [
            Code.OPERATION_NOT_ATTEMPTED,
            Code.TOPIC_AUTHORIZATION_FAILED,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
            Code.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        # Id, producer id, epoch.
        assert add(connection, "", *who, ("open", 0)) == [Code.INVALID_REQUEST]
        assert add(connection, "unheard-of", *who, ("open", 0)) == [Code.INVALID_PRODUCER_ID_MAPPING]
        assert add(connection, "payments", who[0] + 1, who[1], ("open", 0)) == [Code.INVALID_PRODUCER_ID_MAPPING]
        assert add(connection, "payments", who[0], who[1] + 1, ("open", 0)) == [Code.PRODUCER_FENCED]
        old = add(connection, "payments", who[0], who[1] + 1, ("open", 0), version=1)
        assert old == [Code.INVALID_PRODUCER_EPOCH]
        # Valid: written to the log, known partitions are not written again.
        assert add(connection, "payments", *who, ("open", 0)) == [0]
        written = _log_bytes(broker)
        assert add(connection, "payments", *who, ("open", 0)) == [0]
        assert _log_bytes(broker) == written
        assert add(connection, "payments", *who, ("open", 0), ("open", 1)) == [0, 0]
        assert _log_bytes(broker) > written


def _log_bytes(broker):
    return sum(path.stat().st_size for path in broker.data_dir.glob(f"{STATE_TOPIC}-*/*.log"))


@pytest.mark.behaviour("B02")
def test_nothing_can_be_added_while_a_transaction_completes(tmp_path):
    async def main():
        async with broker_in_loop(tmp_path / "data") as broker:
            broker.topic_manager.create("topic", 1, 1, {})
            released = hold_markers(broker)
            await asyncio.to_thread(end_and_add, broker.listeners[0].address, asyncio.get_running_loop(), released)

    def end_and_add(bootstrap, loop, released):
        with Connection(bootstrap) as connection:
            writer = RawProducer(connection, "topic", "payments", transactions=1)
            writer.init()
            assert writer.add(0) == [0]
            assert writer.end(True).error_code == 0
            assert writer.add(0, patient=False) == [Code.CONCURRENT_TRANSACTIONS]
            loop.call_soon_threadsafe(released.set)
            assert writer.add(0) == [0]

    asyncio.run(main())


@pytest.mark.behaviour("B03")
def test_the_transaction_log_is_a_compacted_topic(broker, connection, topic):
    RawProducer(connection, topic, unique("txn")).init()
    with AdminClient(broker.bootstrap) as admin:
        resource = ConfigResource(ResourceKind.TOPIC, STATE_TOPIC)
        options = admin.describe_configs([resource])[resource]
    assert options["cleanup.policy"].value == "compact"


def test_kafkas_own_tool_reads_the_transaction_log(kafka_jars):
    with EmbeddedBroker({"transaction.state.log.num.partitions": 1}) as broker:
        topic = broker.create_topic("topic", 2)
        with Connection(broker.bootstrap) as connection:
            writer = RawProducer(connection, topic, "payments")
            writer.init()
            writer.write(0, b"one", partition=1)
            writer.end(True)
            with AdminClient(broker.bootstrap) as admin:
                eventually("the end", lambda: _state(admin) == "CompleteCommit")
        broker.stop()
        (segment,) = broker.data_dir.glob(f"{STATE_TOPIC}-0/*.log")
        command = java.java_command(
            kafka_jars("4.3.0"),
            "org.apache.kafka.tools.DumpLogSegments",
            *("--transaction-log-decoder", "--files", str(segment)),
            options=java.SHORT_LIVED,
        )
        printed = java.run(command)
    steps = re.findall(
        r'"transactionStatus":(\d).*?"transactionPartitions":(null|\[.*?\](?=,"transactionLast))', printed
    )
    partitions = '[{"topic":"topic","partitionIds":[1]}]'
    assert steps == [("0", "null"), ("1", partitions), ("2", partitions), ("4", "[]")]
    assert printed.count('"transactionalId":"payments"') == 4


def _state(admin):
    return admin.describe_transactions(["payments"])["payments"].state
