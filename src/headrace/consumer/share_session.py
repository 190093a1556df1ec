"""The share session with one broker: its partitions, and acknowledgements that wait to be sent. I/O thread only.

A broker handles one request of a session at a time, in the order of their epochs: 0 starts a session, -1 ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import TypeVar

from headrace.errors import HeadraceError
from headrace.types import TopicPartition
from headrace.wire.api.share_fetch import (
    AcknowledgementBatch,
    ForgottenShareTopic,
    ShareAcknowledgeRequest,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
GAP = 0
"""The type of an offset without a record: of a transaction marker, or removed by compaction."""

TopicIdPartition = tuple[bytes, int]
Acknowledgements = Mapping[TopicIdPartition, Mapping[int, int]]
"""The type for each offset."""
OnAcknowledged = Callable[[Mapping[TopicPartition, HeadraceError | None]], None]


T = TypeVar("T")


class AcknowledgeType(IntEnum):
    """What becomes of a record."""

    ACCEPT = 1
    """It was processed."""
    RELEASE = 2
    """It is delivered again, to any member."""
    REJECT = 3
    """It cannot be processed, and is not delivered again."""


class ShareSession:
    """The session with one broker."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.epoch = INITIAL_EPOCH
        self.is_busy = False  # a request is in flight
        self.must_flush = False  # send acknowledgements without waiting for the next fetch
        self.retry_at_ms = 0.0
        self.waiters: list[OnAcknowledged] = []  # for the acknowledgements that wait
        self.sent: tuple[Acknowledgements, list[OnAcknowledged]] = ({}, [])
        """While it is busy: the acknowledgements of the request in flight, and those who wait for their result."""
        self._partitions: set[TopicIdPartition] = set()
        self._waiting: dict[TopicIdPartition, dict[int, int]] = {}

    @property
    def has_acknowledgements(self) -> bool:
        return bool(self._waiting)

    @property
    def is_open(self) -> bool:
        return self.epoch != INITIAL_EPOCH

    def add(self, partition: TopicIdPartition, types: Mapping[int, int]) -> None:
        """Add acknowledgements to be sent."""
        self._waiting.setdefault(partition, {}).update(types)

    def take(self) -> tuple[dict[TopicIdPartition, dict[int, int]], list[OnAcknowledged]]:
        """Return the acknowledgements that wait, and those who wait for their result."""
        taken, self._waiting = self._waiting, {}
        waiters, self.waiters, self.must_flush = self.waiters, [], False
        self.sent = taken, waiters
        return taken, waiters

    def succeeded(self) -> None:
        """Move to the next epoch."""
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def reset(self) -> None:
        """Start a new session with the next fetch."""
        self.epoch = INITIAL_EPOCH
        self._partitions.clear()

    def fetch(
        self, base: ShareFetchRequest, partitions: Collection[TopicIdPartition], acknowledged: Acknowledgements
    ) -> ShareFetchRequest:
        """Return the next fetch, of these partitions."""
        added = set(partitions) - self._partitions
        removed = self._partitions - set(partitions)
        self._partitions = set(partitions)
        rows = [
            (topic_id, ShareFetchPartition(partition_index=index, acknowledgement_batches=_batches(acknowledged, key)))
            for key in sorted(added | set(acknowledged))
            for topic_id, index in [key]
        ]
        return base.replace(
            share_session_epoch=self.epoch,
            topics=[ShareFetchTopic(topic_id=key, partitions=parts) for key, parts in _by_topic(rows).items()],
            forgotten_topics_data=[
                ForgottenShareTopic(topic_id=key, partitions=indexes) for key, indexes in _by_topic(removed).items()
            ],
        )

    def acknowledge(
        self, group_id: str, member_id: str, acknowledged: Acknowledgements, *, is_last: bool = False
    ) -> ShareAcknowledgeRequest:
        """Return a request that acknowledges only; the last one ends the session."""
        rows = [
            (topic_id, ShareFetchPartition(partition_index=index, acknowledgement_batches=_batches(acknowledged, key)))
            for key in sorted(acknowledged)
            for topic_id, index in [key]
        ]
        return ShareAcknowledgeRequest(
            group_id=group_id,
            member_id=member_id,
            share_session_epoch=FINAL_EPOCH if is_last else self.epoch,
            topics=[ShareFetchTopic(topic_id=key, partitions=parts) for key, parts in _by_topic(rows).items()],
        )


def _by_topic(rows: Iterable[tuple[bytes, T]]) -> dict[bytes, list[T]]:
    topics: dict[bytes, list[T]] = {}
    for topic_id, row in rows:
        topics.setdefault(topic_id, []).append(row)
    return topics


def _batches(acknowledged: Acknowledgements, partition: TopicIdPartition) -> list[AcknowledgementBatch]:
    """Return the acknowledgements of a partition as ranges of offsets with the same type."""
    batches: list[AcknowledgementBatch] = []
    for offset, kind in sorted(acknowledged.get(partition, {}).items()):
        last = batches[-1] if batches else None
        if last is not None and last.last_offset + 1 == offset and last.acknowledge_types == [kind]:
            batches[-1] = last.replace(last_offset=offset)
        else:
            batches.append(AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[kind]))
    return batches
