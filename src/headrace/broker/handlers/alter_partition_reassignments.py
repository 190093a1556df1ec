"""Key 45: move partitions to other brokers. There is one, and they are on it already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError, Code
from headrace.wire.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: AlterPartitionReassignmentsRequest) -> Answer:
    allow_change = message.allow_replication_factor_change
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.ALTER)
    except BrokerError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.code,
            error_message=str(error.args[0]),
            allow_replication_factor_change=allow_change,
        )
    topics = []
    for topic in message.topics:
        rows = [_result(broker, topic.name, row.partition_index, row.replicas) for row in topic.partitions]
        topics.append(ReassignableTopicResponse(name=topic.name, partitions=rows))
    return AlterPartitionReassignmentsResponse(
        error_message=None, responses=topics, allow_replication_factor_change=allow_change
    )


def _result(broker: Broker, name: str, index: int, replicas: Sequence[int] | None) -> ReassignablePartitionResponse:
    try:
        _check(broker, name, index, replicas)
    except BrokerError as error:
        return ReassignablePartitionResponse(
            partition_index=index, error_code=error.code, error_message=str(error.args[0])
        )
    return ReassignablePartitionResponse(partition_index=index, error_message=None)


def _check(broker: Broker, name: str, index: int, replicas: Sequence[int] | None) -> None:
    """Raise unless the replicas are what they are anyway."""
    topic = broker.catalog.topics.by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise BrokerError(f"there is no partition {name}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    if replicas is None:
        raise BrokerError(f"{name}-{index} is not being moved", code=Code.NO_REASSIGNMENT_IN_PROGRESS)
    if not replicas or len(set(replicas)) < len(replicas):
        raise BrokerError(
            f"{name}-{index}: one or more brokers, each once, not {list(replicas)}",
            code=Code.INVALID_REPLICA_ASSIGNMENT,
        )
    for node in replicas:
        if node != broker.node_id:
            raise BrokerError(f"{name}-{index}: there is no broker {node}", code=Code.INVALID_REPLICA_ASSIGNMENT)
