"""The transaction handlers: versions, permissions, invalid partitions and listings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.catalog.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.broker.context import Context, Session
from headrace.broker.handlers import SUPPORTED, handler
from headrace.broker.log.producer_state import ProducerView
from headrace.broker.security.authorizer import Authorizer, Operation, Resource
from headrace.broker.transactions.transaction import TransactionState
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from headrace.wire.api import request_class, response_class
from headrace.wire.api.transaction_admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TopicRequest,
)
from headrace.wire.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.wire.schema import Message
from tests.support.examples import examples
from tests.support.transaction_rig import ID, TIMEOUT_MS, Rig, run


class DenyingAuthorizer(Authorizer):
    """Permits everything except the denied operations."""

    def __init__(self) -> None:
        self.denied: set[tuple[Operation, Resource, str]] = set()

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        return (operation, resource, name) not in self.denied

    def allows_any(self, session: Session, operation: Operation, resource: Resource) -> bool:
        return (operation, resource, "*") not in self.denied


class Desk:
    """Sends requests to the handlers, encoded and decoded in both directions."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.guard = DenyingAuthorizer()
        self.broker: Any = SimpleNamespace(
            transactions=self.rig.coordinator,
            replicas=self.rig.replicas,
            catalog=self.rig.catalog,
            clock=self.rig.clock,
            authorizer=self.guard,
        )

    async def send_request(self, message: Message, version: int) -> Any:
        key = message.api_key
        assert SUPPORTED[key].first <= version <= SUPPORTED[key].last
        context = Context(Session("127.0.0.1", "PLAINTEXT"), key, version, "test", 1)
        decoded = request_class(key).decode(version, message.encode(version))
        response = handler(key)(self.broker, context, decoded)
        if inspect.isawaitable(response):
            response = await response
        assert isinstance(response, Message)
        return response_class(key).decode(version, response.encode(version))

    async def init(self, name: str | None = ID, version: int = 5, **fields: Any) -> Any:
        message = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=TIMEOUT_MS, **fields)
        return await self.send_request(message, version)

    async def add(self, epoch: int, *partitions: tuple[str, int], version: int = 3) -> dict[tuple[str, int], int]:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=[index]) for topic, index in partitions]
        response = await self.send_request(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=ID,
                v3_and_below_producer_id=0,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics,
            ),
            version,
        )
        return _codes(response.results_by_topic_v3_and_below)

    async def end(self, epoch: int, version: int = 5, committed: bool = True) -> Any:
        message = EndTxnRequest(transactional_id=ID, producer_id=0, producer_epoch=epoch, committed=committed)
        return await self.send_request(message, version)


def _codes(topics: Sequence[Any]) -> dict[tuple[str, int], int]:
    return {
        (topic.name, row.partition_index): row.partition_error_code
        for topic in topics
        for row in topic.results_by_partition
    }


def test_a_fenced_producer_gets_the_code_of_its_version() -> None:
    async def main() -> None:
        desk = Desk()
        await desk.init()
        await desk.init()
        for version in range(6):
            code = Code.PRODUCER_FENCED if version >= 2 else Code.INVALID_PRODUCER_EPOCH
            assert (await desk.end(0, version)).error_code == code
            if version < 4:
                assert set((await desk.add(0, ("t", 0), version=version)).values()) == {code}
            if version < 5:
                offsets = AddOffsetsToTxnRequest(transactional_id=ID, producer_id=0, producer_epoch=0, group_id="g")
                assert (await desk.send_request(offsets, version)).error_code == code
            if version >= 3:
                code = Code.PRODUCER_FENCED if version >= 4 else Code.INVALID_PRODUCER_EPOCH
                response = await desk.init(version=version, producer_id=0, producer_epoch=0)
                assert (response.error_code, response.producer_id, response.producer_epoch) == (code, -1, -1)

    run(main)


def test_end_txn_v5_returns_the_next_producer_id_and_epoch() -> None:
    async def main() -> None:
        desk = Desk()
        await desk.init()
        await desk.add(0, ("t", 0))
        response = await desk.end(0)
        assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 0, 1)
        await desk.rig.clock.run()
        await desk.add(1, ("t", 0))
        assert (await desk.end(1, 4)).error_code == 0
        assert desk.rig.current.epoch == 1

    run(main)


