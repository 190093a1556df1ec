"""The persisted state of a share partition: its start offset, and batches of records with states and delivery counts.

Records that are acquired are not in it: after a restart they are available again. No clock, no log.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from headrace.errors import BrokerError, Code
from headrace.wire.api.share_state import StateBatch

UNINITIALIZED_OFFSET = -1
"""The start offset of a share partition before its first fetch, which chooses it by share.auto.offset.reset."""
UNINITIALIZED_COUNT = -1
NO_EPOCH = -1
_KEY_PARTS = 3


class SharePartitionKey(NamedTuple):
    """A partition in a share group."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key of its coordinator: group, topic id in Kafka's notation, partition."""
        topic_id = base64.urlsafe_b64encode(self.topic_id).decode().rstrip("=")
        return f"{self.group_id}:{topic_id}:{self.partition}"

    @classmethod
    def parse(cls, key: str) -> SharePartitionKey:
        """Return the share partition of a coordinator's key, or raise INVALID_REQUEST."""
        parts = key.rsplit(":", _KEY_PARTS - 1)
        try:
            group_id, topic_id, partition = parts
            decoded = base64.b64decode(topic_id + "==", altchars=b"-_", validate=True)
            if not group_id or len(decoded) != 16:
                raise ValueError(key)
            return cls(group_id, decoded, int(partition))
        except (ValueError, binascii.Error):
            raise BrokerError(
                f"invalid key {key!r} of a share coordinator: expected GROUP:TOPIC_ID:PARTITION",
                code=Code.INVALID_REQUEST,
            ) from None


@dataclass(frozen=True, slots=True)
class ShareState:
    """The state of a share partition, as in a snapshot."""

    snapshot_epoch: int = 0
    state_epoch: int = NO_EPOCH
    leader_epoch: int = NO_EPOCH
    start_offset: int = UNINITIALIZED_OFFSET
    complete_count: int = UNINITIALIZED_COUNT  # records in `batches` that were acknowledged or archived; -1: unknown
    created_ms: int = 0
    written_ms: int = 0
    batches: tuple[StateBatch, ...] = ()


class StateUpdate(NamedTuple):
    """A change of the state of a share partition."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: Sequence[StateBatch]


def merge(current: Iterable[StateBatch], new: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Return batches without overlaps from the start offset on.

    Of overlapping batches the one with the higher delivery count wins, then the one with the higher state: a record
    never goes back, so writes may arrive in any order.
    """
    batches = [*current, *new]
    bounds = sorted({batch.first_offset for batch in batches} | {batch.last_offset + 1 for batch in batches})
    merged: list[StateBatch] = []
    active: list[StateBatch] = []
    pending = sorted(batches, key=lambda batch: batch.first_offset, reverse=True)
    for first, end in pairwise(bounds):
        while pending and pending[-1].first_offset <= first:
            active.append(pending.pop())
        active = [batch for batch in active if batch.last_offset >= first]
        if not active or end <= start_offset:
            continue
        winner = max(active, key=_rank)
        part = winner.replace(first_offset=max(first, start_offset), last_offset=end - 1)
        if merged and merged[-1].last_offset + 1 == part.first_offset and _rank(merged[-1]) == _rank(part):
            merged[-1] = merged[-1].replace(last_offset=part.last_offset)
        else:
            merged.append(part)
    return tuple(merged)


def _rank(batch: StateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.delivery_state
