"""Key 20: delete topics, by name, or from v6 on by id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.catalog.topics import Topic
from headrace.broker.context import Answer, Context
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.wire.schema import ZERO_UUID

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

STATES_SINCE = 6


def handle(broker: Broker, context: Context, message: DeleteTopicsRequest) -> Answer:
    if context.api_version >= STATES_SINCE:
        states = list(message.topics)
    else:
        states = [DeleteTopicState(name=name) for name in message.topic_names]
    return DeleteTopicsResponse(responses=[_delete(broker, context, state) for state in states])


def _delete(broker: Broker, context: Context, state: DeleteTopicState) -> DeletableTopicResult:
    name, topic_id = state.name, state.topic_id
    try:
        topic = _find(broker, context, state)
        name, topic_id = topic.name, topic.id
        if not broker.authorizer.allows(context.session, Operation.DELETE, Resource.TOPIC, topic.name):
            raise BrokerError(f"no right to delete topic {name}", code=Code.TOPIC_AUTHORIZATION_FAILED)
        if topic.is_internal:
            raise BrokerError(f"topic {name} is the broker's own", code=Code.INVALID_REQUEST)
        broker.topic_admin.delete(topic)
    except BrokerError as error:
        return DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=error.code, error_message=error.args[0] or None
        )
    return DeletableTopicResult(name=name, topic_id=topic_id)


def _find(broker: Broker, context: Context, state: DeleteTopicState) -> Topic:
    topics = broker.catalog.topics
    if state.name is None:
        by_id = topics.by_id.get(state.topic_id)
        if by_id is None or not _may_know(broker, context, by_id.name):
            raise BrokerError("there is no topic with this id", code=Code.UNKNOWN_TOPIC_ID)
        return by_id
    if state.topic_id != ZERO_UUID:
        raise BrokerError("either a name or an id: not both", code=Code.INVALID_REQUEST)
    if not _may_know(broker, context, state.name):
        raise BrokerError(f"no right to describe topic {state.name}", code=Code.TOPIC_AUTHORIZATION_FAILED)
    by_name = topics.by_name.get(state.name)
    if by_name is None:
        raise BrokerError(f"there is no topic {state.name}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
    return by_name


def _may_know(broker: Broker, context: Context, name: str) -> bool:
    return broker.authorizer.allows(context.session, Operation.DESCRIBE, Resource.TOPIC, name)
