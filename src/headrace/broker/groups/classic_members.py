"""Classic consumers in a consumer group (KIP-848): JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The generation of a classic member is its epoch in the group. A join reconciles it, a sync returns its assignment, and a
heartbeat tells it to rejoin when there is something to do: a newer target, partitions to revoke, or free partitions.
The group may have become classic while a request waited for `Shard.exclusive`: these are passed on.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from dataclasses import replace

from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer_member import ClassicMetadata, ConsumerMember, MemberState
from headrace.broker.groups.consumer_sessions import ConsumerSessions
from headrace.broker.groups.consumer_settings import ConsumerSettings
from headrace.broker.groups.consumer_update import GroupUpdate, is_target_due
from headrace.broker.groups.group import UNKNOWN_MEMBER, MemberClaim
from headrace.broker.groups.joining import MEMBER_ID_VERSION, JoiningClient, Joins
from headrace.broker.groups.migration import can_downgrade, encode_classic_assignment, partitions_by_id
from headrace.broker.groups.shard import Shard
from headrace.errors import BrokerError, Code, WireError
from headrace.wire.api.groups import (
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from headrace.wire.consumer_protocol import PROTOCOL_TYPE, ConsumerProtocolSubscription, decode_subscription


class ClassicMembers:
    """Handles the requests of classic consumers in a shard's consumer groups."""

    def __init__(self, shard: Shard, sessions: ConsumerSessions, joins: Joins, settings: ConsumerSettings) -> None:
        self._shard = shard
        self._sessions = sessions
        self._joins = joins
        self._settings = settings

    # -- join ------------------------------------------------------------------------------------

    async def join(self, request: JoinGroupRequest, client: JoiningClient) -> JoinGroupResponse:
        """Join a consumer group, or a classic group that has replaced it."""
        try:
            classic = await self._join(request, client)
        except BrokerError as error:
            return JoinGroupResponse(error_code=error.code, member_id=request.member_id, protocol_name=None)
        if isinstance(classic, JoinGroupResponse):
            return classic
        return await classic

    async def _join(
        self, request: JoinGroupRequest, client: JoiningClient
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        async with self._shard.exclusive(request.group_id):
            group = self._shard.consumer_groups.get(request.group_id)
            if group is not None and not group.members:
                # As in Kafka, a group without members takes the protocol of the next one.
                update = GroupUpdate(self._shard, self._settings, group)
                update.add(*group.tombstones())
                await update.commit()
                self._shard.replace_group(group.id, None)
                group = None
            if group is None:
                return self._joins.join(request, client)
            return await self._join_consumer_group(group, request, client)

    async def _join_consumer_group(
        self, group: ConsumerGroup, request: JoinGroupRequest, client: JoiningClient
    ) -> JoinGroupResponse:
        is_new = request.member_id == UNKNOWN_MEMBER
        member_id = str(uuid.uuid4()) if is_new else request.member_id
        subscription = self._check_join(group, request, member_id)
        if is_new and request.group_instance_id is None and client.version >= MEMBER_ID_VERSION:
            return JoinGroupResponse(error_code=Code.MEMBER_ID_REQUIRED, member_id=member_id, protocol_name=None)
        update = GroupUpdate(self._shard, self._settings, group)
        member, replaced = self._member_for(update, request, member_id)
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)
        updated = replace(
            member,
            instance_id=request.group_instance_id if member.instance_id is None else member.instance_id,
            rack_id=subscription.rack_id if subscription.rack_id is not None else member.rack_id,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            topics=frozenset(subscription.topics),
            regex="",
            client_id=client.id,
            client_host=client.host,
            classic=ClassicMetadata(request.session_timeout_ms, protocols),
        )
        has_new_topics = update.update_member(updated) or bool(member.regex)
        update.refresh_epoch(force=has_new_topics)
        update.refresh_target(self._shard.clock.time_ms())
        owned = partitions_by_id(subscription.owned_partitions, self._settings.topics)
        reconciled = update.reconcile_member(updated.id, owned, has_changed_subscription=has_new_topics)
        if replaced is not None and can_downgrade(group, self._settings, {replaced}, joining=1):
            await self._downgrade(group, update, reconciled)
        else:
            await update.commit()
            self._sessions.keep_alive(group.id, reconciled)
            self._sessions.expect_sync(group.id, reconciled)
        return JoinGroupResponse(
            generation_id=reconciled.epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=protocols[0][0],
            member_id=reconciled.id,
        )

    def _check_join(
        self, group: ConsumerGroup, request: JoinGroupRequest, member_id: str
    ) -> ConsumerProtocolSubscription:
        """Return the subscription of a request that may join; raise otherwise."""
        if len(group.members) >= self._settings.members_max and member_id not in group.members:
            raise group.error(
                Code.GROUP_MAX_SIZE_REACHED, f"it has group.consumer.max.size={self._settings.members_max} members"
            )
        names = [protocol.name for protocol in request.protocols]
        if not group.supports_classic(request.protocol_type, names):
            raise group.error(
                Code.INCONSISTENT_GROUP_PROTOCOL,
                f"none of the protocols {', '.join(names)} is supported by all classic members",
            )
        try:
            return decode_subscription(request.protocols[0].metadata)
        except WireError as error:
            raise group.error(Code.INCONSISTENT_GROUP_PROTOCOL, f"invalid subscription: {error}") from error

    def _member_for(
        self, update: GroupUpdate, request: JoinGroupRequest, member_id: str
    ) -> tuple[ConsumerMember, str | None]:
        """Return the member of a request, and the id of the static member that it replaces."""
        group = update.group
        if request.group_instance_id is None:
            return group.members.get(member_id, ConsumerMember(member_id)), None
        existing_id = group.static_members.get(request.group_instance_id)
        if request.member_id != UNKNOWN_MEMBER:
            return group.static_member(request.group_instance_id, member_id), None
        if existing_id is None:
            return ConsumerMember(member_id), None
        return update.replace_static(group.members[existing_id], member_id), existing_id

    async def _downgrade(self, group: ConsumerGroup, update: GroupUpdate, joining: ConsumerMember) -> None:
        """Make the group classic: a classic static member has replaced the last one with the consumer protocol."""
        is_stale = update.group.epoch > group.target_epoch
        members = [joining if member.id == joining.id else member for member in update.group.members.values()]
        reason = "a classic member has replaced the last one with the consumer protocol" if is_stale else None
        await self._sessions.make_classic(group, members, update, reason=reason)

    # -- sync, heartbeat and leave ---------------------------------------------------------------

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest) -> SyncGroupResponse:
        """Return the assignment of a member that has joined."""
        claim = MemberClaim(request.member_id, request.generation_id, request.group_instance_id)
        member = _classic_member(group, claim)
        assert member.classic is not None
        protocol_name = member.classic.protocols[0][0]
        if (request.protocol_type or PROTOCOL_TYPE) != PROTOCOL_TYPE or (
            request.protocol_name or protocol_name
        ) != protocol_name:
            raise group.error(
                Code.INCONSISTENT_GROUP_PROTOCOL,
                f"protocol {request.protocol_name!r} of type {request.protocol_type!r} is not that of the JoinGroup "
                f"response, {protocol_name!r}",
            )
        if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._sessions.expect_join(group.id, member)
            raise group.error(Code.REBALANCE_IN_PROGRESS, f"member {member.id!r} should rejoin")
        self._sessions.cancel("sync", group.id, member.id)
        self._sessions.keep_alive(group.id, member)
        return SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encode_classic_assignment(member, member.assigned, self._settings.topics),
        )

    def heartbeat(self, group: ConsumerGroup, claim: MemberClaim) -> Code:
        """Extend the session of a member; return REBALANCE_IN_PROGRESS if it has to rejoin."""
        member = _classic_member(group, claim)
        self._sessions.keep_alive(group.id, member)
        has_to_rejoin = (
            member.epoch < group.target_epoch
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_partitions(member))
            or self._has_to_assign(group)
        )
        if not has_to_rejoin:
            return Code.NONE
        self._sessions.expect_join(group.id, member)
        return Code.REBALANCE_IN_PROGRESS

    def _has_to_assign(self, group: ConsumerGroup) -> bool:
        """Return whether a new target needs a join, because no member sends heartbeats of the consumer protocol."""
        return all(member.classic is not None for member in group.members.values()) and is_target_due(
            group, self._settings, self._shard.clock.time_ms()
        )

    async def leave(self, group_id: str, identities: Collection[MemberIdentity]) -> list[Code] | None:
        """Remove members of either protocol; return a code for each. None: the group is classic now."""
        async with self._shard.exclusive(group_id):
            group = self._shard.consumer_groups.get(group_id)
            if group is None:
                return None
            codes: list[Code] = []
            leaving: dict[str, ConsumerMember] = {}
            for identity in identities:
                try:
                    member = _leaving_member(group, identity)
                except BrokerError as error:
                    codes.append(Code(error.code))
                    continue
                leaving[member.id] = member
                codes.append(Code.NONE)
            if leaving:
                await self._sessions.remove(group, list(leaving.values()))
            return codes


def _leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    member_id, instance_id = identity.member_id, identity.group_instance_id
    if instance_id is not None and member_id == UNKNOWN_MEMBER:
        # An administrator removes a static member by its instance id.
        member_id = group.static_members.get(instance_id, UNKNOWN_MEMBER)
    return group.member_of(MemberClaim(member_id, instance_id=instance_id))


def _classic_member(group: ConsumerGroup, claim: MemberClaim) -> ConsumerMember:
    """Return the classic member of a request, with the current generation, or raise."""
    member = group.member_of(claim)
    if member.classic is None:
        raise group.error(Code.UNKNOWN_MEMBER_ID, f"Member {member.id} does not use the classic protocol.")
    if member.epoch != claim.generation:
        raise group.error(
            Code.ILLEGAL_GENERATION, f"generation {claim.generation} is not the epoch of the member, {member.epoch}"
        )
    return member
