"""A group: its state, its members, and the rules they obey. No clock, no log.

              first member joins                  all have joined, or time is up
    EMPTY ────────────────────────▶ PREPARING ────────────────────────────────▶ COMPLETING
      ▲                             REBALANCE ◀──────────────────────────────── REBALANCE
      └──────────────────────────────┘  ▲      a member joins, leaves, dies          │
             nobody is left             │                                            │ the leader's assignment
                                        └─────────────────────── STABLE ◀────────────┘ is in the log

In PREPARING members are called to join again, and those that do wait; in COMPLETING they wait for the leader, who hands
out the work. Each pass through COMPLETING is a new generation. DEAD is a group that this broker no longer has.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from headrace.broker.groups import subscription
from headrace.errors import BrokerError, Code
from headrace.wire.api.join_group import JoinGroupResponse
from headrace.wire.api.sync_group import SyncGroupResponse

UNKNOWN_MEMBER = ""


class State(Enum):
    """By the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


LEGAL: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD}),
    State.COMPLETING_REBALANCE: frozenset({State.STABLE, State.PREPARING_REBALANCE, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.DEAD: frozenset(),
}


class Claim(NamedTuple):
    """Who a request says it comes from."""

    member_id: str = UNKNOWN_MEMBER
    generation: int = -1
    instance_id: str | None = None


@dataclass(slots=True)
class Member:
    """A member of a group."""

    id: str
    instance_id: str | None  # static members have one: it outlives their process
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]  # name → metadata, what it likes best first
    assignment: bytes = b""
    is_new: bool = False  # has not got an answer to its first JoinGroup yet
    joining: Future[JoinGroupResponse] | None = None
    syncing: Future[SyncGroupResponse] | None = None

    @property
    def is_waiting(self) -> bool:
        """It waits for us, so its silence means nothing. (A new one may have gone: nobody would tell.)"""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return self.protocols.get(protocol or "", b"")

    def has_protocols(self, protocols: dict[str, bytes]) -> bool:
        """The same, in the same order."""
        return list(self.protocols.items()) == list(protocols.items())

    def await_join(self, future: Future[JoinGroupResponse] | None) -> None:
        """Wait for the end of the rebalance, instead of a request of before."""
        self.answer_join(JoinGroupResponse(error_code=Code.REBALANCE_IN_PROGRESS, member_id=self.id))
        self.joining = future

    def await_sync(self, future: Future[SyncGroupResponse]) -> None:
        self.answer_sync(SyncGroupResponse(error_code=Code.REBALANCE_IN_PROGRESS))
        self.syncing = future

    def answer_join(self, response: JoinGroupResponse) -> None:
        future, self.joining = self.joining, None
        if future is not None and not future.done():  # done: the connection is gone, and the request with it
            future.set_result(response)

    def answer_sync(self, response: SyncGroupResponse) -> bool:
        future, self.syncing = self.syncing, None
        if future is not None and not future.done():
            future.set_result(response)
        return future is not None


