"""Lag in time: the age of the first record that a group has not consumed.

Brokers do not return the timestamp of an offset, so that record must be fetched. Its timestamp never changes: a caller
that repeats the query (the live view) keeps a `LagTimes`, which fetches only where a group has advanced.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.facts.groups import PartitionLag
from headrace.client.fetcher import Fetcher
from headrace.errors import HeadraceError

AGE_SECONDS_MAX = 10.0
"""For the fetches of all partitions; later ones are left out."""
FETCH_BYTES = 4096
"""Per partition: one record is needed, and the first batch is always complete."""
KNOWN_MAX = 100_000
"""The maximum number of cached timestamps."""


class LagTimes:
    """A cache of timestamps, by partition and offset. One thread at a time."""

    def __init__(self, seconds_max: float = AGE_SECONDS_MAX) -> None:
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
        self._look_up({(lag.at, _position(lag)): lag.end or 0 for lag in behind}, admin)
        now_ms = time.time() * 1000
        for lag in behind:
            timestamp = self._known.get((lag.at, _position(lag)), -1)
            if timestamp >= 0:
                lag.lag_ms = max(0, int(now_ms - timestamp))

    def _look_up(self, ends: Mapping[tuple[TopicPartition, int], int], admin: AdminClient) -> None:
        """Fetch unknown timestamps, one position of a partition at a time."""
        if len(self._known) + len(ends) > KNOWN_MAX:
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
