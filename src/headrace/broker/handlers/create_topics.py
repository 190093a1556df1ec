"""Key 19: make topics. v1 can just look whether it could, v4 leaves numbers to the broker, v5 tells what it made."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import Topic
from headrace.broker.configs import Source
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.broker.topic_admin import Assignment
from headrace.errors import BrokerError, Code
from headrace.wire.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def handle(broker: Broker, context: Context, message: CreateTopicsRequest) -> Answer:
    times = Counter(topic.name for topic in message.topics)
    # One answer a name, as the client looks them up by that.
    wanted = {topic.name: topic for topic in message.topics}
    return CreateTopicsResponse(
        topics=[_create(broker, context, message, topic, times[name]) for name, topic in wanted.items()]
    )


def _create(
    broker: Broker, context: Context, message: CreateTopicsRequest, topic: CreatableTopic, times: int
) -> CreatableTopicResult:
    try:
        if times > 1:
            raise BrokerError(f"topic {topic.name} is named {times} times", code=Code.INVALID_REQUEST)
        _authorise(broker, context, topic.name)
        configs = {config.name: config.value for config in topic.configs}
        broker.topic_admin.check_configs(configs)
        made = broker.topic_admin.create(
            topic.name,
            topic.num_partitions,
            topic.replication_factor,
            {name: value for name, value in configs.items() if value is not None},
            assignment=_assignment(topic) if topic.assignments else None,
            validate_only=message.validate_only,
        )
    except BrokerError as error:
        return CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.args[0] or None)
    return _result(broker, context, made, {name: value or "" for name, value in configs.items()}, message.validate_only)


def _authorise(broker: Broker, context: Context, name: str) -> None:
    allows, session = broker.authorizer.allows, context.session
    if not (
        allows(session, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME)
        or allows(session, Operation.CREATE, Resource.TOPIC, name)
    ):
        raise BrokerError(f"no right to create topic {name}", code=Code.TOPIC_AUTHORIZATION_FAILED)


def _assignment(topic: CreatableTopic) -> Assignment:
    brokers = {row.partition_index: row.broker_ids for row in topic.assignments}
    if sorted(brokers) != list(range(len(topic.assignments))):
        raise BrokerError(
            "the partitions of an assignment are numbered from 0 on, each once", code=Code.INVALID_REPLICA_ASSIGNMENT
        )
    return [brokers[index] for index in range(len(brokers))]


def _result(
    broker: Broker, context: Context, topic: Topic, configs: dict[str, str], validate_only: bool
) -> CreatableTopicResult:
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=bytes(16) if validate_only else topic.id,
        error_message=None,
        num_partitions=len(topic.partitions),
        replication_factor=len(topic.partitions[0].replicas),
    )
    if not broker.authorizer.allows(context.session, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name):
        return result.replace(
            topic_config_error_code=Code.TOPIC_AUTHORIZATION_FAILED,
            num_partitions=-1,
            replication_factor=-1,
            configs=(),
        )
    return result.replace(
        configs=[
            CreatableTopicConfigs(
                name=entry.option.name,
                value=configs.get(entry.option.name, entry.value),
                config_source=Source.DYNAMIC_TOPIC if entry.option.name in configs else entry.source,
                read_only=entry.read_only,
                is_sensitive=entry.is_sensitive,
            )
            for entry in broker.configurations.of_topic(topic.name)
        ]
    )
