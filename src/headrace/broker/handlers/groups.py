"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, ConsumerGroupHeartbeat and FindCoordinator: group membership."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.catalog.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from headrace.broker.context import Context, HandlerResult
from headrace.broker.groups.consumer_heartbeats import HeartbeatClient
from headrace.broker.groups.group import MemberClaim
from headrace.broker.groups.joining import JoiningClient
from headrace.broker.nodes import node
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from headrace.wire.api.metadata import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from headrace.wire.internal_topics import coordinator_partition

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.cluster.role import ClusterRole
    from headrace.wire.api.share_groups import ShareGroupHeartbeatRequest

# -- FindCoordinator -----------------------------------------------------------------------------


KEYS_MIN_VERSION = 4
SHARE_MIN_VERSION = 6
SHARE_COORDINATOR = 2


class _CoordinatorType(NamedTuple):
    """A type of coordinator: its internal topic and the resource type of its keys."""

    topic: str
    resource: Resource


COORDINATOR_TYPES = {
    0: _CoordinatorType(CONSUMER_OFFSETS, Resource.GROUP),
    1: _CoordinatorType(TRANSACTION_STATE, Resource.TRANSACTIONAL_ID),
    SHARE_COORDINATOR: _CoordinatorType(SHARE_GROUP_STATE, Resource.CLUSTER),
}


def handle_find_coordinator(broker: Broker, context: Context, request: FindCoordinatorRequest) -> HandlerResult:
    """Return the coordinator of a group or transactional id: the leader of its partition. v4+: several keys."""
    kind = COORDINATOR_TYPES.get(request.key_type)
    if broker.cluster is not None and kind is not None and kind.topic not in broker.catalog.topics.by_name:
        return _create_topic_then_find(broker, broker.cluster, context, request, kind.topic)
    return _find_coordinators(broker, context, request)


async def _create_topic_then_find(
    broker: Broker, cluster: ClusterRole, context: Context, request: FindCoordinatorRequest, topic: str
) -> FindCoordinatorResponse:
    """Have the controller create the internal topic, then respond."""
    try:
        await cluster.create_topic(topic)
    except BrokerError:
        return fail_find_coordinator(context, request, Code.COORDINATOR_NOT_AVAILABLE)
    return _find_coordinators(broker, context, request)


def _find_coordinators(broker: Broker, context: Context, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if context.api_version >= KEYS_MIN_VERSION:
        coordinators = [_find_coordinator(broker, context, request.key_type, key) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=coordinators)
    coordinator = _find_coordinator(broker, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


def fail_find_coordinator(context: Context, request: FindCoordinatorRequest, code: int) -> FindCoordinatorResponse:
    if context.api_version < KEYS_MIN_VERSION:
        return FindCoordinatorResponse(error_code=code, node_id=-1, port=-1)
    return FindCoordinatorResponse(coordinators=[_no_coordinator(key, code, None) for key in request.coordinator_keys])


def _find_coordinator(broker: Broker, context: Context, key_type: int, key: str) -> Coordinator:
    try:
        kind = COORDINATOR_TYPES.get(key_type)
        if kind is None:
            raise BrokerError(
                f"invalid coordinator type {key_type}: expected 0 (group), 1 (transaction) or 2 (share)",
                code=Code.INVALID_REQUEST,
            )
        if key_type == SHARE_COORDINATOR:
            _check_share_key(broker, context, key)
        else:
            broker.authorizer.require(context.session, Operation.DESCRIBE, kind.resource, key)
        index = coordinator_partition(key, broker.internal.ensure(kind.topic))
        leader = broker.catalog.topics.by_name[kind.topic].partitions[index].leader
        if leader < 0:
            raise BrokerError(f"{kind.topic}-{index} has no leader", code=Code.COORDINATOR_NOT_AVAILABLE)
        address = node(broker, context.session.listener, leader)
    except BrokerError as error:
        # A stray data folder makes the internal topic's name invalid.
        is_unavailable = error.code in (Code.BROKER_NOT_AVAILABLE, Code.INVALID_TOPIC_EXCEPTION)
        code = Code.COORDINATOR_NOT_AVAILABLE if is_unavailable else error.code
        return _no_coordinator(key, code, str(error.args[0]))
    return Coordinator(key=key, node_id=leader, host=address.host, port=address.port)


def _check_share_key(broker: Broker, context: Context, key: str) -> None:
    """Raise unless a broker asks for the coordinator of a share partition."""
    if context.api_version < SHARE_MIN_VERSION:
        raise BrokerError(
            f"share coordinators need FindCoordinator v{SHARE_MIN_VERSION}, got v{context.api_version}",
            code=Code.INVALID_REQUEST,
        )
    from headrace.broker.share.state import SharePartitionKey  # not for brokers without share groups: start-up time

    broker.authorizer.require(context.session, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
    SharePartitionKey.parse(key)


def _no_coordinator(key: str, code: int, message: str | None) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=message)


# -- JoinGroup -----------------------------------------------------------------------------------


NULLABLE_PROTOCOL_MIN_VERSION = 7
REBALANCE_TIMEOUT_MIN_VERSION = 1


def handle_join_group(broker: Broker, context: Context, request: JoinGroupRequest) -> HandlerResult:
    """Join a group or its next rebalance. The response is sent when the rebalance completes.

    v1+ rebalance timeout · v4+ new members get a member id first (KIP-394) · v5+ static members · v7+ protocol type in
    the response, nullable protocol name · v9+ a returning leader may skip the assignment (KIP-814).
    """
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, request.group_id):
        return fail_join_group(context, request, Code.GROUP_AUTHORIZATION_FAILED)
    if context.api_version < REBALANCE_TIMEOUT_MIN_VERSION:
        request = request.replace(rebalance_timeout_ms=request.session_timeout_ms)
    client = JoiningClient(context.client_id or "", f"/{context.session.host}", context.api_version)
    try:
        joining = broker.groups.join(request, client)
    except BrokerError as error:
        return fail_join_group(context, request, error.code)
    if joining.done():
        return _with_protocol_name(context, joining.result())
    return _await_join(context, joining)


def fail_join_group(context: Context, request: JoinGroupRequest, code: int) -> JoinGroupResponse:
    return _with_protocol_name(
        context, JoinGroupResponse(error_code=code, member_id=request.member_id, protocol_name=None)
    )


async def _await_join(context: Context, joining: asyncio.Future[JoinGroupResponse]) -> JoinGroupResponse:
    return _with_protocol_name(context, await joining)


def _with_protocol_name(context: Context, response: JoinGroupResponse) -> JoinGroupResponse:
    if response.protocol_name is None and context.api_version < NULLABLE_PROTOCOL_MIN_VERSION:
        return response.replace(protocol_name="")
    return response


# -- SyncGroup -----------------------------------------------------------------------------------


PROTOCOL_MIN_VERSION = 5


def handle_sync_group(broker: Broker, context: Context, request: SyncGroupRequest) -> HandlerResult:
    """Distribute the leader's assignment. The response is sent when the leader has sent it and it is in the log.

    v3+ static members · v5+ the protocol is required, to detect members that missed a change of it.
    """
    if context.api_version >= PROTOCOL_MIN_VERSION and None in (request.protocol_type, request.protocol_name):
        return SyncGroupResponse(error_code=Code.INCONSISTENT_GROUP_PROTOCOL)
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, request.group_id):
        return SyncGroupResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    try:
        syncing = broker.groups.sync(request)
    except BrokerError as error:
        return SyncGroupResponse(error_code=error.code)
    return syncing.result() if syncing.done() else syncing