def test_producer_id_without_epoch_is_invalid() -> None:
    async def main() -> None:
        desk = Desk()
        for response in (await desk.init(producer_id=5), await desk.init(producer_epoch=5)):
            assert response.error_code == Code.INVALID_REQUEST

    run(main)


@pytest.mark.parametrize("version", [0, 3])
def test_one_invalid_partition_prevents_adding_the_others(version: int) -> None:
    async def main() -> None:
        desk = Desk()
        await desk.init()
        desk.guard.denied.add((Operation.WRITE, Resource.TOPIC, "u"))
        expected = [("t", 0), ("u", 0), ("t", 999), ("nowhere", 0), ("t", -1), (CONSUMER_OFFSETS, 0)]
        assert await desk.add(0, *expected, version=version) == {
            ("t", 0): Code.OPERATION_NOT_ATTEMPTED,
            ("u", 0): Code.TOPIC_AUTHORIZATION_FAILED,
            ("t", 999): Code.UNKNOWN_TOPIC_OR_PARTITION,
            ("nowhere", 0): Code.UNKNOWN_TOPIC_OR_PARTITION,
            ("t", -1): Code.UNKNOWN_TOPIC_OR_PARTITION,
            (CONSUMER_OFFSETS, 0): Code.TOPIC_AUTHORIZATION_FAILED,
        }
        assert desk.rig.state() == TransactionState.EMPTY
        assert await desk.add(0, ("t", 0), ("t", 1)) == {("t", 0): 0, ("t", 1): 0}

    run(main)


def test_brokers_add_and_verify_many_transactions_at_once() -> None:
    def transaction(name: str, index: int, verify_only: bool) -> AddPartitionsToTxnTransaction:
        topics = [AddPartitionsToTxnTopic(name="t", partitions=[index])]
        return AddPartitionsToTxnTransaction(
            transactional_id=name, producer_id=0, producer_epoch=0, verify_only=verify_only, topics=topics
        )

    async def main() -> None:
        desk = Desk()
        await desk.init()
        message = AddPartitionsToTxnRequest(
            transactions=[
                transaction(ID, 0, False),
                transaction(ID, 0, True),
                transaction(ID, 1, True),
                transaction("who", 0, True),
                transaction(ID, 999, True),
            ]
        )
        response = await desk.send_request(message, 5)
        assert [_codes(row.topic_results) for row in response.results_by_transaction] == [
            {("t", 0): 0},
            {("t", 0): 0},
            {("t", 1): Code.TRANSACTION_ABORTABLE},
            {("t", 0): Code.INVALID_PRODUCER_ID_MAPPING},
            {("t", 999): Code.UNKNOWN_TOPIC_OR_PARTITION},
        ]
        desk.guard.denied.add((Operation.CLUSTER_ACTION, Resource.CLUSTER, "kafka-cluster"))
        response = await desk.send_request(message, 4)
        assert response.error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        assert response.results_by_transaction == ()

    run(main)


def test_requests_without_permission_for_the_id_are_denied() -> None:
    async def main() -> None:
        desk = Desk()
        denied = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        desk.guard.denied |= {
            (Operation.WRITE, Resource.TRANSACTIONAL_ID, ID),
            (Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, ID),
        }
        assert (await desk.init()).error_code == denied
        assert await desk.add(0, ("t", 0)) == {("t", 0): denied}
        assert (await desk.end(0)).error_code == denied
        offsets = AddOffsetsToTxnRequest(transactional_id=ID, producer_id=0, producer_epoch=0, group_id="g")
        assert (await desk.send_request(offsets, 4)).error_code == denied
        response = await desk.send_request(DescribeTransactionsRequest(transactional_ids=[ID]), 0)
        assert [row.error_code for row in response.transaction_states] == [denied]
        assert desk.rig.internal.appends == []

    run(main)


