"""DescribeCluster, log directories, DescribeQuorum, UnregisterBroker, ElectLeaders and partition reassignments."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.broker_options import data_folder
from headrace.broker.catalog.topics import Topic
from headrace.broker.context import Context, HandlerResult
from headrace.broker.error_responses import mirrored_error
from headrace.broker.nodes import controller_id, nodes
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.cluster_admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    QuorumListener,
    QuorumNode,
    QuorumPartitionResult,
    QuorumReplica,
    QuorumTopicResult,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from headrace.wire.api.metadata import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse
from headrace.wire.schema import Message

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.cluster.controller import Controller

# -- DescribeCluster -----------------------------------------------------------------------------


_BROKERS, _CONTROLLERS = 1, 2


def handle_describe_cluster(broker: Broker, context: Context, request: DescribeClusterRequest) -> HandlerResult:
    """Return the cluster id and the brokers. v1+ endpoint types · v2+ fenced brokers."""
    if request.endpoint_type != _BROKERS:
        is_known = request.endpoint_type == _CONTROLLERS
        return DescribeClusterResponse(
            error_code=Code.MISMATCHED_ENDPOINT_TYPE if is_known else Code.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker endpoint: it lists brokers only (endpoint type 1)",
            endpoint_type=_BROKERS,
        )
    brokers = nodes(broker, context.session.listener, with_fenced=request.include_fenced_brokers)
    response = DescribeClusterResponse(
        cluster_id=broker.catalog.identity.cluster_id,
        controller_id=controller_id(broker),
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node_id, host=node.host, port=node.port, rack=node.rack, is_fenced=node.is_fenced
            )
            for node in brokers
        ],
    )
    if request.include_cluster_authorized_operations:
        operations = broker.authorizer.authorized_operations(context.session, Resource.CLUSTER, CLUSTER_NAME)
        return response.replace(cluster_authorized_operations=operations)
    return response


# -- DescribeLogDirs -----------------------------------------------------------------------------


def handle_describe_log_dirs(broker: Broker, context: Context, request: DescribeLogDirsRequest) -> HandlerResult:
    """Return the size of each partition in the data folder, and the free disk space."""
    try:
        broker.authorizer.require_on_cluster(context.session, Operation.DESCRIBE)
    except BrokerError as error:
        return fail_describe_log_dirs(context, request, error.code)
    requested = None
    if request.topics is not None:
        requested = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    by_topic: dict[str, list[DescribeLogDirsPartition]] = {}
    for partition in broker.replicas.partitions():
        if requested is None or (partition.topic, partition.index) in requested:
            row = DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes)
            by_topic.setdefault(partition.topic, []).append(row)
    folder = data_folder(broker.config).absolute()
    disk = shutil.disk_usage(folder)
    result = DescribeLogDirsResult(
        log_dir=str(folder),
        topics=[DescribeLogDirsTopic(name=name, partitions=rows) for name, rows in by_topic.items()],
        total_bytes=disk.total,
        usable_bytes=disk.free,
    )
    return DescribeLogDirsResponse(results=[result])


def fail_describe_log_dirs(context: Context, request: DescribeLogDirsRequest, code: int) -> DescribeLogDirsResponse:
    """Before v3 there is no error code: like Kafka, respond without any folder."""
    return DescribeLogDirsResponse(error_code=code)


# -- AlterReplicaLogDirs -------------------------------------------------------------------------


def handle_alter_replica_log_dirs(
    broker: Broker, context: Context, request: AlterReplicaLogDirsRequest
) -> HandlerResult:
    """Move replicas to another folder. A broker has one: only that is accepted, and nothing moves."""
    code = Code.NONE
    if not broker.authorizer.allows(context.session, Operation.ALTER, Resource.CLUSTER, CLUSTER_NAME):
        code = Code.CLUSTER_AUTHORIZATION_FAILED
    own_folder = data_folder(broker.config).absolute()
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            for index in topic.partitions:
                error = code or _log_dir_code(broker, own_folder, Path(folder.path), TopicPartition(topic.name, index))
                row = AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
                results.setdefault(topic.name, []).append(row)
    rows = [AlterReplicaLogDirTopicResult(topic_name=name, partitions=rows) for name, rows in results.items()]
    return AlterReplicaLogDirsResponse(results=rows)


def _log_dir_code(broker: Broker, own_folder: Path, folder: Path, partition: TopicPartition) -> Code:
    """Return the error of a replica, as in Kafka: first that of the folder, then that of the partition."""
    if not folder.is_absolute() or folder != own_folder:
        return Code.LOG_DIR_NOT_FOUND
    try:
        broker.replicas.partition(*partition)
    except BrokerError as error:
        return Code(error.code)
    return Code.NONE


# -- DescribeQuorum ------------------------------------------------------------------------------


METADATA_TOPIC = "__cluster_metadata"
QUORUM_NODES_MIN_VERSION = 2


def handle_describe_quorum(broker: Broker, context: Context, request: DescribeQuorumRequest) -> HandlerResult:
    """Return which node leads the metadata log: the controller, its only voter. Other brokers are observers.

    v1+ times of replicas, unknown here · v2+ addresses.
    """
    broker.authorizer.require_on_cluster(context.session, Operation.DESCRIBE)
    topics = [
        QuorumTopicResult(
            topic_name=topic.topic_name,
            partitions=[_quorum_partition(broker, topic.topic_name, row.partition_index) for row in topic.partitions],
        )
        for topic in request.topics
    ]
    if context.api_version < QUORUM_NODES_MIN_VERSION:
        return DescribeQuorumResponse(error_message=None, topics=topics)
    listener = context.session.listener
    rows = [
        QuorumNode(node_id=known.node_id, listeners=[QuorumListener(name=listener, host=known.host, port=known.port)])
        for known in nodes(broker, listener)
        if known.node_id == _quorum_leader(broker)
    ]
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=rows)


def _quorum_leader(broker: Broker) -> int:
    return broker.node_id if broker.cluster is None else broker.catalog.brokers.controller_id


def _quorum_partition(broker: Broker, topic: str, index: int) -> QuorumPartitionResult:
    if (topic, index) != (METADATA_TOPIC, 0):
        return QuorumPartitionResult(
            partition_index=index, error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, error_message=None
        )
    leader, end_offset = _quorum_leader(broker), broker.catalog.offset
    others = sorted(node_id for node_id in broker.catalog.brokers.by_id if node_id != leader)
    return QuorumPartitionResult(
        partition_index=index,
        error_message=None,
        leader_id=leader,
        leader_epoch=broker.catalog.epochs.last,
        high_watermark=end_offset,
        current_voters=[QuorumReplica(replica_id=leader, log_end_offset=end_offset)],
        observers=[QuorumReplica(replica_id=node_id, log_end_offset=-1) for node_id in others],
    )


# -- UnregisterBroker ----------------------------------------------------------------------------


def handle_unregister_broker(broker: Broker, context: Context, request: UnregisterBrokerRequest) -> HandlerResult:
    """Remove the registration of a broker that will not return. If it does return, all its replicas are out of sync."""
    broker.authorizer.require_on_cluster(context.session, Operation.ALTER)
    _unregister(broker, request.broker_id)
    return UnregisterBrokerResponse(error_message=None)


def _unregister(broker: Broker, node_id: int) -> None:
    if node_id == broker.node_id:
        raise BrokerError(f"broker {node_id} is running and is the controller", code=Code.INVALID_REQUEST)
    if broker.cluster is None:
        raise BrokerError(
            f"unknown broker {node_id}: broker {broker.node_id} is standalone", code=Code.BROKER_ID_NOT_REGISTERED
        )
    _controller(broker).unregister(node_id)


def _controller(broker: Broker) -> Controller:
    # Imported here: a standalone broker does not load the cluster package.
    from headrace.broker.cluster.controller import Controller

    assert isinstance(broker.cluster, Controller), "other brokers forward this request"
    return broker.cluster


# -- ElectLeaders --------------------------------------------------------------------------------


_PREFERRED, _UNCLEAN = 0, 1


def handle_elect_leaders(broker: Broker, context: Context, request: ElectLeadersRequest) -> HandlerResult:
    """Elect the preferred replica, or (v1+, unclean election) any live replica, which may lose records."""
    try:
        broker.authorizer.require_on_cluster(context.session, Operation.ALTER)
    except BrokerError as error:
        return fail_elect_leaders(context, request, error.code)
    if request.election_type not in (_PREFERRED, _UNCLEAN):
        return fail_elect_leaders(context, request, Code.INVALID_REQUEST)
    requested: dict[str, Sequence[int]] = {}
    if request.topic_partitions is None:
        requested = {topic.name: range(len(topic.partitions)) for topic in broker.catalog.topics.by_name.values()}
    else:
        requested = {row.topic: row.partitions for row in request.topic_partitions}
    results = []
    for name, indexes in requested.items():
        rows = [_election_result(broker, request.election_type, name, index) for index in indexes]
        if request.topic_partitions is None:  # for all partitions, only report those that needed an election
            rows = [row for row in rows if row.error_code != Code.ELECTION_NOT_NEEDED]
        if rows or request.topic_partitions is not None:
            results.append(ReplicaElectionResult(topic=name, partition_result=rows))
    return ElectLeadersResponse(replica_election_results=results)


def _election_result(broker: Broker, election_type: int, name: str, index: int) -> PartitionResult:
    try:
        _elect_leader(broker, election_type, name, index)
    except BrokerError as error:
        return PartitionResult(partition_id=index, error_code=error.code, error_message=str(error.args[0]))
    return PartitionResult(partition_id=index, error_message=None)


def _elect_leader(broker: Broker, election_type: int, name: str, index: int) -> None:
    topic = broker.catalog.topics.by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise BrokerError(f"unknown partition {name}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    if broker.cluster is None:
        raise BrokerError(
            f"broker {topic.partitions[index].leader} is the leader and the preferred replica of {name}-{index}",
            code=Code.ELECTION_NOT_NEEDED,
        )
    from headrace.broker.cluster.elections import Election  # see _controller

    election = Election.UNCLEAN if election_type == _UNCLEAN else Election.PREFERRED
    _controller(broker).elect(topic, index, election)


def fail_elect_leaders(context: Context, request: ElectLeadersRequest, code: int) -> Message:
    return mirrored_error(context, request, code, None)


# -- AlterPartitionReassignments -----------------------------------------------------------------


def handle_alter_partition_reassignments(
    broker: Broker, context: Context, request: AlterPartitionReassignmentsRequest
) -> HandlerResult:
    """Move partitions to other brokers, or cancel such a move."""
    allow_change = request.allow_replication_factor_change
    try:
        broker.authorizer.require_on_cluster(context.session, Operation.ALTER)
    except BrokerError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.code,
            error_message=str(error.args[0]),
            allow_replication_factor_change=allow_change,
        )
    topics = []
    for topic in request.topics:
        rows = [
            _reassignment_result(broker, topic.name, row.partition_index, row.replicas, allow_change=allow_change)
            for row in topic.partitions
        ]
        topics.append(ReassignableTopicResponse(name=topic.name, partitions=rows))
    return AlterPartitionReassignmentsResponse(
        error_message=None, responses=topics, allow_replication_factor_change=allow_change
    )


def _reassignment_result(
    broker: Broker, name: str, index: int, replicas: Sequence[int] | None, *, allow_change: bool
) -> ReassignablePartitionResponse:
    try:
        _reassign(broker, name, index, replicas, allow_change=allow_change)
    except BrokerError as error:
        return ReassignablePartitionResponse(
            partition_index=index, error_code=error.code, error_message=str(error.args[0])
        )
    return ReassignablePartitionResponse(partition_index=index, error_message=None)


def _reassign(broker: Broker, name: str, index: int, replicas: Sequence[int] | None, *, allow_change: bool) -> None:
    topic = broker.catalog.topics.by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise BrokerError(f"unknown partition {name}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    partition = topic.partitions[index]
    if replicas is None and not (partition.adding or partition.removing):
        raise BrokerError(f"no reassignment of {name}-{index} is in progress", code=Code.NO_REASSIGNMENT_IN_PROGRESS)
    if replicas is not None:
        broker.topic_manager.check_replicas(f"{name}-{index}", replicas)
        present = len(partition.replicas) - len(partition.adding)
        if not allow_change and len(replicas) != present:
            raise BrokerError(
                f"{name}-{index} has {present} replicas, the reassignment {len(replicas)}: "
                "set allow_replication_factor_change to change the number",
                code=Code.INVALID_REPLICATION_FACTOR,
            )
    if broker.cluster is not None:
        _controller(broker).reassign(topic, index, replicas)


# -- ListPartitionReassignments ------------------------------------------------------------------


def handle_list_partition_reassignments(
    broker: Broker, context: Context, request: ListPartitionReassignmentsRequest
) -> HandlerResult:
    """Return the partitions that are being reassigned."""
    broker.authorizer.require_on_cluster(context.session, Operation.DESCRIBE)
    by_name = broker.catalog.topics.by_name
    if request.topics is None:
        requested: dict[str, Sequence[int]] = {topic.name: range(len(topic.partitions)) for topic in by_name.values()}
    else:
        requested = {row.name: row.partition_indexes for row in request.topics if row.name in by_name}
    topics = []
    for name, indexes in requested.items():
        rows = [row for index in indexes for row in _ongoing(by_name[name], index)]
        if rows:
            topics.append(OngoingTopicReassignment(name=name, partitions=rows))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _ongoing(topic: Topic, index: int) -> list[OngoingPartitionReassignment]:
    if not 0 <= index < len(topic.partitions):
        return []
    partition = topic.partitions[index]
    if not (partition.adding or partition.removing):
        return []
    return [
        OngoingPartitionReassignment(
            partition_index=index,
            replicas=partition.replicas,
            adding_replicas=partition.adding,
            removing_replicas=partition.removing,
        )
    ]
