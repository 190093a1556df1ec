"""Administration of the cluster: elections, reassignments, log directories, the quorum, features."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.wire.fields import array, boolean, int8, int16, int32, int64, string, uint16, uuid
from headrace.wire.schema import Message, RequestMessage, Struct

# Key 43: elect preferred (or unclean) leaders.


class TopicPartitions(Struct):
    topic: str = string()
    partitions: Sequence[int] = array(int32)


class ElectLeadersRequest(RequestMessage["ElectLeadersResponse"], api_key=43, versions="0-2", flexible="2+"):
    election_type: int = int8("1+")
    topic_partitions: Sequence[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = int32(default=60000)


class PartitionResult(Struct):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class ReplicaElectionResult(Struct):
    topic: str = string()
    partition_result: Sequence[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16("1+")
    replica_election_results: Sequence[ReplicaElectionResult] = array(ReplicaElectionResult)


# Key 45: reassign replicas.


class ReassignablePartition(Struct):
    partition_index: int = int32()
    replicas: Sequence[int] | None = array(int32, nullable="0+", default=None)


class ReassignableTopic(Struct):
    name: str = string()
    partitions: Sequence[ReassignablePartition] = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(
    RequestMessage["AlterPartitionReassignmentsResponse"], api_key=45, versions="0-1", flexible="0+"
):
    timeout_ms: int = int32(default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: Sequence[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class ReassignableTopicResponse(Struct):
    name: str = string()
    partitions: Sequence[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean("1+", default=True, ignorable=True)
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    responses: Sequence[ReassignableTopicResponse] = array(ReassignableTopicResponse)


# Key 46: ongoing reassignments.


class ListPartitionReassignmentsTopics(Struct):
    name: str = string()
    partition_indexes: Sequence[int] = array(int32)


class ListPartitionReassignmentsRequest(
    RequestMessage["ListPartitionReassignmentsResponse"], api_key=46, versions="0-0", flexible="0+"
):
    timeout_ms: int = int32(default=60000)
    topics: Sequence[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", default=None
    )


class OngoingPartitionReassignment(Struct):
    partition_index: int = int32()
    replicas: Sequence[int] = array(int32)
    adding_replicas: Sequence[int] = array(int32)
    removing_replicas: Sequence[int] = array(int32)


class OngoingTopicReassignment(Struct):
    name: str = string()
    partitions: Sequence[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Message, api_key=46, versions="0-0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    topics: Sequence[OngoingTopicReassignment] = array(OngoingTopicReassignment)


# Key 35: log directories and the sizes of partitions.


class DescribeLogDirsRequest(RequestMessage["DescribeLogDirsResponse"], api_key=35, versions="0-5", flexible="2+"):
    topics: Sequence[TopicPartitions] | None = array(TopicPartitions, nullable="0+")


class DescribeLogDirsPartition(Struct):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Struct):
    name: str = string()
    partitions: Sequence[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Struct):
    error_code: int = int16()
    log_dir: str = string()
    topics: Sequence[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64("4+", default=-1, ignorable=True)
    usable_bytes: int = int64("4+", default=-1, ignorable=True)
    is_cordoned: bool = boolean("5+", ignorable=True)


class DescribeLogDirsResponse(Message, api_key=35, versions="0-5", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16("3+", ignorable=True)
    results: Sequence[DescribeLogDirsResult] = array(DescribeLogDirsResult)


# Key 34: move replicas to another log directory of a broker.


class AlterReplicaLogDirTopic(Struct):
    name: str = string()
    partitions: Sequence[int] = array(int32)


class AlterReplicaLogDir(Struct):
    path: str = string()
    topics: Sequence[AlterReplicaLogDirTopic] = array(AlterReplicaLogDirTopic)


class AlterReplicaLogDirsRequest(
    RequestMessage["AlterReplicaLogDirsResponse"], api_key=34, versions="1-2", flexible="2+"
):
    dirs: Sequence[AlterReplicaLogDir] = array(AlterReplicaLogDir)


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: str = string()
    partitions: Sequence[AlterReplicaLogDirPartitionResult] = array(AlterReplicaLogDirPartitionResult)


class AlterReplicaLogDirsResponse(Message, api_key=34, versions="1-2", flexible="2+"):
    throttle_time_ms: int = int32()
    results: Sequence[AlterReplicaLogDirTopicResult] = array(AlterReplicaLogDirTopicResult)


# Key 55: the quorum of controllers. v1 times of replicas, v2 addresses and directory ids.


class QuorumPartition(Struct):
    partition_index: int = int32()


class QuorumTopic(Struct):
    topic_name: str = string()
    partitions: Sequence[QuorumPartition] = array(QuorumPartition)


class DescribeQuorumRequest(RequestMessage["DescribeQuorumResponse"], api_key=55, versions="0-2", flexible="0+"):
    topics: Sequence[QuorumTopic] = array(QuorumTopic)


class QuorumReplica(Struct):
    replica_id: int = int32()
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


class QuorumPartitionResult(Struct):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: Sequence[QuorumReplica] = array(QuorumReplica)
    observers: Sequence[QuorumReplica] = array(QuorumReplica)


class QuorumTopicResult(Struct):
    topic_name: str = string()
    partitions: Sequence[QuorumPartitionResult] = array(QuorumPartitionResult)


class QuorumListener(Struct):
    name: str = string("2+")
    host: str = string("2+")
    port: int = uint16("2+")


class QuorumNode(Struct):
    node_id: int = int32("2+")
    listeners: Sequence[QuorumListener] = array(QuorumListener, "2+")


class DescribeQuorumResponse(Message, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    topics: Sequence[QuorumTopicResult] = array(QuorumTopicResult)
    nodes: Sequence[QuorumNode] = array(QuorumNode, "2+")


# Key 57: finalize feature levels.


class FeatureUpdateKey(Struct):
    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean("0")
    upgrade_type: int = int8("1+", default=1)


class UpdateFeaturesRequest(RequestMessage["UpdateFeaturesResponse"], api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int = int32(default=60000)
    feature_updates: Sequence[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean("1+")


class UpdatableFeatureResult(Struct):
    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class UpdateFeaturesResponse(Message, api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    results: Sequence[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1", ignorable=True)


# Key 64: unregister a broker that will not return.


class UnregisterBrokerRequest(RequestMessage["UnregisterBrokerResponse"], api_key=64, versions="0", flexible="0+"):
    broker_id: int = int32()


class UnregisterBrokerResponse(Message, api_key=64, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
