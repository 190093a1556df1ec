"""A cluster's control plane: brokers join, share a catalog, and any of them takes changes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from broker_in_loop import broker_in_loop
from cluster_in_loop import asked, cluster_in_loop, until
from group_rig import on_loop
from headrace.broker.broker import Broker
from headrace.broker.catalog.configs import TOPIC
from headrace.broker.catalog.topics import PartitionPlace
from headrace.broker.cluster import following, forwarding
from headrace.broker.cluster.controller import Controller
from headrace.broker.ports import free_port
from headrace.errors import BrokerError, Code, ConfigError
from headrace.wire.api.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.wire.api.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)
from headrace.wire.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.api.broker_heartbeat import BrokerHeartbeatRequest
from headrace.wire.api.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace.wire.api.catalog_fetch import CatalogFetchRequest
from headrace.wire.api.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from headrace.wire.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.wire.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.wire.api.delete_topics import DeleteTopicsRequest
from headrace.wire.api.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.wire.api.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from headrace.wire.api.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.wire.api.ensure_topic import EnsureTopicRequest
from headrace.wire.api.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.api.forward import ForwardRequest
from headrace.wire.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.wire.api.list_partition_reassignments import ListPartitionReassignmentsRequest
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from headrace.wire.api.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from headrace.wire.schema import Message
from secure_broker import OPENSSL, make_certificates

QUICK = {"initial.broker.registration.timeout.ms": 400}


def create(name: str, partitions: int = 1, replicas: int = 1, *assignment: list[int]) -> CreateTopicsRequest:
    rows = [CreatableReplicaAssignment(partition_index=n, broker_ids=nodes) for n, nodes in enumerate(assignment)]
    if rows:
        partitions = replicas = -1
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, assignments=rows)
    return CreateTopicsRequest(topics=[topic], timeout_ms=5000)


async def made(broker: Any, request: CreateTopicsRequest) -> CreateTopicsResponse:
    response = cast("CreateTopicsResponse", await asked(broker, request, 7))
    assert [row.error_code for row in response.topics] == [0]
    return response


async def metadata(broker: Any, *names: str, auto: bool = False) -> MetadataResponse:
    topics = [MetadataRequestTopic(name=name) for name in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=auto)
    return cast("MetadataResponse", await asked(broker, request, 12))


@on_loop
async def test_every_broker_tells_of_all_and_of_the_controller(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 3, {"broker.rack": "here"}) as brokers:
        addresses = {(n + 1, one.listeners[0].port, "here") for n, one in enumerate(brokers)}
        cluster_id = brokers[0].catalog.identity.cluster_id
        for broker in brokers:
            told = await metadata(broker)
            assert {(node.node_id, node.port, node.rack) for node in told.brokers} == addresses
            assert (told.controller_id, told.cluster_id) == (1, cluster_id)
            described = cast("DescribeClusterResponse", await asked(broker, DescribeClusterRequest(), 2))
            assert {(node.broker_id, node.port, node.rack) for node in described.brokers} == addresses
            assert (described.controller_id, described.cluster_id) == (1, cluster_id)


@on_loop
async def test_topics_are_made_grown_and_deleted_at_any_broker_and_known_at_all(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        for broker in brokers:
            name = f"at-{broker.node_id}"
            await made(broker, create(name, 6, 3))
            for other in brokers:  # at once: the answer came when all had heard of it
                (topic,) = (await metadata(other, name)).topics
                assert topic.error_code == 0
                assert sorted(row.leader_id for row in topic.partitions) == [1, 1, 2, 2, 3, 3]
                assert all(sorted(row.replica_nodes) == sorted(row.isr_nodes) == [1, 2, 3] for row in topic.partitions)
            grown = CreatePartitionsTopic(name=name, partition_count=7, assignments=None)
            response: Any = await asked(broker, CreatePartitionsRequest(topics=[grown]), 3)
            assert [row.error_code for row in response.results] == [0]
            assert all(len(one.catalog.topics.by_name[name].partitions) == 7 for one in brokers)
            change = AlterConfigsResource(
                resource_type=2, resource_name=name, configs=[AlterableConfig(name="retention.ms", value="5000")]
            )
            await asked(broker, IncrementalAlterConfigsRequest(resources=[change]), 1)
            assert all(one.log_config(name).retention_ms == 5000 for one in brokers)
        for broker in brokers:
            response = await asked(broker, DeleteTopicsRequest(topic_names=[f"at-{broker.node_id}"]), 5)
            assert [row.error_code for row in response.responses] == [0]
        assert all(not one.catalog.topics.by_name for one in brokers)
        assert all(not one.catalog.configs.of(TOPIC, "at-2") for one in brokers)
        assert all(not list((tmp_path / str(one.node_id)).glob("at-?-?")) for one in brokers)


@on_loop
async def test_a_replica_is_on_the_brokers_that_it_is_assigned_to_and_on_no_other(tmp_path: Path) -> None:
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
async def test_what_the_controller_refuses_is_told_by_the_broker_that_was_asked(
    tmp_path: Path, request_: CreateTopicsRequest, code: Code
) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        answers = [cast("CreateTopicsResponse", await asked(broker, request_, 7)) for broker in brokers]
        assert [row.error_code for answer in answers for row in answer.topics] == [code] * 3
        assert len({answer.topics[0].error_message for answer in answers}) == 1


@on_loop
async def test_a_topic_that_is_asked_for_is_made_with_replicas_also_at_a_broker_that_follows(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 3, {"default.replication.factor": 3}) as brokers:
        for broker in brokers:
            (topic,) = (await metadata(broker, f"auto-{broker.node_id}", auto=True)).topics
            assert topic.error_code == 0
            assert len(topic.partitions[0].replica_nodes) == 3
        (topic,) = (await metadata(brokers[2], "not", auto=False)).topics
        assert topic.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


@on_loop
async def test_coordinators_are_spread_and_found_by_every_broker(tmp_path: Path) -> None:
    options = {"offsets.topic.replication.factor": 3, "offsets.topic.num.partitions": 6}
    async with cluster_in_loop(tmp_path, 3, options) as brokers:
        request = FindCoordinatorRequest(coordinator_keys=[f"group-{n}" for n in range(30)])
        found: list[dict[str, tuple[int, int]]] = []
        for broker in reversed(brokers):  # the first one to ask is not the controller
            response = cast("FindCoordinatorResponse", await asked(broker, request, 4))
            assert {row.error_code for row in response.coordinators} == {0}
            found.append({row.key: (row.node_id, row.port) for row in response.coordinators})
        assert found[0] == found[1] == found[2]
        assert {node for node, _ in found[0].values()} == {1, 2, 3}
        assert all(port == brokers[node - 1].listeners[0].port for node, port in found[0].values())


@on_loop
async def test_rules_made_at_one_broker_hold_at_all(tmp_path: Path) -> None:
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
        answer = cast("CreateAclsResponse", await asked(brokers[1], CreateAclsRequest(creations=[rule]), 3))
        assert [row.error_code for row in answer.results] == [0]
        assert all(len(broker.catalog.acls.rules) == 1 for broker in brokers)


@on_loop
async def test_producer_ids_are_given_out_once_whoever_is_asked(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        taken: list[int] = []
        for _ in range(3):
            for broker in brokers:
                answer = await until_asked(broker, InitProducerIdRequest(transactional_id=None), 4)
                assert isinstance(answer, InitProducerIdResponse)
                taken.append(answer.producer_id)
        assert len(set(taken)) == 9
        assert {producer_id // 1000 for producer_id in taken} == {0, 1, 2}  # a block for each


async def until_asked(broker: Broker, request: Message, version: int) -> Message:
    """The answer when it is no longer that something is being loaded."""
    for _ in range(100):
        answer: Any = await asked(broker, request, version)
        if answer.error_code != Code.COORDINATOR_LOAD_IN_PROGRESS:
            return cast("Message", answer)
        await asyncio.sleep(0.02)
    raise TimeoutError("it is still being loaded")


# -- in-sync sets, elections, moves --------------------------------------------------------------


def wish(broker: Any, topic: Any, isr: dict[int, int], **changes: Any) -> AlterPartitionRequest:
    place = topic.partitions[0]
    row = PartitionData(
        partition_index=0,
        leader_epoch=place.leader_epoch,
        partition_epoch=place.partition_epoch,
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
async def test_a_leader_changes_its_in_sync_set_and_nobody_else_does(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as (one, two, _):
        await made(one, create("t", 0, 0, [2, 1, 3]))
        topic = one.catalog.topics.by_name["t"]
        epochs = {node: row.epoch for node, row in one.catalog.brokers.by_id.items()}

        async def refused(request: AlterPartitionRequest) -> int:
            response = cast("AlterPartitionResponse", await asked(one, request, 3))
            return response.error_code or response.topics[0].partitions[0].error_code

        assert await refused(wish(two, topic, epochs, leader_epoch=-1)) == Code.FENCED_LEADER_EPOCH
        assert await refused(wish(two, topic, epochs, leader_epoch=5)) == Code.NOT_CONTROLLER
        assert await refused(wish(two, topic, epochs, partition_epoch=-1)) == Code.INVALID_UPDATE_VERSION
        assert await refused(wish(one, topic, epochs)) == Code.INVALID_REQUEST  # it does not lead
        assert await refused(wish(two, topic, {1: epochs[1]})) == Code.INVALID_REQUEST  # without the leader
        assert await refused(wish(two, topic, {**epochs, 7: 1})) == Code.INVALID_REQUEST  # no replica
        assert await refused(wish(two, topic, {**epochs, 3: 99})) == Code.INELIGIBLE_REPLICA  # restarted since
        assert await refused(wish(two, topic, epochs, partition_index=3)) == Code.UNKNOWN_TOPIC_OR_PARTITION
        assert await refused(wish(two, topic, epochs, topic_id=b"x" * 16)) == Code.UNKNOWN_TOPIC_ID
        assert await refused(wish(two, topic, epochs, broker_epoch=1)) == Code.STALE_BROKER_EPOCH
        assert topic.partitions[0].partition_epoch == 0

        leading = two.cluster
        assert leading is not None
        place = await leading.alter_partition(topic.id, 0, 0, 0, {2: epochs[2], 1: -1})
        assert (place.isr, place.leader, place.leader_epoch, place.partition_epoch) == ((2, 1), 2, 0, 1)
        with pytest.raises(BrokerError) as stale:
            await leading.alter_partition(topic.id, 0, 0, 0, {2: epochs[2]})
        assert stale.value.code == Code.INVALID_UPDATE_VERSION


@on_loop
async def test_leadership_goes_back_to_the_first_replica_when_it_is_asked_for(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path) as brokers:
        await made(brokers[0], create("t", 0, 0, [2, 1, 3]))
        controller = brokers[0].cluster
        assert isinstance(controller, Controller)
        topic = brokers[0].catalog.topics.by_name["t"]
        elect = ElectLeadersRequest(election_type=0, topic_partitions=[TopicPartitions(topic="t", partitions=[0])])

        async def code(request: ElectLeadersRequest = elect) -> int:
            response: Any = await asked(brokers[2], request, 2)
            return int(response.replica_election_results[0].partition_result[0].error_code)

        assert await code() == Code.ELECTION_NOT_NEEDED
        assert await code(elect.replace(election_type=1)) == Code.ELECTION_NOT_NEEDED
        brokers[0].catalog.record(*controller.changes.handed_over(2))
        assert topic.partitions[0].leader == 1
        assert await code() == Code.PREFERRED_LEADER_NOT_AVAILABLE or topic.partitions[0].isr == (1, 3, 2)
        await until("2 is in sync again", lambda: 2 in topic.partitions[0].isr)
        assert await code() == 0
        assert (topic.partitions[0].leader, topic.partitions[0].leader_epoch) == (2, 2)


@on_loop
async def test_leadership_goes_back_to_the_first_replica_by_itself_after_a_while(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 2, {"leader.imbalance.check.interval.seconds": 1}) as brokers:
        await made(brokers[0], create("t", 0, 0, [2, 1]))
        controller = brokers[0].cluster
        assert isinstance(controller, Controller)
        brokers[0].catalog.record(*controller.changes.handed_over(2))
        partitions = brokers[0].catalog.topics.by_name["t"].partitions
        assert partitions[0].leader == 1
        await until("2 leads again", lambda: partitions[0].leader == 2)
        assert set(partitions[0].isr) == {1, 2}


@on_loop
async def test_who_was_eligible_is_not_any_more_when_less_is_enough_to_commit(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 3, {"min.insync.replicas": 2}) as brokers:
        await made(brokers[0], create("t", 0, 0, [1, 2]))
        await brokers[1].stop()
        topic = brokers[0].catalog.topics.by_name["t"]
        assert (topic.partitions[0].isr, topic.partitions[0].elr) == ((1,), (2,))
        less = AlterableConfig(name="min.insync.replicas", value="1")
        change = AlterConfigsResource(resource_type=2, resource_name="t", configs=[less])
        await asked(brokers[2], IncrementalAlterConfigsRequest(resources=[change]), 1)
        assert (topic.partitions[0].isr, topic.partitions[0].elr) == ((1,), ())


@on_loop
async def test_replicas_are_in_different_racks_and_on_brokers_that_are_away_if_need_be(tmp_path: Path) -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    async with cluster_in_loop(tmp_path, racks=racks) as brokers:
        await made(brokers[1], create("t", 6, 2))
        places = brokers[0].catalog.topics.by_name["t"].partitions
        assert all({racks[node] for node in place.replicas} == {"a", "b"} for place in places)
        await brokers[1].stop()
        await made(brokers[2], create("u", 3, 3))
        for place in brokers[0].catalog.topics.by_name["u"].partitions:
            assert set(place.replicas) == {1, 2, 3}
            assert set(place.isr) == {1, 3}
            assert place.leader in (1, 3)


@on_loop
async def test_a_partition_moves_to_other_brokers_and_its_old_folder_goes(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 4, {"log.segment.delete.delay.ms": 0}) as brokers:
        await made(brokers[0], create("t", 0, 0, [1, 2]))

        async def move(replicas: list[int] | None) -> int:
            row = ReassignablePartition(partition_index=0, replicas=replicas)
            request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=[row])])
            response: Any = await asked(brokers[2], request, 1)
            return int(response.responses[0].partitions[0].error_code)

        assert await move(None) == Code.NO_REASSIGNMENT_IN_PROGRESS
        assert await move([9]) == Code.INVALID_REPLICA_ASSIGNMENT
        assert await move([4, 3]) == 0
        places = [broker.catalog.topics.by_name["t"].partitions for broker in brokers]
        await until("it has moved", lambda: all(row[0].replicas == (4, 3) for row in places))
        assert (places[0][0].leader, set(places[0][0].isr)) == (4, {3, 4})
        assert (places[0][0].adding, places[0][0].removing) == ((), ())
        await until("1 has it no more", lambda: not (tmp_path / "1" / "t-0").exists())
        listed: Any = await asked(brokers[1], ListPartitionReassignmentsRequest(), 0)
        assert listed.topics == ()


@on_loop
async def test_eligible_leaders_are_told_to_clients(tmp_path: Path) -> None:
    options = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 60_000}
    async with cluster_in_loop(tmp_path, 2, options) as brokers:
        await made(brokers[0], create("t", 0, 0, [1, 2]))
        await brokers[1].stop()
        request = DescribeTopicPartitionsRequest(response_partition_limit=10)
        told = cast("DescribeTopicPartitionsResponse", await asked(brokers[0], request, 0))
        (row,) = told.topics[0].partitions
        assert (row.leader_id, row.isr_nodes, row.eligible_leader_replicas) == (1, (1,), (2,))
        assert row.offline_replicas == (2,)


@on_loop
async def test_a_broker_that_will_not_come_back_is_forgotten_and_is_a_new_one_if_it_does(tmp_path: Path) -> None:
    options = {"min.insync.replicas": 2, "replica.lag.time.max.ms": 60_000}
    async with cluster_in_loop(tmp_path, 2, options) as (one, two), AsyncExitStack() as third:
        own = {"node.id": 3, "headrace.controller": one.listeners[0].address, **options}
        await third.enter_async_context(broker_in_loop(tmp_path / "3", **own))
        await made(one, create("t", 0, 0, [1, 3]))
        epoch = one.catalog.brokers.by_id[3].epoch
        await third.aclose()
        place = one.catalog.topics.by_name["t"].partitions[0]
        assert (place.isr, place.elr) == ((1,), (3,))

        async def forget(node_id: int) -> int:
            answer = cast("UnregisterBrokerResponse", await asked(two, UnregisterBrokerRequest(broker_id=node_id), 0))
            assert bool(answer.error_message) is bool(answer.error_code)
            return answer.error_code

        assert await forget(1) == Code.INVALID_REQUEST
        assert await forget(9) == Code.BROKER_ID_NOT_REGISTERED
        assert await forget(3) == Code.NONE
        assert await forget(3) == Code.BROKER_ID_NOT_REGISTERED
        for broker in (one, two):
            described = DescribeClusterRequest(include_fenced_brokers=True)
            answer = cast("DescribeClusterResponse", await asked(broker, described, 2))
            assert [row.broker_id for row in answer.brokers] == [1, 2]
            place = broker.catalog.topics.by_name["t"].partitions[0]
            assert (place.replicas, place.isr, place.elr) == ((1, 3), (1,), ())  # what it has does not count any more

        async with broker_in_loop(tmp_path / "3", **own) as three:
            assert one.catalog.brokers.by_id[3].epoch > epoch
            await until("it is in sync again", lambda: 3 in one.catalog.topics.by_name["t"].partitions[0].isr)
            assert await forget(3) == Code.NONE  # a broker that lives registers again
            await until("it is there again", lambda: one.catalog.brokers.is_live(3))
            await until("and knows it", lambda: three.catalog.brokers.is_live(3))


# -- who may join, and how -----------------------------------------------------------------------


@on_loop
async def test_a_number_that_another_broker_has_is_refused(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 2) as brokers:
        cluster_id = brokers[0].catalog.identity.cluster_id
        request = BrokerRegistrationRequest(cluster_id=cluster_id, incarnation_id=b"i" * 16, rack=None)
        for node_id in (1, 2):
            answer: Any = await asked(brokers[0], request.replace(broker_id=node_id), 4)
            assert answer.error_code == Code.DUPLICATE_BROKER_REGISTRATION
        answer = await asked(brokers[0], request.replace(broker_id=3, cluster_id="other"), 4)
        assert answer.error_code == Code.INCONSISTENT_CLUSTER_ID
        answer = await asked(brokers[1], request.replace(broker_id=3), 4)
        assert answer.error_code == Code.NOT_CONTROLLER
        assert isinstance(answer, BrokerRegistrationResponse)
        assert set(brokers[0].catalog.brokers.by_id) == {1, 2}


@on_loop
async def test_a_broker_says_why_it_cannot_join(tmp_path: Path) -> None:
    nobody = {"node.id": 2, "headrace.controller": "127.0.0.1:1", **QUICK}
    with pytest.raises(ConfigError, match=r"headrace.controller: no broker answers at 127\.0\.0\.1:1: start that"):
        async with broker_in_loop(tmp_path / "2", **nobody):
            pass
    with pytest.raises(ConfigError, match=r"headrace\.controller is HOST:PORT"):
        async with broker_in_loop(tmp_path / "2", **{**nobody, "headrace.controller": "there"}):
            pass
    async with broker_in_loop(tmp_path / "1") as one, broker_in_loop(tmp_path / "other", **{"node.id": 2}):
        pass
    async with broker_in_loop(tmp_path / "1") as one:
        with pytest.raises(ConfigError, match="this broker's data are of the cluster"):
            async with broker_in_loop(
                tmp_path / "other", **{"node.id": 2, "headrace.controller": one.listeners[0].address}
            ):
                pass


@on_loop
async def test_the_folder_of_a_broker_that_follows_does_not_become_a_cluster_of_its_own(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 2):
        pass
    with pytest.raises(ConfigError, match=r"follows the controller 1, this is broker 2: set headrace\.controller"):
        async with broker_in_loop(tmp_path / "2", **{"node.id": 2}):
            pass


@on_loop
async def test_a_broker_that_cannot_prove_who_it_is_cannot_be_joined(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    options = {"sasl.plain.users": "ann:secret", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
    alone = {**options, "listeners": f"SASL_PLAINTEXT://{address}"}
    joining = {
        **options,
        **QUICK,
        "node.id": 2,
        "headrace.controller": address,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.jaas.config": 'module required username="ann" password="secret";',
    }
    async with broker_in_loop(tmp_path / "1", **alone) as one:
        with pytest.raises(ConfigError, match="the controller has no user and password for other brokers"):
            async with broker_in_loop(tmp_path / "2", **joining):
                pass
        assert one.cluster is None


@on_loop
async def test_only_who_has_the_right_of_a_broker_is_answered_as_one(tmp_path: Path) -> None:
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:nobody",
    }
    async with broker_in_loop(tmp_path / "1", **authorizer) as one:
        cluster_id = one.catalog.identity.cluster_id
        for request, version in (
            (CatalogFetchRequest(broker_id=2), 0),
            (BrokerRegistrationRequest(broker_id=2, cluster_id=cluster_id, rack=None), 4),
            (BrokerHeartbeatRequest(broker_id=2), 1),
            (AlterPartitionRequest(broker_id=2), 3),
            (AllocateProducerIdsRequest(broker_id=2), 0),
            (ForwardRequest(broker_id=2, request_key=19, principal="User:nobody"), 0),
            (EnsureTopicRequest(broker_id=2, name="t"), 0),
        ):
            answer: Any = await asked(one, request, version)
            assert answer.error_code == Code.CLUSTER_AUTHORIZATION_FAILED
        assert one.cluster is None
        with pytest.raises(ConfigError, match="does not take this one in"):
            async with broker_in_loop(
                tmp_path / "2", **{"node.id": 2, "headrace.controller": one.listeners[0].address}
            ):
                pass


@pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")
def test_brokers_talk_by_tls_where_the_listener_has_it(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    options = {
        "ssl.keystore.location": str(tmp_path / "server-both.pem"),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
        "security.inter.broker.protocol": "SSL",
    }

    async def run() -> None:
        address = f"127.0.0.1:{free_port()}"
        first = {**options, "listeners": f"SSL://{address}"}
        second = {**options, "node.id": 2, "listeners": "SSL://127.0.0.1:0", "headrace.controller": address}
        async with broker_in_loop(tmp_path / "1", **first) as one, broker_in_loop(tmp_path / "2", **second) as two:
            one.topic_admin.create("t", 1, 2)
            await until("2 knows it", lambda: two.catalog.topics.by_name.get("t"))

    asyncio.run(run())


@on_loop
async def test_a_broker_that_was_alone_keeps_its_topics_when_others_join(tmp_path: Path) -> None:
    async with broker_in_loop(tmp_path / "1", **{"node.id": 1}) as one:
        alone = one.cluster
        assert alone is None
        await made(one, create("before", 2, 1))
        async with broker_in_loop(
            tmp_path / "2", **{"node.id": 2, "headrace.controller": one.listeners[0].address}
        ) as two:
            assert isinstance(one.cluster, Controller)
            (topic,) = (await metadata(two, "before")).topics
            assert [row.leader_id for row in topic.partitions] == [1, 1]


# -- stops and restarts --------------------------------------------------------------------------


@on_loop
async def test_a_broker_that_stops_gives_away_what_it_leads_and_gets_it_back(tmp_path: Path) -> None:
    async with cluster_in_loop(tmp_path, 2) as (one, two):
        await made(one, create("t", 4, 2))
        topic = one.catalog.topics.by_name["t"]
        async with broker_in_loop(
            tmp_path / "3", **{"node.id": 3, "headrace.controller": one.listeners[0].address}
        ) as three:
            await made(three, create("u", 0, 0, [3, 1], [3, 2]))
            moved = one.catalog.topics.by_name["u"]
            assert [place.leader for place in moved.partitions] == [3, 3]
        assert [place.leader for place in moved.partitions] == [1, 2]
        assert [place.isr for place in moved.partitions] == [(1,), (2,)]
        assert one.catalog.brokers.by_id[3].fenced
        assert {node.node_id for node in (await metadata(two)).brokers} == {1, 2}
        assert all(place.leader_epoch == 0 for place in topic.partitions)


def test_a_broker_starts_without_its_controller_and_leads_only_when_that_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "WITHOUT_CONTROLLER_MS", 200)
    monkeypatch.setattr(forwarding, "CONNECT_MS_MAX", 200)
    first = {"node.id": 1, "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
    second = {"node.id": 2, "headrace.controller": str(first["listeners"]).partition("//")[2]}

    async def run() -> None:
        async with AsyncExitStack() as later:
            async with broker_in_loop(tmp_path / "1", **first) as one:
                two = await later.enter_async_context(broker_in_loop(tmp_path / "2", **second))
                await made(one, create("t", 0, 0, [2, 1]))
            assert two.catalog.topics.by_name["t"].partitions[0].leader == 2  # and so says its copy when it stops
        async with broker_in_loop(tmp_path / "2", **second) as two:
            (topic,) = (await metadata(two, "t")).topics
            assert topic.partitions[0].leader_id == -1
            refused = cast("CreateTopicsResponse", await asked(two, create("later"), 7))
            assert refused.topics[0].error_code == Code.REQUEST_TIMED_OUT
            assert "controller of the cluster does not answer" in (refused.topics[0].error_message or "")
            async with broker_in_loop(tmp_path / "1", **first):
                place = await until("somebody leads", lambda: _led(two, "t"))
                assert place.leader_epoch > 0
                await made(two, create("later"))

    asyncio.run(run())


def _led(broker: Broker, topic: str) -> PartitionPlace | None:
    place = broker.catalog.topics.by_name[topic].partitions[0]
    return place if place.leader >= 0 else None


def test_a_broker_that_is_alone_imports_nothing_of_clusters(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from broker_in_loop import broker_in_loop

async def main():
    async with broker_in_loop(Path({str(tmp_path)!r}) / "1") as broker:
        print(sorted(name for name in sys.modules if name.startswith("headrace.broker.cluster")), broker.cluster)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[] None"
