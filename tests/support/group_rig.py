"""A group coordinator on a manual clock and a log in memory, with members and a replay to compare.

async with GroupRig() as rig:
    a = rig.member()
    await rig.gather(a, b)             both join and sync, as a client would
    assert rig.view() == await rig.replayed()
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Self

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.catalog.topics import CONSUMER_OFFSETS
from headrace.broker.groups.commits import Commit
from headrace.broker.groups.consumer_group import ConsumerGroup
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.group import Group, GroupState, MemberClaim
from headrace.broker.groups.joining import JoiningClient
from headrace.broker.share.state import SharePartitionKey, ShareState
from headrace.errors import BrokerError, Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from headrace.wire.api.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from headrace.wire.records import Marker, encode_marker, read_batches
from tests.support.fake_internal import FakeCatalog, FakeInternal, HandClock

GROUP = "payments"
SESSION_MS = 10_000
REBALANCE_MS = 30_000
DELAY_MS = 3_000
HEARTBEAT_MS = 1_000
VERSION = 9
EPOCH = 7
NO_CLAIM = MemberClaim()


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine as a test."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        asyncio.run(test(*arguments, **keywords))

    return run


def subscription(*topics: str) -> bytes:
    """Return a consumer's metadata."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\x00\x01" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class FakeShareStates:
    """The states of share partitions, in memory."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        self.states[key] = ShareState(state_epoch=state_epoch, start_offset=start_offset)

    async def delete(self, key: SharePartitionKey) -> None:
        self.states.pop(key, None)

    async def summary(self, key: SharePartitionKey) -> ShareState:
        return self.states.get(key, ShareState())


class FakeTransactions:
    """Accepts every transaction, unless `code` is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, int, int, tuple[TopicPartition, ...], bool]] = []
        self.code = Code.NONE

    async def ensure_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, Code]:
        requested = tuple(partitions)
        self.requests.append((transactional_id, *producer, requested, add))
        return dict.fromkeys(requested, self.code)


