"""What there is to know of a group: members, committed offsets, and how far it is behind, in records and in time.

    describe_groups, committed offsets → partitions → start and end of each → the first record not consumed → its age

The age of that record is the lag in time: how late a reader is that goes on from here. It has to be fetched.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.cli.partitions import bounds
from headrace.client.admin import AdminClient, CommittedOffset, GroupDescription, GroupListing, TopicPartition
from headrace.errors import BrokerError, Code, HeadraceError

if TYPE_CHECKING:
    from headrace.client.fetcher import Fetcher

CONSUMER = "consumer"
DEAD = "Dead"
AGE_SECONDS_MAX = 10.0
"""For the fetches of all partitions; what is not known by then is not told."""
FETCH_BYTES = 4096
"""Of a partition: one record is wanted, and the first batch comes whole however large it is."""


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
    """A partition of a group. None: nothing is committed, or the topic is gone."""

    at: TopicPartition
    committed: int | None = None
    start: int | None = None
    end: int | None = None
    lag_ms: int | None = None
    metadata: str = ""
    member: Member | None = None

    @property
    def lag(self) -> int | None:
        """Offsets that are still to be read; what is deleted already no longer counts."""
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
    """None: a group of the newer protocol (KIP-848), whose members this client cannot ask for."""
    partitions: list[PartitionLag] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def lag_ms(self) -> int | None:
        return max((one.lag_ms for one in self.partitions if one.lag_ms is not None), default=None)

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
    """State, members and committed offsets; None if there is no such group."""
    listing = next((group for group in admin.list_groups() if group.group_id == name), None)
    if listing is not None and listing.type.lower() == CONSUMER:
        return _with_offsets(admin, GroupFacts(name, listing.state, CONSUMER, "", None))
    try:
        described = admin.describe_groups([name])[name]
    except BrokerError as error:
        if error.code != Code.GROUP_ID_NOT_FOUND:
            raise
        return None
    facts = _classic(described, listing)
    return None if described.state == DEAD and not facts.members else _with_offsets(admin, facts)


def _classic(described: GroupDescription, listing: GroupListing | None) -> GroupFacts:
    members = [
        Member(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host.lstrip("/"),
            assigned(member.assignment) if described.protocol_type == CONSUMER else (),
        )
        for member in described.members
    ]
    kind = listing.type.lower() if listing is not None and listing.type else "classic"
    return GroupFacts(described.group_id, described.state, kind, described.protocol, members)


def _with_offsets(admin: AdminClient, facts: GroupFacts) -> GroupFacts:
    committed = admin.list_group_offsets(facts.name, require_stable=False)
    readers = {tp: member for member in facts.members or () for tp in member.partitions}
    facts.partitions = [
        PartitionLag(
            tp,
            committed[tp].offset if tp in committed else None,
            metadata=committed.get(tp, CommittedOffset(0)).metadata,
            member=readers.get(tp),
        )
        for tp in sorted({*committed, *readers})
    ]
    found = bounds(admin, [one.at for one in facts.partitions])
    for one in facts.partitions:
        one.start, one.end = found.get(one.at, (None, None))
    return facts


def assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """What a member of a group of consumers was given. Bytes that make no sense are the members' own affair."""
    try:
        (count,) = struct.unpack_from(">i", data, 2)  # after the version
        position, found = 6, []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", data, position)
            topic = data[position + 2 : position + 2 + length].decode()
            position += 2 + length
            (numbers,) = struct.unpack_from(">i", data, position)
            found += [TopicPartition(topic, n) for n in struct.unpack_from(f">{numbers}i", data, position + 4)]
            position += 4 + 4 * numbers
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(found)


# -- lag in time -----------------------------------------------------------------------------------


def add_ages(partitions: Iterable[PartitionLag], admin: AdminClient) -> None:
    """Fill in `lag_ms`: 0 where nothing is left to read, else the age of the first record that is."""
    from headrace.client.fetcher import Fetcher

    fetcher = Fetcher(
        admin.client, isolation="read_uncommitted", out_of_range="earliest", partition_bytes_max=FETCH_BYTES
    )
    behind: dict[TopicPartition, PartitionLag] = {}
    for partition in partitions:
        if partition.lag == 0:
            partition.lag_ms = 0
        elif partition.lag:
            behind[partition.at] = partition
    now_ms = time.time() * 1000
    for tp, timestamp in _first_timestamps(fetcher, behind).items():
        if timestamp >= 0:
            behind[tp].lag_ms = max(0, int(now_ms - timestamp))


def _first_timestamps(fetcher: Fetcher, behind: Mapping[TopicPartition, PartitionLag]) -> dict[TopicPartition, int]:
    """Of the first record from the committed offset on; partitions that hold none (markers only) are not in it."""
    found: dict[TopicPartition, int] = {}
    left = {tp: (max(one.committed or 0, one.start or 0), one.end or 0) for tp, one in behind.items()}
    deadline = time.monotonic() + AGE_SECONDS_MAX
    while left and time.monotonic() < deadline:
        fetcher.assign(
            {tp: at for tp, (at, _) in left.items()}, {tp: end for tp, (_, end) in left.items()}, check=False
        )
        try:
            records = fetcher.poll((deadline - time.monotonic()) * 1000)
        except HeadraceError:
            return found  # it was deleted meanwhile, or cannot be read: the lag in records is known all the same
        for record in records:
            found.setdefault(TopicPartition(record.topic, record.partition), record.timestamp)
        ended = {tp for tp in left if fetcher.position(tp) >= left[tp][1]}
        left = {tp: bound for tp, bound in left.items() if tp not in found and tp not in ended}
    return found
