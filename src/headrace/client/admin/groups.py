"""Groups, and the offsets they have committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.client.blocking import Coordinator, CoordinatorKind
from headrace.client.offsets import by_topic
from headrace.errors import Code
from headrace.types import TopicPartition
from headrace.wire.api.consumer_group_describe import Assignment, ConsumerGroupDescribeRequest
from headrace.wire.api.delete_groups import DeleteGroupsRequest
from headrace.wire.api.describe_groups import DescribeGroupsRequest
from headrace.wire.api.list_groups import ListGroupsRequest
from headrace.wire.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.wire.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.wire.schema import Message

NOTHING_COMMITTED = -1


@dataclass(slots=True, frozen=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str  # empty: the broker is too old to tell, as with the type
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
    """A member of a group of the newer protocol. `target` is what it is to have, `assignment` what it has."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    subscribed_topics: tuple[str, ...]
    subscribed_regex: str | None
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]


@dataclass(slots=True, frozen=True)
class ConsumerGroupDescription:
    """A group of the newer consumer protocol (KIP-848)."""

    group_id: str
    state: str
    epoch: int
    assignor: str
    members: tuple[ConsumerGroupMember, ...]


@dataclass(slots=True, frozen=True)
class CommittedOffset:
    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupAdmin(Admin):
    """Groups and their offsets."""

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        """The groups of all brokers, by name; with `states`, only those in one of them."""
        states = list(states)
        message = ListGroupsRequest(states_filter=states)
        versions = (4, 5) if states else (0, 5)
        answers = self.ask_every_broker(message, versions=versions, codes=lambda answer: [answer.error_code])
        raise_failures(Failure("the groups of a broker", answer.error_code) for answer in answers)
        found = (
            GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type)
            for answer in answers
            for g in answer.groups
        )
        return sorted(found, key=lambda group: group.group_id)

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State and members of groups of the classic protocol; of the newer one: `describe_consumer_groups`."""
        found = {}
        for group_id in group_ids:
            message = DescribeGroupsRequest(groups=[group_id])
            answer = self.client.ask(
                message, _of_group(group_id), codes=lambda answer: [g.error_code for g in answer.groups]
            )
            (group,) = answer.groups
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
            found[group_id] = GroupDescription(
                group_id, group.group_state, group.protocol_type, group.protocol_data, members
            )
        return found

    def describe_consumer_groups(self, group_ids: Iterable[str]) -> dict[str, ConsumerGroupDescription]:
        """State and members of groups of the newer consumer protocol (KIP-848)."""
        found = {}
        for group_id in group_ids:
            answer = self.client.ask(
                ConsumerGroupDescribeRequest(group_ids=[group_id]),
                _of_group(group_id),
                codes=lambda answer: [g.error_code for g in answer.groups],
            )
            (group,) = answer.groups
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
                )
                for m in group.members
            )
            found[group_id] = ConsumerGroupDescription(
                group_id, group.group_state, group.group_epoch, group.assignor_name, members
            )
        return found

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups that have no members."""
        for group_id in group_ids:
            message = DeleteGroupsRequest(groups_names=[group_id])
            answer = self.client.ask(
                message, _of_group(group_id), codes=lambda answer: [r.error_code for r in answer.results]
            )
            raise_failures(Failure(f"group {r.group_id!r}", r.error_code) for r in answer.results)

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = True
    ) -> dict[TopicPartition, CommittedOffset]:
        """What a group has committed, by default for all partitions.

        With `require_stable` an offset that is part of an open transaction is waited for.
        """
        topics = None if partitions is None else by_topic(TopicPartition(*tp) for tp in partitions)

        def build(version: int) -> Message:
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

        def of_group(answer: Any) -> Any:
            return answer.groups[0] if answer.groups else answer

        def failures(answer: Any) -> list[Failure]:
            found = of_group(answer)
            each = [
                Failure(f"group {group_id!r}, {topic.name}-{p.partition_index}", p.error_code)
                for topic in found.topics
                for p in topic.partitions
            ]
            return [Failure(f"group {group_id!r}", found.error_code), *each]

        answer = self.client.ask(
            build,
            _of_group(group_id),
            versions=(2, 9),
            codes=lambda answer: [_retried(f.code) for f in failures(answer)],
            api_key=OffsetFetchRequest.api_key,
        )
        raise_failures(failures(answer))
        return {
            TopicPartition(topic.name, p.partition_index): CommittedOffset(
                p.committed_offset, p.metadata or "", p.committed_leader_epoch
            )
            for topic in of_group(answer).topics
            for p in topic.partitions
            if p.committed_offset != NOTHING_COMMITTED
        }

    def alter_group_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]) -> None:
        """Set what a group without members has committed."""
        wanted = {
            TopicPartition(*tp): offset if isinstance(offset, CommittedOffset) else CommittedOffset(offset)
            for tp, offset in offsets.items()
        }
        topics = [
            OffsetCommitRequestTopic(
                name=name,
                partitions=[_commit(number, wanted[TopicPartition(name, number)]) for number in numbers],
            )
            for name, numbers in by_topic(wanted).items()
        ]
        answer = self.client.ask(
            OffsetCommitRequest(group_id=group_id, topics=topics),
            _of_group(group_id),
            versions=(2, 9),
            codes=lambda answer: [f.code for f in _partition_failures(group_id, answer)],
        )
        raise_failures(_partition_failures(group_id, answer))

    def delete_group_offsets(self, group_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group has committed for partitions it does not read."""
        topics = [
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
            )
            for name, numbers in by_topic(TopicPartition(*tp) for tp in partitions).items()
        ]
        answer = self.client.ask(
            OffsetDeleteRequest(group_id=group_id, topics=topics),
            _of_group(group_id),
            codes=lambda answer: [answer.error_code],
        )
        raise_failures([Failure(f"group {group_id!r}", answer.error_code), *_partition_failures(group_id, answer)])


def _retried(code: int) -> int:
    """An offset in an open transaction is waited for, like a coordinator that is still loading."""
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


def _partition_failures(group_id: str, answer: Any) -> list[Failure]:
    return [
        Failure(f"group {group_id!r}, {topic.name}-{p.partition_index}", p.error_code)
        for topic in answer.topics
        for p in topic.partitions
    ]
