"""Key 45: move partitions to other brokers, or give up such a move. A broker that is alone has them all already."""

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
        rows = [
            _result(broker, topic.name, row.partition_index, row.replicas, allow_change=allow_change)
            for row in topic.partitions
        ]
        topics.append(ReassignableTopicResponse(name=topic.name, partitions=rows))
    return AlterPartitionReassignmentsResponse(
        error_message=None, responses=topics, allow_replication_factor_change=allow_change
    )


def _result(
    broker: Broker, name: str, index: int, replicas: Sequence[int] | None, *, allow_change: bool
) -> ReassignablePartitionResponse:
    try:
        _move(broker, name, index, replicas, allow_change=allow_change)
    except BrokerError as error:
        return ReassignablePartitionResponse(
            partition_index=index, error_code=error.code, error_message=str(error.args[0])
        )
    return ReassignablePartitionResponse(partition_index=index, error_message=None)


def _move(broker: Broker, name: str, index: int, replicas: Sequence[int] | None, *, allow_change: bool) -> None:
    topic = broker.catalog.topics.by_name.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise BrokerError(f"there is no partition {name}-{index}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    place = topic.partitions[index]
    if replicas is None and not (place.adding or place.removing):
        raise BrokerError(f"{name}-{index} is not being moved", code=Code.NO_REASSIGNMENT_IN_PROGRESS)
    if replicas is not None:
        broker.topic_admin.check_replicas(f"{name}-{index}", replicas)
        present = len(place.replicas) - len(place.adding)
        if not allow_change and len(replicas) != present:
            raise BrokerError(
                f"{name}-{index} has {present} replicas, not {len(replicas)}, and their number must not change",
                code=Code.INVALID_REPLICATION_FACTOR,
            )
    if broker.cluster is not None:
        from headrace.broker.cluster.controller import Controller

        assert isinstance(broker.cluster, Controller), "others hand this on"
        broker.cluster.move(topic, index, replicas)
