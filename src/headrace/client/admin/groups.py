"""Groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.client.blocking import Coordinator, CoordinatorKind
from headrace.client.offsets import by_topic
from headrace.errors import Code
from headrace.types import TopicPartition
from headrace.wire.api.group_admin import (
    Assignment,
    ConsumerGroupDescribeRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from headrace.wire.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)

NOTHING_COMMITTED = -1
CLASSIC_MEMBER = 0


@dataclass(slots=True, frozen=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str  # Empty if the broker is too old, as the type.
    type: str


@dataclass(slots=True, frozen=True)
class GroupMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class GroupDescription:
    """A group of the classic protocol."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[GroupMember, ...]


@dataclass(slots=True, frozen=True)
class ConsumerGroupMember:
    """A member of a group of the consumer protocol (KIP-848), with its current and target assignment."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]
    uses_classic_protocol: bool = False
    """Whether it is a member of the classic protocol, for which the coordinator translates."""


@dataclass(slots=True, frozen=True)
class ConsumerGroupDescription:
    """A group of the consumer protocol (KIP-848)."""

    group_id: str
    state: str
    epoch: int
    assignor: str
    members: tuple[ConsumerGroupMember, ...]
    assignment_epoch: int = -1
    """The epoch of the group for which the target assignments were computed."""


@dataclass(slots=True, frozen=True)
class CommittedOffset:
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupAdmin(Admin):
    """Groups and their offsets."""

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """Return the groups of all brokers, sorted; with `states`, only those in one of these states."""
        states = list(states)
        message = ListGroupsRequest(states_filter=states)
        versions = (4, 5) if states else (0, 5)
        responses = self.request_all_brokers(message, versions=versions, codes=lambda response: [response.error_code])
        raise_failures(Failure("the groups of a broker", response.error_code) for response in responses)
        listings = (
            GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type)
            for response in responses
            for g in response.groups
        )
        return sorted(listings, key=lambda group: group.group_id)

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Return state and members of groups of the classic protocol."""
        groups = {}
        for group_id in group_ids:
            message = DescribeGroupsRequest(groups=[group_id])
            response = self.client.request(
                message, _of_group(group_id), codes=lambda response: [g.error_code for g in response.groups]
            )
            (group,) = response.groups
            raise_failures([Failure(f"group {group_id!r}", group.error_code, group.error_message)])
            members = tuple(
                GroupMember(
                    m.member_id,
                    m.group_instance_id,
                    m.client_id,
                    m.client_host,
                    m.member_metadata,
                    m.member_assignment,
                )
                for m in group.members
            )
            groups[group_id] = GroupDescription(
                group_id, group.group_state, group.protocol_type, group.protocol_data, members
            )
        return groups

    def describe_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, ConsumerGroupDescription]:
        """Return state and members of groups of the consumer protocol (KIP-848)."""
        groups = {}
        for group_id in group_ids:
            response = self.client.request(
                ConsumerGroupDescribeRequest(group_ids=[group_id]),
                _of_group(group_id),
                codes=lambda response: [g.error_code for g in response.groups],
            )
            (group,) = response.groups
            raise_failures([Failure(f"group {group_id!r}", group.error_code, group.error_message)])
            members = tuple(
                ConsumerGroupMember(
                    m.member_id,
                    m.instance_id,
                    m.client_id,
                    m.client_host,
                    m.member_epoch,
                    tuple(m.subscribed_topic_names),
                    m.subscribed_topic_regex,
                    _partitions_of(m.assignment),
                    _partitions_of(m.target_assignment),
                    m.member_type == CLASSIC_MEMBER,
                )
                for m in group.members
            )
            groups[group_id] = ConsumerGroupDescription(
                group_id, group.group_state, group.group_epoch, group.assignor_name, members, group.assignment_epoch
            )
        return groups

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups that have no members."""
        for group_id in group_ids:
            message = DeleteGroupsRequest(groups_names=[group_id])
            response = self.client.request(
                message, _of_group(group_id), codes=lambda response: [r.error_code for r in response.results]
            )
            raise_failures(Failure(f"group {r.group_id!r}", r.error_code) for r in response.results)

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group, by default of all partitions.

        With `require_stable`, wait for open transactions that commit offsets.
        """
        topics = None if partitions is None else by_topic(TopicPartition(*tp) for tp in partitions)

        def build(version: int) -> OffsetFetchRequest:
            if version < 8:
                old = (
                    None
                    if topics is None
                    else [
                        OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
                        for name, numbers in topics.items()
                    ]
                )
                return OffsetFetchRequest(group_id=group_id, topics=old, require_stable=require_stable and version >= 7)
            new = (
                None
                if topics is None
                else [
                    OffsetFetchRequestTopics(name=name, partition_indexes=numbers) for name, numbers in topics.items()
                ]
            )
            group = OffsetFetchRequestGroup(group_id=group_id, topics=new)
            return OffsetFetchRequest(groups=[group], require_stable=require_stable)

        def of_group(response: OffsetFetchResponse) -> OffsetFetchResponse | OffsetFetchResponseGroup:
            return response.groups[0] if response.groups else response

        def failures(response: OffsetFetchResponse) -> list[Failure]:
            group = of_group(response)
            return [Failure(f"group {group_id!r}", group.error_code), *_partition_failures(group_id, group)]

        response = self.client.request(
            build,
            _of_group(group_id),
            versions=(2, 9),
            codes=lambda response: [_retried(f.code) for f in failures(response)],
            api_key=OffsetFetchRequest.api_key,
        )
        raise_failures(failures(response))
        return {
            TopicPartition(topic.name, p.partition_index): CommittedOffset(
                p.committed_offset, p.metadata or "", p.committed_leader_epoch
            )
            for topic in of_group(response).topics
            for p in topic.partitions
            if p.committed_offset != NOTHING_COMMITTED
        }

    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]) -> None:
        """Set the committed offsets of a group without members."""
        committed = {
            TopicPartition(*tp): offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)
            for tp, offset in offsets.items()
        }
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[_commit(number, committed[TopicPartition(name, number)]) for number in numbers],
            )
            for name, numbers in by_topic(committed).items()
        ]
        response = self.client.request(
            OffsetCommitRequest(group_id=group_id, topics=topics),
            _of_group(group_id),
            versions=(2, 9),
            codes=lambda response: [f.code for f in _partition_failures(group_id, response)],
        )
        raise_failures(_partition_failures(group_id, response))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Delete the committed offsets of partitions that the group does not read."""
        topics = [
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
            )
            for name, numbers in by_topic(TopicPartition(*tp) for tp in partitions).items()
        ]
        response = self.client.request(
            OffsetDeleteRequest(group_id=group_id, topics=topics),
            _of_group(group_id),
            codes=lambda response: [response.error_code],
        )
        raise_failures([Failure(f"group {group_id!r}", response.error_code), *_partition_failures(group_id, response)])


def _retried(code: int) -> int:
    """Return a code that is retried for an offset in an open transaction."""
    return Code.COORDINATOR_LOAD_IN_PROGRESS if code == Code.UNSTABLE_OFFSET_COMMIT else code


def _of_group(group_id: str) -> Coordinator:
    return Coordinator(CoordinatorKind.GROUP, group_id)


def _partitions_of(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(row.topic_name, n) for row in assignment.topic_partitions for n in row.partitions)


def _commit(number: int, offset: CommittedOffset) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def _partition_failures(
    group_id: str,
    response: OffsetFetchResponse | OffsetFetchResponseGroup | OffsetCommitResponse | OffsetDeleteResponse,
) -> list[Failure]:
    return [
        Failure(f"group {group_id!r}, {topic.name}-{p.partition_index}", p.error_code)
        for topic in response.topics
        for p in topic.partitions
    ]
