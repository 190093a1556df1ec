"""Groups: members, committed offsets, lag in records and in time; planning a reset of offsets.

    describe, committed offsets → partitions → start and end of each → lag → LagTimes.fill: lag in time
    group, chosen partitions → ResetTarget.offsets → OffsetChanges → alter_group_offsets

The lag in time is the age of the first record that a group has not consumed. Brokers do not return the timestamp of an
offset, so that record must be fetched. Its timestamp never changes: a caller that repeats the query (the live view)
keeps a `LagTimes`, which fetches only where a group has advanced.
"""

from __future__ import annotations

import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from headrace.client.queries.topics import offset_bounds
from headrace.errors import BrokerError, Code, HeadraceError, IllegalStateError, NotFoundError

CLASSIC, CONSUMER = "classic", "consumer"
DEAD = "Dead"
IDLE = ("Empty", DEAD)
"""The states of a group without members."""
CLIENTS_SHOWN_MAX = 5
LAG_TIME_SECONDS_MAX = 10.0
"""For the fetches of all partitions; later ones are left out."""
FETCH_BYTES = 4096
"""Per partition: one record is needed, and the first batch is always complete."""
CACHED_TIMESTAMPS_MAX = 100_000
"""The maximum number of cached timestamps."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, with its assigned partitions."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    protocol: str = CLASSIC
    # Groups of the consumer protocol only; None in others.
    epoch: int | None = None
    """The epoch of the group that the member has reached."""
    target: tuple[TopicPartition, ...] | None = None
    """The partitions that it will have once the group is stable."""

    @property
    def pending_count(self) -> int:
        """The partitions that the member has still to get or to give up."""
        return 0 if self.target is None else len({*self.target} ^ {*self.partitions})

    def to_json(self) -> dict[str, Any]:
        return {
            "member_id": self.member_id,
            "instance_id": self.instance_id,
            "client_id": self.client_id,
            "host": self.host,
            "partitions": _json_of(self.partitions),
            "protocol": self.protocol,
            "epoch": self.epoch,
            "target": None if self.target is None else _json_of(self.target),
        }


def _json_of(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]


@dataclass(slots=True)
class PartitionLag:
    """A partition of a group. None: no committed offset, or the partition is deleted or has no leader."""

    tp: TopicPartition
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
            "topic": self.tp.topic,
            "partition": self.tp.partition,
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
class GroupOverview:
    """State, members and partitions of a group."""

    name: str
    state: str
    type: str
    assignor: str
    members: list[Member] | None
    """None for types of groups that this client cannot describe (share, streams)."""
    partitions: list[PartitionLag] = field(default_factory=list)
    # Groups of the consumer protocol only; None in others.
    epoch: int | None = None
    """It grows with every change of members, subscriptions or topics."""
    assignment_epoch: int | None = None
    """The epoch for which the broker has computed the assignment."""

    @property
    def lag(self) -> int:
        return sum(partition.lag or 0 for partition in self.partitions)

    def lag_of(self, member: Member) -> int | None:
        """Return the lag of the partitions of a member; None if that of none is known."""
        lags = [lag.lag for lag in self.partitions if lag.member is member and lag.lag is not None]
        return sum(lags) if lags else None

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
            "epoch": self.epoch,
            "assignment_epoch": self.assignment_epoch,
        }


def find_group(admin: AdminClient, name: str) -> GroupOverview | None:
    """Return state, members and committed offsets of a group; None if it does not exist."""
    listing = next((entry for entry in admin.list_groups() if entry.group_id == name), None)
    group = group_with_members(admin, name, listing)
    if group is not None:
        add_committed(admin, group)
        add_bounds(admin, [group])
    return group


def group_with_members(admin: AdminClient, name: str, listing: GroupListing | None) -> GroupOverview | None:
    """Return state and members of a group; `listing` is None if it was not listed."""
    kind = listing.type.lower() if listing is not None and listing.type else CLASSIC
    if listing is not None and kind not in (CLASSIC, CONSUMER):
        return GroupOverview(name, listing.state, kind, "", None)
    try:
        if kind == CONSUMER:
            group = _of_consumer_protocol(admin.describe_consumer_groups([name])[name])
        else:
            group = _of_classic_protocol(admin.describe_groups([name])[name])
    except BrokerError as error:
        if error.code != Code.GROUP_ID_NOT_FOUND:
            raise
        return None
    return None if group.state == DEAD and not group.members else group


def add_committed(admin: AdminClient, group: GroupOverview) -> None:
    """Set the partitions with their committed offsets."""
    if group.members is None:
        return
    committed = admin.list_group_offsets(group.name, require_stable=False)
    readers = {tp: member for member in group.members for tp in member.partitions}
    group.partitions = [
        PartitionLag(
            tp,
            committed[tp].offset if tp in committed else None,
            metadata=committed.get(tp, CommittedOffset(0)).metadata,
            member=readers.get(tp),
        )
        for tp in sorted({*committed, *readers})
    ]


def add_bounds(admin: AdminClient, groups: Iterable[GroupOverview]) -> None:
    """Set the start and end offsets of the partitions of groups."""
    groups = list(groups)
    known = offset_bounds(admin, {lag.tp for group in groups for lag in group.partitions}, led_only=True)
    for group in groups:
        for lag in group.partitions:
            lag.start, lag.end = known.get(lag.tp, (None, None))


def _of_classic_protocol(described: GroupDescription) -> GroupOverview:
    are_consumers = described.protocol_type == CONSUMER
    members = [
        _member(member, decode_assignment(member.assignment) if are_consumers else ()) for member in described.members
    ]
    return GroupOverview(described.group_id, described.state, CLASSIC, described.protocol, members)


def _of_consumer_protocol(described: ConsumerGroupDescription) -> GroupOverview:
    members = [
        replace(
            _member(member, tuple(sorted(member.assignment))),
            protocol=CLASSIC if member.uses_classic_protocol else CONSUMER,
            epoch=member.epoch,
            target=tuple(sorted(member.target)),
        )
        for member in described.members
    ]
    return GroupOverview(
        described.group_id,
        described.state,
        CONSUMER,
        described.assignor,
        members,
        epoch=described.epoch,
        assignment_epoch=described.assignment_epoch,
    )


def _member(described: GroupMember | ConsumerGroupMember, partitions: tuple[TopicPartition, ...]) -> Member:
    host = described.client_host.lstrip("/")
    return Member(described.member_id, described.group_instance_id, described.client_id, host, partitions)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
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


# -- lag in time -------------------------------------------------------------------------------------


class LagTimes:
    """A cache of timestamps, by partition and offset. One thread at a time."""

    def __init__(self, seconds_max: float = LAG_TIME_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._known: dict[tuple[TopicPartition, int], int] = {}

    def fill(self, partitions: Iterable[PartitionLag], admin: AdminClient) -> None:
        """Set `lag_ms`: 0 if nothing is left to read, otherwise the age of the next record.

        Several groups may read the same partition at different positions.
        """
        behind = []
        for partition in partitions:
            if partition.lag == 0:
                partition.lag_ms = 0
            elif partition.lag:
                behind.append(partition)
        self._look_up({(lag.tp, _position(lag)): lag.end or 0 for lag in behind}, admin)
        now_ms = time.time() * 1000
        for lag in behind:
            timestamp = self._known.get((lag.tp, _position(lag)), -1)
            if timestamp >= 0:
                lag.lag_ms = max(0, int(now_ms - timestamp))

    def _look_up(self, ends: Mapping[tuple[TopicPartition, int], int], admin: AdminClient) -> None:
        """Fetch unknown timestamps, one position of a partition at a time."""
        if len(self._known) + len(ends) > CACHED_TIMESTAMPS_MAX:
            self._known.clear()
        missing: dict[TopicPartition, list[int]] = defaultdict(list)
        for tp, offset in ends:
            if (tp, offset) not in self._known:
                missing[tp].append(offset)
        deadline = time.monotonic() + self._seconds_max
        while missing and time.monotonic() < deadline:
            starts = {tp: offsets.pop() for tp, offsets in missing.items()}
            spans = {tp: (offset, ends[tp, offset]) for tp, offset in starts.items()}
            for tp, timestamp in _first_timestamps(admin, spans, deadline).items():
                self._known[tp, starts[tp]] = timestamp
            missing = {tp: offsets for tp, offsets in missing.items() if offsets}


def _position(lag: PartitionLag) -> int:
    """Return the offset at which the group continues."""
    return max(lag.committed or 0, lag.start or 0)


def _first_timestamps(
    admin: AdminClient, spans: Mapping[TopicPartition, tuple[int, int]], deadline: float
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record between two offsets; partitions without one are left out."""
    from headrace.client.fetcher import Fetcher  # on first use: it imports pyarrow

    timestamps: dict[TopicPartition, int] = {}
    left = dict(spans)
    fetcher = Fetcher(
        admin.client, isolation="read_uncommitted", out_of_range="earliest", partition_bytes_max=FETCH_BYTES
    )
    while left and time.monotonic() < deadline:
        fetcher.assign(
            {tp: at for tp, (at, _) in left.items()}, {tp: end for tp, (_, end) in left.items()}, check=False
        )
        try:
            records = fetcher.poll((deadline - time.monotonic()) * 1000)
        except HeadraceError:
            return timestamps  # deleted meanwhile, or unreadable: the lag in records is still known
        for record in records:
            timestamps.setdefault(TopicPartition(record.topic, record.partition), record.timestamp)
        ended = {tp for tp in left if fetcher.position(tp) >= left[tp][1]}
        left = {tp: span for tp, span in left.items() if tp not in timestamps and tp not in ended}
    return timestamps


