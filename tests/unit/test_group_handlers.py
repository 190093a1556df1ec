"""Permissions of the group requests, and their failed responses in every version."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.catalog.topics import PartitionRegistration, Topic
from headrace.broker.context import Context, Session
from headrace.broker.handlers import SUPPORTED, handler
from headrace.broker.security.authorizer import Authorizer, Operation, Resource
from headrace.broker.server.dispatch import failed_response
from headrace.errors import BrokerError, Code
from headrace.wire.api import api_name
from headrace.wire.api.group_admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from headrace.wire.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from headrace.wire.api.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from headrace.wire.api.metadata import FindCoordinatorRequest
from headrace.wire.schema import Message
from tests.support.group_rig import GROUP, GroupRig, on_loop

TOPIC = Topic("orders", b"i" * 16, [PartitionRegistration((1,), (1,), 1, 0)])
GROUP_REFUSED, TOPIC_REFUSED = Code.GROUP_AUTHORIZATION_FAILED, Code.TOPIC_AUTHORIZATION_FAILED
ID_REFUSED = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class DenyingAuthorizer(Authorizer):
    """Permits everything except the denied operations."""

    def __init__(self, operation: Operation | None = None, resource: Resource | None = None) -> None:
        self._refused = {(operation, resource)}

    def refuse(self, operation: Operation, resource: Resource) -> None:
        self._refused.add((operation, resource))

    def allows(self, session: Session, operation: Operation, resource: Resource, name: str) -> bool:
        return (operation, resource) not in self._refused


def broker_of(rig: GroupRig, authorizer: DenyingAuthorizer) -> Any:
    topics = SimpleNamespace(by_name={TOPIC.name: TOPIC}, by_id={TOPIC.id: TOPIC})
    return SimpleNamespace(
        groups=rig.groups,
        internal=rig.internal,
        authorizer=authorizer,
        catalog=SimpleNamespace(topics=topics),
        node_id=1,
        cluster=None,
    )


async def send_request(broker: Any, message: Message, version: int) -> Any:
    """Return the response of a handler, or that for its error, after encoding and decoding."""
    context = Context(Session("127.0.0.1", "PLAINTEXT"), message.api_key, version, "client", 1)
    sent = type(message).decode(version, message.encode(version))
    try:
        response = handler(message.api_key)(broker, context, sent)
        if inspect.isawaitable(response):
            response = await response
    except BrokerError as error:
        response = failed_response(context, sent, error.code, str(error.args[0]))
    assert isinstance(response, Message)
    return type(response).decode(version, response.encode(version))


COMMIT = OffsetCommitRequest(
    group_id=GROUP,
    topics=[OffsetCommitRequestTopic(name="orders", partitions=[OffsetCommitRequestPartition(committed_offset=5)])],
)
TXN_COMMIT = TxnOffsetCommitRequest(
    transactional_id="t",
    group_id=GROUP,
    topics=[TxnOffsetCommitRequestTopic(name="orders", partitions=[TxnOffsetCommitRequestPartition()])],
)
FETCH = OffsetFetchRequest(
    groups=[
        OffsetFetchRequestGroup(group_id=GROUP, topics=[OffsetFetchRequestTopics(name="orders", partition_indexes=[0])])
    ]
)
DELETE = OffsetDeleteRequest(
    group_id=GROUP, topics=[OffsetDeleteRequestTopic(name="orders", partitions=[OffsetDeleteRequestPartition()])]
)
FIRST = ("topics", 0, "partitions", 0)


def picked(response: Any, *path: str | int) -> Code:
    """Return the error code at the end of a path."""
    for step in path:
        response = response[step] if isinstance(step, int) else getattr(response, step)
    return Code(response.error_code)


@pytest.mark.parametrize(("version", "code"), [(2, 3), (9, 3), (10, 100)])
@on_loop
async def test_a_commit_without_a_topic_name_fails(version, code):
    async with GroupRig() as rig:
        commit = COMMIT.replace(topics=[COMMIT.topics[0].replace(name="")])
        response = await send_request(broker_of(rig, DenyingAuthorizer()), commit, version)
        assert picked(response, *FIRST) == code
        response = await send_request(broker_of(rig, DenyingAuthorizer(Operation.READ, Resource.TOPIC)), commit, 9)
        assert picked(response, *FIRST) == TOPIC_REFUSED


@pytest.mark.parametrize(
    ("operation", "resource", "message", "version", "path", "code"),
    [
        (Operation.READ, Resource.GROUP, JoinGroupRequest(group_id=GROUP), 9, (), GROUP_REFUSED),
        (Operation.READ, Resource.GROUP, JoinGroupRequest(group_id=GROUP), 0, (), GROUP_REFUSED),
        (Operation.READ, Resource.GROUP, SyncGroupRequest(group_id=GROUP), 4, (), GROUP_REFUSED),
        (Operation.READ, Resource.GROUP, HeartbeatRequest(group_id=GROUP), 4, (), GROUP_REFUSED),
        (Operation.READ, Resource.GROUP, LeaveGroupRequest(group_id=GROUP), 5, (), GROUP_REFUSED),
        (Operation.READ, Resource.GROUP, COMMIT, 9, FIRST, GROUP_REFUSED),
        (Operation.READ, Resource.TOPIC, COMMIT, 9, FIRST, TOPIC_REFUSED),
        (Operation.READ, Resource.GROUP, TXN_COMMIT, 5, FIRST, GROUP_REFUSED),
        (Operation.READ, Resource.TOPIC, TXN_COMMIT, 5, FIRST, TOPIC_REFUSED),
        (Operation.WRITE, Resource.TRANSACTIONAL_ID, TXN_COMMIT, 5, FIRST, ID_REFUSED),
        (Operation.DESCRIBE, Resource.GROUP, FETCH, 9, ("groups", 0), GROUP_REFUSED),
        (Operation.DESCRIBE, Resource.TOPIC, FETCH, 9, ("groups", 0, *FIRST), TOPIC_REFUSED),
        (Operation.DELETE, Resource.GROUP, DELETE, 0, (), GROUP_REFUSED),
        (Operation.READ, Resource.TOPIC, DELETE, 0, FIRST, TOPIC_REFUSED),
        (Operation.DESCRIBE, Resource.GROUP, DescribeGroupsRequest(groups=[GROUP]), 5, ("groups", 0), GROUP_REFUSED),
        (Operation.DELETE, Resource.GROUP, DeleteGroupsRequest(groups_names=[GROUP]), 2, ("results", 0), GROUP_REFUSED),
        (Operation.DESCRIBE, Resource.GROUP, FindCoordinatorRequest(key=GROUP), 3, (), GROUP_REFUSED),
        (Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, FindCoordinatorRequest(key="t", key_type=1), 3, (), ID_REFUSED),
    ],
    ids=lambda value: api_name(value.api_key) if isinstance(value, Message) else None,
)
@on_loop
async def test_denied_requests_fail_with_the_authorization_error(operation, resource, message, version, path, code):
    async with GroupRig() as rig:
        await rig.commit({("orders", 0): 1})
        response = await send_request(broker_of(rig, DenyingAuthorizer(operation, resource)), message, version)
        assert picked(response, *path) is code
        assert rig.offset() == 1


@on_loop
async def test_list_groups_returns_only_authorized_groups():
    async with GroupRig() as rig:
        await rig.commit({("orders", 0): 1})
        authorizer = DenyingAuthorizer(Operation.DESCRIBE, Resource.CLUSTER)
        response = await send_request(broker_of(rig, authorizer), ListGroupsRequest(), 5)
        assert [row.group_id for row in response.groups] == [GROUP]
        authorizer.refuse(Operation.DESCRIBE, Resource.GROUP)
        response = await send_request(broker_of(rig, authorizer), ListGroupsRequest(), 5)
        assert not response.groups


@on_loop
async def test_fetching_all_offsets_returns_only_authorized_topics():
    async with GroupRig() as rig:
        await rig.commit({("orders", 0): 1, ("gone", 0): 1})
        everything = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
        response = await send_request(broker_of(rig, DenyingAuthorizer()), everything, 9)
        assert {topic.name for topic in response.groups[0].topics} == {"orders", "gone"}
        response = await send_request(broker_of(rig, DenyingAuthorizer()), everything, 10)
        assert [topic.topic_id for topic in response.groups[0].topics] == [TOPIC.id]
        response = await send_request(
            broker_of(rig, DenyingAuthorizer(Operation.DESCRIBE, Resource.TOPIC)), everything, 9
        )
        assert not response.groups[0].topics


@on_loop
async def test_sync_group_v5_requires_a_protocol():
    async with GroupRig() as rig:
        broker = broker_of(rig, DenyingAuthorizer())
        wrong = Code.INCONSISTENT_GROUP_PROTOCOL
        assert picked(await send_request(broker, SyncGroupRequest(group_id=GROUP, member_id="m"), 5)) is wrong
        assert (
            picked(await send_request(broker, SyncGroupRequest(group_id=GROUP, member_id="m"), 4))
            is Code.UNKNOWN_MEMBER_ID
        )


@on_loop
async def test_join_group_v0_uses_the_session_timeout_for_rebalances():
    async with GroupRig({"group.initial.rebalance.delay.ms": 0}) as rig:
        protocols = [JoinGroupRequestProtocol(name="p")]
        request = JoinGroupRequest(group_id=GROUP, session_timeout_ms=7_000, protocol_type="x", protocols=protocols)
        context = Context(Session("127.0.0.1", "PLAINTEXT"), 11, 0, None, 1)
        joining = handler(11)(broker_of(rig, DenyingAuthorizer()), context, request)
        (member,) = rig.group.members.values()
        assert (member.rebalance_timeout_ms, member.client_id, member.client_host) == (7_000, "", "/127.0.0.1")
        await rig.clock.run()
        assert inspect.isawaitable(joining)
        assert picked(await joining) is Code.NONE


SAMPLES: list[Message] = [
    JoinGroupRequest(group_id=GROUP),
    SyncGroupRequest(group_id=GROUP),
    HeartbeatRequest(group_id=GROUP),
    LeaveGroupRequest(group_id=GROUP),
    COMMIT,
    TXN_COMMIT,
    FETCH,
    DELETE,
    DescribeGroupsRequest(groups=[GROUP]),
    ListGroupsRequest(),
    DeleteGroupsRequest(groups_names=[GROUP]),
    FindCoordinatorRequest(key=GROUP, coordinator_keys=[GROUP]),
]
EACH_VERSION = [
    pytest.param(message, version, id=f"{api_name(message.api_key)}-{version}")
    for message in SAMPLES
    for version in range(SUPPORTED[message.api_key].first, SUPPORTED[message.api_key].last + 1)
]


@pytest.mark.parametrize(("message", "version"), EACH_VERSION)
def test_every_version_has_a_failed_response(message, version):
    context = Context(Session("127.0.0.1", "PLAINTEXT"), message.api_key, version, "client", 1)
    if message.api_key == 9 and version < 8:
        old = OffsetFetchRequestTopic(name="orders", partition_indexes=[0])
        message = OffsetFetchRequest(group_id=GROUP, topics=[old])
    response = failed_response(context, message, Code.COORDINATOR_NOT_AVAILABLE, "an error of the test")
    assert response is not None
    assert f"error_code={Code.COORDINATOR_NOT_AVAILABLE!r}" in repr(response)
    again = type(response).decode(version, response.encode(version))
    assert f"error_code={int(Code.COORDINATOR_NOT_AVAILABLE)}" in repr(again)
