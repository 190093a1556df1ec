"""Coordinators move with the leaders of their partitions; transactions span brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace import Producer
from headrace.broker.catalog.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.broker.groups.commits import Commit
from headrace.broker.groups.group import MemberClaim
from headrace.broker.transactions.transaction import TransactionState
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.transactions import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from headrace.wire.internal_topics import coordinator_partition
from headrace.wire.records import BatchProducer as Writer
from tests.support.cluster_in_loop import until
from tests.support.log_rig import batch
from tests.support.peers.connection import Connection
from tests.support.replica_cluster import ReplicaCluster, replica_cluster
from tests.support.visible import visible

SECONDS_MAX = 40
ID = "payments"
PARTITIONS = [("t", 0), ("t", 1), ("t", 2)]


def run(folder: Path, test: Callable[[ReplicaCluster], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS_MAX), replica_cluster(folder, **options) as cluster:
            await cluster.topic("t", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
            for internal in (TRANSACTION_STATE, CONSUMER_OFFSETS):
                cluster.controller.internal.ensure(internal)
                for node in (1, 2, 3):
                    await until("it is there", partial(cluster.brokers[node].replicas.get, internal, 1))
            await test(cluster)

    asyncio.run(main())


async def seen(cluster, node, index, *, committed=True):
    def call():
        with Connection(cluster.address(node)) as connection:
            return visible(connection, "t", index, committed=committed)

    return await asyncio.to_thread(call)


def coordinator_of(cluster, topic, key) -> tuple[int, int]:
    """Return the partition of a key, and the broker that leads it."""
    index = coordinator_partition(key, 2)
    return index, cluster.registration(topic, index).leader


async def patiently(work):
    """Retry while a coordinator is busy or loading, as clients do."""
    for _ in range(100):
        try:
            return await work()
        except BrokerError as error:
            if error.code not in (
                Code.CONCURRENT_TRANSACTIONS,
                Code.COORDINATOR_LOAD_IN_PROGRESS,
                Code.COORDINATOR_NOT_AVAILABLE,
                Code.NOT_COORDINATOR,
            ):
                raise
        await asyncio.sleep(0.02)
    raise AssertionError("the coordinator is busy for ever")


async def begin(cluster):
    """Begin a transaction of version 2 with a record in each partition; return its producer."""
    index, node = coordinator_of(cluster, TRANSACTION_STATE, ID)
    coordinator = cluster.brokers[node].transactions
    who = await patiently(lambda: coordinator.init_producer_id(ID, 60_000))
    for leader, partition in ((1, 0), (2, 1), (3, 2)):
        data = batch(b"in-%d" % partition, producer=Writer(who.producer_id, who.epoch, 0, transactional=True))

        def write(leader=leader, partition=partition, data=data):
            with Connection(cluster.address(leader)) as connection:
                return connection.produce("t", data, version=12, partition=partition, transactional_id=ID)

        for _ in range(100):
            response = await asyncio.to_thread(write)
            if response.error_code not in (Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_NOT_AVAILABLE):
                break
        assert response.error_code == Code.NONE
    return index, node, who


def hold_markers(cluster, node):
    """Block the markers of this coordinator."""
    broker = cluster.brokers[node]

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    markers = broker.transactions._markers
    markers._write_one = markers._write_remote = never


@pytest.mark.behaviour("B11")
@pytest.mark.parametrize(
    "state", [TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT]
)
def test_check_12_a_coordinator_that_goes_in_any_state_leaves_one_outcome(tmp_path, state):
    async def test(cluster):
        index, node, who = await begin(cluster)
        hold_markers(cluster, node)
        committed = state != TransactionState.PREPARE_ABORT
        coordinator = cluster.brokers[node].transactions
        if state != TransactionState.ONGOING:
            await coordinator.end_transaction(ID, who, committed, 2)
            assert coordinator.describe(ID).state == state
        heir = next(other for other in (2, 3, 1) if other != node)
        await cluster.elect(TRANSACTION_STATE, heir, index)
        with pytest.raises(BrokerError) as caught:
            coordinator.describe(ID)
        assert caught.value.code == Code.NOT_COORDINATOR
        after = cluster.brokers[heir].transactions
        # The producer does not know how far it got, and retries.
        await patiently(lambda: after.end_transaction(ID, who, committed, 2))
        done = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        await until("it is over", lambda: after.describe(ID).state == done)
        for leader, partition in ((1, 0), (2, 1), (3, 2)):
            assert await seen(cluster, leader, partition) == ([b"in-%d" % partition] if committed else [])
            log = cluster.partition(leader, "t", partition).log
            assert log.last_stable_offset == log.high_watermark == log.end_offset
            await cluster.logs_agree("t", partition)

    run(tmp_path, test)


def test_check_15_the_marker_of_a_coordinator_that_was_is_refused(tmp_path):
    async def test(cluster):
        index, node, who = await begin(cluster)
        epoch = cluster.registration(TRANSACTION_STATE, index).leader_epoch
        await cluster.elect(TRANSACTION_STATE, 1 if node != 1 else 2, index)
        after = cluster.brokers[1 if node != 1 else 2].transactions
        await patiently(lambda: after.end_transaction(ID, who, True, 2))
        await until("it is over", lambda: after.describe(ID).state == TransactionState.COMPLETE_COMMIT)
        # The producer continues with another transaction, which the zombie does not know.
        who = after.describe(ID).producer
        data = batch(b"second", producer=Writer(who.producer_id, who.epoch, 0, transactional=True))

        def write():
            with Connection(cluster.address(2)) as connection:
                return connection.produce("t", data, version=12, partition=1, transactional_id=ID)

        assert (await asyncio.to_thread(write)).error_code == Code.NONE
        marker = WritableTxnMarker(
            producer_id=who.producer_id,
            producer_epoch=who.epoch + 1,
            transaction_result=False,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[1])],
            coordinator_epoch=epoch,
            transaction_version=2,
        )
        response = await cluster.send_request(2, WriteTxnMarkersRequest(markers=[marker]), 2)
        assert response.markers[0].topics[0].partitions[0].error_code == Code.TRANSACTION_COORDINATOR_FENCED
        assert cluster.partition(2, "t", 1).log.producers.is_open(*who)

    run(tmp_path, test)


def test_a_coordinator_waits_until_what_it_loads_is_replicated(tmp_path):
    """A decision based on a record that is lost with the leader would differ from that of the next one."""

    async def test(cluster):
        index, node, who = await begin(cluster)
        hold_markers(cluster, node)
        heir = next(other for other in (2, 3, 1) if other != node)
        release = cluster.hold_followers(heir)
        coordinator = cluster.brokers[node].transactions
        await coordinator.end_transaction(ID, who, True, 2)
        log = cluster.partition(heir, TRANSACTION_STATE, index).log
        assert log.high_watermark < log.end_offset  # it has the decision, and does not know that it is replicated
        await cluster.elect(TRANSACTION_STATE, heir, index)
        after = cluster.brokers[heir].transactions
        with pytest.raises(BrokerError) as caught:
            after.describe(ID)
        assert caught.value.code == Code.COORDINATOR_LOAD_IN_PROGRESS
        release()
        await until("it is loaded", lambda: not after._store.partitions[index].is_loading)
        await until("it is over", lambda: after.describe(ID).state == TransactionState.COMPLETE_COMMIT)

    run(tmp_path, test, replica_fetch_wait_max_ms=10_000)


@pytest.mark.behaviour("B13")
def test_groups_and_offsets_move_with_their_partition(tmp_path):
    async def test(cluster):
        index, node = coordinator_of(cluster, CONSUMER_OFFSETS, "readers")
        groups = cluster.brokers[node].groups
        codes = await groups.commit("readers", MemberClaim(), {TopicPartition("t", 0): Commit(42)})
        assert codes == {("t", 0): Code.NONE}
        heir = next(other for other in (2, 3, 1) if other != node)
        await cluster.elect(CONSUMER_OFFSETS, heir, index)
        with pytest.raises(BrokerError) as caught:
            groups.fetch_all("readers", False)
        assert caught.value.code == Code.NOT_COORDINATOR
        after = cluster.brokers[heir].groups

        async def fetch():
            return after.fetch_all("readers", False)

        offsets = await patiently(fetch)
        assert offsets["t", 0].offset == 42

    run(tmp_path, test)


@pytest.mark.behaviour("B11")
def test_our_producer_commits_and_aborts_across_brokers_while_they_come_and_go(tmp_path):
    async def test(cluster):
        def transact(producer, name, *, commit=True):
            producer.begin_transaction()
            for index in range(3):
                producer.send("t", b"%s-%d" % (name, index), partition=index)
            producer.commit_transaction() if commit else producer.abort_transaction()

        producer = await asyncio.to_thread(
            Producer, bootstrap_servers=cluster.bootstrap, transactional_id=ID, acks="all", max_block_ms=20_000
        )
        try:
            await asyncio.to_thread(producer.init_transactions)
            await asyncio.to_thread(transact, producer, b"one")
            await asyncio.to_thread(transact, producer, b"no", commit=False)
            await cluster.stop(2)
            await asyncio.to_thread(transact, producer, b"two")
            await cluster.start(2)
            for index in range(3):
                await cluster.in_sync("t", 1, 2, 3, index=index)
            await cluster.stop(3)
            await asyncio.to_thread(transact, producer, b"three")
        finally:
            await asyncio.to_thread(producer.close, 5)
        for index in range(3):
            leader = cluster.registration("t", index).leader
            expected = [b"%s-%d" % (name, index) for name in (b"one", b"two", b"three")]
            await until("it is stable", partial(_is_stable, cluster.partition(leader, "t", index).log))
            assert await seen(cluster, leader, index) == expected

    run(tmp_path, test)


def _is_stable(log) -> bool:
    return bool(log.last_stable_offset == log.end_offset)
