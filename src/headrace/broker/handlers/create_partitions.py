"""Key 37: more partitions for topics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.context import Answer, Context
from headrace.broker.security.access import require
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: CreatePartitionsRequest) -> Answer:
    times = Counter(topic.name for topic in message.topics)
    results = []
    for name, wanted in {topic.name: topic for topic in message.topics}.items():
        try:
            if times[name] > 1:
                raise BrokerError(f"topic {name} is in the request twice", code=Code.INVALID_REQUEST)
            _grow(broker, context, wanted, validate_only=message.validate_only)
        except BrokerError as error:
            text = str(error.args[0])
            results.append(CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=text))
        else:
            results.append(CreatePartitionsTopicResult(name=name))
    return CreatePartitionsResponse(results=results)


def _grow(broker: Broker, context: Context, wanted: CreatePartitionsTopic, *, validate_only: bool) -> None:
    require(broker.authorizer, context.session, Operation.ALTER, Resource.TOPIC, wanted.name)
    topic = broker.catalog.topics.by_name.get(wanted.name)
    if topic is None:
        raise BrokerError(f"there is no topic {wanted.name}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.is_internal:
        raise BrokerError(
            f"{topic.name} cannot grow: groups and transactions are found by its number of partitions",
            code=Code.INVALID_TOPIC_EXCEPTION,
        )
    assignment = None if wanted.assignments is None else [row.broker_ids for row in wanted.assignments]
    broker.topic_admin.add_partitions(topic, wanted.partition_count, assignment, validate_only=validate_only)


def failure(context: Context, message: CreatePartitionsRequest, code: int) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[CreatePartitionsTopicResult(name=topic.name, error_code=code) for topic in message.topics]
    )
