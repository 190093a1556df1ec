"""ShareGroupHeartbeat: join, heartbeat, leave (KIP-932); sessions of members; partitions that get a state.

A request has the epoch of the member: 0 joins, -1 leaves, anything else is a heartbeat. A partition is assigned when
its state is initialized at the share coordinator. The heartbeat that adds a topic waits for that, for a moment: in
Apache Kafka the member gets its partitions with the next heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from headrace.broker.groups.assignors import AssignableMember
from headrace.broker.groups.consumer_group import hash_topics, topic_ids
from headrace.broker.groups.consumer_heartbeats import HeartbeatClient, heartbeat_assignment
from headrace.broker.groups.consumer_member import LEAVE_EPOCH, TopicPartitionSets
from headrace.broker.groups.consumer_settings import ConsumerSettings
from headrace.broker.groups.records import KeyValue, share_record
from headrace.broker.groups.shard import Shard
from headrace.broker.groups.share_assignor import assign_simply
from headrace.broker.groups.share_group import ShareGroup, check_epoch
from headrace.broker.groups.share_records import (
    JOIN_EPOCH,
    ShareChange,
    ShareGroupEpoch,
    ShareGroupMember,
    ShareMemberAssignment,
    ShareMemberMetadata,
    ShareMemberTarget,
    SharePartitionsState,
    ShareTargetEpoch,
    TopicState,
)
from headrace.broker.share.state import UNINITIALIZED_OFFSET, SharePartitionKey, ShareState
from headrace.errors import BrokerError, Code
from headrace.wire.api.share_groups import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

log = logging.getLogger("headrace.broker.groups")

INITIALIZE_SECONDS_MAX = 2.0
"""How long a heartbeat waits for the state of new partitions."""
FENCING_RETRY_MS = 500
"""When to retry the removal of a member whose records could not be written."""


class ShareStates(Protocol):
    """The part of ShareStateStore that groups use."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None: ...

    async def delete(self, key: SharePartitionKey) -> None: ...

    async def summary(self, key: SharePartitionKey) -> ShareState: ...


class ShareGroupUpdate:
    """A draft of a share group and its records."""

    def __init__(self, shard: Shard, settings: ConsumerSettings, group: ShareGroup) -> None:
        self._shard = shard
        self._settings = settings
        self.group = group.copy()  # the draft
        self._entries: list[KeyValue] = []

    def add(self, *changes: ShareChange) -> None:
        """Add changes to the draft."""
        for change in changes:
            self.group.apply(change)
            self._entries.append(share_record(change))

    async def commit(self) -> None:
        """Write the records; then the draft is the group."""
        if self._entries:
            await self._shard.write(self._entries, lambda _: self._shard.replace_group(self.group.id, self.group))

    def update_member(self, member: ShareGroupMember) -> bool:
        """Store what a member has sent; return whether its topics have changed."""
        existing = self.group.members.get(member.id)
        if existing != member:
            self.add(ShareMemberMetadata(self.group.id, member.id, member))
        return existing is None or existing.topics != member.topics

    def remove_member(self, member: ShareGroupMember) -> None:
        """Remove a member and start a new epoch."""
        self.add(
            ShareMemberAssignment(self.group.id, member.id, None),
            ShareMemberTarget(self.group.id, member.id, None),
            ShareMemberMetadata(self.group.id, member.id, None),
        )
        self.bump_epoch()

    def refresh_epoch(self, *, force: bool) -> None:
        """Start a new epoch if the subscribed topics have changed, partitions have a state now, or if forced to."""
        topics = self._settings.topics
        is_pending = self.group.target_epoch >= self.group.epoch and self.group.is_assignment_pending(topics)
        if force or is_pending or self._current_hash() != self.group.metadata_hash:
            self.bump_epoch()

    def bump_epoch(self) -> None:
        """Start a new epoch of the group."""
        self.add(ShareGroupEpoch(self.group.id, self.group.epoch + 1, self._current_hash()))

    def _current_hash(self) -> int:
        return hash_topics(self.group.subscribed_topics(), self._settings.topics)

    def refresh_target(self, now_ms: int) -> None:
        """Run the assignor if the group has a newer epoch than the target, and the assignment interval is over."""
        group, topics = self.group, self._settings.topics
        interval_ms = self._settings.share_times_of(group.id).assignment_interval_ms
        is_due = not group.target_time_ms or now_ms >= group.target_time_ms + interval_ms
        if group.target_epoch >= group.epoch or not is_due:
            return
        members = [
            AssignableMember(
                member.id, None, frozenset(topic_ids(member.topics, topics)), group.targets.get(member.id, {})
            )
            for member in group.members.values()
        ]
        assignment = assign_simply(members, group.assignable(topics))
        for member in members:
            target = {topic_id: frozenset(indexes) for topic_id, indexes in assignment[member.id].items()}
            if group.targets.get(member.id) != target:
                self.add(ShareMemberTarget(group.id, member.id, target))
        self.add(ShareTargetEpoch(group.id, group.epoch, now_ms))

    def reconcile_member(self, member_id: str) -> ShareGroupMember:
        """Give a member its target; return the member."""
        group = self.group
        member = group.members[member_id]
        subscribed = set(topic_ids(member.topics, self._settings.topics))
        target: TopicPartitionSets = {
            key: indexes for key, indexes in group.targets.get(member_id, {}).items() if key in subscribed and indexes
        }
        updated = replace(member, assigned=target)
        if member.epoch != group.target_epoch:
            updated = replace(updated, epoch=group.target_epoch, previous_epoch=member.epoch)
        if updated != member:
            self.add(ShareMemberAssignment(group.id, member_id, updated))
        return updated


