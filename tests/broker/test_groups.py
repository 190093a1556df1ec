"""Groups: every version of every API, and kill -9."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import GroupMetadata, Producer
from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient
from headrace.errors import Code
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
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from headrace.wire.api.metadata import FindCoordinatorRequest
from headrace.wire.schema import Message
from tests.support.peers.connection import Connection
from tests.support.topics import unique
from tests.support.waiting import eventually

SESSION_MS = 10_000
SUBSCRIPTION = b"\0\1" + b"\0\0\0\0" + b"\xff\xff\xff\xff"
JOIN_VERSIONS = range(10)


@pytest.fixture
def group() -> str:
    return unique("group")


def topic_id_of(broker: EmbeddedBroker, topic: str) -> bytes:
    with AdminClient(broker.bootstrap) as admin:
        return admin.describe_topics([topic])[topic].topic_id.bytes


def receive(connection: Connection, request: type[Message], version: int) -> Any:
    """Return the response to an earlier request."""
    return connection.receive(request.api_key, version)[1]


class Member:
    """A consumer that sends its requests explicitly."""

    def __init__(self, connection: Connection, group: str) -> None:
        self.id = ""
        self.generation = -1
        self._connection = connection
        self._group = group

    def join(self, version: int = 9, instance_id: str | None = None):
        """Join with the assigned member id; return the response."""
        while True:
            request = JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self.id,
                group_instance_id=instance_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
            )
            response = self._connection.call(request, version)
            self.id = response.member_id
            if response.error_code != Code.MEMBER_ID_REQUIRED:
                self.generation = response.generation_id
                return response

    def sync(self, version: int = 5, assignment: bytes = b"all"):
        is_named = version >= 5
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[SyncGroupRequestAssignment(member_id=self.id, assignment=assignment)],
            protocol_type="consumer" if is_named else None,
            protocol_name="range" if is_named else None,
        )
        return self._connection.call(request, version)

    def heartbeat(self, version: int = 4) -> Code:
        request = HeartbeatRequest(group_id=self._group, generation_id=self.generation, member_id=self.id)
        return Code(self._connection.call(request, version).error_code)

    def leave(self, version: int = 5) -> Code:
        if version < 3:
            request = LeaveGroupRequest(group_id=self._group, member_id=self.id)
            return Code(self._connection.call(request, version).error_code)
        request = LeaveGroupRequest(group_id=self._group, members=[MemberIdentity(member_id=self.id)])
        response = self._connection.call(request, version)
        assert response.error_code == Code.NONE
        return Code(response.members[0].error_code)


def commit(
    connection, group, topic, offset, *, version=9, topic_id=bytes(16), retention_ms=-1, member=None, partition=0
):
    row = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="noted", committed_leader_epoch=0
    )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member.generation if member else -1,
        member_id=member.id if member else "",
        retention_time_ms=retention_ms,
        topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[row])],
    )
    response = connection.call(request, version)
    return Code(response.topics[0].partitions[0].error_code)


def fetch(connection, group, topic, *, version=9, topic_id=bytes(16), stable=False, everything=False):
    """Return offset, metadata and error."""
    if version >= 8:
        row = OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0])
        group_request = OffsetFetchRequestGroup(group_id=group, topics=None if everything else [row])
        response = connection.call(OffsetFetchRequest(groups=[group_request], require_stable=stable), version).groups[0]
    else:
        old_row = OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
        request = OffsetFetchRequest(group_id=group, topics=None if everything else [old_row], require_stable=stable)
        response = connection.call(request, version)
    assert response.error_code == Code.NONE
    if not response.topics:
        return None
    result = response.topics[0].partitions[0]
    return result.committed_offset, result.metadata, Code(result.error_code)


@pytest.mark.behaviour("B13")
@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_membership_works_in_every_version_of_every_request(connection, group, version):
    member = Member(connection, group)
    joined = member.join(version)
    assert (joined.error_code, joined.generation_id, joined.leader) == (Code.NONE, 1, member.id)
    assert [row.member_id for row in joined.members] == [member.id]
    synced = member.sync(min(version, 5))
    assert (synced.error_code, bytes(synced.assignment)) == (Code.NONE, b"all")
    assert member.heartbeat(min(version, 4)) is Code.NONE
    assert member.leave(min(version, 5)) is Code.NONE
    assert member.heartbeat() is Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(11))
def test_offsets_in_every_version(broker, connection, topic, group, version):
    topic_id = topic_id_of(broker, topic) if version >= 10 else bytes(16)
    name = "" if version >= 10 else topic
    assert fetch(connection, group, name, version=version, topic_id=topic_id) == (-1, "", Code.NONE)
    assert commit(connection, group, name, 42, version=version, topic_id=topic_id) is Code.NONE
    assert fetch(connection, group, name, version=version, topic_id=topic_id) == (42, "noted", Code.NONE)
    if version >= 2:
        assert fetch(connection, group, name, version=version, topic_id=topic_id, everything=True)[0] == 42
    if version >= 7:
        assert fetch(connection, group, name, version=version, topic_id=topic_id, stable=True)[0] == 42


def test_offsets_of_unknown_topics_are_rejected(connection, topic, group):
    assert commit(connection, group, "nowhere", 1) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(connection, group, topic, 1, partition=7) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert commit(connection, group, "", 1, version=10, topic_id=b"x" * 16) is Code.UNKNOWN_TOPIC_ID
    assert fetch(connection, group, "", version=10, topic_id=b"x" * 16) == (-1, "", Code.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize("key_type", [0, 1])
def test_the_coordinator_is_found_in_every_version(broker, connection, version, key_type):
    if version >= 4:
        response = connection.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a", "b"]), version)
        result = list(response.coordinators)
        assert [row.key for row in result] == ["a", "b"]
    else:
        if version == 0 and key_type:
            return
        result = [connection.call(FindCoordinatorRequest(key="a", key_type=key_type), version)]
    for row in result:
        assert (row.error_code, f"{row.host}:{row.port}") == (Code.NONE, broker.bootstrap)


def test_other_coordinator_types_are_rejected(connection):
    (row,) = connection.call(FindCoordinatorRequest(key_type=2, coordinator_keys=["g:t:0"]), 6).coordinators
    assert (row.error_code, row.node_id) == (Code.INVALID_REQUEST, -1)


@pytest.mark.parametrize("version", range(7))
def test_a_group_is_described_in_every_version(connection, group, version):
    member = Member(connection, group)
    member.join()
    member.sync()
    group_request = DescribeGroupsRequest(groups=[group, "nobody"], include_authorized_operations=version >= 3)
    result, missing = connection.call(group_request, version).groups
    assert (result.error_code, result.group_state, result.protocol_type, result.protocol_data) == (
        Code.NONE,
        "Stable",
        "consumer",
        "range",
    )
    (row,) = result.members
    assert (row.member_id, row.client_id, bytes(row.member_assignment)) == (member.id, "headrace-tests", b"all")
    assert missing.group_state == "Dead"
    assert missing.error_code == (Code.GROUP_ID_NOT_FOUND if version >= 6 else Code.NONE)


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(connection, topic, group, version):
    commit(connection, group, topic, 1)
    member = Member(connection, group + "-stable")
    member.join()
    member.sync()

    def listed(states_filter: tuple[str, ...] = (), types_filter: tuple[str, ...] = ()) -> set[str]:
        request = ListGroupsRequest(states_filter=states_filter, types_filter=types_filter)
        response = connection.call(request, version)
        assert response.error_code == Code.NONE
        return {row.group_id for row in response.groups if row.group_id.startswith(group)}

    assert listed() == {group, group + "-stable"}
    if version >= 4:
        assert listed(states_filter=("stable",)) == {group + "-stable"}
        assert listed(states_filter=("Empty", "Dead")) == {group}
    if version >= 5:
        assert listed(types_filter=("Classic",)) == {group, group + "-stable"}
        assert listed(types_filter=("consumer",)) == set()


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_in_every_version(connection, topic, group, version):
    commit(connection, group, topic, 1)
    busy = group + "-busy"
    Member(connection, busy).join()
    response = connection.call(DeleteGroupsRequest(groups_names=[group, busy, "nobody"]), version)
    assert {row.group_id: row.error_code for row in response.results} == {
        group: Code.NONE,
        busy: Code.NON_EMPTY_GROUP,
        "nobody": Code.GROUP_ID_NOT_FOUND,
    }
    assert fetch(connection, group, topic)[0] == -1


def test_offsets_are_deleted(connection, topic, group):
    commit(connection, group, topic, 1)
    rows = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
    request = OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=rows)])
    response = connection.call(request, 0)
    assert response.error_code == Code.NONE
    codes = {row.partition_index: row.error_code for row in response.topics[0].partitions}
    assert codes == {0: Code.NONE, 9: Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert fetch(connection, group, topic)[0] == -1


@pytest.mark.behaviour("B13")
def test_two_members_share_a_rebalance_and_get_the_leaders_assignment(broker, group):
    with Connection(broker.bootstrap) as here, Connection(broker.bootstrap) as there:
        first, second = Member(here, group), Member(there, group)
        first.join()
        first.sync()
        given = there.call(_joining(group, ""), 9)
        second.id = given.member_id
        there.send(_joining(group, second.id), 9)
        eventually("the first is called back", lambda: first.heartbeat() is Code.REBALANCE_IN_PROGRESS)
        joined = first.join()
        response = receive(there, JoinGroupRequest, 9)
        second.generation = response.generation_id
        assert joined.generation_id == response.generation_id == 2
        assert {row.member_id for row in joined.members} == {first.id, second.id}
        there.send(_syncing(group, second), 5)
        parts = [
            SyncGroupRequestAssignment(member_id=first.id, assignment=b"left"),
            SyncGroupRequestAssignment(member_id=second.id, assignment=b"right"),
        ]
        mine = here.call(_syncing(group, first).replace(assignments=parts), 5)
        theirs = receive(there, SyncGroupRequest, 5)
        assert (bytes(mine.assignment), bytes(theirs.assignment)) == (b"left", b"right")


def _joining(group: str, member_id: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=SESSION_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
    )


def _syncing(group: str, member: Member) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=member.generation,
        member_id=member.id,
        protocol_type="consumer",
        protocol_name="range",
    )


@pytest.mark.parametrize("version", range(6))
def test_offsets_outside_a_transaction_are_rejected_in_every_version(connection, topic, group, version):
    row = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = TxnOffsetCommitRequest(
        transactional_id=unique("nobody"),
        group_id=group,
        producer_id=9,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=[row])],
    )
    (response,) = connection.call(request, version).topics
    assert response.partitions[0].error_code == Code.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.behaviour("B13")
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_offsets_in_a_transaction_become_visible_with_its_end(broker, connection, topic, group, end):
    commit(connection, group, topic, 1)
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=unique("txn")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x")
        producer.send_offsets_to_transaction({(topic, 0): 5}, GroupMetadata(group))
        assert fetch(connection, group, topic) == (1, "noted", Code.NONE)
        assert fetch(connection, group, topic, stable=True)[2] is Code.UNSTABLE_OFFSET_COMMIT
        (producer.commit_transaction if end == "commit" else producer.abort_transaction)()
        expected = 5 if end == "commit" else 1
        eventually("the marker is written", lambda: fetch(connection, group, topic, stable=True)[2] is Code.NONE)
        assert fetch(connection, group, topic, stable=True)[0] == expected


@pytest.mark.behaviour("B13")
def test_groups_and_offsets_survive_kill_9():
    with EmbeddedBroker(num_partitions=1) as broker:
        topic, group = broker.create_topic("t"), "g"
        with Connection(broker.bootstrap) as connection:
            member = Member(connection, group)
            member.join()
            member.sync()
            assert commit(connection, group, topic, 7, member=member) is Code.NONE
            producer = Producer(bootstrap_servers=broker.bootstrap, transactional_id="t-1")
            producer.init_transactions()
            producer.begin_transaction()
            metadata = GroupMetadata(group, member.generation, member.id)
            producer.send_offsets_to_transaction({(topic, 0): 9}, metadata)
        broker.kill()
        broker.start()
        with Connection(broker.bootstrap) as connection:
            member._connection = connection
            assert member.heartbeat() is Code.NONE  # the same generation, without a rebalance
            assert bytes(member.sync().assignment) == b"all"
            assert fetch(connection, group, topic) == (7, "noted", Code.NONE)
            assert fetch(connection, group, topic, stable=True)[2] is Code.UNSTABLE_OFFSET_COMMIT
            producer.commit_transaction()
            producer.close()
            eventually("the transaction ends", lambda: fetch(connection, group, topic, stable=True)[0] == 9)


@pytest.mark.behaviour("B13")
def test_offsets_expire_and_then_the_group():
    with EmbeddedBroker({"offsets.retention.check.interval.ms": 100}, num_partitions=1) as broker:
        topic, group = broker.create_topic("t"), "g"
        with Connection(broker.bootstrap) as connection:
            assert commit(connection, group, topic, 7, version=2, retention_ms=1_000) is Code.NONE
            assert fetch(connection, group, topic)[0] == 7
            eventually("the offset is gone", lambda: fetch(connection, group, topic)[0] == -1)

            def is_gone() -> bool:
                (row,) = connection.call(DescribeGroupsRequest(groups=[group]), 5).groups
                return bool(row.group_state == "Dead")

            eventually("the group is gone", is_gone)


def test_a_disconnected_member_is_removed_after_its_session_timeout(broker, group):
    with Connection(broker.bootstrap) as connection:
        member = Member(connection, group)
        group_request = _joining(group, "").replace(session_timeout_ms=6_000)
        member.id = connection.call(group_request, 9).member_id
        connection.call(group_request.replace(member_id=member.id), 9)
    with Connection(broker.bootstrap) as connection:

        def state() -> str:
            (row,) = connection.call(DescribeGroupsRequest(groups=[group]), 5).groups
            return str(row.group_state)

        assert state() == "CompletingRebalance"
        eventually("its session ends", lambda: state() == "Empty")
