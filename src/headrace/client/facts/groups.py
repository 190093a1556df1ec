"""Groups: members, committed offsets and lag in records.

describe, committed offsets → partitions → start and end of each → lag; lag_times.py adds the lag in time
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.client.admin import (
    AdminClient,
    CommittedOffset,
    ConsumerGroupDescription,
    ConsumerGroupMember,
    GroupDescription,
    GroupListing,
    GroupMember,
    TopicPartition,
)
from headrace.client.facts.partitions import bounds
from headrace.errors import BrokerError, Code

CLASSIC, CONSUMER = "classic", "consumer"
DEAD = "Dead"
IDLE = ("Empty", DEAD)
"""The states of a group without members."""
CLIENTS_SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "client_id": self.client_id,
            "host": self.host,
            "partitions": [{"topic": tp.topic, "partition": tp.partition} for tp in self.partitions],
        }


@dataclass(slots=True)
class PartitionLag:
    """A partition of a group. None: no committed offset, or the partition is deleted or has no leader."""

    at: TopicPartition
    committed: int | None = None
    start: int | None = None
    end: int | None = None
    lag_ms: int | None = None
    metadata: str = ""
    member: Member | None = None

    @property
    def lag(self) -> int | None:
        """The number of offsets left to read, without deleted ones."""
        if self.committed is None or self.start is None or self.end is None:
            return None
        return max(0, self.end - max(self.committed, self.start))

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.at.topic,
            "partition": self.at.partition,
            "committed": self.committed,
            "start": self.start,
            "end": self.end,
            "lag": self.lag,
            "lag_ms": self.lag_ms,
            "metadata": self.metadata,
            "member_id": None if self.member is None else self.member.member_id,
            "client_id": None if self.member is None else self.member.client_id,
        }


@dataclass(slots=True)
class GroupFacts:
    name: str
    state: str
    type: str
    assignor: str
    members: list[Member] | None
    """None for types of groups that this client cannot describe (share, streams)."""
    partitions: list[PartitionLag] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def lag_ms(self) -> int | None:
        return max((lag.lag_ms for lag in self.partitions if lag.lag_ms is not None), default=None)

    @property
    def members_text(self) -> str:
        """The number of members and their clients."""
        if self.members is None:
            return "members"
        clients = sorted({f"{member.client_id} at {member.host}" for member in self.members})
        more = ", …" if len(clients) > CLIENTS_SHOWN_MAX else ""
        count = len(self.members)
        return f"{count} member{'' if count == 1 else 's'} ({', '.join(clients[:CLIENTS_SHOWN_MAX])}{more})"

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.name,
            "state": self.state,
            "type": self.type,
            "assignor": self.assignor or None,
            "members": None if self.members is None else [member.to_json() for member in self.members],
            "partitions": [partition.to_json() for partition in self.partitions],
            "lag": self.lag,
            "lag_ms": self.lag_ms,
        }


def look_up(admin: AdminClient, name: str) -> GroupFacts | None:
    """Return state, members and committed offsets of a group; None if it does not exist."""
    listing = next((group for group in admin.list_groups() if group.group_id == name), None)
    facts = with_members(admin, name, listing)
    if facts is not None:
        add_committed(admin, facts)
        add_bounds(admin, [facts])
    return facts


def with_members(admin: AdminClient, name: str, listing: GroupListing | None) -> GroupFacts | None:
    """Return state and members of a group; `listing` is None if it was not listed."""
    kind = listing.type.lower() if listing is not None and listing.type else CLASSIC
    if listing is not None and kind not in (CLASSIC, CONSUMER):
        return GroupFacts(name, listing.state, kind, "", None)
    try:
        if kind == CONSUMER:
            facts = _of_consumer_protocol(admin.describe_consumer_groups([name])[name])
        else:
            facts = _of_classic_protocol(admin.describe_groups([name])[name])
    except BrokerError as error:
        if error.code != Code.GROUP_ID_NOT_FOUND:
            raise
        return None
    return None if facts.state == DEAD and not facts.members else facts


def add_committed(admin: AdminClient, facts: GroupFacts) -> None:
    """Set the partitions with their committed offsets."""
    if facts.members is None:
        return
    committed = admin.list_group_offsets(facts.name, require_stable=False)
    readers = {tp: member for member in facts.members for tp in member.partitions}
    facts.partitions = [
        PartitionLag(
            tp,
            committed[tp].offset if tp in committed else None,
            metadata=committed.get(tp, CommittedOffset(0)).metadata,
            member=readers.get(tp),
        )
        for tp in sorted({*committed, *readers})
    ]


def add_bounds(admin: AdminClient, groups: Iterable[GroupFacts]) -> None:
    """Set the start and end offsets of the partitions of groups."""
    groups = list(groups)
    known = bounds(admin, {lag.at for facts in groups for lag in facts.partitions}, led_only=True)
    for facts in groups:
        for lag in facts.partitions:
            lag.start, lag.end = known.get(lag.at, (None, None))


def _of_classic_protocol(described: GroupDescription) -> GroupFacts:
    are_consumers = described.protocol_type == CONSUMER
    members = [_member(member, assigned(member.assignment) if are_consumers else ()) for member in described.members]
    return GroupFacts(described.group_id, described.state, CLASSIC, described.protocol, members)


def _of_consumer_protocol(described: ConsumerGroupDescription) -> GroupFacts:
    members = [_member(member, tuple(sorted(member.assignment))) for member in described.members]
    return GroupFacts(described.group_id, described.state, CONSUMER, described.assignor, members)


def _member(described: GroupMember | ConsumerGroupMember, partitions: tuple[TopicPartition, ...]) -> Member:
    host = described.client_host.lstrip("/")
    return Member(described.member_id, described.group_instance_id, described.client_id, host, partitions)


def assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode the assignment of a member of a consumer group; empty if it is invalid."""
    try:
        (count,) = struct.unpack_from(">i", data, 2)  # after the version
        position, partitions = 6, []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", data, position)
            topic = data[position + 2 : position + 2 + length].decode()
            position += 2 + length
            (numbers,) = struct.unpack_from(">i", data, position)
            partitions += [TopicPartition(topic, n) for n in struct.unpack_from(f">{numbers}i", data, position + 4)]
            position += 4 + 4 * numbers
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(partitions)
