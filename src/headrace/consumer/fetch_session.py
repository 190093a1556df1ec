"""Fetch sessions (KIP-227): a broker remembers the partitions of a fetch, and requests name the changes only.

full request (epoch 0) → session id → incremental requests (epoch 1, 2, …) → error or lost connection → full request
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from headrace.errors import Code
from headrace.types import TopicPartition
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from headrace.wire.fields import ZERO_UUID

NO_SESSION = 0
FIRST_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 0x7FFFFFFF
NEWEST_BY_NAME = 12
"""The newest version of Fetch that names topics; from 13 on, requests have topic ids."""
SESSION_ERRORS = frozenset(
    {
        Code.FETCH_SESSION_ID_NOT_FOUND,
        Code.INVALID_FETCH_SESSION_EPOCH,
        Code.FETCH_SESSION_TOPIC_ID_ERROR,
        Code.INCONSISTENT_TOPIC_ID,
        Code.UNKNOWN_TOPIC_ID,
    }
)


class FetchedFrom(NamedTuple):
    """What a request says of a partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int


class FetchSession:
    """The session with one broker. I/O thread only."""

    def __init__(self, partition_bytes_max: int) -> None:
        self._partition_bytes_max = partition_bytes_max
        self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._partitions: dict[TopicPartition, FetchedFrom] = {}  # As the broker has them.
        self._uses_ids = True

    def next_request(
        self,
        fetched: Mapping[TopicPartition, FetchedFrom],
        moved: Mapping[TopicPartition, FetchedFrom],
        base: FetchRequest,
    ) -> FetchRequest:
        """Return the request for the partitions of the last request, of which only `moved` have changed."""
        if self._epoch == FIRST_EPOCH:
            return self.request(fetched, base)
        self._partitions.update(moved)
        return base.replace(session_id=self._id, session_epoch=self._epoch, topics=self._topics(moved))

    def request(self, fetched: Mapping[TopicPartition, FetchedFrom], base: FetchRequest) -> FetchRequest:
        """Return `base` with the session, and with what has changed since the last request."""
        uses_ids = all(row.topic_id != ZERO_UUID for row in fetched.values())
        if uses_ids is not self._uses_ids:  # an incremental request cannot change between names and ids
            self._uses_ids = uses_ids
            self.reset()
        if self._epoch == FIRST_EPOCH:
            changed, forgotten = fetched, {}
        else:
            known = self._partitions
            changed = {tp: row for tp, row in fetched.items() if known.get(tp) != row}
            forgotten = {
                tp: row
                for tp, row in known.items()
                if tp not in fetched or fetched[tp].topic_id != row.topic_id  # deleted and created again
            }
        self._partitions = dict(fetched)
        return base.replace(
            session_id=self._id,
            session_epoch=self._epoch,
            topics=self._topics(changed),
            forgotten_topics_data=_forgotten(forgotten),
        )

    @property
    def versions(self) -> tuple[int, int]:
        """The versions of Fetch that can express the request."""
        return FetchRequest.versions.first, FetchRequest.versions.last if self._uses_ids else NEWEST_BY_NAME

    def _topics(self, changed: Mapping[TopicPartition, FetchedFrom]) -> list[FetchTopic]:
        by_topic: defaultdict[tuple[str, bytes], list[FetchPartition]] = defaultdict(list)
        for (topic, number), row in changed.items():
            by_topic[topic, row.topic_id].append(
                FetchPartition(
                    partition=number,
                    current_leader_epoch=row.leader_epoch,
                    fetch_offset=row.offset,
                    partition_max_bytes=self._partition_bytes_max,
                )
            )
        return [
            FetchTopic(topic=topic, topic_id=topic_id, partitions=rows) for (topic, topic_id), rows in by_topic.items()
        ]

    def succeeded(self, session_id: int) -> None:
        """Continue the session that a response names; 0: the broker keeps none."""
        self._id = session_id
        if session_id == NO_SESSION:
            self._epoch = FIRST_EPOCH
        else:
            self._epoch = self._epoch + 1 if self._epoch < EPOCH_MAX else 1

    def failed(self, code: int) -> None:
        """Start a new session after an error of the session."""
        if code == Code.FETCH_SESSION_ID_NOT_FOUND:
            self._id = NO_SESSION
        self._epoch = FIRST_EPOCH

    def reset(self) -> None:
        """Start a new session, which closes the current one."""
        self._epoch = FIRST_EPOCH

    def final_request(self) -> FetchRequest | None:
        """Return the request that closes the session; None without one."""
        if self._id == NO_SESSION:
            return None
        return FetchRequest(max_wait_ms=0, min_bytes=0, session_id=self._id, session_epoch=FINAL_EPOCH)


def _forgotten(partitions: Mapping[TopicPartition, FetchedFrom]) -> list[ForgottenTopic]:
    by_topic: defaultdict[tuple[str, bytes], list[int]] = defaultdict(list)
    for (topic, number), row in partitions.items():
        by_topic[topic, row.topic_id].append(number)
    return [
        ForgottenTopic(topic=topic, topic_id=topic_id, partitions=rows) for (topic, topic_id), rows in by_topic.items()
    ]
