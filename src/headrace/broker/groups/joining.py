"""JoinGroup: new members, rejoining members and returning static members.

A request without a member id is from a new member. A dynamic member is sent back with an assigned id (v4+, KIP-394), so
that a lost response leaves no phantom member in the group. A static member whose instance id is known replaces its
predecessor. A request with a member id joins the current rebalance, starts one, or gets the generation it has missed.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass
from typing import NamedTuple

from headrace.broker.groups.group import UNKNOWN_MEMBER, Group, GroupMember, GroupState, MemberClaim
from headrace.broker.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalances, join_response
from headrace.broker.groups.records import group_record
from headrace.broker.groups.shard import GroupSettings, Shard
from headrace.errors import BrokerError, Code
from headrace.wire.api.groups import JoinGroupRequest, JoinGroupResponse

log = logging.getLogger("headrace.broker.groups")

MEMBER_ID_VERSION = 4  # KIP-394
SKIP_ASSIGNMENT_VERSION = 9  # KIP-814

PENDING_JOINS_MAX = 10_000
"""How many member ids of a group may be assigned but not joined."""

JoinFuture = asyncio.Future[JoinGroupResponse]


class JoiningClient(NamedTuple):
    """The client of a JoinGroup, and the version of its request."""

    id: str
    host: str
    version: int


@dataclass(frozen=True, slots=True)
class _JoinAttempt:
    """A JoinGroup request that waits for its response."""

    request: JoinGroupRequest
    client: JoiningClient
    protocols: dict[str, bytes]
    future: JoinFuture


class Joins:
    """Handles the JoinGroup requests of a shard."""

    def __init__(self, shard: Shard, rebalances: Rebalances, settings: GroupSettings) -> None:
        self._shard = shard
        self._rebalances = rebalances
        self._settings = settings

    def join(self, request: JoinGroupRequest, client: JoiningClient) -> JoinFuture:
        """Return the future response: done at once, or when the rebalance completes."""
        protocols = {protocol.name: bytes(protocol.metadata) for protocol in request.protocols}
        attempt = _JoinAttempt(request, client, protocols, asyncio.get_running_loop().create_future())
        try:
            self._join(attempt)
        except BrokerError as error:
            attempt.future.set_result(
                JoinGroupResponse(error_code=error.code, member_id=request.member_id, protocol_name=None)
            )
        return attempt.future

    def _join(self, attempt: _JoinAttempt) -> None:
        request = attempt.request
        group = self._shard.groups.get(request.group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER:
                raise BrokerError(f"unknown group {request.group_id!r}", code=Code.UNKNOWN_MEMBER_ID)
            group = self._create_group(request.group_id)
        self._check_size(group, request.member_id)
        if not group.supports(request.protocol_type, attempt.protocols):
            raise BrokerError(
                f"group {group.id!r} has protocol type {group.protocol_type!r}; none of the protocols of type "
                f"{request.protocol_type!r} ({', '.join(attempt.protocols)}) is supported by all members",
                code=Code.INCONSISTENT_GROUP_PROTOCOL,
            )
        if request.member_id == UNKNOWN_MEMBER:
            self._join_as_new(group, attempt)
        elif request.member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, request.member_id, attempt)
        else:
            self._rejoin(group, attempt)

    def _create_group(self, group_id: str) -> Group:
        """Create a group and write its record, so that a replay creates it as well."""
        group = self._shard.group_or_new(group_id)
        group.state_time_ms = self._shard.clock.time_ms()
        self._shard.spawn(self._store_new_group(group))
        return group

    async def _store_new_group(self, group: Group) -> None:
        record = group_record(Group(group.id, state_time_ms=group.state_time_ms))
        try:
            await self._shard.write([record], lambda _: None)
        except BrokerError as error:
            log.warning("failed to store the new group %r, will store its first generation: %s", group.id, error)

    def _check_size(self, group: Group, member_id: str) -> None:
        """Raise GROUP_MAX_SIZE_REACHED if the group would exceed group.max.size.

        During a rebalance only members that have rejoined count, so that a lowered limit removes the last ones.
        """
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return
        if group.state is GroupState.PREPARING_REBALANCE:
            has_room = (member is not None and member.joining is not None) or (
                group.waiting_count < self._settings.members_max
            )
        else:
            has_room = member is not None or len(group.members) < self._settings.members_max
        if has_room:
            return
        if member is not None:
            self._rebalances.remove_member(group, member, "the group exceeds group.max.size")
        else:
            self._rebalances.remove_pending(group, member_id)
        raise BrokerError(
            f"group {group.id!r} has group.max.size={self._settings.members_max} members",
            code=Code.GROUP_MAX_SIZE_REACHED,
        )

    # -- new members -----------------------------------------------------------------------------

    def _join_as_new(self, group: Group, attempt: _JoinAttempt) -> None:
        request, client = attempt.request, attempt.client
        instance_id = request.group_instance_id
        member_id = f"{client.id if instance_id is None else instance_id}-{uuid.uuid4()}"
        if instance_id is not None:
            predecessor = group.static_members.get(instance_id)
            if predecessor is not None:
                self._replace(group, group.members[predecessor], member_id, attempt)
                return
        elif client.version >= MEMBER_ID_VERSION:
            if len(group.pending_joins) >= PENDING_JOINS_MAX:
                raise BrokerError(
                    f"group {group.id!r} has {PENDING_JOINS_MAX} pending members already",
                    code=Code.GROUP_MAX_SIZE_REACHED,
                )
            self._rebalances.add_pending(group, member_id, request.session_timeout_ms)
            attempt.future.set_result(
                JoinGroupResponse(error_code=Code.MEMBER_ID_REQUIRED, member_id=member_id, protocol_name=None)
            )
            return
        self._add(group, member_id, attempt)

    def _add(self, group: Group, member_id: str, attempt: _JoinAttempt) -> None:
        request = attempt.request
        member = GroupMember(
            member_id,
            request.group_instance_id,
            attempt.client.id,
            attempt.client.host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            attempt.protocols,
            is_new=True,
            joining=attempt.future,
        )
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.has_new_members = True
        group.add(member, request.protocol_type)
        self._rebalances.keep_alive(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalances.rebalance_or_complete(group, f"new member {member_id!r}, reason: {request.reason}")

    # -- known members ---------------------------------------------------------------------------

    def _rejoin(self, group: Group, attempt: _JoinAttempt) -> None:
        request = attempt.request
        member = group.check_member(MemberClaim(request.member_id, instance_id=request.group_instance_id))
        if group.state is GroupState.EMPTY:
            raise BrokerError(f"group {group.id!r} has no members", code=Code.UNKNOWN_MEMBER_ID)
        knows_generation = group.state is GroupState.COMPLETING_REBALANCE or (
            # The leader rejoins to request a rebalance, for example after a change of the topics.
            group.state is GroupState.STABLE and group.leader_id != member.id
        )
        if knows_generation and member.has_protocols(attempt.protocols):
            attempt.future.set_result(join_response(group, member))  # the previous response was lost
            return
        _update(member, attempt)
        member.await_join(attempt.future)
        self._rebalances.rebalance_or_complete(group, f"member {member.id!r} rejoins, reason: {request.reason}")

    # -- returning static members ----------------------------------------------------------------

    def _replace(self, group: Group, old: GroupMember, member_id: str, attempt: _JoinAttempt) -> None:
        former_leader = group.leader_id
        member = group.replace(old, member_id)
        _update(member, attempt)
        member.joining = attempt.future
        self._rebalances.keep_alive(group, member)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            # Nothing changes for the other members: static membership avoids a rebalance here.
            group.subscribed_topics = group.subscriptions()
            self._shard.spawn(self._store_replacement(group, member, old, former_leader, attempt.client.version))
        elif group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            # In COMPLETING_REBALANCE the leader's assignment would be for the old member id.
            self._rebalances.prepare(group, f"static member {member_id!r} replaces {old.id!r}")
        else:
            self._rebalances.complete_if_ready(group)

    async def _store_replacement(
        self, group: Group, member: GroupMember, old: GroupMember, former_leader: str | None, version: int
    ) -> None:
        def respond(_: int) -> None:
            if group.state is not GroupState.STABLE:
                return  # a rebalance has started and will respond
            if version >= SKIP_ASSIGNMENT_VERSION:
                member.respond_join(join_response(group, member, skip=group.leader_id == member.id))
            else:
                # An older leader would send an assignment if it were named as leader: name its predecessor.
                member.respond_join(join_response(group, member, leader_id=former_leader))

        if group.state is not GroupState.STABLE or group.members.get(member.id) is not member:
            return
        try:
            await self._shard.write([group_record(group)], respond)
        except BrokerError as error:
            log.warning("group %r: failed to replace member %r by %r: %s", group.id, old.id, member.id, error)
            member.respond_join(JoinGroupResponse(error_code=error.code, protocol_name=None))
            if group.members.get(member.id) is member:
                restored = group.replace(member, old.id)
                restored.protocols = old.protocols
                restored.rebalance_timeout_ms = old.rebalance_timeout_ms
                restored.session_timeout_ms = old.session_timeout_ms
                group.subscribed_topics = group.subscriptions()
                self._rebalances.keep_alive(group, restored)


def _update(member: GroupMember, attempt: _JoinAttempt) -> None:
    member.protocols = attempt.protocols
    member.rebalance_timeout_ms = attempt.request.rebalance_timeout_ms
    member.session_timeout_ms = attempt.request.session_timeout_ms
