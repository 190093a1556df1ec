"""What a JoinGroup leads to.

Who comes without a member id is new. A dynamic member is given an id and sent back with it (from version 4 on), so that
a request which got lost leaves no ghost in the group; a static one that is known by its instance id takes over the
place of its predecessor. Who comes with an id joins the rebalance that is on, starts one, or is told the generation
that it missed.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import NamedTuple

from headrace.broker.groups.group import UNKNOWN_MEMBER, Claim, Group, Member, State
from headrace.broker.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS, Rebalances, joined
from headrace.broker.groups.records import group_entry
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.shard import Shard
from headrace.errors import BrokerError, Code
from headrace.wire.api.join_group import JoinGroupRequest, JoinGroupResponse

log = logging.getLogger("headrace.broker.groups")

MEMBER_ID_VERSION = 4  # KIP-394
SKIP_ASSIGNMENT_VERSION = 9  # KIP-814

PENDING_JOINS_MAX = 10_000
"""So many may have been given an id by a group and not have come back with it yet."""

Joining = asyncio.Future[JoinGroupResponse]


class Client(NamedTuple):
    """Who sends a JoinGroup, and in which version."""

    id: str
    host: str
    version: int


class Joins:
    """The JoinGroups of a shard."""

    def __init__(self, shard: Shard, rebalances: Rebalances, settings: GroupSettings) -> None:
        self._shard = shard
        self._rebalances = rebalances
        self._settings = settings

    def join(self, request: JoinGroupRequest, client: Client) -> Joining:
        """Done at once, or when the rebalance is."""
        future: Joining = asyncio.get_running_loop().create_future()
        try:
            self._join(request, client, future)
        except BrokerError as error:
            future.set_result(JoinGroupResponse(error_code=error.code, member_id=request.member_id, protocol_name=None))
        return future

    def _join(self, request: JoinGroupRequest, client: Client, future: Joining) -> None:
        group = self._shard.groups.get(request.group_id)
        if group is None:
            if request.member_id != UNKNOWN_MEMBER:
                raise BrokerError(f"there is no group {request.group_id!r}", code=Code.UNKNOWN_MEMBER_ID)
            group = self._found(request.group_id)
        self._check_room(group, request.member_id)
        protocols = {protocol.name: bytes(protocol.metadata) for protocol in request.protocols}
        if not group.supports(request.protocol_type, protocols):
            raise BrokerError(
                f"group {group.id!r} speaks {group.protocol_type}; no protocol of {request.protocol_type!r} "
                f"({', '.join(protocols)}) is known to all members",
                code=Code.INCONSISTENT_GROUP_PROTOCOL,
            )
        if request.member_id == UNKNOWN_MEMBER:
            self._join_as_new(group, request, protocols, client, future)
        elif request.member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, request.member_id, request, protocols, client, future)
        else:
            self._rejoin(group, request, protocols, future)

    def _found(self, group_id: str) -> Group:
        """Make a group, and let the log know, so that a replay knows it as well."""
        group = self._shard.group_or_new(group_id)
        group.state_time_ms = self._shard.clock.time_ms()
        self._shard.spawn(self._store_founding(group))
        return group

    async def _store_founding(self, group: Group) -> None:
        entry = group_entry(Group(group.id, state_time_ms=group.state_time_ms))
        try:
            await self._shard.write([entry], lambda _: None)
        except BrokerError as error:
            log.warning("group %r could not be stored, its first generation will be: %s", group.id, error)

    def _check_room(self, group: Group, member_id: str) -> None:
        """Refuse who would make the group larger than group.max.size.

        In a rebalance those count who have joined it: when the limit was lowered, the last ones are left over.
        """
        member = group.members.get(member_id)
        if group.state is State.EMPTY:
            return
        if group.state is State.PREPARING_REBALANCE:
            has_room = (member is not None and member.joining is not None) or (
                group.waiting_count < self._settings.members_max
            )
        else:
            has_room = member is not None or len(group.members) < self._settings.members_max
        if has_room:
            return
        if member is not None:
            self._rebalances.remove_member(group, member, "the group is larger than group.max.size")
        else:
            self._rebalances.remove_pending(group, member_id)
        raise BrokerError(
            f"group {group.id!r} has group.max.size={self._settings.members_max} members",
            code=Code.GROUP_MAX_SIZE_REACHED,
        )

    # New members.

    def _join_as_new(
        self, group: Group, request: JoinGroupRequest, protocols: dict[str, bytes], client: Client, future: Joining
    ) -> None:
        instance_id = request.group_instance_id
        member_id = f"{client.id if instance_id is None else instance_id}-{uuid.uuid4()}"
        if instance_id is not None:
            predecessor = group.static_members.get(instance_id)
            if predecessor is not None:
                self._replace(group, group.members[predecessor], member_id, request, protocols, client, future)
                return
        elif client.version >= MEMBER_ID_VERSION:
            if len(group.pending_joins) >= PENDING_JOINS_MAX:
                raise BrokerError(
                    f"group {group.id!r} waits for {PENDING_JOINS_MAX} members already",
                    code=Code.GROUP_MAX_SIZE_REACHED,
                )
            self._rebalances.add_pending(group, member_id, request.session_timeout_ms)
            future.set_result(
                JoinGroupResponse(error_code=Code.MEMBER_ID_REQUIRED, member_id=member_id, protocol_name=None)
            )
            return
        self._add(group, member_id, request, protocols, client, future)

    def _add(
        self,
        group: Group,
        member_id: str,
        request: JoinGroupRequest,
        protocols: dict[str, bytes],
        client: Client,
        future: Joining,
    ) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            client.id,
            client.host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            protocols,
            is_new=True,
            joining=future,
        )
        if group.state is State.PREPARING_REBALANCE and group.previous_state is State.EMPTY:
            group.has_grown = True
        group.add(member, request.protocol_type)
        self._rebalances.keep_alive(group, member, NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._rebalances.rebalance_or_complete(group, f"{member_id!r} is new; it says: {request.reason}")

    # Known members.

    def _rejoin(self, group: Group, request: JoinGroupRequest, protocols: dict[str, bytes], future: Joining) -> None:
        member = group.check_member(Claim(request.member_id, instance_id=request.group_instance_id))
        if group.state is State.EMPTY:
            raise BrokerError(f"group {group.id!r} has no members", code=Code.UNKNOWN_MEMBER_ID)
        unchanged = member.has_protocols(protocols)
        knows_generation = group.state is State.COMPLETING_REBALANCE or (
            # The leader may join again to have other things than members looked at: it wants a rebalance.
            group.state is State.STABLE and group.leader_id != member.id
        )
        if unchanged and knows_generation:
            future.set_result(joined(group, member))  # it did not get the answer, or got an error instead
            return
        _update(member, request, protocols)
        member.await_join(future)
        self._rebalances.rebalance_or_complete(group, f"{member.id!r} joins again; it says: {request.reason}")

    # Static members that come back.

    def _replace(
        self,
        group: Group,
        old: Member,
        member_id: str,
        request: JoinGroupRequest,
        protocols: dict[str, bytes],
        client: Client,
        future: Joining,
    ) -> None:
        former_leader = group.leader_id
        member = group.replace(old, member_id)
        _update(member, request, protocols)
        member.joining = future
        self._rebalances.keep_alive(group, member)
        reason = f"{member_id!r} takes the place of {old.id!r}"
        if group.state is State.STABLE and group.select_protocol() == group.protocol_name:
            # Nothing changes for the others: no rebalance. That is what static members are for.
            group.subscribed_topics = group.subscriptions()
            self._shard.spawn(self._store_replacement(group, member, old, former_leader, client.version))
        elif group.state in (State.STABLE, State.COMPLETING_REBALANCE):
            # While COMPLETING the leader is handing out work to the old id: that would be lost.
            self._rebalances.prepare(group, reason)
        else:
            self._rebalances.complete_if_ready(group)

    async def _store_replacement(
        self, group: Group, member: Member, old: Member, former_leader: str | None, version: int
    ) -> None:
        def answer(_: int) -> None:
            if group.state is not State.STABLE:
                return  # a rebalance has begun meanwhile, and will answer
            if version >= SKIP_ASSIGNMENT_VERSION:
                member.answer_join(joined(group, member, skip=group.leader_id == member.id))
            else:
                # An older leader would hand out work if it were told that it leads: name its predecessor.
                member.answer_join(joined(group, member, leader_id=former_leader))

        if group.state is not State.STABLE or group.members.get(member.id) is not member:
            return
        try:
            await self._shard.write([group_entry(group)], answer)
        except BrokerError as error:
            log.warning("group %r: %r could not take the place of %r: %s", group.id, member.id, old.id, error)
            member.answer_join(JoinGroupResponse(error_code=error.code, protocol_name=None))
            if group.members.get(member.id) is member:
                restored = group.replace(member, old.id)
                restored.protocols = old.protocols
                restored.rebalance_timeout_ms = old.rebalance_timeout_ms
                restored.session_timeout_ms = old.session_timeout_ms
                group.subscribed_topics = group.subscriptions()
                self._rebalances.keep_alive(group, restored)


def _update(member: Member, request: JoinGroupRequest, protocols: dict[str, bytes]) -> None:
    member.protocols = protocols
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
