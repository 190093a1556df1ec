"""The group coordinator: routes requests to the shard of a group.

A group on another broker fails with NOT_COORDINATOR, one that is being loaded with COORDINATOR_LOAD_IN_PROGRESS.
Operations that write to the log run in a shielded task: a client that disconnects halfway does not leave memory and log
inconsistent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from headrace.broker.catalog.topics import CONSUMER_OFFSETS
from headrace.broker.clock import TimerClock
from headrace.broker.groups.classic_members import ClassicMembers
from headrace.broker.groups.commits import GROUP_ID_NOT_FOUND_VERSION, Commit, Commits, Fetched, OffsetExpiry
from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.consumer_heartbeats import ConsumerHeartbeats, HeartbeatClient
from headrace.broker.groups.consumer_sessions import ConsumerSessions
from headrace.broker.groups.consumer_settings import ConsumerSettings, MetadataImage
from headrace.broker.groups.group import UNKNOWN_MEMBER, Group, GroupState, MemberClaim
from headrace.broker.groups.joining import JoiningClient, Joins
from headrace.broker.groups.rebalance import Rebalances, sync_response
from headrace.broker.groups.shard import AnyGroup, GroupSettings, InternalLog, Shard
from headrace.broker.groups.share_group import ShareGroup
from headrace.broker.groups.subscription_refresh import SubscriptionRefresh
from headrace.config import Config
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from headrace.wire.api.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from headrace.wire.internal_topics import coordinator_partition
from headrace.wire.records import BatchProducer

if TYPE_CHECKING:
    from headrace.broker.groups.share_heartbeats import ShareHeartbeats, ShareStates
    from headrace.broker.groups.share_offsets import ShareOffsets
    from headrace.wire.api.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

STOP_SECONDS_MAX = 5
"""How long `stop` waits for pending writes."""

ADD_PARTITIONS_VERSION = 5  # of TxnOffsetCommit: transactions v2
ABORTABLE_VERSION = 4  # older clients do not know TRANSACTION_ABORTABLE

T = TypeVar("T")


class TransactionVerifier(Protocol):
    """The part of the transaction coordinator that is used here."""

    async def ensure_partitions(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition], *, add: bool
    ) -> dict[TopicPartition, Code]: ...


class _ShardComponents(NamedTuple):
    """A shard and the components that operate on it."""

    shard: Shard
    rebalances: Rebalances
    joins: Joins
    commits: Commits
    expiry: OffsetExpiry
    heartbeats: ConsumerHeartbeats
    classic_members: ClassicMembers


class _ShareComponents(NamedTuple):
    """The components for share groups of a shard."""

    heartbeats: ShareHeartbeats
    offsets: ShareOffsets


class GroupCoordinator:
    """Coordinates all groups whose partition this broker leads."""

    def __init__(
        self,
        internal: InternalLog,
        clock: TimerClock,
        config: Config,
        image: MetadataImage,
        transactions: TransactionVerifier,
        *,
        share_states: Callable[[], ShareStates],
    ) -> None:
        """`share_states` is called when the first share group needs it."""
        self._internal = internal
        self._clock = clock
        self._settings = GroupSettings.of(config)
        self.consumer_settings = ConsumerSettings(config, image)
        self._transactions = transactions
        self._share_states = share_states
        self._components: dict[int, _ShardComponents] = {}  # by partition of __consumer_offsets
        self._share_components: dict[int, _ShareComponents] = {}  # made on first use
        self._is_stopped = False

    # -- loading and stop -------------------------------------------------------------------------

    async def stop(self) -> None:
        """Fail waiting requests and finish pending writes."""
        self._is_stopped = True
        tasks: list[asyncio.Task[Any]] = []
        for index in list(self._components):
            tasks += self.unload(index)
        if tasks:
            _, unfinished = await asyncio.wait(tasks, timeout=STOP_SECONDS_MAX)
            for task in unfinished:
                task.cancel()

    def load(self, index: int) -> None:
        """Load the groups of a partition that this broker leads from now on."""
        if index in self._components or self._is_stopped:
            return
        shard = Shard(index, self._internal, self._clock)
        rebalances = Rebalances(shard, self._settings)
        commits = Commits(shard, rebalances, self._settings)
        expiry = OffsetExpiry(shard, commits, self._settings)
        joins = Joins(shard, rebalances, self._settings)
        sessions = ConsumerSessions(shard, rebalances, self.consumer_settings)
        refresh = SubscriptionRefresh(shard, self.consumer_settings)
        self._components[index] = _ShardComponents(
            shard,
            rebalances,
            joins,
            commits,
            expiry,
            ConsumerHeartbeats(shard, rebalances, sessions, refresh, self.consumer_settings),
            ClassicMembers(shard, sessions, joins, self.consumer_settings),
        )

        def loaded() -> None:
            components = self._components.get(index)
            if components is not None and components.shard is shard:  # it may have been unloaded meanwhile
                rebalances.take_over()
                sessions.take_over()
                if shard.share_groups:
                    self._share_components_of(shard).heartbeats.take_over()
                expiry.start()

        shard.load(loaded)

    def unload(self, index: int) -> Iterable[asyncio.Task[Any]]:
        """Drop the groups of a partition that another broker leads; return the tasks that still write."""
        components = self._components.pop(index, None)
        self._share_components.pop(index, None)
        if components is None:
            return ()
        tasks = components.shard.close()
        components.rebalances.release()
        return tasks

    def partition_for(self, group_id: str) -> int:
        """Return the partition of __consumer_offsets of a group."""
        return coordinator_partition(group_id, self._internal.ensure(CONSUMER_OFFSETS))

    def _components_of(self, group_id: str) -> _ShardComponents:
        if self._is_stopped:
            raise BrokerError("the broker is stopping", code=Code.COORDINATOR_NOT_AVAILABLE)
        index = self.partition_for(group_id)
        components = self._components.get(index)
        if components is None:
            if index not in self._internal.partitions_led(CONSUMER_OFFSETS):
                raise BrokerError(
                    f"this broker is not the coordinator of group {group_id!r}", code=Code.NOT_COORDINATOR
                )
            self.load(index)  # the topic has just been created
            components = self._components[index]
        if components.shard.is_loading:
            raise BrokerError(
                f"the partition of group {group_id!r} is being loaded", code=Code.COORDINATOR_LOAD_IN_PROGRESS
            )
        return components

    # -- membership ------------------------------------------------------------------------------

    def join(self, request: JoinGroupRequest, client: JoiningClient) -> asyncio.Future[JoinGroupResponse]:
        _check_group_id(request.group_id)
        low_ms, high_ms = self._settings.session_timeout_min_ms, self._settings.session_timeout_max_ms
        if not low_ms <= request.session_timeout_ms <= high_ms:
            raise BrokerError(
                f"invalid session.timeout.ms {request.session_timeout_ms}: expected {low_ms} to {high_ms}",
                code=Code.INVALID_SESSION_TIMEOUT,
            )
        components = self._components_of(request.group_id)
        if request.group_id in components.shard.share_groups:
            raise BrokerError(f"group {request.group_id!r} is a share group", code=Code.INCONSISTENT_GROUP_PROTOCOL)
        if request.group_id in components.shard.consumer_groups:
            return components.shard.spawn(components.classic_members.join(request, client))
        return components.joins.join(request, client)

    def sync(self, request: SyncGroupRequest) -> asyncio.Future[SyncGroupResponse]:
        _check_group_id(request.group_id)
        components = self._components_of(request.group_id)
        consumer_group = components.shard.consumer_groups.get(request.group_id)
        if consumer_group is not None:
            synced: asyncio.Future[SyncGroupResponse] = asyncio.get_running_loop().create_future()
            synced.set_result(components.classic_members.sync(consumer_group, request))
            return synced
        group = _group_with_members(components.shard, request.group_id)
        claim = MemberClaim(request.member_id, request.generation_id, request.group_instance_id)
        member = group.check_member(claim)
        group.check_generation(claim)
        for requested, known in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if requested is not None and known is not None and requested != known:
                raise BrokerError(
                    f"group {group.id!r} uses protocol {known!r}, the request {requested!r}",
                    code=Code.INCONSISTENT_GROUP_PROTOCOL,
                )
        if group.state is GroupState.PREPARING_REBALANCE:
            raise BrokerError(f"group {group.id!r} is rebalancing", code=Code.REBALANCE_IN_PROGRESS)
        future: asyncio.Future[SyncGroupResponse] = asyncio.get_running_loop().create_future()
        components.rebalances.note_sync(group, member.id)
        if group.state is GroupState.STABLE:
            future.set_result(sync_response(group, member))
            return future
        member.await_sync(future)
        if group.leader_id == member.id:
            assignments = {row.member_id: bytes(row.assignment) for row in request.assignments}
            components.shard.spawn(components.rebalances.store_assignment(group, group.generation, assignments))
        return future

    def heartbeat(self, group_id: str, claim: MemberClaim) -> Code:
        """Extend the session of a member; return REBALANCE_IN_PROGRESS if it has to rejoin."""
        _check_group_id(group_id)
        try:
            components = self._components_of(group_id)
        except BrokerError as error:
            if error.code == Code.COORDINATOR_LOAD_IN_PROGRESS:
                return Code.NONE  # sessions start when the load is complete
            raise
        consumer_group = components.shard.consumer_groups.get(group_id)
        if consumer_group is not None:
            return components.classic_members.heartbeat(consumer_group, claim)
        group = _group_with_members(components.shard, group_id)
        member = group.check_member(claim)
        group.check_generation(claim)
        components.rebalances.keep_alive(group, member)
        return Code.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else Code.NONE

    async def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, client: HeartbeatClient
    ) -> ConsumerGroupHeartbeatResponse:
        """Join, keep alive or leave with the consumer protocol (KIP-848)."""
        self.consumer_settings.check_enabled()
        components = self._components_of(request.group_id)
        _check_not_share(components.shard, request.group_id)
        return await _shielded(components.shard, components.heartbeats.handle(request, client))

    async def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, client: HeartbeatClient
    ) -> ShareGroupHeartbeatResponse:
        """Join, keep alive or leave a share group (KIP-932)."""
        components = self._components_of(request.group_id)
        share = self._share_components_of(components.shard)
        return await _shielded(components.shard, share.heartbeats.handle(request, client))

    async def leave_consumer_group(self, group_id: str, members: Collection[MemberIdentity]) -> list[Code]:
        """Remove classic members of a consumer group; return a code for each."""
        components = self._components_of(group_id)
        codes = await _shielded(components.shard, components.classic_members.leave(group_id, members))
        return self.leave(group_id, members) if codes is None else codes

    def leave(self, group_id: str, members: Collection[MemberIdentity]) -> list[Code]:
        """Remove members of a classic group; return a code for each."""
        _check_group_id(group_id)
        components = self._components_of(group_id)
        group = components.shard.groups.get(group_id)
        if group is None:
            return [Code.UNKNOWN_MEMBER_ID] * len(members)
        count = len(group.members)
        results = [_leave(group, identity, components.rebalances) for identity in members]
        if len(group.members) < count:
            components.rebalances.rebalance_or_complete(group, "members have left")
        return results

    # -- offsets ---------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        claim: MemberClaim,
        commits: Mapping[TopicPartition, Commit],
        *,
        retention_ms: int = -1,
        version: int = GROUP_ID_NOT_FOUND_VERSION,
    ) -> dict[TopicPartition, Code]:
        components = self._components_of(group_id)
        _check_not_share(components.shard, group_id)
        commit = components.commits.commit(group_id, claim, commits, retention_ms=retention_ms, version=version)
        return await _shielded(components.shard, commit)

    async def commit_in_transaction(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        group_id: str,
        claim: MemberClaim,
        commits: Mapping[TopicPartition, Commit],
        *,
        version: int,
    ) -> dict[TopicPartition, Code]:
        """Commit offsets that become visible with the transaction of a producer."""
        _check_group_id(group_id)
        components = self._components_of(group_id)
        _check_not_share(components.shard, group_id)

        async def verify_and_commit() -> dict[TopicPartition, Code]:
            partition = TopicPartition(CONSUMER_OFFSETS, components.shard.index)
            add = version >= ADD_PARTITIONS_VERSION
            codes = await self._transactions.ensure_partitions(transactional_id, producer, [partition], add=add)
            code = _for_client(codes.get(partition, Code.NONE), version)
            if code:
                raise BrokerError(
                    f"cannot add offsets to the transaction of {transactional_id!r}: {code.name}", code=code
                )
            writer = BatchProducer(*producer, transactional=True)
            return await components.commits.commit_in_transaction(group_id, claim, commits, writer)

        return await _shielded(components.shard, verify_and_commit())

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Raise unless a member of a consumer group may fetch offsets with its epoch."""
        group = self._components_of(group_id).shard.consumer_groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)

    def fetch(
        self, group_id: str, partitions: Iterable[tuple[TopicPartition, bytes]], require_stable: bool
    ) -> dict[TopicPartition, Fetched]:
        """Return committed offsets of partitions, each with the id of its topic (zero: unknown)."""
        return self._components_of(group_id).commits.fetch(group_id, partitions, require_stable)

    def fetch_all(self, group_id: str, require_stable: bool) -> dict[TopicPartition, Fetched]:
        return self._components_of(group_id).commits.fetch_all(group_id, require_stable)

    async def delete_offsets(self, group_id: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Code]:
        _check_group_id(group_id)
        components = self._components_of(group_id)
        return await _shielded(components.shard, components.commits.delete(group_id, partitions))

    def complete_transaction(self, index: int, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker in a partition: its offsets become visible or are dropped."""
        components = self._components.get(index)
        if components is not None:
            components.shard.complete_transaction(producer_id, committed)

    def topic_deleted(self, topic: str) -> None:
        """Delete the offsets of a deleted topic."""
        for components in self._components.values():
            components.shard.spawn(components.commits.delete_topic_offsets(topic))

    # -- administration --------------------------------------------------------------------------

    def list(self) -> list[AnyGroup]:
        """Return all groups; raise COORDINATOR_LOAD_IN_PROGRESS while some are being loaded."""
        shards = [components.shard for components in self._components.values()]
        if any(shard.is_loading for shard in shards):
            raise BrokerError("groups are being loaded", code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        groups: list[AnyGroup] = []
        for shard in shards:
            groups += shard.groups.values()
            groups += shard.consumer_groups.values()
            groups += shard.share_groups.values()
        return groups

    def describe(self, group_id: str) -> Group | None:
        """Return a classic group; None if it is unknown or uses the consumer protocol."""
        return self._components_of(group_id).shard.groups.get(group_id)

    def is_consumer_group(self, group_id: str) -> bool:
        """Return whether a group uses the consumer protocol."""
        return group_id in self._components_of(group_id).shard.consumer_groups

    def is_modern_group(self, group_id: str) -> bool:
        """Return whether a group exists and uses another protocol than the classic one."""
        shard = self._components_of(group_id).shard
        return group_id in shard.consumer_groups or group_id in shard.share_groups

    def describe_consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return a group that uses the consumer protocol, or raise GROUP_ID_NOT_FOUND."""
        shard = self._components_of(group_id).shard
        group = shard.consumer_groups.get(group_id)
        if group is None:
            is_other = group_id in shard.groups or group_id in shard.share_groups
            fact = "is not a consumer group" if is_other else "not found"
            raise BrokerError(f"Group {group_id} {fact}.", code=Code.GROUP_ID_NOT_FOUND)
        return group

    def share_offsets(self, group_id: str) -> ShareOffsets:
        """Return the share groups and offsets of the shard of a group."""
        return self._share_components_of(self._components_of(group_id).shard).offsets

    def _share_components_of(self, shard: Shard) -> _ShareComponents:
        share = self._share_components.get(shard.index)
        if share is None:
            # Not for brokers without share groups: start-up time.
            from headrace.broker.groups.share_heartbeats import ShareHeartbeats
            from headrace.broker.groups.share_offsets import ShareOffsets

            states = self._share_states()
            share = self._share_components[shard.index] = _ShareComponents(
                ShareHeartbeats(shard, self.consumer_settings, states),
                ShareOffsets(shard, self.consumer_settings, states),
            )
        return share

    def describe_share_group(self, group_id: str) -> ShareGroup:
        """Return a share group, or raise GROUP_ID_NOT_FOUND."""
        return self.share_offsets(group_id).group(group_id)

    async def delete(self, group_id: str) -> None:
        components = self._components_of(group_id)
        if group_id in components.shard.share_groups:
            await self.share_offsets(group_id).delete_states(group_id)
        await _shielded(components.shard, components.commits.delete_group(group_id))


def _check_group_id(group_id: str) -> None:
    """Raise if the id is empty. Only offsets may be committed under an empty id, for old clients."""
    if not group_id:
        raise BrokerError("the group id is empty", code=Code.INVALID_GROUP_ID)


def _check_not_share(shard: Shard, group_id: str) -> None:
    """Raise GROUP_ID_NOT_FOUND for a share group, which has no committed offsets or consumers."""
    if group_id in shard.share_groups:
        raise BrokerError(f"Group {group_id} is not a consumer group.", code=Code.GROUP_ID_NOT_FOUND)


def _group_with_members(shard: Shard, group_id: str) -> Group:
    group = shard.groups.get(group_id)
    if group is None or group.state is GroupState.EMPTY:
        raise BrokerError(f"group {group_id!r} has no members", code=Code.UNKNOWN_MEMBER_ID)
    return group


def _leave(group: Group, identity: MemberIdentity, rebalances: Rebalances) -> Code:
    member_id = identity.member_id
    if member_id == UNKNOWN_MEMBER:
        # An administrator removes a static member by its instance id.
        member_id = group.static_members.get(identity.group_instance_id or "", UNKNOWN_MEMBER)
    if member_id in group.pending_joins:
        rebalances.remove_pending(group, member_id)
        return Code.NONE
    try:
        rebalances.detach(group, group.check_member(MemberClaim(member_id, instance_id=identity.group_instance_id)))
    except BrokerError as error:
        return Code(error.code)
    return Code.NONE


def _for_client(code: Code, version: int) -> Code:
    """Return an error of the transaction as a client of this version of TxnOffsetCommit understands it."""
    if code is Code.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        return Code.INVALID_TXN_STATE
    if code is Code.CONCURRENT_TRANSACTIONS and version < ADD_PARTITIONS_VERSION:
        return Code.COORDINATOR_NOT_AVAILABLE  # retriable for older clients, unlike CONCURRENT_TRANSACTIONS
    return code


async def _shielded(shard: Shard, operation: Coroutine[Any, Any, T]) -> T:
    task: asyncio.Task[T] = shard.spawn(operation)
    return await asyncio.shield(task)