# -- Heartbeat -----------------------------------------------------------------------------------


def handle_heartbeat(broker: Broker, context: Context, request: HeartbeatRequest) -> HandlerResult:
    """Keep a member's session alive; REBALANCE_IN_PROGRESS tells it to rejoin. v3+ static members."""
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, request.group_id):
        return HeartbeatResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    claim = MemberClaim(request.member_id, request.generation_id, request.group_instance_id)
    try:
        return HeartbeatResponse(error_code=broker.groups.heartbeat(request.group_id, claim))
    except BrokerError as error:
        return HeartbeatResponse(error_code=error.code)


# -- LeaveGroup ----------------------------------------------------------------------------------


MEMBERS_MIN_VERSION = 3


async def handle_leave_group(broker: Broker, context: Context, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members. v3+ several at once, static members by instance id · v5+ with a reason."""
    if not broker.authorizer.allows(context.session, Operation.READ, Resource.GROUP, request.group_id):
        return LeaveGroupResponse(error_code=Code.GROUP_AUTHORIZATION_FAILED)
    batched = context.api_version >= MEMBERS_MIN_VERSION
    members = request.members if batched else (MemberIdentity(member_id=request.member_id),)
    try:
        if broker.groups.is_consumer_group(request.group_id):
            results = await broker.groups.leave_consumer_group(request.group_id, members)
        else:
            results = broker.groups.leave(request.group_id, members)
    except BrokerError as error:
        return LeaveGroupResponse(error_code=error.code)
    if not batched:
        return LeaveGroupResponse(error_code=results[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code)
            for member, code in zip(members, results, strict=True)
        ]
    )


# -- ConsumerGroupHeartbeat ----------------------------------------------------------------------


async def handle_consumer_group_heartbeat(
    broker: Broker, context: Context, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Join a consumer group, keep a member alive, return its assignment, or leave (KIP-848).

    v1+ regular expressions, member ids of clients.
    """
    broker.groups.consumer_settings.check_enabled()
    return await broker.groups.consumer_heartbeat(request, heartbeat_client(broker, context, request))


def heartbeat_client(
    broker: Broker, context: Context, request: ConsumerGroupHeartbeatRequest | ShareGroupHeartbeatRequest
) -> HeartbeatClient:
    """Return the client of a heartbeat; raise if it is not authorized for the group or a topic."""
    session, allows = context.session, broker.authorizer.allows
    broker.authorizer.require(session, Operation.READ, Resource.GROUP, request.group_id)
    for topic in request.subscribed_topic_names or ():
        broker.authorizer.require(session, Operation.DESCRIBE, Resource.TOPIC, topic)
    return HeartbeatClient(
        context.client_id or "",
        f"/{session.host}",
        context.api_version,
        lambda topic: allows(session, Operation.DESCRIBE, Resource.TOPIC, topic),
    )
