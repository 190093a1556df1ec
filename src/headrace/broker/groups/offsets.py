"""The offsets of groups: committed, and pending in open transactions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from headrace.types import TopicPartition
from headrace.wire.fields import ZERO_UUID
from headrace.wire.layout import NO_LEADER_EPOCH, NO_PRODUCER_ID

NO_OFFSET = -1
NO_EXPIRY = -1


class Committed(NamedTuple):
    """The committed offset of a group in a partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_time_ms: int = -1
    expire_time_ms: int = NO_EXPIRY  # set by old clients only; otherwise offsets.retention.minutes applies
    topic_id: bytes = ZERO_UUID  # a recreated topic has another id
    record_offset: int = -1  # of its record in __consumer_offsets


class Offsets:
    """All offsets of a shard.

    The offsets of a transaction become visible with its commit marker. If several producers have pending offsets for
    the same partition, the later *record* wins, whichever transaction ends last: compaction keeps that one, too.
    """

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, Committed]] = {}  # by group
        self._pending: dict[int, dict[str, dict[TopicPartition, Committed]]] = {}  # by producer id, by group
        self._in_flight: Counter[tuple[str, TopicPartition]] = Counter()  # appended, not replicated yet

    def of(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """Return the committed offsets of a group."""
        return self._committed.get(group_id, {})

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions with pending offsets of a group."""
        return {partition for groups in self._pending.values() for partition in groups.get(group_id, ())}

    def has_open_transactions(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._pending.values())

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        """Return whether the offset of a partition is being written or pending in a transaction."""
        if self._in_flight[group_id, partition]:
            return True
        return any(partition in groups.get(group_id, ()) for groups in self._pending.values())

    @contextmanager
    def in_flight(self, group_id: str, partitions: Collection[TopicPartition]) -> Iterator[None]:
        """Mark partitions whose offset is being written."""
        keys = [(group_id, partition) for partition in partitions]
        self._in_flight.update(keys)
        try:
            yield
        finally:
            for key in keys:
                self._in_flight[key] -= 1
                if not self._in_flight[key]:
                    del self._in_flight[key]

    def store(
        self, group_id: str, partition: TopicPartition, committed: Committed, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Apply an offset record, which may belong to a transaction."""
        by_group = self._committed if producer_id == NO_PRODUCER_ID else self._pending.setdefault(producer_id, {})
        by_group.setdefault(group_id, {})[partition] = committed

    def remove(self, group_id: str, partition: TopicPartition) -> None:
        """Apply a tombstone; it removes pending offsets, too."""
        _remove(self._committed, group_id, partition)
        for groups in self._pending.values():
            if partition in groups.get(group_id, ()):
                # The empty entry stays: while the transaction is open the group must not be removed.
                del groups[group_id][partition]

    def complete(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker: pending offsets become visible or are dropped."""
        for group_id, partitions in self._pending.pop(producer_id, {}).items():
            if not committed:
                continue
            for partition, offset in partitions.items():
                existing = self._committed.get(group_id, {}).get(partition)
                if existing is None or existing.record_offset < offset.record_offset:
                    self.store(group_id, partition, offset)

    def partitions_of_topic(self, topic: str) -> set[tuple[str, TopicPartition]]:
        """Return group and partition of all offsets of a topic."""
        return {
            (group_id, partition)
            for by_group in (self._committed, *self._pending.values())
            for group_id, partitions in by_group.items()
            for partition in partitions
            if partition.topic == topic
        }

    def snapshot(
        self,
    ) -> tuple[dict[str, dict[TopicPartition, Committed]], dict[int, dict[str, dict[TopicPartition, Committed]]]]:
        """Return committed and pending offsets, for comparison in tests."""
        pending = {
            producer_id: {group_id: dict(partitions) for group_id, partitions in groups.items()}
            for producer_id, groups in self._pending.items()
        }
        return {group_id: dict(partitions) for group_id, partitions in self._committed.items()}, pending


def _remove(by_group: dict[str, dict[TopicPartition, Committed]], group_id: str, partition: TopicPartition) -> None:
    partitions = by_group.get(group_id)
    if partitions is None:
        return
    partitions.pop(partition, None)
    if not partitions:
        del by_group[group_id]
