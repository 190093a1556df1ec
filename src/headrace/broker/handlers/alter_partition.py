"""Key 56: the in-sync sets that a leader asks for, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.cluster.access import controller_for
from headrace.broker.cluster.controller import Controller
from headrace.broker.context import Answer, Context
from headrace.errors import BrokerError
from headrace.wire.api.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    PartitionResult,
    TopicResult,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: AlterPartitionRequest) -> Answer:
    controller = controller_for(broker, context)
    topics = []
    for topic in message.topics:
        rows = [_altered(controller, message, topic.topic_id, row) for row in topic.partitions]
        topics.append(TopicResult(topic_id=topic.topic_id, partitions=rows))
    return AlterPartitionResponse(topics=topics)


def _altered(
    controller: Controller, message: AlterPartitionRequest, topic_id: bytes, row: PartitionData
) -> PartitionResult:
    isr = {state.broker_id: state.broker_epoch for state in row.new_isr_with_epochs}
    try:
        place = controller.alter(
            message.broker_id,
            message.broker_epoch,
            topic_id,
            row.partition_index,
            row.leader_epoch,
            row.partition_epoch,
            isr,
        )
    except BrokerError as error:
        return PartitionResult(partition_index=row.partition_index, error_code=error.code)
    return PartitionResult(
        partition_index=row.partition_index,
        leader_id=place.leader,
        leader_epoch=place.leader_epoch,
        isr=place.isr,
        partition_epoch=place.partition_epoch,
    )
