"""The coordinator of groups: finds the shard that a group lives in and lets it do what is asked.

A shard that is not here answers NOT_COORDINATOR, one that is being loaded COORDINATOR_LOAD_IN_PROGRESS. What may be
written to the log runs in a task of its own and is shielded: a client that hangs up in the middle does not leave memory
and log in two minds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from headrace.broker.catalog.topics import CONSUMER_OFFSETS
from headrace.broker.clock import Clock
from headrace.broker.groups.commits import GROUP_ID_NOT_FOUND_VERSION, Commit, Commits, Fetched
from headrace.broker.groups.expiry import Expiry
from headrace.broker.groups.group import UNKNOWN_MEMBER, Claim, Group, State
from headrace.broker.groups.joining import Client, Joins
from headrace.broker.groups.rebalance import Rebalances, assignment
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.shard import InternalLog, Shard
from headrace.config import Config
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.wire.api.leave_group import MemberIdentity
from headrace.wire.api.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.wire.hashing import coordinator_partition
from headrace.wire.records import Producer

STOP_SECONDS_MAX = 5
"""How long `stop` waits for writes that are on their way."""

ADD_PARTITIONS_VERSION = 5  # of TxnOffsetCommit: transactions v2
ABORTABLE_VERSION = 4  # clients before it do not know TRANSACTION_ABORTABLE

T = TypeVar("T")


class Transactions(Protocol):
    """What is used of the transaction coordinator."""

    async def ensure_partitions(
        self, transactional_id: str, producer_id: int, epoch: int, partitions: Collection[TopicPartition], *, add: bool
    ) -> dict[TopicPartition, Code]: ...


class _Parts(NamedTuple):
    """A shard and those who work on it."""

    shard: Shard
    rebalances: Rebalances
    joins: Joins
    commits: Commits
    expiry: Expiry


class GroupCoordinator:
    """All groups of this broker."""

    def __init__(self, internal: InternalLog, clock: Clock, config: Config, transactions: Transactions) -> None:
        self._internal = internal
        self._clock = clock
        self._settings = GroupSettings.of(config)
        self._transactions = transactions
        self._parts: dict[int, _Parts] = {}  # by partition of __consumer_offsets
        self._is_stopped = False

    # Life.

    def start(self) -> None:
        """Load what is led here, if the topic exists."""
        for index in self._internal.partitions_led(CONSUMER_OFFSETS):
            self.load(index)

    async def stop(self) -> None:
        """Send away who waits; finish what is being written."""
        self._is_stopped = True
        tasks: list[asyncio.Task[Any]] = []
        for index in list(self._parts):
            tasks += self.unload(index)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_SECONDS_MAX)
            for task in late:
                task.cancel()

    def load(self, index: int) -> None:
        """This broker leads a partition now: take over its groups."""
        if index in self._parts or self._is_stopped:
            return
        shard = Shard(index, self._internal, self._clock)
        rebalances = Rebalances(shard, self._settings)
        commits = Commits(shard, rebalances, self._settings)
        expiry = Expiry(shard, commits, self._settings)
        joins = Joins(shard, rebalances, self._settings)
        self._parts[index] = _Parts(shard, rebalances, joins, commits, expiry)

        def loaded() -> None:
            parts = self._parts.get(index)
            if parts is not None and parts.shard is shard:  # it may be gone before it was all there
                rebalances.take_over()
                expiry.start()

        shard.load(loaded)

    def unload(self, index: int) -> Iterable[asyncio.Task[Any]]:
        """Another broker leads the partition now. What is still being written is returned."""
        parts = self._parts.pop(index, None)
        if parts is None:
            return ()
        tasks = parts.shard.close()
        parts.rebalances.let_go()
        return tasks

    def partition_for(self, group_id: str) -> int:
        """The partition of __consumer_offsets that a group lives in."""
        return coordinator_partition(group_id, self._internal.ensure(CONSUMER_OFFSETS))

    def _parts_of(self, group_id: str) -> _Parts:
        if self._is_stopped:
            raise BrokerError("the broker is stopping", code=Code.COORDINATOR_NOT_AVAILABLE)
        index = self.partition_for(group_id)
        parts = self._parts.get(index)
        if parts is None:
            if index not in self._internal.partitions_led(CONSUMER_OFFSETS):
                raise BrokerError(f"group {group_id!r} is not coordinated here", code=Code.NOT_COORDINATOR)
            self.load(index)  # the topic has just been made
            parts = self._parts[index]
        if parts.shard.is_loading:
            raise BrokerError(f"the groups of {group_id!r} are being loaded", code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        return parts

    # Membership.

    def join(self, request: JoinGroupRequest, client: Client) -> asyncio.Future[JoinGroupResponse]:
        _check_group_id(request.group_id)
        low_ms, high_ms = self._settings.session_timeout_min_ms, self._settings.session_timeout_max_ms
        if not low_ms <= request.session_timeout_ms <= high_ms:
            raise BrokerError(
                f"session.timeout.ms is {request.session_timeout_ms}; it may be {low_ms} to {high_ms}",
                code=Code.INVALID_SESSION_TIMEOUT,
            )
        return self._parts_of(request.group_id).joins.join(request, client)

    def sync(self, request: SyncGroupRequest) -> asyncio.Future[SyncGroupResponse]:
        _check_group_id(request.group_id)
        parts = self._parts_of(request.group_id)
        group = _group_with_members(parts.shard, request.group_id)
        claim = Claim(request.member_id, request.generation_id, request.group_instance_id)
        member = group.check_member(claim)
        group.check_generation(claim)
        for said, known in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if said is not None and known is not None and said != known:
                raise BrokerError(
                    f"group {group.id!r} speaks {known!r}, not {said!r}", code=Code.INCONSISTENT_GROUP_PROTOCOL
                )
        if group.state is State.PREPARING_REBALANCE:
            raise BrokerError(f"group {group.id!r} is rebalancing", code=Code.REBALANCE_IN_PROGRESS)
        future: asyncio.Future[SyncGroupResponse] = asyncio.get_running_loop().create_future()
        parts.rebalances.synced(group, member.id)
        if group.state is State.STABLE:
            future.set_result(assignment(group, member))
            return future
        member.await_sync(future)
        if group.leader_id == member.id:
            assignments = {row.member_id: bytes(row.assignment) for row in request.assignments}
            parts.shard.spawn(parts.rebalances.store_assignment(group, group.generation, assignments))
        return future

    def heartbeat(self, group_id: str, claim: Claim) -> Code:
        """NONE, or what the member has to do."""
        _check_group_id(group_id)
        try:
            parts = self._parts_of(group_id)
        except BrokerError as error:
            if error.code == Code.COORDINATOR_LOAD_IN_PROGRESS:
                return Code.NONE  # whoever it is: its session will begin when all is loaded
            raise
        group = _group_with_members(parts.shard, group_id)
        member = group.check_member(claim)
        group.check_generation(claim)
        parts.rebalances.keep_alive(group, member)
        return Code.REBALANCE_IN_PROGRESS if group.state is State.PREPARING_REBALANCE else Code.NONE

    def leave(self, group_id: str, members: Collection[MemberIdentity]) -> list[Code]:
        """What became of each."""
        _check_group_id(group_id)
        parts = self._parts_of(group_id)
        group = parts.shard.groups.get(group_id)
        if group is None:
            return [Code.UNKNOWN_MEMBER_ID] * len(members)
        count = len(group.members)
        results = [_leave(group, identity, parts.rebalances) for identity in members]
        if len(group.members) < count:
            parts.rebalances.rebalance_or_complete(group, "members have left")
        return results

    # Offsets.

    async def commit(
        self,
        group_id: str,
        claim: Claim,
        commits: Mapping[TopicPartition, Commit],
        *,
        retention_ms: int = -1,
        version: int = GROUP_ID_NOT_FOUND_VERSION,
    ) -> dict[TopicPartition, Code]:
        parts = self._parts_of(group_id)
        commit = parts.commits.commit(group_id, claim, commits, retention_ms=retention_ms, version=version)
        return await _shielded(parts.shard, commit)

    async def commit_in_transaction(
        self,
        transactional_id: str,
        group_id: str,
        claim: Claim,
        producer_id: int,
        epoch: int,
        commits: Mapping[TopicPartition, Commit],
        *,
        version: int,
    ) -> dict[TopicPartition, Code]:
        _check_group_id(group_id)
        parts = self._parts_of(group_id)

        async def verify_and_commit() -> dict[TopicPartition, Code]:
            place = TopicPartition(CONSUMER_OFFSETS, parts.shard.index)
            add = version >= ADD_PARTITIONS_VERSION
            found = await self._transactions.ensure_partitions(transactional_id, producer_id, epoch, [place], add=add)
            code = _for_client(found.get(place, Code.NONE), version)
            if code:
                raise BrokerError(f"the transaction of {transactional_id!r} does not take offsets", code=code)
            producer = Producer(producer_id, epoch, transactional=True)
            return await parts.commits.commit_in_transaction(group_id, claim, commits, producer)

        return await _shielded(parts.shard, verify_and_commit())

    def fetch(
        self, group_id: str, places: Iterable[tuple[TopicPartition, bytes]], require_stable: bool
    ) -> dict[TopicPartition, Fetched]:
        """Offsets of partitions, each with the id of its topic, as far as there is one."""
        return self._parts_of(group_id).commits.fetch(group_id, places, require_stable)

    def fetch_all(self, group_id: str, require_stable: bool) -> dict[TopicPartition, Fetched]:
        return self._parts_of(group_id).commits.fetch_all(group_id, require_stable)

    async def delete_offsets(self, group_id: str, places: Collection[TopicPartition]) -> dict[TopicPartition, Code]:
        _check_group_id(group_id)
        parts = self._parts_of(group_id)
        return await _shielded(parts.shard, parts.commits.delete(group_id, places))

    def complete_transaction(self, index: int, producer_id: int, committed: bool) -> None:
        """The marker of a transaction is in a partition: its offsets become visible, or go."""
        parts = self._parts.get(index)
        if parts is not None:
            parts.shard.complete_transaction(producer_id, committed)

    def topic_deleted(self, topic: str) -> None:
        """Forget the offsets of a topic that is no more."""
        for parts in self._parts.values():
            parts.shard.spawn(parts.commits.forget_topic(topic))

    # Administration.

    def list(self) -> list[Group]:
        """All groups, or COORDINATOR_LOAD_IN_PROGRESS while not all are known."""
        for parts in self._parts.values():
            if parts.shard.is_loading:
                raise BrokerError("groups are being loaded", code=Code.COORDINATOR_LOAD_IN_PROGRESS)
        return [group for parts in self._parts.values() for group in parts.shard.groups.values()]

    def describe(self, group_id: str) -> Group | None:
        return self._parts_of(group_id).shard.groups.get(group_id)

    async def delete(self, group_id: str) -> None:
        parts = self._parts_of(group_id)
        await _shielded(parts.shard, parts.commits.delete_group(group_id))


def _check_group_id(group_id: str) -> None:
    """Offsets may be kept under the empty id, as ever; a group with members needs a name."""
    if not group_id:
        raise BrokerError("the group id is empty", code=Code.INVALID_GROUP_ID)


def _group_with_members(shard: Shard, group_id: str) -> Group:
    group = shard.groups.get(group_id)
    if group is None or group.state is State.EMPTY:
        raise BrokerError(f"group {group_id!r} has no members", code=Code.UNKNOWN_MEMBER_ID)
    return group


def _leave(group: Group, identity: MemberIdentity, rebalances: Rebalances) -> Code:
    member_id = identity.member_id
    if member_id == UNKNOWN_MEMBER:
        # An administrator removes a static member, by the one name he knows.
        member_id = group.static_members.get(identity.group_instance_id or "", UNKNOWN_MEMBER)
    if member_id in group.pending_joins:
        rebalances.remove_pending(group, member_id)
        return Code.NONE
    try:
        rebalances.detach(group, group.check_member(Claim(member_id, instance_id=identity.group_instance_id)))
    except BrokerError as error:
        return Code(error.code)
    return Code.NONE


def _for_client(code: Code, version: int) -> Code:
    """An error of the transaction, as the version of TxnOffsetCommit can take it."""
    if code is Code.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION:
        return Code.INVALID_TXN_STATE
    if code is Code.CONCURRENT_TRANSACTIONS and version < ADD_PARTITIONS_VERSION:
        return Code.COORDINATOR_NOT_AVAILABLE  # old clients do not expect it here, but this they try again
    return code


async def _shielded(shard: Shard, operation: Coroutine[Any, Any, T]) -> T:
    task: asyncio.Task[T] = shard.spawn(operation)
    return await asyncio.shield(task)