# -- resets ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The committed offset of a partition before and after a reset."""

    tp: TopicPartition
    before: int | None
    after: int

    @property
    def moved(self) -> str:
        return "" if self.before is None else f"{self.after - self.before:+,}"

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "before": self.before,
            "after": self.after,
        }


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The new position: one of these."""

    end: str | None = None
    """earliest or latest"""
    offset: int | None = None
    time_ms: int | None = None
    shift: int | None = None

    def offsets(
        self,
        admin: AdminClient,
        within: Mapping[TopicPartition, tuple[int, int]],
        committed: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return the new offset of each partition, limited to its start and end."""
        times = {} if self.time_ms is None else admin.list_offsets(dict.fromkeys(within, self.time_ms))
        offsets: dict[TopicPartition, int] = {}
        for tp, (start, end) in within.items():
            if self.time_ms is not None:
                offset = times[tp].offset if times[tp].offset >= 0 else end
            elif self.shift is not None:
                if tp not in committed:
                    raise IllegalStateError(
                        f"cannot shift {tp}, which has no committed offset: set an offset, a time, earliest or latest"
                    )
                offset = committed[tp] + self.shift
            elif self.offset is not None:
                offset = self.offset
            else:
                offset = start if self.end == "earliest" else end
            offsets[tp] = min(max(offset, start), end)
        return offsets


def plan_reset(
    admin: AdminClient,
    name: str,
    group: GroupOverview | None,
    target: ResetTarget,
    chosen: Sequence[TopicPartition] | None,
) -> list[OffsetChange]:
    """Return the changes for the chosen partitions, or with None for all with committed offsets.

    Raises if the group has members, or if there is nothing to change. `group` is None for a new group.
    """
    if group is not None and group.state not in IDLE:
        raise IllegalStateError(
            f"group {name!r} has {group.members_text}, which would overwrite the offsets: stop them first"
        )
    lags = group.partitions if group else ()
    committed = {lag.tp: lag.committed for lag in lags if lag.committed is not None}
    within = offset_bounds(admin, sorted(committed) if chosen is None else chosen)
    if not within:
        raise NotFoundError(
            f"group {name!r} has no committed offsets for existing topics: choose the topics to set offsets for"
        )
    after = target.offsets(admin, within, committed)
    return [OffsetChange(tp, committed.get(tp), after[tp]) for tp in sorted(after)]