class ShareHeartbeats:
    """Handles the heartbeats of a shard's share groups, and the sessions of their members."""

    def __init__(self, shard: Shard, settings: ConsumerSettings, states: ShareStates) -> None:
        self._shard = shard
        self._settings = settings
        self._states = states
        self._initializing: dict[str, asyncio.Task[None]] = {}  # by group

    async def handle(self, request: ShareGroupHeartbeatRequest, client: HeartbeatClient) -> ShareGroupHeartbeatResponse:
        """Handle a heartbeat; errors are raised."""
        _check_request(request)
        group_id = request.group_id
        if request.member_epoch == LEAVE_EPOCH:
            async with self._shard.exclusive(group_id):
                return await self._leave(request)
        async with self._shard.exclusive(group_id):
            response, missing = await self._heartbeat(request, client, may_wait=True)
        if missing:
            await self._initialize(group_id, missing)
            async with self._shard.exclusive(group_id):
                response, _ = await self._heartbeat(request, client, may_wait=False)
        return response

    # -- join and heartbeat ----------------------------------------------------------------------

    async def _heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: HeartbeatClient, *, may_wait: bool
    ) -> tuple[ShareGroupHeartbeatResponse, Mapping[bytes, TopicState]]:
        """Update the member; return the response, or the partitions that need a state before they are assigned."""
        group = self._group_for(request)
        if len(group.members) >= self._settings.share_members_max and request.member_id not in group.members:
            raise BrokerError(
                f"The share group has reached its maximum capacity of {self._settings.share_members_max} members.",
                code=Code.GROUP_MAX_SIZE_REACHED,
            )
        update = ShareGroupUpdate(self._shard, self._settings, group)
        member = group.members.get(request.member_id)
        if member is None:
            member = ShareGroupMember(request.member_id) if request.member_epoch == JOIN_EPOCH else None
        member = member or group.member(request.member_id)
        check_epoch(member, request.member_epoch)
        names = request.subscribed_topic_names
        updated = replace(
            member,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            topics=member.topics if names is None else frozenset(names),
            client_id=client.id,
            client_host=client.host,
        )
        has_changed = update.update_member(updated)
        update.refresh_epoch(force=has_changed)
        missing = update.group.without_state(self._settings.topics)
        if missing and may_wait:
            await update.commit()
            self._keep_alive(group.id, updated.id)
            return ShareGroupHeartbeatResponse(), missing
        update.refresh_target(self._shard.clock.time_ms())
        reconciled = update.reconcile_member(updated.id)
        await update.commit()
        self._keep_alive(group.id, reconciled.id)
        response = ShareGroupHeartbeatResponse(
            member_id=reconciled.id,
            member_epoch=reconciled.epoch,
            heartbeat_interval_ms=self._settings.share_times_of(group.id).heartbeat_interval_ms,
        )
        if request.member_epoch == JOIN_EPOCH or names is not None or member.assigned != reconciled.assigned:
            response = response.replace(assignment=heartbeat_assignment(reconciled.assigned))
        return response, {}

    def _group_for(self, request: ShareGroupHeartbeatRequest) -> ShareGroup:
        group_id = request.group_id
        group = self._shard.share_groups.get(group_id)
        if group is not None:
            return group
        if group_id in self._shard.groups or group_id in self._shard.consumer_groups:
            raise BrokerError(f"Group {group_id} is not a share group.", code=Code.GROUP_ID_NOT_FOUND)
        if request.member_epoch != JOIN_EPOCH:
            raise BrokerError(f"Share group {group_id} not found.", code=Code.GROUP_ID_NOT_FOUND)
        return ShareGroup(group_id)

    # -- the state of partitions -----------------------------------------------------------------

    async def _initialize(self, group_id: str, missing: Mapping[bytes, TopicState]) -> None:
        """Initialize the state of partitions; return when it is there, or after a moment."""
        task = self._initializing.get(group_id)
        if task is None:
            task = self._shard.spawn(self._initialize_all(group_id, missing))
            self._initializing[group_id] = task
            task.add_done_callback(lambda _: self._initializing.pop(group_id, None))
        await asyncio.wait([task], timeout=INITIALIZE_SECONDS_MAX)

    async def _initialize_all(self, group_id: str, missing: Mapping[bytes, TopicState]) -> None:
        group = self._shard.share_groups.get(group_id)
        if group is None:
            return
        keys = [
            SharePartitionKey(group_id, topic_id, index)
            for topic_id, topic in missing.items()
            for index in sorted(topic.partitions)
        ]
        results = await asyncio.gather(
            *(self._states.initialize(key, group.epoch, UNINITIALIZED_OFFSET) for key in keys), return_exceptions=True
        )
        initialized: dict[bytes, TopicState] = {}
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, BrokerError):
                log.warning("group %r: failed to initialize %s, will retry: %s", group_id, key.coordinator_key, result)
            elif result is not None:
                raise result
            else:
                topic = initialized.get(key.topic_id, TopicState(missing[key.topic_id].name, frozenset()))
                initialized[key.topic_id] = TopicState(topic.name, topic.partitions | {key.partition})
        if initialized:
            await self.note_initialized(group_id, initialized)

    async def note_initialized(self, group_id: str, initialized: Mapping[bytes, TopicState]) -> None:
        """Record that partitions have a state."""
        async with self._shard.exclusive(group_id):
            group = self._shard.share_groups.get(group_id)
            if group is not None:
                update = ShareGroupUpdate(self._shard, self._settings, group)
                states = group.with_states(initialized, self._settings.topics)
                update.add(SharePartitionsState(group_id, states))
                await update.commit()

    # -- leave, sessions -------------------------------------------------------------------------

    async def _leave(self, request: ShareGroupHeartbeatRequest) -> ShareGroupHeartbeatResponse:
        group = self._shard.share_groups.get(request.group_id)
        if group is None:
            raise BrokerError(f"Group {request.group_id} not found.", code=Code.GROUP_ID_NOT_FOUND)
        await self._remove(group, group.member(request.member_id))
        return ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)

    async def _remove(self, group: ShareGroup, member: ShareGroupMember) -> None:
        update = ShareGroupUpdate(self._shard, self._settings, group)
        update.remove_member(member)
        await update.commit()
        self._shard.timers.cancel(_session_key(group.id, member.id))

    def take_over(self) -> None:
        """Start the sessions of all loaded members."""
        for group in self._shard.share_groups.values():
            for member_id in group.members:
                self._keep_alive(group.id, member_id)

    def _keep_alive(self, group_id: str, member_id: str, delay_ms: int | None = None) -> None:
        """Restart the session of a member."""
        timeout_ms = self._settings.share_times_of(group_id).session_timeout_ms if delay_ms is None else delay_ms
        key = _session_key(group_id, member_id)
        self._shard.timers.schedule(key, timeout_ms, lambda: self._shard.spawn(self._fence(group_id, member_id)))

    async def _fence(self, group_id: str, member_id: str) -> None:
        """Remove a member whose session has ended."""
        async with self._shard.exclusive(group_id):
            group = self._shard.share_groups.get(group_id)
            member = None if group is None else group.members.get(member_id)
            if group is None or member is None or _session_key(group_id, member_id) in self._shard.timers:
                return  # it has left, or a heartbeat came first
            log.info("group %r: the session of member %r is over", group_id, member_id)
            try:
                await self._remove(group, member)
            except BrokerError as error:
                log.warning("group %r: failed to remove member %r, will retry: %s", group_id, member_id, error)
                self._keep_alive(group_id, member_id, FENCING_RETRY_MS)


def _session_key(group_id: str, member_id: str) -> tuple[str, str, str]:
    return "share session", group_id, member_id


def _check_request(request: ShareGroupHeartbeatRequest) -> None:
    """Raise INVALID_REQUEST for invalid fields."""
    epoch = request.member_epoch
    for is_invalid, message in (
        (not request.member_id.strip(), "MemberId can't be empty."),
        (not request.group_id.strip(), "GroupId can't be empty."),
        (request.rack_id is not None and not request.rack_id.strip(), "RackId can't be empty."),
        (epoch < LEAVE_EPOCH, "MemberEpoch is invalid."),
        (
            epoch == JOIN_EPOCH and not request.subscribed_topic_names,
            "SubscribedTopicNames must be set in first request.",
        ),
    ):
        if is_invalid:
            raise BrokerError(message, code=Code.INVALID_REQUEST)
