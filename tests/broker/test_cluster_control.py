"""The control plane of a cluster: the shared catalog, forwarded changes, stopping and starting brokers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.broker import Broker
from headrace.broker.catalog.configs import TOPIC
from headrace.broker.catalog.topics import PartitionRegistration
from headrace.broker.cluster import follower, forwarding
from headrace.broker.ports import free_port
from headrace.errors import Code
from headrace.wire.api.access import AclCreation, CreateAclsRequest
from headrace.wire.api.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)
from headrace.wire.api.metadata import (
    DescribeClusterRequest,
    FindCoordinatorRequest,
)
from headrace.wire.api.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from headrace.wire.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tests.support.broker_in_loop import broker_in_loop
from tests.support.cluster_in_loop import cluster_in_loop, create, made, metadata, send_request, until
from tests.support.group_rig import on_loop


@on_loop
async def test_every_broker_returns_all_brokers_and_the_controller(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 3, {"broker.rack": "here"}) as brokers:
        addresses = {(n + 1, broker1.listeners[0].port, "here") for n, broker1 in enumerate(brokers)}
        cluster_id = brokers[0].catalog.identity.cluster_id
        for broker in brokers:
            seen = await metadata(broker)
            assert {(node.node_id, node.port, node.rack) for node in seen.brokers} == addresses
            assert (seen.controller_id, seen.cluster_id) == (1, cluster_id)
            described = await send_request(broker, DescribeClusterRequest(), 2)
            assert {(node.broker_id, node.port, node.rack) for node in described.brokers} == addresses
            assert (described.controller_id, described.cluster_id) == (1, cluster_id)


@on_loop
async def test_topics_can_be_created_extended_and_deleted_on_any_broker(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        for broker in brokers:
            name = f"at-{broker.node_id}"
            await made(broker, create(name, 6, 3))
            for other in brokers:  # at once: the response came when all knew it
                (topic,) = (await metadata(other, name)).topics
                assert topic.error_code == 0
                assert sorted(row.leader_id for row in topic.partitions) == [1, 1, 2, 2, 3, 3]
                assert all(sorted(row.replica_nodes) == sorted(row.isr_nodes) == [1, 2, 3] for row in topic.partitions)
            grown = CreatePartitionsTopic(name=name, partition_count=7, assignments=None)
            response: Any = await send_request(broker, CreatePartitionsRequest(topics=[grown]), 3)
            assert [row.error_code for row in response.results] == [0]
            assert all(len(broker1.catalog.topics.by_name[name].partitions) == 7 for broker1 in brokers)
            change = IncrementalConfigsResource(
                resource_type=2, resource_name=name, configs=[IncrementalConfig(name="retention.ms", value="5000")]
            )
            await send_request(broker, IncrementalAlterConfigsRequest(resources=[change]), 1)
            assert all(broker1.log_config(name).retention_ms == 5000 for broker1 in brokers)
        for broker in brokers:
            response = await send_request(broker, DeleteTopicsRequest(topic_names=[f"at-{broker.node_id}"]), 5)
            assert [row.error_code for row in response.responses] == [0]
        assert all(not broker1.catalog.topics.by_name for broker1 in brokers)
        assert all(not broker1.catalog.configs.of(TOPIC, "at-2") for broker1 in brokers)
        assert all(not list((tmp_path / str(broker1.node_id)).glob("at-?-?")) for broker1 in brokers)


@on_loop
async def test_only_assigned_brokers_have_replicas(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        await made(brokers[1], create("placed", 0, 0, [3, 1], [2, 3]))
        for broker in brokers:
            (topic,) = (await metadata(broker, "placed")).topics
            assert [(row.leader_id, row.replica_nodes) for row in topic.partitions] == [(3, (3, 1)), (2, (2, 3))]
        assert [
            [index for index in (0, 1) if (tmp_path / str(node) / f"placed-{index}").exists()] for node in (1, 2, 3)
        ] == [[0], [1], [0, 1]]


@on_loop
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (create("t", 1, 4), Code.INVALID_REPLICATION_FACTOR),
        (create("t", 0, 0, [1, 9]), Code.INVALID_REPLICA_ASSIGNMENT),
        (create("t", 0, 0, [1, 1]), Code.INVALID_REPLICA_ASSIGNMENT),
        (create("t", 0, 0, [1, 2], [3]), Code.INVALID_REPLICA_ASSIGNMENT),
        (create("a/b"), Code.INVALID_TOPIC_EXCEPTION),
    ],
    ids=["factor", "unknown", "twice", "uneven", "name"],
)
async def test_a_rejection_by_the_controller_is_returned_by_the_forwarding_broker(
    tmp_path: Path, request_: CreateTopicsRequest, code: Code
) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        responses = [(await send_request(broker, request_, 7)) for broker in brokers]
        assert [row.error_code for response in responses for row in response.topics] == [code] * 3
        assert len({response.topics[0].error_message for response in responses}) == 1


@on_loop
async def test_auto_created_topics_are_replicated_also_on_a_follower(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 3, {"default.replication.factor": 3}) as brokers:
        for broker in brokers:
            (topic,) = (await metadata(broker, f"auto-{broker.node_id}", auto=True)).topics
            assert topic.error_code == 0
            assert len(topic.partitions[0].replica_nodes) == 3
        (topic,) = (await metadata(brokers[2], "not", auto=False)).topics
        assert topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


@on_loop
async def test_coordinators_are_distributed_and_every_broker_returns_them(tmp_path: Path) -> None:
    options = {"offsets.topic.replication.factor": 3, "offsets.topic.num.partitions": 6}
    async with cluster_in_loop(tmp_path, 3, options) as brokers:
        request = FindCoordinatorRequest(coordinator_keys=[f"group-{n}" for n in range(30)])
        coordinators: list[dict[str, tuple[int, int]]] = []
        for broker in reversed(brokers):  # the first one is not the controller
            response = await send_request(broker, request, 4)
            assert {row.error_code for row in response.coordinators} == {0}
            coordinators.append({row.key: (row.node_id, row.port) for row in response.coordinators})
        assert coordinators[0] == coordinators[1] == coordinators[2]
        assert {node for node, _ in coordinators[0].values()} == {1, 2, 3}
        assert all(port == brokers[node - 1].listeners[0].port for node, port in coordinators[0].values())


@on_loop
async def test_acls_created_on_one_broker_apply_on_all(tmp_path: Path) -> None:
    options = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    async with cluster_in_loop(tmp_path, 2, options) as brokers:
        rule = AclCreation(
            resource_type=2,
            resource_name="t",
            resource_pattern_type=3,
            principal="User:ann",
            host="*",
            operation=3,
            permission_type=3,
        )
        response = await send_request(brokers[1], CreateAclsRequest(creations=[rule]), 3)
        assert [row.error_code for row in response.results] == [0]
        assert all(len(broker.catalog.acls.rules) == 1 for broker in brokers)


@on_loop
async def test_producer_ids_are_unique_across_brokers(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        taken: list[int] = []
        for _ in range(3):
            for broker in brokers:
                taken.append((await initialized_producer(broker)).producer_id)
        assert len(set(taken)) == 9
        assert {producer_id // 1000 for producer_id in taken} == {0, 1, 2}  # a block for each


async def initialized_producer(broker: Broker) -> InitProducerIdResponse:
    """Return the response to InitProducerId when the coordinator is loaded."""
    for _ in range(100):
        response = await send_request(broker, InitProducerIdRequest(transactional_id=None), 4)
        if response.error_code != Code.COORDINATOR_LOAD_IN_PROGRESS:
            return response
        await asyncio.sleep(0.02)
    raise TimeoutError("timed out waiting for the coordinator to load")


# -- stops and restarts --------------------------------------------------------------------------


@on_loop
async def test_a_stopping_broker_hands_over_its_leaderships_and_gets_them_back(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 2) as (broker1, broker2):
        await made(broker1, create("t", 4, 2))
        topic = broker1.catalog.topics.by_name["t"]
        async with broker_in_loop(
            tmp_path / "3", **{"node.id": 3, "headrace.controller": broker1.listeners[0].address}
        ) as broker3:
            await made(broker3, create("u", 0, 0, [3, 1], [3, 2]))
            moved = broker1.catalog.topics.by_name["u"]
            assert [partition.leader for partition in moved.partitions] == [3, 3]
        assert [partition.leader for partition in moved.partitions] == [1, 2]
        assert [partition.isr for partition in moved.partitions] == [(1,), (2,)]
        assert broker1.catalog.brokers.by_id[3].fenced
        assert {node.node_id for node in (await metadata(broker2)).brokers} == {1, 2}
        assert all(partition.leader_epoch == 0 for partition in topic.partitions)


def test_a_broker_without_its_controller_starts_but_leads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "WITHOUT_CONTROLLER_MS", 200)
    monkeypatch.setattr(forwarding, "CONNECT_MS_MAX", 200)
    first = {"node.id": 1, "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
    second = {"node.id": 2, "headrace.controller": str(first["listeners"]).partition("//")[2]}

    async def run() -> None:
        async with AsyncExitStack() as later:
            async with broker_in_loop(tmp_path / "1", **first) as broker1:
                broker2 = await later.enter_async_context(broker_in_loop(tmp_path / "2", **second))
                await made(broker1, create("t", 0, 0, [2, 1]))
            assert broker2.catalog.topics.by_name["t"].partitions[0].leader == 2  # and so says its copy when it stops
        async with broker_in_loop(tmp_path / "2", **second) as broker2:
            (topic,) = (await metadata(broker2, "t")).topics
            assert topic.partitions[0].leader_id == -1
            refused = await send_request(broker2, create("later"), 7)
            assert refused.topics[0].error_code == Code.REQUEST_TIMED_OUT
            assert "the controller does not respond" in (refused.topics[0].error_message or "")
            async with broker_in_loop(tmp_path / "1", **first):
                partition = await until("somebody leads", lambda: _led(broker2, "t"))
                assert partition.leader_epoch > 0
                await made(broker2, create("later"))

    asyncio.run(run())


def _led(broker: Broker, topic: str) -> PartitionRegistration | None:
    partition = broker.catalog.topics.by_name[topic].partitions[0]
    return partition if partition.leader >= 0 else None


def test_a_standalone_broker_does_not_import_the_cluster_package(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.support.broker_in_loop import broker_in_loop

async def main():
    async with broker_in_loop(Path({str(tmp_path)!r}) / "1") as broker:
        print(sorted(name for name in sys.modules if name.startswith("headrace.broker.cluster")), broker.cluster)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[] None"