class GroupRig:
    """A coordinator with one partition of __consumer_offsets."""

    def __init__(
        self,
        options: Mapping[str, object] | None = None,
        *,
        clock: HandClock | None = None,
        internal: FakeInternal | None = None,
        catalog: FakeCatalog | None = None,
    ) -> None:
        self.clock = clock or HandClock()
        self.internal = internal or FakeInternal(self.clock, {CONSUMER_OFFSETS: 1})
        self.transactions = FakeTransactions()
        self.catalog = catalog or FakeCatalog()
        self.options = {"group.initial.rebalance.delay.ms": DELAY_MS, **(options or {})}
        config = BROKER_OPTIONS.resolve(("argument", self.options))
        self.share_states = FakeShareStates()
        self.groups = GroupCoordinator(
            self.internal, self.clock, config, self.catalog, self.transactions, share_states=lambda: self.share_states
        )

    async def __aenter__(self) -> Self:
        for index in self.internal.partitions_led(CONSUMER_OFFSETS):
            self.groups.load(index)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.groups.stop()

    # Requests.

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = VERSION,
        group_id: str = GROUP,
    ) -> asyncio.Future[JoinGroupResponse]:
        chosen = {"range": subscription("orders")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=data) for name, data in chosen.items()],
        )
        return self.groups.join(request, JoiningClient("client", "/127.0.0.1", version))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        group_id: str = GROUP,
    ) -> asyncio.Future[SyncGroupResponse]:
        rows = [
            SyncGroupRequestAssignment(member_id=name, assignment=data) for name, data in (assignments or {}).items()
        ]
        return self.groups.sync(
            SyncGroupRequest(
                group_id=group_id,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=instance_id,
                protocol_type=protocol_type,
                protocol_name=protocol_name,
                assignments=rows,
            )
        )

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> Code:
        return Code(code_of(lambda: self.groups.heartbeat(GROUP, MemberClaim(member_id, generation, instance_id))))

    def leave(self, *member_ids: str) -> list[Code]:
        return self.groups.leave(GROUP, [MemberIdentity(member_id=member_id) for member_id in member_ids])

    async def commit(
        self, offsets: Mapping[tuple[str, int], int], claim: MemberClaim = NO_CLAIM, group_id: str = GROUP
    ) -> None:
        commits = {TopicPartition(*key): Commit(offset, metadata="noted") for key, offset in offsets.items()}
        codes = await self.groups.commit(group_id, claim, commits)
        assert set(codes.values()) <= {Code.NONE}

    async def commit_in_transaction(
        self,
        producer_id: int,
        offsets: Mapping[tuple[str, int], int],
        claim: MemberClaim = NO_CLAIM,
        *,
        group_id: str = GROUP,
        version: int = 5,
    ) -> None:
        commits = {TopicPartition(*key): Commit(offset) for key, offset in offsets.items()}
        codes = await self.groups.commit_in_transaction(
            "t", ProducerIdAndEpoch(producer_id, EPOCH), group_id, claim, commits, version=version
        )
        assert set(codes.values()) <= {Code.NONE}

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Write the marker like the replica manager, and notify the coordinator."""
        log = self.internal.logs.setdefault((CONSUMER_OFFSETS, 0), [])
        offset = sum(batch.header.record_count for data in log for batch in read_batches(data))
        log.append(bytes(encode_marker(Marker(committed, 0), producer_id, EPOCH, self.clock.time_ms(), offset)))
        self.groups.complete_transaction(0, producer_id, committed)

    def offset(
        self, topic: str = "orders", index: int = 0, *, stable: bool = False, group_id: str = GROUP
    ) -> int | Code:
        """Return the committed offset, or the error."""
        partition = TopicPartition(topic, index)
        fetched = self.groups.fetch(group_id, [(partition, bytes(16))], stable)[partition]
        return fetched.error or fetched.offset

    # What a client does.

    async def new_id(self, *, group_id: str = GROUP) -> str:
        """Return the member id that is assigned to a dynamic member."""
        response = await self.join(group_id=group_id)
        assert response.error_code == Code.MEMBER_ID_REQUIRED
        return response.member_id

    async def gathered(self, count: int) -> list[str]:
        """Create a stable group of new members; return their ids, the leader first."""
        ids = [await self.new_id() for _ in range(count)]
        joins = [self.join(member_id) for member_id in ids]
        await self.rebalanced(*joins)
        await self.stabilise({member_id: future.result() for member_id, future in zip(ids, joins, strict=True)})
        leader = joins[0].result().leader
        return sorted(ids, key=lambda member_id: member_id != leader)

    async def rebalanced(self, *joins: asyncio.Future[JoinGroupResponse]) -> None:
        """Advance the clock until the rebalance completes."""
        for _ in range(REBALANCE_MS // DELAY_MS + 1):
            if all(future.done() for future in joins):
                return
            await self.clock.run(DELAY_MS)
        raise AssertionError(f"the rebalance is not over; the group is {self.group.state.value}")

    async def stabilise(self, joined: Mapping[str, JoinGroupResponse]) -> dict[str, bytes]:
        """Sync all members; return their assignments."""
        syncs = {}
        for member_id, response in joined.items():
            assert response.error_code == Code.NONE, response
            parts = {row.member_id: b"part of " + row.member_id.encode() for row in response.members}
            syncs[member_id] = self.sync(member_id, response.generation_id, parts)
        await self.clock.run()
        return {member_id: bytes(future.result().assignment) for member_id, future in syncs.items()}

    async def pause(self, ms: float) -> None:
        """Wait for a future while the manual clock advances."""
        over = asyncio.Event()
        self.clock.call_later(ms, over.set)
        await over.wait()

    # The state.

    @property
    def group(self) -> Group:
        group = self.groups.describe(GROUP)
        assert group is not None
        return group

    def view(self) -> dict[str, Any]:
        """Return everything that a replay has to restore."""
        parts = self.groups._components[0]
        committed, pending = parts.shard.offsets.snapshot()
        return {
            "groups": {group.id: group_view(group) for group in parts.shard.groups.values()},
            "consumer groups": {group.id: consumer_group_view(group) for group in parts.shard.consumer_groups.values()},
            "share groups": {group.id: vars(group) for group in parts.shard.share_groups.values()},
            "offsets": committed,
            "pending": {producer: groups for producer, groups in pending.items() if groups},
        }

    async def replayed(self) -> dict[str, Any]:
        """Return the state that another broker would load from the log."""
        async with GroupRig(self.options, clock=self.clock, internal=self.internal, catalog=self.catalog) as other:
            return other.view()


def group_view(group: Group) -> dict[str, Any]:
    """Return a group as it is stored in the log: only the selected protocol of each member."""
    members = {
        member.id: (
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(group.protocol_name),
            member.assignment,
        )
        for member in group.members.values()
    }
    return {
        "state": group.state,
        "since": group.state_time_ms if group.protocol_type else None,  # not used without members
        "generation": group.generation,
        "protocol": (group.protocol_type, group.protocol_name),
        "leader": group.leader_id,
        "members": members,
        "static": dict(group.static_members),
        "topics": group.subscribed_topics,
    }


def consumer_group_view(group: ConsumerGroup) -> dict[str, Any]:
    """Return a consumer group as it is stored in the log."""
    return {name: value for name, value in vars(group).items() if name != "topics_version"}


class Consumer:
    """A consumer: joins, syncs, sends heartbeats, and rejoins when required or at random."""

    def __init__(self, rig: GroupRig, topic: str) -> None:
        self.member_id = ""
        self.assignment = b""
        self.codes: list[Code] = []
        self._rig = rig
        self._topic = topic
        self._has_changed = False
        self._life = asyncio.ensure_future(self._live())

    def subscribe(self, topic: str) -> None:
        self._topic, self._has_changed = topic, True

    async def die(self) -> None:
        """Stop without leaving."""
        self._life.cancel()
        await asyncio.gather(self._life, return_exceptions=True)

    async def _live(self) -> None:
        while True:
            generation = await self._join()
            while generation is not None and not self._has_changed:
                await self._rig.pause(HEARTBEAT_MS)
                code = self._rig.heartbeat(self.member_id, generation)
                self.codes.append(code)
                if code is not Code.NONE:
                    break

    async def _join(self) -> int | None:
        self._has_changed = False
        protocols = {"range": subscription(self._topic)}
        joined = await self._rig.join(self.member_id, protocols=protocols)
        self.member_id = joined.member_id
        if joined.error_code == Code.MEMBER_ID_REQUIRED:
            return None
        self.codes.append(Code(joined.error_code))
        if joined.error_code:
            return None
        parts = {row.member_id: row.member_id.encode() for row in joined.members}
        response = code_of(lambda: self._rig.sync(self.member_id, joined.generation_id, parts))
        code = response if isinstance(response, Code) else Code((await response).error_code)
        self.codes.append(code)
        if code is not Code.NONE:
            return None
        self.assignment = bytes(response.result().assignment)
        return joined.generation_id


SETTLED = (GroupState.EMPTY, GroupState.STABLE)
"""The states that a replay can restore."""


def code_of(call: Callable[[], Any]) -> Any:
    """Return the raised code, or the result."""
    try:
        return call()
    except BrokerError as error:
        return Code(error.code)