def test_adding_offsets_requires_read_on_the_group() -> None:
    async def main() -> None:
        desk = Desk()
        await desk.init()
        offsets = AddOffsetsToTxnRequest(transactional_id=ID, producer_id=0, producer_epoch=0, group_id="g")
        desk.guard.denied.add((Operation.READ, Resource.GROUP, "g"))
        assert (await desk.send_request(offsets, 0)).error_code == Code.GROUP_AUTHORIZATION_FAILED
        desk.guard.denied.clear()
        assert (await desk.send_request(offsets, 0)).error_code == 0
        assert desk.rig.current.partitions == {(CONSUMER_OFFSETS, 0)}

    run(main)


def test_an_idempotent_producer_id_requires_a_writable_topic() -> None:
    async def main() -> None:
        desk = Desk()
        desk.guard.denied.add((Operation.WRITE, Resource.TOPIC, "*"))
        assert (await desk.init(None)).error_code == 0  # the older permission
        desk.guard.denied.add((Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, "kafka-cluster"))
        assert (await desk.init(None)).error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        desk.guard.denied.discard((Operation.WRITE, Resource.TOPIC, "*"))
        assert (await desk.init(None)).error_code == 0

    run(main)


def test_transactions_are_described() -> None:
    async def main() -> None:
        desk = Desk()
        await desk.init()
        await desk.add(0, ("t", 3), ("t", 1), ("u", 2))
        desk.guard.denied.add((Operation.DESCRIBE, Resource.TOPIC, "u"))
        response = await desk.send_request(DescribeTransactionsRequest(transactional_ids=[ID, "who", ""]), 0)
        result, unknown, empty = response.transaction_states
        assert (result.transaction_state, result.transaction_timeout_ms) == ("Ongoing", TIMEOUT_MS)
        assert (result.producer_id, result.producer_epoch) == (0, 0)
        assert result.transaction_start_time_ms == desk.rig.clock.time_ms()
        assert [(row.topic, row.partitions) for row in result.topics] == [("t", (1, 3))]
        assert unknown.error_code == Code.TRANSACTIONAL_ID_NOT_FOUND
        assert empty.error_code == Code.INVALID_REQUEST

    run(main)


def test_transactions_are_listed_by_state_producer_duration_and_pattern() -> None:
    async def main() -> None:
        desk = Desk()
        for name in ("payments-1", "payments-2", "orders"):
            await desk.init(name)
        await desk.rig.coordinator.add_partitions("payments-2", ProducerIdAndEpoch(1, 0), [TopicPartition("t", 0)])
        await desk.rig.clock.run(5_000)
        await desk.rig.coordinator.add_partitions("orders", ProducerIdAndEpoch(2, 0), [TopicPartition("t", 0)])

        async def listed(**filters: Any) -> list[str]:
            response = await desk.send_request(ListTransactionsRequest(**filters), 2)
            assert response.error_code == 0
            return sorted(row.transactional_id for row in response.transaction_states)

        assert await listed() == ["orders", "payments-1", "payments-2"]
        assert await listed(state_filters=["Empty"]) == ["payments-1"]
        assert await listed(state_filters=["Ongoing", "CompleteAbort"]) == ["orders", "payments-2"]
        assert await listed(producer_id_filters=[0, 2]) == ["orders", "payments-1"]
        assert await listed(state_filters=["Ongoing"], duration_filter=4_999) == ["payments-2"]
        assert await listed(transactional_id_pattern="pay.*[2-9]") == ["payments-2"]
        assert await listed(transactional_id_pattern="pay") == []  # the whole id has to match
        assert await listed(transactional_id_pattern="") == ["orders", "payments-1", "payments-2"]
        desk.guard.denied.add((Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, "orders"))
        assert await listed(state_filters=["Ongoing"]) == ["payments-2"]
        response = await desk.send_request(ListTransactionsRequest(state_filters=["Asleep"]), 0)
        assert (response.unknown_state_filters, response.transaction_states) == (("Asleep",), ())
        for pattern in ("(", "a)(b", "(?=x)"):
            response = await desk.send_request(ListTransactionsRequest(transactional_id_pattern=pattern), 2)
            assert response.error_code == Code.INVALID_REGULAR_EXPRESSION

    run(main)


