"""A consumer group: its state machine and its members. No clock, no log.

              first member joins                  all have joined, or timeout
    EMPTY ────────────────────────▶ PREPARING ────────────────────────────────▶ COMPLETING
      ▲                             REBALANCE ◀──────────────────────────────── REBALANCE
      └──────────────────────────────┘  ▲      a member joins, leaves, times out     │
             no members left            │                                            │ the leader's assignment
                                        └─────────────────────── STABLE ◀────────────┘ is in the log

In PREPARING_REBALANCE members rejoin and wait; in COMPLETING_REBALANCE they wait for the leader's assignment. Each
COMPLETING_REBALANCE starts a generation. DEAD is a group that this broker no longer coordinates.
"""

from __future__ import annotations

import struct
from asyncio import Future
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headrace.errors import BrokerError, Code
from headrace.wire.api.groups import JoinGroupResponse, SyncGroupResponse

UNKNOWN_MEMBER = ""
CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupState(Enum):
    """The state of a group, with the names in the protocol."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class MemberClaim(NamedTuple):
    """The member id, generation and instance id that a request claims."""

    member_id: str = UNKNOWN_MEMBER
    generation: int = -1
    instance_id: str | None = None


@dataclass(slots=True)
class GroupMember:
    """A member of a group."""

    id: str
    instance_id: str | None  # static members keep it across restarts
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]  # name → metadata, in order of preference
    assignment: bytes = b""
    is_new: bool = False  # its first JoinGroup has no response yet
    joining: Future[JoinGroupResponse] | None = None
    syncing: Future[SyncGroupResponse] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a response, so that no heartbeat is expected; new members may have disconnected."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return self.protocols.get(protocol or "", b"")

    def has_protocols(self, protocols: dict[str, bytes]) -> bool:
        """Return whether the protocols are the same, in the same order."""
        return list(self.protocols.items()) == list(protocols.items())

    def await_join(self, future: Future[JoinGroupResponse] | None) -> None:
        """Set the pending JoinGroup, and fail an earlier one."""
        self.respond_join(JoinGroupResponse(error_code=Code.REBALANCE_IN_PROGRESS, member_id=self.id))
        self.joining = future

    def await_sync(self, future: Future[SyncGroupResponse]) -> None:
        self.respond_sync(SyncGroupResponse(error_code=Code.REBALANCE_IN_PROGRESS))
        self.syncing = future

    def respond_join(self, response: JoinGroupResponse) -> None:
        future, self.joining = self.joining, None
        if future is not None and not future.done():  # done: the client has disconnected
            future.set_result(response)

    def respond_sync(self, response: SyncGroupResponse) -> bool:
        future, self.syncing = self.syncing, None
        if future is not None and not future.done():
            future.set_result(response)
        return future is not None


@dataclass(slots=True)
class Group:
    """A group and its members."""

    id: str
    state: GroupState = GroupState.EMPTY
    state_time_ms: int = -1  # of the last transition; -1: unknown
    generation: int = 0
    protocol_type: str | None = None  # None: offsets only, of consumers that assign partitions themselves
    protocol_name: str | None = None
    leader_id: str | None = None
    previous_state: GroupState = GroupState.DEAD
    members: dict[str, GroupMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id → member id
    pending_joins: set[str] = field(default_factory=set)  # member ids that were assigned but have not joined
    pending_syncs: set[str] = field(default_factory=set)  # joined the generation, SyncGroup missing
    subscribed_topics: set[str] | None = None  # None: unknown
    has_new_members: bool = False  # a member joined during the initial rebalance delay

    def transition(self, state: GroupState, now_ms: int) -> None:
        if state not in VALID_TRANSITIONS[self.state]:
            raise AssertionError(f"illegal state transition of group {self.id!r}: {self.state.value} → {state.value}")
        self.previous_state, self.state, self.state_time_ms = self.state, state, now_ms

    # -- members ---------------------------------------------------------------------------------

    def add(self, member: GroupMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        if self.leader_id is None:
            self.leader_id = member.id
        self.members[member.id] = member
        self.pending_joins.discard(member.id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member id."""
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def replace(self, old: GroupMember, new_id: str) -> GroupMember:
        """Replace a static member by its new process, and fence the old one."""
        old.respond_join(JoinGroupResponse(error_code=Code.FENCED_INSTANCE_ID, member_id=old.id, protocol_name=None))
        old.respond_sync(SyncGroupResponse(error_code=Code.FENCED_INSTANCE_ID))
        new = GroupMember(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.rebalance_timeout_ms,
            old.session_timeout_ms,
            old.protocols,
            old.assignment,
        )
        self.members = {new_id if key == old.id else key: value for key, value in self.members.items()}
        self.members[new_id] = new
        if self.leader_id == old.id:
            self.leader_id = new_id
        if old.id in self.pending_syncs:
            self.pending_syncs.remove(old.id)
            self.pending_syncs.add(new_id)
        assert old.instance_id is not None
        self.static_members[old.instance_id] = new_id
        return new

    def check_member(self, claim: MemberClaim) -> GroupMember:
        """Return the member of a request, or raise UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if claim.instance_id is not None:
            current = self.static_members.get(claim.instance_id)
            if current is None:
                raise self._error(Code.UNKNOWN_MEMBER_ID, f"unknown instance id {claim.instance_id!r}")
            if current != claim.member_id:
                raise self._error(
                    Code.FENCED_INSTANCE_ID, f"instance id {claim.instance_id!r} now belongs to member {current!r}"
                )
        member = self.members.get(claim.member_id)
        if member is None:
            raise self._error(Code.UNKNOWN_MEMBER_ID, f"unknown member {claim.member_id!r}")
        return member

    def check_generation(self, claim: MemberClaim) -> None:
        if claim.generation != self.generation:
            raise self._error(
                Code.ILLEGAL_GENERATION, f"generation {claim.generation} is not the current one, {self.generation}"
            )

    # -- rebalance -------------------------------------------------------------------------------

    @property
    def waiting_count(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_joins and all(member.joining is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Collection[str]) -> bool:
        """Return whether a member with these protocols has one in common with all members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and any(
            all(name in member.protocols for member in self.members.values()) for name in protocols
        )

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader has joined; return False if no member has."""
        leader = self.members.get(self.leader_id or UNKNOWN_MEMBER)
        if leader is not None and leader.joining is None:
            leader = next((member for member in self.members.values() if member.joining is not None), None)
            if leader is not None:
                self.leader_id = leader.id
        return leader is not None

    def select_protocol(self) -> str:
        """Return the protocol with most votes among those that all members support."""
        votes: dict[str, int] = {}
        members = self.members.values()
        for member in members:
            vote = next(name for name in member.protocols if all(name in other.protocols for other in members))
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def next_generation(self, now_ms: int) -> None:
        self.generation = self.generation + 1 if self.generation < 0x7FFF_FFFF else 1
        self.pending_syncs.clear()
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.subscriptions()
        self.transition(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)

    # -- offsets ---------------------------------------------------------------------------------

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscriptions(self) -> set[str] | None:
        """Return the topics that the members are subscribed to; None if unknown."""
        if not self.uses_consumer_protocol or (self.members and self.protocol_name is None):
            return None
        subscribed: set[str] = set()
        for member in self.members.values():
            topics = subscribed_topics_in(member.metadata(self.protocol_name))
            if topics is None:
                return None
            subscribed |= topics
        return subscribed

    def is_subscribed(self, topic: str) -> bool:
        """Return whether a topic is subscribed to, also if that is unknown: offsets in use must not be removed."""
        return self.uses_consumer_protocol if self.subscribed_topics is None else topic in self.subscribed_topics

    def check_commit(self, claim: MemberClaim, *, transactional: bool) -> None:
        """Raise unless offsets may be committed under this claim.

        Consumers that assign partitions themselves claim no generation; they may commit only while the group has no
        members. Transactions of old clients claim none either, and are accepted.
        """
        if self.state is GroupState.DEAD:
            raise self._error(Code.COORDINATOR_NOT_AVAILABLE, "it is moving to another coordinator")
        if claim.generation < 0 and self.state is GroupState.EMPTY:
            return
        if claim.generation >= 0 or claim.member_id != UNKNOWN_MEMBER or claim.instance_id is not None:
            self.check_member(claim)
            self.check_generation(claim)
        elif not transactional:
            raise self._error(Code.UNKNOWN_MEMBER_ID, "only members can commit")
        if not transactional and self.state is GroupState.COMPLETING_REBALANCE:
            raise self._error(Code.REBALANCE_IN_PROGRESS, "it is rebalancing")

    def check_deletable(self) -> None:
        if self.state is not GroupState.EMPTY:
            raise self._error(Code.NON_EMPTY_GROUP, f"it has {len(self.members)} members")

    def check_offsets_deletable(self) -> None:
        if self.state is not GroupState.EMPTY and not self.uses_consumer_protocol:
            raise self._error(Code.NON_EMPTY_GROUP, "the subscriptions of its members are unknown")

    @property
    def is_unused(self) -> bool:
        """Whether the group has neither members nor pending joins."""
        return self.state is GroupState.EMPTY and not self.pending_joins

    def _error(self, code: Code, fact: str) -> BrokerError:
        return BrokerError(f"group {self.id!r}: {fact}", code=code)


_subscription_head = struct.Struct(">hi")
_string_length = struct.Struct(">h")


def subscribed_topics_in(metadata: bytes) -> set[str] | None:
    """Return the topics of a consumer's subscription; None if the bytes are something else.

    Group metadata is opaque to the broker. Only for protocol type "consumer" it reads the first fields, which are the
    same in all versions: version and topics.
    """
    topics: set[str] = set()
    try:
        _, count = _subscription_head.unpack_from(metadata)
        pos = _subscription_head.size
        for _ in range(count):  # bounded by the bytes: each takes at least two
            (length,) = _string_length.unpack_from(metadata, pos)
            pos += _string_length.size
            if length < 0 or pos + length > len(metadata):
                return None
            topics.add(metadata[pos : pos + length].decode())
            pos += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
