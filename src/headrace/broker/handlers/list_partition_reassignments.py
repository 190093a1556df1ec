"""Key 46: partitions that are being moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import Topic
from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require_on_cluster
from headrace.broker.security.authorizer import Operation
from headrace.errors import BrokerError
from headrace.wire.api.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: ListPartitionReassignmentsRequest) -> Answer:
    try:
        require_on_cluster(broker.authorizer, context.session, Operation.DESCRIBE)
    except BrokerError as error:
        return ListPartitionReassignmentsResponse(error_code=error.code, error_message=str(error.args[0]))
    by_name = broker.catalog.topics.by_name
    if message.topics is None:
        wanted: dict[str, Sequence[int]] = {topic.name: range(len(topic.partitions)) for topic in by_name.values()}
    else:
        wanted = {row.name: row.partition_indexes for row in message.topics if row.name in by_name}
    topics = []
    for name, indexes in wanted.items():
        rows = [row for index in indexes for row in _ongoing(by_name[name], index)]
        if rows:
            topics.append(OngoingTopicReassignment(name=name, partitions=rows))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


def _ongoing(topic: Topic, index: int) -> list[OngoingPartitionReassignment]:
    if not 0 <= index < len(topic.partitions):
        return []
    place = topic.partitions[index]
    if not (place.adding or place.removing):
        return []
    return [
        OngoingPartitionReassignment(
            partition_index=index,
            replicas=place.replicas,
            adding_replicas=place.adding,
            removing_replicas=place.removing,
        )
    ]
