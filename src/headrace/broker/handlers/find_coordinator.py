"""Key 10: which broker coordinates a group or a transactional id: the leader of its partition. v4 several at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.catalog.topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from headrace.broker.context import Answer, Context
from headrace.broker.hashing import coordinator_partition
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

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
        if leader != broker.node_id:
            raise BrokerError(f"{kind.topic}-{index} has no leader", code=Code.COORDINATOR_NOT_AVAILABLE)
    except BrokerError as error:
        return _nobody(key, error.code, str(error.args[0]))
    listener = broker.listener(context.session.listener)
    return Coordinator(
        key=key, node_id=leader, host=listener.advertised_host, port=listener.advertised_port or listener.port
    )


def _nobody(key: str, code: int, text: str | None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=text)
