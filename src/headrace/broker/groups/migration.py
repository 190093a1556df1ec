"""Change of a group with members between the classic and the consumer protocol (KIP-848).

    upgrade      a member with the consumer protocol joins a classic group: its members become classic members of a
                 consumer group, with the generation as epoch and their assignment as target
    downgrade    the last member with the consumer protocol leaves: the classic members are a classic group again, with
                 the epoch as generation and their targets as assignments, and rebalance

Both need the metadata of classic consumers (`wire/consumer_protocol.py`), and `group.consumer.migration.policy`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from headrace.broker.catalog.topics import Topics
from headrace.broker.groups.consumer_group import ConsumerGroup, hash_topics
from headrace.broker.groups.consumer_member import ClassicMetadata, ConsumerMember
from headrace.broker.groups.consumer_records import (
    ConsumerChange,
    GroupEpoch,
    MemberAssignment,
    MemberMetadata,
    MemberTarget,
    TargetEpoch,
)
from headrace.broker.groups.consumer_settings import ConsumerSettings
from headrace.broker.groups.group import Group, GroupMember, GroupState
from headrace.broker.groups.records import KeyValue, consumer_record, group_record, group_tombstone
from headrace.errors import BrokerError, Code, WireError
from headrace.types import TopicPartition
from headrace.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    ProtocolTopicPartition,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    partitions_by_topic,
    protocol_version,
)

log = logging.getLogger("headrace.broker.groups")


def check_upgrade(group: Group, settings: ConsumerSettings) -> None:
    """Raise GROUP_ID_NOT_FOUND unless a classic group may become a consumer group."""
    reason = None
    if not settings.migration.upgrade:
        reason = "online upgrade is disabled"
    elif not group.uses_consumer_protocol:
        reason = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.members_max:
        reason = "the group size exceeds the consumer group maximum size"
    if reason is not None:
        raise BrokerError(
            f"Cannot upgrade classic group {group.id} to consumer group because {reason}.",
            code=Code.GROUP_ID_NOT_FOUND,
        )


def upgrade(group: Group, topics: Topics) -> tuple[ConsumerGroup, list[KeyValue]]:
    """Return the consumer group that replaces a classic group, and its records."""
    upgraded = ConsumerGroup(group.id)
    try:
        members = [_upgraded_member(group, member, topics) for member in group.members.values()]
    except WireError as error:
        raise BrokerError(
            f"Cannot upgrade the classic group {group.id} to consumer group because the embedded consumer protocol is "
            f"malformed: {error}",
            code=Code.GROUP_ID_NOT_FOUND,
        ) from error
    topic_names = {topic for member in members for topic in member.topics}
    changes: list[ConsumerChange] = [MemberMetadata(group.id, member.id, member) for member in members]
    changes.append(GroupEpoch(group.id, group.generation, hash_topics(topic_names, topics)))
    for member in members:
        target = {topic_id: frozenset(epochs) for topic_id, epochs in member.assigned.items()}
        changes.append(MemberTarget(group.id, member.id, target))
    changes.append(TargetEpoch(group.id, group.generation))
    changes += [MemberAssignment(group.id, member.id, member) for member in members]
    for change in changes:
        upgraded.apply(change)
    log.info("group %r: upgraded to the consumer protocol in epoch %d", group.id, group.generation)
    return upgraded, [group_tombstone(group.id), *map(consumer_record, changes)]


def _upgraded_member(group: Group, member: GroupMember, topics: Topics) -> ConsumerMember:
    subscription = decode_subscription(member.metadata(group.protocol_name) or next(iter(member.protocols.values())))
    assigned = decode_assignment(member.assignment)
    return ConsumerMember(
        member.id,
        member.instance_id,
        subscription.rack_id,
        member.client_id,
        member.client_host,
        frozenset(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMetadata(member.session_timeout_ms, tuple(member.protocols.items())),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned={
            topic_id: dict.fromkeys(sorted(indexes), group.generation)
            for topic_id, indexes in partitions_by_id(partitions_by_topic(assigned), topics).items()
        },
    )


def partitions_by_id(rows: Iterable[ProtocolTopicPartition], topics: Topics) -> dict[bytes, frozenset[int]]:
    """Return partitions by topic id, without topics that do not exist."""
    return {topics.by_name[row.topic].id: frozenset(row.partitions) for row in rows if row.topic in topics.by_name}


def encode_classic_assignment(member: ConsumerMember, assigned: Mapping[bytes, Iterable[int]], topics: Topics) -> bytes:
    """Return an assignment for a classic consumer, in the version of its subscription."""
    assert member.classic is not None
    partitions = (
        TopicPartition(topics.by_id[topic_id].name, index)
        for topic_id, indexes in assigned.items()
        if topic_id in topics.by_id
        for index in sorted(indexes)
    )
    return encode_assignment(partitions, version=protocol_version(member.classic.protocols[0][1]))


# -- downgrade -----------------------------------------------------------------------------------


def can_downgrade(group: ConsumerGroup, settings: ConsumerSettings, leaving: Collection[str], joining: int = 0) -> bool:
    """Return whether only classic members are left without the leaving ones, and the group may become classic."""
    left = [member for member in group.members.values() if member.id not in leaving]
    if len(left) == len(group.members) or any(member.classic is None for member in left):
        return False
    if all(group.members[member_id].classic is not None for member_id in leaving if member_id in group.members):
        return False
    if not left and not joining:
        return False
    if not settings.migration.downgrade or len(left) + joining > settings.classic_members_max:
        log.info("group %r: keeps the consumer protocol, a downgrade is not possible", group.id)
        return False
    return True


def downgrade(group: ConsumerGroup, members: Iterable[ConsumerMember], topics: Topics, now_ms: int) -> Group:
    """Return the classic group of members that all use the classic protocol."""
    downgraded = Group(
        group.id,
        state=GroupState.STABLE,
        state_time_ms=now_ms,
        generation=group.epoch,
        protocol_type=PROTOCOL_TYPE,
    )
    for member in members:
        assert member.classic is not None
        classic = GroupMember(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.classic.session_timeout_ms,
            dict(member.classic.protocols),
            encode_classic_assignment(member, group.target_of(member), topics),
        )
        downgraded.add(classic, PROTOCOL_TYPE)
    downgraded.protocol_name = downgraded.select_protocol()
    downgraded.subscribed_topics = downgraded.subscriptions()
    log.info("group %r: downgraded to the classic protocol in generation %d", group.id, group.epoch)
    return downgraded


def downgrade_records(before: ConsumerGroup, after: Group) -> list[KeyValue]:
    """Return the records that replace a consumer group by a classic one."""
    return [*map(consumer_record, before.tombstones()), group_record(after)]