@settings(max_examples=examples(50), deadline=None)
@given(
    names=st.sets(st.text("ab.*\\\n~-_(", min_size=1, max_size=4), min_size=1, max_size=6),
    prefix=st.text("ab.*\\~-_(", max_size=3),
)
def test_the_pattern_of_a_prefix_matches_as_any_other_pattern(names: set[str], prefix: str) -> None:
    """It has a path of its own. The same pattern in a group has not."""

    async def main() -> None:
        desk = Desk()
        for name in names:
            await desk.init(name)
        pattern = re.escape(prefix) + ".*"
        first, second = [
            (await desk.send_request(ListTransactionsRequest(transactional_id_pattern=each), 2)).transaction_states
            for each in (pattern, f"(?:{pattern})")
        ]
        assert first == second
        assert {row.transactional_id for row in first} >= {
            name for name in names if name.startswith(prefix) and "\n" not in name
        }

    run(main)


def test_a_malicious_pattern_does_not_block_the_broker() -> None:
    async def main() -> None:
        desk = Desk()
        await desk.init("a" * 60 + "!")
        response = await desk.send_request(ListTransactionsRequest(transactional_id_pattern="(a+)+b"), 2)
        assert response.transaction_states == ()

    run(main)


def test_each_marker_has_its_own_result() -> None:
    async def main() -> None:
        desk = Desk()
        desk.rig.replicas.fail("t", 1, Code.INVALID_PRODUCER_EPOCH)
        marker = WritableTxnMarker(
            producer_id=7,
            producer_epoch=3,
            transaction_result=False,
            coordinator_epoch=2,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1])],
        )
        for version in (0, 1, 2):
            response = await desk.send_request(WriteTxnMarkersRequest(markers=[marker]), version)
            (row,) = response.markers
            assert row.producer_id == 7
            code = Code.INVALID_PRODUCER_EPOCH if version == 0 else 0
            assert [(p.partition_index, p.error_code) for p in row.topics[0].partitions] == [(0, 0), (1, code)]
        assert desk.rig.replicas.markers[0] == ("t", 0, 7, 3, False, 2, 1)
        for operation in (Operation.ALTER, Operation.CLUSTER_ACTION):
            desk.guard.denied.add((operation, Resource.CLUSTER, "kafka-cluster"))
        response = await desk.send_request(WriteTxnMarkersRequest(markers=[marker]), 1)
        codes = {row.error_code for row in response.markers[0].topics[0].partitions}
        assert codes == {Code.CLUSTER_AUTHORIZATION_FAILED}

    run(main)


def test_producers_of_a_partition_are_described() -> None:
    def partition(topic: str, index: int) -> Any:
        if (topic, index) != ("t", 0):
            raise BrokerError("there is no such partition", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        view = ProducerView(7, 3, 11, 1_000, 2, 40)
        return SimpleNamespace(log=SimpleNamespace(producers=SimpleNamespace(views=lambda: [view])))

    async def main() -> None:
        desk = Desk()
        desk.broker.replicas = SimpleNamespace(partition=partition)
        desk.guard.denied.add((Operation.READ, Resource.TOPIC, "u"))
        expected = [("t", [0, 1]), ("u", [0]), ("../t", [0])]
        topics = [TopicRequest(name=name, partition_indexes=indexes) for name, indexes in expected]
        response = await desk.send_request(DescribeProducersRequest(topics=topics), 0)
        first, missing = response.topics[0].partitions
        (producer,) = first.active_producers
        assert tuple(producer)[:6] == (7, 3, 11, 1_000, 2, 40)
        assert missing.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert "no such partition" in missing.error_message
        assert response.topics[1].partitions[0].error_code == Code.TOPIC_AUTHORIZATION_FAILED
        assert response.topics[2].partitions[0].error_code == Code.INVALID_TOPIC_EXCEPTION

    run(main)


def test_internal_topics_cannot_be_added_to_a_transaction() -> None:
    async def main() -> None:
        desk = Desk()
        await desk.init()
        assert await desk.add(0, (TRANSACTION_STATE, 0)) == {(TRANSACTION_STATE, 0): Code.TOPIC_AUTHORIZATION_FAILED}

    run(main)
