"""Rebalances: from the call to join again, over the new generation, to the leader's assignment.

    prepare ──▶ all have joined, or time is up ──▶ complete_join ──▶ the leader syncs ──▶ store ──▶ propagate

Everything here is synchronous, but for the one write of the assignment. While that is on its way the group may have
moved on: it is looked at again afterwards.
"""

from __future__ import annotations

import logging

from headrace.broker.groups.group import LEGAL, Group, Member, State
from headrace.broker.groups.records import group_entry
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.shard import Shard
from headrace.errors import BrokerError, Code
from headrace.wire.api.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.wire.api.sync_group import SyncGroupResponse

log = logging.getLogger("headrace.broker.groups")

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""A new member cannot send heartbeats before it knows its id. If it waits longer than that for its first rebalance it
has probably gone; if not, it asks again."""


class Rebalances:
    """The rebalances of a shard's groups."""

    def __init__(self, shard: Shard, settings: GroupSettings) -> None:
        self._shard = shard
        self._settings = settings
        self._timers = shard.timers
        self._storing: set[tuple[str, int]] = set()  # groups and generations whose assignment is on its way

    # Sessions.

    def keep_alive(self, group: Group, member: Member, timeout_ms: int | None = None) -> None:
        """A member has been heard of: its session begins anew."""
        self._expect(group, member.id, member.session_timeout_ms if timeout_ms is None else timeout_ms)

    def add_pending(self, group: Group, member_id: str, session_timeout_ms: int) -> None:
        """Somebody was given an id and is expected to come back with it."""
        group.pending_joins.add(member_id)
        self._expect(group, member_id, session_timeout_ms)

    def remove_pending(self, group: Group, member_id: str) -> None:
        group.remove(member_id)
        self._timers.cancel(_session(group, member_id))
        self.complete_if_ready(group)

    def remove_member(self, group: Group, member: Member, reason: str) -> None:
        """A member is gone: the others share its work."""
        self.detach(group, member)
        if group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            self.prepare(group, reason)
        else:
            self._complete_if_all_joined(group)

    def detach(self, group: Group, member: Member) -> None:
        """Take a member out, without asking yet what that means for the others."""
        # It may be waiting, and still be alive: then it should join as somebody new.
        member.answer_join(JoinGroupResponse(error_code=Code.UNKNOWN_MEMBER_ID))
        member.answer_sync(SyncGroupResponse(error_code=Code.UNKNOWN_MEMBER_ID))
        group.remove(member.id)
        self._timers.cancel(_session(group, member.id))

    def _expect(self, group: Group, member_id: str, timeout_ms: int) -> None:
        self._timers.schedule(_session(group, member_id), timeout_ms, self._session_over, group.id, member_id)

    def _session_over(self, group_id: str, member_id: str) -> None:
        group = self._shard.groups.get(group_id)
        if group is None:
            return
        if member_id in group.pending_joins:
            self.remove_pending(group, member_id)
            return
        member = group.members.get(member_id)
        if member is not None and not member.is_waiting:
            log.info("group %r: member %r was not heard of for its whole session", group_id, member_id)
            self.remove_member(group, member, f"the session of {member_id!r} is over")

    # Joining.

    def rebalance_or_complete(self, group: Group, reason: str) -> None:
        """A member has joined or changed: begin a rebalance, or go on with the one that is on."""
        if State.PREPARING_REBALANCE in LEGAL[group.state]:
            self.prepare(group, reason)
        else:
            self.complete_if_ready(group)

    def prepare(self, group: Group, reason: str) -> None:
        """Call all members to join again."""
        if group.state is State.COMPLETING_REBALANCE:
            self._propagate(group, dict.fromkeys(group.members, b""), Code.REBALANCE_IN_PROGRESS)
        group.pending_syncs.clear()
        self._timers.cancel(_sync(group))
        is_first = group.state is State.EMPTY
        group.transition(State.PREPARING_REBALANCE, self._now_ms())
        log.info("group %r: rebalance after generation %d: %s", group.id, group.generation, reason)
        if is_first:
            # Members tend to start together: wait a little, rather than rebalance once for each.
            delay_ms = self._settings.initial_rebalance_delay_ms
            left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._timers.schedule(_join(group), delay_ms, self._first_delay_over, group.id, delay_ms, left_ms)
        elif group.has_all_joined:
            self.complete_join(group)
        else:
            self._timers.schedule(_join(group), group.rebalance_timeout_ms, self._join_time_over, group.id)

    def complete_if_ready(self, group: Group) -> None:
        """Unless it is the first rebalance of a group: that one lasts as long as its delay."""
        if group.previous_state is not State.EMPTY:
            self._complete_if_all_joined(group)

    def _complete_if_all_joined(self, group: Group) -> None:
        if group.state is State.PREPARING_REBALANCE and group.has_all_joined:
            self.complete_join(group)

    def _first_delay_over(self, group_id: str, delay_ms: int, left_ms: int) -> None:
        group = self._shard.groups.get(group_id)
        if group is None or group.state is not State.PREPARING_REBALANCE:
            return
        if group.has_grown and left_ms:
            group.has_grown = False
            again_ms = min(self._settings.initial_rebalance_delay_ms, left_ms)
            rest_ms = max(left_ms - delay_ms, 0)
            self._timers.schedule(_join(group), again_ms, self._first_delay_over, group_id, again_ms, rest_ms)
        else:
            self.complete_join(group)

    def _join_time_over(self, group_id: str) -> None:
        group = self._shard.groups.get(group_id)
        if group is not None and group.state is State.PREPARING_REBALANCE:
            self.complete_join(group)

    def complete_join(self, group: Group) -> None:
        """Begin the next generation with those who have joined. Static members may be late: they keep their place."""
        self._timers.cancel(_join(group))
        for member in [m for m in group.members.values() if m.joining is None and m.instance_id is None]:
            log.info("group %r: member %r did not join in time", group.id, member.id)
            self.detach(group, member)
        if not group.elect_joined_leader() and group.members:
            # Only static members are left, all silent. Their sessions decide.
            self._timers.schedule(_join(group), group.rebalance_timeout_ms, self._join_time_over, group.id)
            return
        group.has_grown = False
        group.next_generation(self._now_ms())
        if group.state is State.EMPTY:
            self._shard.spawn(self._store_empty(group))
            return
        for member in list(group.members.values()):
            member.answer_join(joined(group, member))
            member.is_new = False
            self.keep_alive(group, member)
            group.pending_syncs.add(member.id)
        self._timers.schedule(
            _sync(group), group.rebalance_timeout_ms, self._sync_time_over, group.id, group.generation
        )

    async def _store_empty(self, group: Group) -> None:
        try:
            await self._shard.write([group_entry(group)], lambda _: None)
        except BrokerError as error:
            # After a crash the members of the generation before are back, and time out.
            log.warning("group %r is empty, but that could not be stored: %s", group.id, error)

    # Syncing.

    def synced(self, group: Group, member_id: str) -> None:
        """A member has sent its SyncGroup."""
        group.pending_syncs.discard(member_id)
        if not group.pending_syncs:
            self._timers.cancel(_sync(group))

    def _sync_time_over(self, group_id: str, generation: int) -> None:
        group = self._shard.groups.get(group_id)
        if group is None or group.generation != generation or not group.pending_syncs:
            return
        if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
            late = sorted(group.pending_syncs)
            for member_id in late:
                self.detach(group, group.members[member_id])
            self.prepare(group, f"{late} did not sync in time")

    async def store_assignment(self, group: Group, generation: int, assignments: dict[str, bytes]) -> None:
        """Keep what the leader has decided, and tell everybody. If it says so twice, the first time counts."""
        if not _is_completing(group, generation) or (group.id, generation) in self._storing:
            return
        everybody = {member_id: assignments.get(member_id, b"") for member_id in group.members}
        now_ms = self._now_ms()
        error = Code.NONE

        def settle(_: int) -> None:
            if _is_completing(group, generation):
                self._propagate(group, everybody, Code.NONE)
                group.transition(State.STABLE, now_ms)

        self._storing.add((group.id, generation))
        try:
            await self._shard.write([group_entry(group, everybody, now_ms)], settle)
        except BrokerError as failure:
            log.warning("group %r: the assignment of generation %d is lost: %s", group.id, generation, failure)
            error = Code(failure.code)
        finally:
            self._storing.discard((group.id, generation))
        if error and _is_completing(group, generation):
            self._propagate(group, dict.fromkeys(group.members, b""), error)
            self.prepare(group, f"the assignment could not be stored: {error.name}")

    def _propagate(self, group: Group, assignments: dict[str, bytes], error: Code) -> None:
        for member in group.members.values():
            member.assignment = assignments.get(member.id, b"")
            if member.answer_sync(assignment(group, member, error)):
                # Its session may have run out while it waited, and nothing would watch over it any more.
                self.keep_alive(group, member)

    # A partition comes or goes.

    def take_over(self) -> None:
        """Everything is loaded: give all members a whole session to find us."""
        for group in list(self._shard.groups.values()):
            for member in group.members.values():
                self.keep_alive(group, member)
            if len(group.members) > self._settings.members_max:
                self.prepare(group, "it is larger than group.max.size")

    def let_go(self) -> None:
        """Another broker has the groups now: send those who wait to it."""
        for group in self._shard.groups.values():
            for member in group.members.values():
                member.answer_join(JoinGroupResponse(error_code=Code.NOT_COORDINATOR, member_id=member.id))
                member.answer_sync(SyncGroupResponse(error_code=Code.NOT_COORDINATOR))
            group.transition(State.DEAD, self._now_ms())

    def _now_ms(self) -> int:
        return self._shard.clock.time_ms()


def joined(group: Group, member: Member, *, leader_id: str | None = None, skip: bool = False) -> JoinGroupResponse:
    """The answer to JoinGroup: the leader is told of all members."""
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


def assignment(group: Group, member: Member, error: Code = Code.NONE) -> SyncGroupResponse:
    """The answer to SyncGroup."""
    if error:
        return SyncGroupResponse(error_code=error)
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


def _is_completing(group: Group, generation: int) -> bool:
    return group.state is State.COMPLETING_REBALANCE and group.generation == generation


def _session(group: Group, member_id: str) -> tuple[str, str, str]:
    return "session", group.id, member_id


def _join(group: Group) -> tuple[str, str]:
    return "join", group.id


def _sync(group: Group) -> tuple[str, str]:
    return "sync", group.id
