"""ConsumerGroupHeartbeat: join, heartbeat, leave (KIP-848).

A request has the epoch of the member: 0 joins, -1 leaves, -2 leaves for a moment (static members), anything else is a
heartbeat. Fields that have not changed since the last request are null. The response has the epoch of the member and,
if it has changed, its assignment.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    AssignedPartitions,
    ConsumerMember,
    TopicPartitionSets,
)
from headrace.broker.groups.consumer_records import RegexTopics
from headrace.broker.groups.consumer_sessions import ConsumerSessions
from headrace.broker.groups.consumer_settings import ConsumerSettings
from headrace.broker.groups.consumer_update import GroupUpdate
from headrace.broker.groups.group import Group, GroupState
from headrace.broker.groups.migration import check_upgrade, upgrade
from headrace.broker.groups.rebalance import Rebalances
from headrace.broker.groups.records import KeyValue, group_tombstone
from headrace.broker.groups.shard import Shard
from headrace.broker.groups.subscription_refresh import SubscriptionRefresh
from headrace.broker.groups.topic_regexes import check_regex
from headrace.errors import BrokerError, Code
from headrace.wire.api.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

log = logging.getLogger("headrace.broker.groups")

CLIENT_MEMBER_ID_VERSION = 1
"""From this version on, the client chooses the member id."""


class HeartbeatClient(NamedTuple):
    """The client of a heartbeat, the version of its request, and the topics that it is authorized to describe."""

    id: str
    host: str
    version: int
    may_describe: Callable[[str], bool]


class ConsumerHeartbeats:
    """Handles the heartbeats of a shard's consumer groups."""

    def __init__(
        self,
        shard: Shard,
        rebalances: Rebalances,
        sessions: ConsumerSessions,
        refresh: SubscriptionRefresh,
        settings: ConsumerSettings,
    ) -> None:
        self._shard = shard
        self._rebalances = rebalances
        self._sessions = sessions
        self._refresh = refresh
        self._settings = settings

    async def handle(
        self, request: ConsumerGroupHeartbeatRequest, client: HeartbeatClient
    ) -> ConsumerGroupHeartbeatResponse:
        """Handle a heartbeat; errors are raised."""
        self._check_request(request, client.version)
        async with self._shard.exclusive(request.group_id):
            if request.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                return await self._leave(request)
            return await self._heartbeat(request, client)

    def _check_request(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for invalid fields."""
        epoch = request.member_epoch
        needs_member_id = version >= CLIENT_MEMBER_ID_VERSION or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH
        for is_invalid, message in (
            (needs_member_id and not request.member_id, "MemberId can't be empty."),
            (not request.group_id, "GroupId can't be empty."),
            (request.instance_id == "", "InstanceId can't be empty."),
            (request.rack_id == "", "RackId can't be empty."),
            (epoch < STATIC_LEAVE_EPOCH, "MemberEpoch is invalid."),
            (epoch == STATIC_LEAVE_EPOCH and request.instance_id is None, "InstanceId can't be null."),
        ):
            if is_invalid:
                raise BrokerError(message, code=Code.INVALID_REQUEST)
        if epoch == JOIN_EPOCH:
            self._check_join(request)
        if request.server_assignor is not None and request.server_assignor not in self._settings.assignors:
            raise BrokerError(
                f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
                f"{', '.join(self._settings.assignors)}.",
                code=Code.UNSUPPORTED_ASSIGNOR,
            )

    @staticmethod
    def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
        message = None
        if request.rebalance_timeout_ms == -1:
            message = "RebalanceTimeoutMs must be provided in first request."
        elif request.topic_partitions is None or request.topic_partitions:
            message = "TopicPartitions must be empty when (re-)joining."
        elif request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            message = "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        if message is not None:
            raise BrokerError(message, code=Code.INVALID_REQUEST)

    # -- join and heartbeat ----------------------------------------------------------------------

    async def _heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: HeartbeatClient
    ) -> ConsumerGroupHeartbeatResponse:
        await self._check_regex(request)  # nothing waits from here to the write
        classic = self._shard.groups.get(request.group_id)
        group, entries = self._group_for(request)
        if len(group.members) >= self._settings.members_max and request.member_id not in group.members:
            raise group.error(
                Code.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self._settings.members_max} members.",
            )
        update = GroupUpdate(self._shard, self._settings, group)
        update.add_records(entries)
        owned = owned_partitions(request.topic_partitions)
        member = self._member_for(update, request, owned)
        updated = _updated_member(member, request, client)
        has_new_regex = self._update_regex(update, member, updated)
        has_new_topics = update.update_member(updated)
        if has_new_regex is not None:
            has_new_topics |= has_new_regex
        now_ms = self._shard.clock.time_ms()
        update.refresh_epoch(force=has_new_topics)
        update.refresh_target(now_ms)
        before = update.group.members[updated.id]
        reconciled = update.reconcile_member(
            updated.id, owned, has_changed_subscription=has_new_topics or has_new_regex is not None
        )
        await self._commit(update, classic)
        self._sessions.keep_alive(group.id, reconciled)
        if reconciled != before:
            self._sessions.expect_revocation(group.id, reconciled)
        self._refresh.start_if_due(update.group, client.may_describe)
        response = ConsumerGroupHeartbeatResponse(
            member_id=reconciled.id,
            member_epoch=reconciled.epoch,
            heartbeat_interval_ms=self._settings.times_of(group.id).heartbeat_interval_ms,
        )
        if _is_full(request) or _partition_sets(member.assigned) != _partition_sets(reconciled.assigned):
            return response.replace(assignment=heartbeat_assignment(reconciled.assigned))
        return response

    async def _check_regex(self, request: ConsumerGroupHeartbeatRequest) -> None:
        """Raise INVALID_REGULAR_EXPRESSION for an invalid one. Those of other members were checked before."""
        group = self._shard.consumer_groups.get(request.group_id)
        regex = request.subscribed_topic_regex
        if regex and (group is None or regex not in group.regex_counts()):
            await check_regex(regex)

    async def _commit(self, update: GroupUpdate, classic: Group | None) -> None:
        """Write the update. A new group is there at once, so that no classic group is created or changes meanwhile."""
        group_id = update.group.id
        if group_id in self._shard.consumer_groups:
            await update.commit()
            return
        self._shard.replace_group(group_id, ConsumerGroup(group_id))
        try:
            await update.commit()
        except BrokerError:
            self._shard.replace_group(group_id, classic)
            if classic is not None:
                self._rebalances.resume(classic)
            raise
        if classic is not None:
            self._rebalances.interrupt(classic)
            self._sessions.start(update.group)

    def _group_for(self, request: ConsumerGroupHeartbeatRequest) -> tuple[ConsumerGroup, list[KeyValue]]:
        """Return the group, or the one that replaces a classic group, with the records for that."""
        group_id = request.group_id
        group = self._shard.consumer_groups.get(group_id)
        if group is not None:
            return group, []
        classic = self._shard.groups.get(group_id)
        if request.member_epoch != JOIN_EPOCH:
            fact = "not found" if classic is None else "is not a consumer group"
            raise BrokerError(f"Group {group_id} {fact}.", code=Code.GROUP_ID_NOT_FOUND)
        if classic is None:
            return ConsumerGroup(group_id), []
        if classic.state is GroupState.EMPTY:
            return ConsumerGroup(group_id), [group_tombstone(group_id)]
        check_upgrade(classic, self._settings)
        return upgrade(classic, self._settings.topics)

    def _member_for(
        self, update: GroupUpdate, request: ConsumerGroupHeartbeatRequest, owned: TopicPartitionSets | None
    ) -> ConsumerMember:
        """Return the member of a request: known, new, or a static member that replaces its last process."""
        group, epoch = update.group, request.member_epoch
        member_id = request.member_id or str(uuid.uuid4())
        if request.instance_id is None:
            member = group.members.get(member_id)
            if member is None and epoch == JOIN_EPOCH:
                return ConsumerMember(member_id)
            member = group.member(member_id)
            member.check_epoch(epoch, owned)
            return member
        if epoch != JOIN_EPOCH:
            member = group.static_member(request.instance_id, member_id)
            member.check_epoch(epoch, owned)
            return member
        existing_id = group.static_members.get(request.instance_id)
        if existing_id is None:
            return group.members.get(member_id, ConsumerMember(member_id))
        existing = group.members[existing_id]
        if existing.classic is None and existing.epoch != STATIC_LEAVE_EPOCH:
            raise group.error(
                Code.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {request.instance_id} cannot join the group because the "
                f"instance id is owned by {existing_id} member.",
            )
        return update.replace_static(existing, member_id)

    def _update_regex(self, update: GroupUpdate, member: ConsumerMember, updated: ConsumerMember) -> bool | None:
        """Return whether a changed regular expression has known topics; None if it has not changed."""
        if member.regex == updated.regex:
            return None
        counts = update.group.regex_counts()
        if member.regex and counts[member.regex] == 1 and member.regex in update.group.regexes:
            update.add(RegexTopics(update.group.id, member.regex, None))
        return not updated.regex or (counts[updated.regex] > 0 and updated.regex in update.group.regexes)

    # -- leave -----------------------------------------------------------------------------------

    async def _leave(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        group = self._shard.consumer_groups.get(request.group_id)
        if group is None:
            raise BrokerError(f"Group {request.group_id} not found.", code=Code.GROUP_ID_NOT_FOUND)
        if request.instance_id is None:
            member = group.member(request.member_id)
        else:
            member = group.static_member(request.instance_id, request.member_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            update = GroupUpdate(self._shard, self._settings, group)
            update.leave_temporarily(member)
            await update.commit()
        else:
            await self._sessions.remove(group, [member])
        log.info("group %r: member %r has left with epoch %d", group.id, member.id, request.member_epoch)
        return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)


def owned_partitions(rows: Sequence[HeartbeatTopicPartitions] | None) -> TopicPartitionSets | None:
    """Return the partitions of a request; None: unchanged."""
    return None if rows is None else {row.topic_id: frozenset(row.partitions) for row in rows}


def _updated_member(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, client: HeartbeatClient
) -> ConsumerMember:
    """Return the member with everything that has changed since its last request."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        client_id=client.id,
        client_host=client.host,
        classic=None,
    )


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a request has all fields: the member may have lost its assignment."""
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1 and has_subscription and request.topic_partitions is not None
    )


def _partition_sets(assigned: AssignedPartitions) -> TopicPartitionSets:
    return {topic_id: frozenset(epochs) for topic_id, epochs in assigned.items()}


def heartbeat_assignment(assigned: Mapping[bytes, Collection[int]]) -> HeartbeatAssignment:
    """Return the partitions that a member has, by topic id, as the field of a response."""
    rows = [
        HeartbeatTopicPartitions(topic_id=topic_id, partitions=sorted(indexes))
        for topic_id, indexes in assigned.items()
    ]
    return HeartbeatAssignment(topic_partitions=rows)
