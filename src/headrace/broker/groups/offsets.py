"""The offsets of groups: committed ones, and those that wait for the end of a transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from headrace.types import TopicPartition
from headrace.wire.layout import NO_LEADER_EPOCH, NO_PRODUCER_ID
from headrace.wire.schema import ZERO_UUID

NO_OFFSET = -1
NO_EXPIRY = -1


class Committed(NamedTuple):
    """How far a group has read a partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    commit_time_ms: int = -1
    expire_time_ms: int = NO_EXPIRY  # set by old clients only; else the broker's retention counts
    topic_id: bytes = ZERO_UUID  # a topic of the same name made later has another one
    record_offset: int = -1  # of the record in __consumer_offsets that says so


class Offsets:
    """All offsets of a shard.

    A producer's offsets become visible with the marker that ends its transaction. Several producers may have open ones
    for a group, even for one partition: then the later *record* wins, whichever transaction ends last, for that is what
    remains when the topic is compacted.
    """

    def __init__(self) -> None:
        self._committed: dict[str, dict[TopicPartition, Committed]] = {}  # by group
        self._pending: dict[int, dict[str, dict[TopicPartition, Committed]]] = {}  # by producer id, by group
        self._in_flight: Counter[tuple[str, TopicPartition]] = Counter()  # written, not yet acknowledged by the log

    def of(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """What a group has committed."""
        return self._committed.get(group_id, {})

    def pending_of(self, group_id: str) -> set[TopicPartition]:
        """What open transactions hold of a group."""
        return {place for groups in self._pending.values() for place in groups.get(group_id, ())}

    def has_open_transactions(self, group_id: str) -> bool:
        return any(group_id in groups for groups in self._pending.values())

    def is_unstable(self, group_id: str, place: TopicPartition) -> bool:
        """Whether the offset of a partition is about to change, or may be."""
        if self._in_flight[group_id, place]:
            return True
        return any(place in groups.get(group_id, ()) for groups in self._pending.values())

    @contextmanager
    def in_flight(self, group_id: str, places: Collection[TopicPartition]) -> Iterator[None]:
        """Mark places whose new offset is on its way into the log."""
        keys = [(group_id, place) for place in places]
        self._in_flight.update(keys)
        try:
            yield
        finally:
            for key in keys:
                self._in_flight[key] -= 1
                if not self._in_flight[key]:
                    del self._in_flight[key]

    def store(
        self, group_id: str, place: TopicPartition, committed: Committed, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """A record was written, by itself or as part of a producer's transaction."""
        by_group = self._committed if producer_id == NO_PRODUCER_ID else self._pending.setdefault(producer_id, {})
        by_group.setdefault(group_id, {})[place] = committed

    def remove(self, group_id: str, place: TopicPartition) -> None:
        """A tombstone was written: it takes pending offsets along."""
        _remove(self._committed, group_id, place)
        for groups in self._pending.values():
            if place in groups.get(group_id, ()):
                # The transaction is still open for the group, though with nothing in it: the group must not vanish.
                del groups[group_id][place]

    def complete(self, producer_id: int, committed: bool) -> None:
        """A transaction has ended: its offsets become visible, or go."""
        for group_id, places in self._pending.pop(producer_id, {}).items():
            if not committed:
                continue
            for place, offset in places.items():
                existing = self._committed.get(group_id, {}).get(place)
                if existing is None or existing.record_offset < offset.record_offset:
                    self.store(group_id, place, offset)

    def places_of_topic(self, topic: str) -> set[tuple[str, TopicPartition]]:
        """Everything stored about a topic: group and place."""
        return {
            (group_id, place)
            for by_group in (self._committed, *self._pending.values())
            for group_id, places in by_group.items()
            for place in places
            if place[0] == topic
        }

    def snapshot(
        self,
    ) -> tuple[dict[str, dict[TopicPartition, Committed]], dict[int, dict[str, dict[TopicPartition, Committed]]]]:
        """Everything, for comparing: committed offsets, and those of open transactions."""
        pending = {
            producer_id: {group_id: dict(places) for group_id, places in groups.items()}
            for producer_id, groups in self._pending.items()
        }
        return {group_id: dict(places) for group_id, places in self._committed.items()}, pending


def _remove(by_group: dict[str, dict[TopicPartition, Committed]], group_id: str, place: TopicPartition) -> None:
    places = by_group.get(group_id)
    if places is None:
        return
    places.pop(place, None)
    if not places:
        del by_group[group_id]