@dataclass(slots=True)
class Group:
    """A group and its members."""

    id: str
    state: State = State.EMPTY
    state_time_ms: int = -1  # when it came to that state; -1: not known
    generation: int = 0
    protocol_type: str | None = None  # None: offsets only, by clients that assign partitions to themselves
    protocol_name: str | None = None
    leader_id: str | None = None
    previous_state: State = State.DEAD
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id → member id
    pending_joins: set[str] = field(default_factory=set)  # got an id, and are expected to come back with it
    pending_syncs: set[str] = field(default_factory=set)  # have joined the generation, and owe a SyncGroup
    subscribed_topics: set[str] | None = None  # None: not known
    has_grown: bool = False  # a member came while the first rebalance was being delayed

    def transition(self, state: State, now_ms: int) -> None:
        if state not in LEGAL[self.state]:
            raise AssertionError(f"group {self.id!r} cannot go from {self.state.value} to {state.value}")
        self.previous_state, self.state, self.state_time_ms = self.state, state, now_ms

    # Members.

    def add(self, member: Member, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.id
        if self.leader_id is None:
            self.leader_id = member.id
        self.members[member.id] = member
        self.pending_joins.discard(member.id)

    def remove(self, member_id: str) -> None:
        """Forget a member, or one that was to become one."""
        member = self.members.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)

    def replace(self, old: Member, new_id: str) -> Member:
        """A static member has come back as another process: the old one is fenced off, the new one takes its place."""
        old.answer_join(JoinGroupResponse(error_code=Code.FENCED_INSTANCE_ID, member_id=old.id, protocol_name=None))
        old.answer_sync(SyncGroupResponse(error_code=Code.FENCED_INSTANCE_ID))
        new = Member(
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

    def check_member(self, claim: Claim) -> Member:
        """The member of a request, or the error that tells a stranger or a fenced one."""
        if claim.instance_id is not None:
            current = self.static_members.get(claim.instance_id)
            if current is None:
                raise self._refusal(Code.UNKNOWN_MEMBER_ID, f"no member has the instance id {claim.instance_id!r}")
            if current != claim.member_id:
                raise self._refusal(Code.FENCED_INSTANCE_ID, f"{claim.instance_id!r} is {current!r} by now")
        member = self.members.get(claim.member_id)
        if member is None:
            raise self._refusal(Code.UNKNOWN_MEMBER_ID, f"{claim.member_id!r} is not a member")
        return member

    def check_generation(self, claim: Claim) -> None:
        if claim.generation != self.generation:
            raise self._refusal(
                Code.ILLEGAL_GENERATION, f"the generation is {self.generation}, not {claim.generation} as was said"
            )

    # A rebalance.

    @property
    def waiting_count(self) -> int:
        return sum(member.joining is not None for member in self.members.values())

    @property
    def has_all_joined(self) -> bool:
        return not self.pending_joins and all(member.joining is not None for member in self.members.values())

    @property
    def rebalance_timeout_ms(self) -> int:
        """The slowest member sets the pace."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: Collection[str]) -> bool:
        """Whether a member that speaks these could understand the others."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and any(
            all(name in member.protocols for member in self.members.values()) for name in protocols
        )

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is one who has joined; False if nobody has."""
        leader = self.members.get(self.leader_id or UNKNOWN_MEMBER)
        if leader is not None and leader.joining is None:
            leader = next((member for member in self.members.values() if member.joining is not None), None)
            if leader is not None:
                self.leader_id = leader.id
        return leader is not None

    def select_protocol(self) -> str:
        """Of those that all speak, the one that most like best."""
        votes: dict[str, int] = {}
        everyone = self.members.values()
        for member in everyone:
            vote = next(name for name in member.protocols if all(name in other.protocols for other in everyone))
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def next_generation(self, now_ms: int) -> None:
        self.generation = self.generation + 1 if self.generation < 0x7FFF_FFFF else 1
        self.pending_syncs.clear()
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self.subscriptions()
        self.transition(State.COMPLETING_REBALANCE if self.members else State.EMPTY, now_ms)

    # Offsets.

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == subscription.PROTOCOL_TYPE

    def subscriptions(self) -> set[str] | None:
        """The topics that the members read; None if that cannot be told."""
        if not self.uses_consumer_protocol or (self.members and self.protocol_name is None):
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = subscription.topics(member.metadata(self.protocol_name))
            if topics is None:
                return None
            found |= topics
        return found

    def is_subscribed(self, topic: str) -> bool:
        """Also when it cannot be told: what may be in use is not removed."""
        return self.uses_consumer_protocol if self.subscribed_topics is None else topic in self.subscribed_topics

    def check_commit(self, claim: Claim, *, transactional: bool) -> None:
        """Whether offsets may be committed under that claim.

        Without a generation it is somebody who assigns partitions to himself, and that goes only while the group has no
        members. Transactions of old clients tell no generation either, so they are believed.
        """
        if self.state is State.DEAD:
            raise self._refusal(Code.COORDINATOR_NOT_AVAILABLE, "it is moving away")
        if claim.generation < 0 and self.state is State.EMPTY:
            return
        if claim.generation >= 0 or claim.member_id != UNKNOWN_MEMBER or claim.instance_id is not None:
            self.check_member(claim)
            self.check_generation(claim)
        elif not transactional:
            raise self._refusal(Code.UNKNOWN_MEMBER_ID, "it has members, so only they can commit")
        if not transactional and self.state is State.COMPLETING_REBALANCE:
            raise self._refusal(Code.REBALANCE_IN_PROGRESS, "it is rebalancing")

    def check_deletable(self) -> None:
        if self.state is not State.EMPTY:
            raise self._refusal(Code.NON_EMPTY_GROUP, f"it has {len(self.members)} members")

    def check_offsets_deletable(self) -> None:
        if self.state is not State.EMPTY and not self.uses_consumer_protocol:
            raise self._refusal(Code.NON_EMPTY_GROUP, "what its members use cannot be told")

    @property
    def is_deserted(self) -> bool:
        """Nobody is there, and nobody is expected."""
        return self.state is State.EMPTY and not self.pending_joins

    def _refusal(self, code: Code, fact: str) -> BrokerError:
        return BrokerError(f"group {self.id!r}: {fact}", code=code)
