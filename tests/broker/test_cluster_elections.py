"""In-sync sets, elections and reassignments on the controller."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.cluster.controller import Controller
from headrace.broker.cluster.role import IsrChange
from headrace.errors import BrokerError, Code
from headrace.wire.api.cluster_admin import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
    UnregisterBrokerRequest,
)
from headrace.wire.api.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from headrace.wire.api.inter_broker import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from headrace.wire.api.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
)
from tests.support.broker_in_loop import broker_in_loop
from tests.support.cluster_in_loop import cluster_in_loop, create, made, send_request, until
from tests.support.group_rig import on_loop


def alter_isr(broker: Any, topic: Any, isr: dict[int, int], **changes: Any) -> AlterPartitionRequest:
    partition = topic.partitions[0]
    row = PartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr_with_epochs=[BrokerState(broker_id=node, broker_epoch=epoch) for node, epoch in isr.items()],
    )
    broker_epoch = changes.pop("broker_epoch", broker.cluster.broker_epoch)
    node_id = changes.pop("broker_id", broker.node_id)
    topic_id = changes.pop("topic_id", topic.id)
    return AlterPartitionRequest(
        broker_id=node_id,
        broker_epoch=broker_epoch,
        topics=[TopicData(topic_id=topic_id, partitions=[row.replace(**changes)])],
    )


@on_loop
async def test_only_the_leader_can_change_the_in_sync_set(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as (broker1, broker2, _):
        await made(broker1, create("t", 0, 0, [2, 1, 3]))
        topic = broker1.catalog.topics.by_name["t"]
        epochs = {node: row.epoch for node, row in broker1.catalog.brokers.by_id.items()}

        async def refused(request: AlterPartitionRequest) -> int:
            response = await send_request(broker1, request, 3)
            return response.error_code or response.topics[0].partitions[0].error_code

        assert await refused(alter_isr(broker2, topic, epochs, leader_epoch=-1)) == Code.FENCED_LEADER_EPOCH
        assert await refused(alter_isr(broker2, topic, epochs, leader_epoch=5)) == Code.NOT_CONTROLLER
        assert await refused(alter_isr(broker2, topic, epochs, partition_epoch=-1)) == Code.INVALID_UPDATE_VERSION
        assert await refused(alter_isr(broker1, topic, epochs)) == Code.INVALID_REQUEST  # it does not lead
        assert await refused(alter_isr(broker2, topic, {1: epochs[1]})) == Code.INVALID_REQUEST  # without the leader
        assert await refused(alter_isr(broker2, topic, {**epochs, 7: 1})) == Code.INVALID_REQUEST  # no replica
        assert await refused(alter_isr(broker2, topic, {**epochs, 3: 99})) == Code.INELIGIBLE_REPLICA  # restarted since
        assert await refused(alter_isr(broker2, topic, epochs, partition_index=3)) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert await refused(alter_isr(broker2, topic, epochs, topic_id=b"x" * 16)) == Code.UNKNOWN_TOPIC_ID
        assert await refused(alter_isr(broker2, topic, epochs, broker_epoch=1)) == Code.STALE_BROKER_EPOCH
        assert topic.partitions[0].partition_epoch == 0

        leading = broker2.cluster
        assert leading is not None
        partition = await leading.alter_partition(IsrChange(topic.id, 0, 0, 0, {2: epochs[2], 1: -1}))
        assert (partition.isr, partition.leader, partition.leader_epoch, partition.partition_epoch) == ((2, 1), 2, 0, 1)
        with pytest.raises(BrokerError) as stale:
            await leading.alter_partition(IsrChange(topic.id, 0, 0, 0, {2: epochs[2]}))
        assert stale.value.code == Code.INVALID_UPDATE_VERSION


@on_loop
async def test_a_preferred_election_moves_leadership_to_the_first_replica(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        await made(brokers[0], create("t", 0, 0, [2, 1, 3]))
        controller = brokers[0].cluster
        assert isinstance(controller, Controller)
        topic = brokers[0].catalog.topics.by_name["t"]
        elect = ElectLeadersRequest(election_type=0, topic_partitions=[TopicPartitions(topic="t", partitions=[0])])

        async def code(request: ElectLeadersRequest = elect) -> int:
            response: Any = await send_request(brokers[2], request, 2)
            return int(response.replica_election_results[0].partition_result[0].error_code)

        assert await code() == Code.ELECTION_NOT_NEEDED
        assert await code(elect.replace(election_type=1)) == Code.ELECTION_NOT_NEEDED
        brokers[0].catalog.record(*controller.changes.hand_over(2))
        assert topic.partitions[0].leader == 1
        assert await code() == Code.PREFERRED_LEADER_NOT_AVAILABLE or topic.partitions[0].isr == (1, 3, 2)
        await until("2 is in sync again", lambda: 2 in topic.partitions[0].isr)
        assert await code() == 0
        assert (topic.partitions[0].leader, topic.partitions[0].leader_epoch) == (2, 2)


@on_loop
async def test_leadership_is_rebalanced_to_the_first_replica_periodically(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 2, {"leader.imbalance.check.interval.seconds": 1}) as brokers:
        await made(brokers[0], create("t", 0, 0, [2, 1]))
        controller = brokers[0].cluster
        assert isinstance(controller, Controller)
        brokers[0].catalog.record(*controller.changes.hand_over(2))
        partitions = brokers[0].catalog.topics.by_name["t"].partitions
        assert partitions[0].leader == 1
        await until("2 leads again", lambda: partitions[0].leader == 2)
        assert set(partitions[0].isr) == {1, 2}


@on_loop
async def test_a_smaller_min_isr_clears_the_eligible_leader_replicas(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 3, {"min.insync.replicas": 2}) as brokers:
        await made(brokers[0], create("t", 0, 0, [1, 2]))
        await brokers[1].stop()
        topic = brokers[0].catalog.topics.by_name["t"]
        assert (topic.partitions[0].isr, topic.partitions[0].elr) == ((1,), (2,))
        less = IncrementalConfig(name="min.insync.replicas", value="1")
        change = IncrementalConfigsResource(resource_type=2, resource_name="t", configs=[less])
        await send_request(brokers[2], IncrementalAlterConfigsRequest(resources=[change]), 1)
        assert (topic.partitions[0].isr, topic.partitions[0].elr) == ((1,), ())


@on_loop
async def test_replicas_are_on_different_racks_and_on_fenced_brokers_if_needed(tmp_path: Path) -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    async with cluster_in_loop(tmp_path, racks=racks) as brokers:
        await made(brokers[1], create("t", 6, 2))
        partitions = brokers[0].catalog.topics.by_name["t"].partitions
        assert all({racks[node] for node in partition.replicas} == {"a", "b"} for partition in partitions)
        await brokers[1].stop()
        await made(brokers[2], create("u", 3, 3))
        for partition in brokers[0].catalog.topics.by_name["u"].partitions:
            assert set(partition.replicas) == {1, 2, 3}
            assert set(partition.isr) == {1, 3}
            assert partition.leader in (1, 3)


@on_loop
async def test_a_reassignment_moves_a_partition_and_deletes_its_old_folder(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 4, {"log.segment.delete.delay.ms": 0}) as brokers:
        await made(brokers[0], create("t", 0, 0, [1, 2]))

        async def move(replicas: list[int] | None) -> int:
            row = ReassignablePartition(partition_index=0, replicas=replicas)
            request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[row])])
            response: Any = await send_request(brokers[2], request, 1)
            return int(response.responses[0].partitions[0].error_code)

        assert await move(None) == Code.NO_REASSIGNMENT_IN_PROGRESS
        assert await move([9]) == Code.INVALID_REPLICA_ASSIGNMENT
        assert await move([4, 3]) == 0
        partitions = [broker.catalog.topics.by_name["t"].partitions for broker in brokers]
        await until("it has moved", lambda: all(row[0].replicas == (4, 3) for row in partitions))
        assert (partitions[0][0].leader, set(partitions[0][0].isr)) == (4, {3, 4})
        assert (partitions[0][0].adding, partitions[0][0].removing) == ((), ())
        await until("1 has it no more", lambda: not (tmp_path / "1" / "t-0").exists())
        listed: Any = await send_request(brokers[1], ListPartitionReassignmentsRequest(), 0)
        assert listed.topics == ()


@on_loop
async def test_clients_get_the_eligible_leader_replicas(tmp_path: Path) -> None:
    options = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 60_000}
    async with cluster_in_loop(tmp_path, 2, options) as brokers:
        await made(brokers[0], create("t", 0, 0, [1, 2]))
        await brokers[1].stop()
        request = DescribeTopicPartitionsRequest(response_partition_limit=10)
        returned = await send_request(brokers[0], request, 0)
        (row,) = returned.topics[0].partitions
        assert (row.leader_id, row.isr_nodes, row.eligible_leader_replicas) == (1, (1,), (2,))
        assert row.offline_replicas == (2,)


@on_loop
async def test_an_unregistered_broker_is_a_new_one_if_it_comes_back(tmp_path: Path) -> None:
    options = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 60_000}
    async with cluster_in_loop(tmp_path, 2, options) as (broker1, broker2), AsyncExitStack() as third:
        own = {"node.id": 3, "headrace.controller": broker1.listeners[0].address, **options}
        await third.enter_async_context(broker_in_loop(tmp_path / "3", **own))
        await made(broker1, create("t", 0, 0, [1, 3]))
        epoch = broker1.catalog.brokers.by_id[3].epoch
        await third.aclose()
        partition = broker1.catalog.topics.by_name["t"].partitions[0]
        assert (partition.isr, partition.elr) == ((1,), (3,))

        async def forget(node_id: int) -> int:
            response = await send_request(broker2, UnregisterBrokerRequest(broker_id=node_id), 0)
            assert bool(response.error_message) is bool(response.error_code)
            return response.error_code

        assert await forget(1) == Code.INVALID_REQUEST
        assert await forget(9) == Code.BROKER_ID_NOT_REGISTERED
        assert await forget(3) == Code.NONE
        assert await forget(3) == Code.BROKER_ID_NOT_REGISTERED
        for broker in (broker1, broker2):
            described = DescribeClusterRequest(include_fenced_brokers=True)
            response = await send_request(broker, described, 2)
            assert [row.broker_id for row in response.brokers] == [1, 2]
            partition = broker.catalog.topics.by_name["t"].partitions[0]
            assert (partition.replicas, partition.isr, partition.elr) == (
                (1, 3),
                (1,),
                (),
            )  # what it has does not count any more

        async with broker_in_loop(tmp_path / "3", **own) as broker3:
            assert broker1.catalog.brokers.by_id[3].epoch > epoch
            await until("it is in sync again", lambda: 3 in broker1.catalog.topics.by_name["t"].partitions[0].isr)
            assert await forget(3) == Code.NONE  # a broker that lives registers again
            await until("it is there again", lambda: broker1.catalog.brokers.is_live(3))
            await until("and knows it", lambda: broker3.catalog.brokers.is_live(3))
