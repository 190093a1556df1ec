"""Rebalances: rejoin, new generation, assignment by the leader.

    prepare ──▶ all have joined, or timeout ──▶ complete_join ──▶ the leader syncs ──▶ store ──▶ propagate

Everything is synchronous except the write of the assignment. The group may have changed when that completes, so it is
checked again.
"""

from __future__ import annotations

import logging

from headrace.broker.groups.group import VALID_TRANSITIONS, Group, GroupMember, GroupState
from headrace.broker.groups.records import group_record
from headrace.broker.groups.shard import GroupSettings, Shard
from headrace.errors import BrokerError, Code
from headrace.wire.api.groups import JoinGroupResponse, JoinGroupResponseMember, SyncGroupResponse

log = logging.getLogger("headrace.broker.groups")

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""A new member cannot send heartbeats before it knows its member id. After this time it has probably disconnected;
otherwise it retries."""


class Rebalances:
    """Runs the rebalances and sessions of a shard's groups."""

    def __init__(self, shard: Shard, settings: GroupSettings) -> None:
        self._shard = shard
        self._settings = settings
        self._timers = shard.timers
        self._storing: set[tuple[str, int]] = set()  # group and generation of assignments being written

    # -- sessions --------------------------------------------------------------------------------

    def keep_alive(self, group: Group, member: GroupMember, timeout_ms: int | None = None) -> None:
        """Restart the session timeout of a member."""
        self._start_session(group, member.id, member.session_timeout_ms if timeout_ms is None else timeout_ms)

    def add_pending(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Expect a JoinGroup with a newly assigned member id."""
        group.pending_joins.add(member_id)
        self._start_session(group, member_id, session_timeout_ms)

    def remove_pending(self, group: Group, member_id: str) -> None:
        group.remove(member_id)
        self._timers.cancel(_session_timer(group, member_id))
        self.complete_if_ready(group)

    def remove_member(self, group: Group, member: GroupMember, reason: str) -> None:
        """Remove a member and rebalance."""
        self.detach(group, member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, reason)
        else:
            self._complete_if_all_joined(group)

    def detach(self, group: Group, member: GroupMember) -> None:
        """Remove a member without starting a rebalance."""
        # If it is alive and waiting, it has to join as a new member.
        member.respond_join(JoinGroupResponse(error_code=Code.UNKNOWN_MEMBER_ID))
        member.respond_sync(SyncGroupResponse(error_code=Code.UNKNOWN_MEMBER_ID))
        group.remove(member.id)
        self._timers.cancel(_session_timer(group, member.id))

    def _start_session(self, group: Group, member_id: str, timeout_ms: int) -> None:
        self._timers.schedule(
            _session_timer(group, member_id), timeout_ms, self._on_session_timeout, group.id, member_id
        )

    def _on_session_timeout(self, group_id: str, member_id: str) -> None:
        group = self._shard.groups.get(group_id)
        if group is None:
            return
        if member_id in group.pending_joins:
            self.remove_pending(group, member_id)
            return
        member = group.members.get(member_id)
        if member is not None and not member.is_waiting:
            log.info("group %r: the session of member %r timed out", group_id, member_id)
            self.remove_member(group, member, f"the session of {member_id!r} timed out")

    # -- joining ---------------------------------------------------------------------------------

    def rebalance_or_complete(self, group: Group, reason: str) -> None:
        """Start a rebalance after a member has joined or changed, or complete the current one."""
        if GroupState.PREPARING_REBALANCE in VALID_TRANSITIONS[group.state]:
            self.prepare(group, reason)
        else:
            self.complete_if_ready(group)

    def prepare(self, group: Group, reason: str) -> None:
        """Start a rebalance: all members have to rejoin."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._propagate(group, dict.fromkeys(group.members, b""), Code.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._timers.cancel(_sync_timer(group))
        is_first = group.state is GroupState.EMPTY
        group.transition(GroupState.PREPARING_REBALANCE, self._now_ms())
        log.info("group %r: rebalancing after generation %d: %s", group.id, group.generation, reason)
        if is_first:
            # Members tend to start together: a short delay avoids a rebalance for each.
            delay_ms = self._settings.initial_rebalance_delay_ms
            left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._timers.schedule(_join_timer(group), delay_ms, self._on_initial_delay, group.id, delay_ms, left_ms)
        elif group.has_all_joined:
            self.complete_join(group)
        else:
            self._timers.schedule(_join_timer(group), group.rebalance_timeout_ms, self._on_join_timeout, group.id)

    def complete_if_ready(self, group: Group) -> None:
        """Complete the rebalance if all have joined; the first one of a group waits for its delay."""
        if group.previous_state is not GroupState.EMPTY:
            self._complete_if_all_joined(group)

    def _complete_if_all_joined(self, group: Group) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and group.has_all_joined:
            self.complete_join(group)

    def _on_initial_delay(self, group_id: str, delay_ms: int, left_ms: int) -> None:
        group = self._shard.groups.get(group_id)
        if group is None or group.state is not GroupState.PREPARING_REBALANCE:
            return
        if group.has_new_members and left_ms:
            group.has_new_members = False
            again_ms = min(self._settings.initial_rebalance_delay_ms, left_ms)
            rest_ms = max(left_ms - delay_ms, 0)
            self._timers.schedule(_join_timer(group), again_ms, self._on_initial_delay, group_id, again_ms, rest_ms)
        else:
            self.complete_join(group)

    def _on_join_timeout(self, group_id: str) -> None:
        group = self._shard.groups.get(group_id)
        if group is not None and group.state is GroupState.PREPARING_REBALANCE:
            self.complete_join(group)

    def complete_join(self, group: Group) -> None:
        """Start the next generation with the members that have joined. Late static members stay in the group."""
        self._timers.cancel(_join_timer(group))
        for member in [m for m in group.members.values() if m.joining is None and m.instance_id is None]:
            log.info("group %r: member %r did not join in time", group.id, member.id)
            self.detach(group, member)
        if not group.elect_joined_leader() and group.members:
            # Only static members that have not rejoined are left: wait for them or their session timeouts.
            self._timers.schedule(_join_timer(group), group.rebalance_timeout_ms, self._on_join_timeout, group.id)
            return
        group.has_new_members = False
        group.next_generation(self._now_ms())
        if group.state is GroupState.EMPTY:
            self._shard.spawn(self._store_empty(group))
            return
        for member in list(group.members.values()):
            member.respond_join(join_response(group, member))
            member.is_new = False
            self.keep_alive(group, member)
            group.pending_syncs.add(member.id)
        self._timers.schedule(
            _sync_timer(group), group.rebalance_timeout_ms, self._on_sync_timeout, group.id, group.generation
        )

    async def _store_empty(self, group: Group) -> None:
        try:
            await self._shard.write([group_record(group)], lambda _: None)
        except BrokerError as error:
            # After a crash the members of the previous generation would reappear and time out.
            log.warning("failed to store the empty group %r: %s", group.id, error)

    # -- syncing ---------------------------------------------------------------------------------

    def note_sync(self, group: Group, member_id: str) -> None:
        """Note the SyncGroup of a member."""
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._timers.cancel(_sync_timer(group))

    def _on_sync_timeout(self, group_id: str, generation: int) -> None:
        group = self._shard.groups.get(group_id)
        if group is None or group.generation != generation or not group.pending_syncs:
            return
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            late = sorted(group.pending_syncs)
            for member_id in late:
                self.detach(group, group.members[member_id])
            self.prepare(group, f"{late} did not sync in time")

    async def store_assignment(self, group: Group, generation: int, assignments: dict[str, bytes]) -> None:
        """Write the leader's assignment and respond to all members. The first one of a generation counts."""
        if not _is_completing(group, generation) or (group.id, generation) in self._storing:
            return
        all_assignments = {member_id: assignments.get(member_id, b"") for member_id in group.members}
        now_ms = self._now_ms()
        error = Code.NONE

        def complete(_: int) -> None:
            if _is_completing(group, generation):
                self._propagate(group, all_assignments, Code.NONE)
                group.transition(GroupState.STABLE, now_ms)

        self._storing.add((group.id, generation))
        try:
            await self._shard.write([group_record(group, all_assignments, now_ms)], complete)
        except BrokerError as failure:
            log.warning("group %r: failed to store the assignment of generation %d: %s", group.id, generation, failure)
            error = Code(failure.code)
        finally:
            self._storing.discard((group.id, generation))
        if error and _is_completing(group, generation):
            self._propagate(group, dict.fromkeys(group.members, b""), error)
            self.prepare(group, f"failed to store the assignment: {error.name}")

    def _propagate(self, group: Group, assignments: dict[str, bytes], error: Code) -> None:
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.respond_sync(sync_response(group, member, error)):
                # Its session may have timed out while it waited, so that no timer is running.
                self.keep_alive(group, member)

    def interrupt(self, group: Group) -> None:
        """Stop the timers of a group that becomes a consumer group; members that wait have to rejoin it."""
        for member in group.members.values():
            member.respond_join(JoinGroupResponse(error_code=Code.REBALANCE_IN_PROGRESS, member_id=member.id))
            member.respond_sync(SyncGroupResponse(error_code=Code.REBALANCE_IN_PROGRESS))
            self._timers.cancel(_session_timer(group, member.id))
        self._timers.cancel(_join_timer(group))
        self._timers.cancel(_sync_timer(group))

    def resume(self, group: Group) -> None:
        """Restart the timers of a group that has not become a consumer group after all."""
        for member in group.members.values():
            self.keep_alive(group, member)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._timers.schedule(_join_timer(group), group.rebalance_timeout_ms, self._on_join_timeout, group.id)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            self._timers.schedule(
                _sync_timer(group), group.rebalance_timeout_ms, self._on_sync_timeout, group.id, group.generation
            )

    # -- change of the coordinator ---------------------------------------------------------------

    def take_over(self) -> None:
        """Start the sessions of all loaded members."""
        for group in list(self._shard.groups.values()):
            for member in group.members.values():
                self.keep_alive(group, member)
            if len(group.members) > self._settings.members_max:
                self.prepare(group, "the group exceeds group.max.size")

    def release(self) -> None:
        """Fail waiting members with NOT_COORDINATOR: another broker coordinates the groups."""
        for group in self._shard.groups.values():
            for member in group.members.values():
                member.respond_join(JoinGroupResponse(error_code=Code.NOT_COORDINATOR, member_id=member.id))
                member.respond_sync(SyncGroupResponse(error_code=Code.NOT_COORDINATOR))
            group.transition(GroupState.DEAD, self._now_ms())

    def _now_ms(self) -> int:
        return self._shard.clock.time_ms()


def join_response(
    group: Group, member: GroupMember, *, leader_id: str | None = None, skip: bool = False
) -> JoinGroupResponse:
    """Return the response to JoinGroup; the leader gets all members."""
    members: list[JoinGroupResponseMember] = []
    if group.leader_id == member.id and leader_id is None:
        members = [
            JoinGroupResponseMember(
                member_id=other.id, group_instance_id=other.instance_id, metadata=other.metadata(group.protocol_name)
            )
            for other in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=leader_id or group.leader_id or "",
        skip_assignment=skip,
        member_id=member.id,
        members=members,
    )


def sync_response(group: Group, member: GroupMember, error: Code = Code.NONE) -> SyncGroupResponse:
    """Return the response to SyncGroup."""
    if error:
        return SyncGroupResponse(error_code=error)
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


def _is_completing(group: Group, generation: int) -> bool:
    return group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation


def _session_timer(group: Group, member_id: str) -> tuple[str, str, str]:
    return "session", group.id, member_id


def _join_timer(group: Group) -> tuple[str, str]:
    return "join", group.id


def _sync_timer(group: Group) -> tuple[str, str]:
    return "sync", group.id
