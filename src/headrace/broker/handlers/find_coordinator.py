"""Key 10: which broker coordinates a group or a transactional id: the leader of its partition. v4 several at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.catalog.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.broker.context import Answer, Context
from headrace.broker.nodes import node
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.hashing import coordinator_partition

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.cluster.cluster import Cluster

SEVERAL_SINCE = 4


class _Kind(NamedTuple):
    """What can be coordinated."""

    topic: str
    resource: Resource
    refusal: Code


KINDS = {
    0: _Kind(CONSUMER_OFFSETS, Resource.GROUP, Code.GROUP_AUTHORIZATION_FAILED),
    1: _Kind(TRANSACTION_STATE, Resource.TRANSACTIONAL_ID, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}


def handle(broker: Broker, context: Context, message: FindCoordinatorRequest) -> Answer:
    kind = KINDS.get(message.key_type)
    if broker.cluster is not None and kind is not None and kind.topic not in broker.catalog.topics.by_name:
        return _with_topic(broker, broker.cluster, context, message, kind.topic)
    return _answer(broker, context, message)


async def _with_topic(
    broker: Broker, cluster: Cluster, context: Context, message: FindCoordinatorRequest, topic: str
) -> FindCoordinatorResponse:
    """The answer when the controller has made the topic that coordinators need."""
    try:
        await cluster.create_topic(topic)
    except BrokerError:
        return failure(context, message, Code.COORDINATOR_NOT_AVAILABLE)
    return _answer(broker, context, message)


def _answer(broker: Broker, context: Context, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if context.api_version >= SEVERAL_SINCE:
        found = [_find(broker, context, message.key_type, key) for key in message.coordinator_keys]
        return FindCoordinatorResponse(coordinators=found)
    one = _find(broker, context, message.key_type, message.key)
    return FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


def failure(context: Context, message: FindCoordinatorRequest, code: int) -> FindCoordinatorResponse:
    if context.api_version < SEVERAL_SINCE:
        return FindCoordinatorResponse(error_code=code, node_id=-1, port=-1)
    return FindCoordinatorResponse(coordinators=[_nobody(key, code, None) for key in message.coordinator_keys])


def _find(broker: Broker, context: Context, key_type: int, key: str) -> Coordinator:
    try:
        kind = KINDS.get(key_type)
        if kind is None:
            raise BrokerError(f"coordinators of type {key_type} are not offered", code=Code.INVALID_REQUEST)
        if not broker.authorizer.allows(context.session, Operation.DESCRIBE, kind.resource, key):
            raise BrokerError(f"no right to describe {key!r}", code=kind.refusal)
        index = coordinator_partition(key, broker.internal.ensure(kind.topic))
        leader = broker.catalog.topics.by_name[kind.topic].partitions[index].leader
        if leader < 0:
            raise BrokerError(f"{kind.topic}-{index} has no leader", code=Code.COORDINATOR_NOT_AVAILABLE)
        found = node(broker, context.session.listener, leader)
    except BrokerError as error:
        is_away = error.code in (Code.BROKER_NOT_AVAILABLE, Code.INVALID_TOPIC_EXCEPTION)  # the latter: a stray folder
        code = Code.COORDINATOR_NOT_AVAILABLE if is_away else error.code
        return _nobody(key, code, str(error.args[0]))
    return Coordinator(key=key, node_id=leader, host=found.host, port=found.port)


def _nobody(key: str, code: int, text: str | None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text)
