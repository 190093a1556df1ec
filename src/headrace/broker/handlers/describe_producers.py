"""Key 61: who has written to partitions lately, and who has a transaction open in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import check_name
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: DescribeProducersRequest) -> Answer:
    return DescribeProducersResponse(topics=[_topic(broker, context, topic) for topic in message.topics])


def _topic(broker: Broker, context: Context, topic: TopicRequest) -> TopicResponse:
    try:
        check_name(topic.name)
        if not broker.authorizer.allows(context.session, Operation.READ, Resource.TOPIC, topic.name):
            raise BrokerError(code=Code.TOPIC_AUTHORIZATION_FAILED)
    except BrokerError as error:
        partitions = [_refusal(index, error) for index in topic.partition_indexes]
    else:
        partitions = [_partition(broker, topic.name, index) for index in topic.partition_indexes]
    return TopicResponse(name=topic.name, partitions=partitions)


def _partition(broker: Broker, topic: str, index: int) -> PartitionResponse:
    try:
        producers = broker.replicas.partition(topic, index).log.open_producers()
    except BrokerError as error:
        return _refusal(index, error)
    states = [
        ProducerState(
            producer_id=row.producer_id,
            producer_epoch=row.epoch,
            last_sequence=row.last_sequence,
            last_timestamp=row.last_timestamp,
            coordinator_epoch=row.coordinator_epoch,
            current_txn_start_offset=row.current_txn_start_offset,
        )
        for row in producers
    ]
    return PartitionResponse(partition_index=index, active_producers=states)


def _refusal(index: int, error: BrokerError) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=error.code, error_message=str(error))
