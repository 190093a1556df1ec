"""Lag in time: the age of the first record that a group has not consumed. How late is a reader that goes on from here?

No broker tells the time of an offset, so that record has to be fetched. Its time never changes: who asks again and
again (the live view) keeps a `LagTimes`, and pays only where a group has moved on.
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
"""For the fetches of all partitions; what is not known by then is not told."""
FETCH_BYTES = 4096
"""Of a partition: one record is wanted, and the first batch comes whole however large it is."""
KNOWN_MAX = 100_000
"""Records whose times are remembered."""


class LagTimes:
    """The times of first records, by partition and offset. One thread at a time."""

    def __init__(self, seconds_max: float = AGE_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._known: dict[tuple[TopicPartition, int], int] = {}

    def fill(self, partitions: Iterable[PartitionLag], admin: AdminClient) -> None:
        """Fill in `lag_ms`: 0 where nothing is left to read, else the age of the first record that is.

        Several groups may read the same partition, and be at different places in it.
        """
        behind = []
        for partition in partitions:
            if partition.lag == 0:
                partition.lag_ms = 0
            elif partition.lag:
                behind.append(partition)
        self._look_up({(one.at, _position(one)): one.end or 0 for one in behind}, admin)
        now_ms = time.time() * 1000
        for one in behind:
            timestamp = self._known.get((one.at, _position(one)), -1)
            if timestamp >= 0:
                one.lag_ms = max(0, int(now_ms - timestamp))

    def _look_up(self, wanted: Mapping[tuple[TopicPartition, int], int], admin: AdminClient) -> None:
        """Fetch what is not known; a partition is read at one place at a time."""
        if len(self._known) + len(wanted) > KNOWN_MAX:
            self._known.clear()
        places: dict[TopicPartition, list[int]] = defaultdict(list)
        for tp, offset in wanted:
            if (tp, offset) not in self._known:
                places[tp].append(offset)
        deadline = time.monotonic() + self._seconds_max
        while places and time.monotonic() < deadline:
            now = {tp: offsets.pop() for tp, offsets in places.items()}
            spans = {tp: (offset, wanted[tp, offset]) for tp, offset in now.items()}
            for tp, timestamp in _first_timestamps(admin, spans, deadline).items():
                self._known[tp, now[tp]] = timestamp
            places = {tp: offsets for tp, offsets in places.items() if offsets}


def _position(one: PartitionLag) -> int:
    """Where a reader would go on."""
    return max(one.committed or 0, one.start or 0)


def _first_timestamps(
    admin: AdminClient, spans: Mapping[TopicPartition, tuple[int, int]], deadline: float
) -> dict[TopicPartition, int]:
    """Of the first record between two offsets; partitions that hold none (markers only) are not in it."""
    found: dict[TopicPartition, int] = {}
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
            return found  # it was deleted meanwhile, or cannot be read: the lag in records is known all the same
        for record in records:
            found.setdefault(TopicPartition(record.topic, record.partition), record.timestamp)
        ended = {tp for tp in left if fetcher.position(tp) >= left[tp][1]}
        left = {tp: span for tp, span in left.items() if tp not in found and tp not in ended}
    return found
