"""The state transitions of a transactional id, read from the log of its coordinator.

    id → partition of __transaction_state → its records of the last minutes → those of the id, in order

Every transition is a record, so even short transactions are complete. The log is compacted: of old transitions only the
last one is left.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.facts.partitions import bounds
from headrace.client.fetch_data import FetchedRecord
from headrace.client.fetcher import Fetcher
from headrace.errors import WireError
from headrace.wire.internal_topics import TransactionLogKey, TransactionLogValue, coordinator_partition

TOPIC = "__transaction_state"
SPAN_MS = 15 * 60 * 1000
RECORDS_MAX = 20_000
"""Records to read at most; older ones are left out."""
STEPS_MAX = 100
READ_SECONDS_MAX = 5.0
FETCH_BYTES_MAX = 4 * 1024 * 1024

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
"""By their numbers in the log."""
FORGOTTEN = "Forgotten"

_version = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Step:
    """A state that the coordinator recorded, and when."""

    at_ms: int
    state: str
    producer_id: int | None = None
    producer_epoch: int | None = None
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """The last transitions of an id, the newest last."""

    steps: tuple[Step, ...]
    is_whole: bool
    """Whether the whole time span was read; otherwise the log was too large, or the time too short."""


def history_of(admin: AdminClient, transactional_id: str, span_ms: int = SPAN_MS) -> History:
    """Return the transitions of the last minutes."""
    topics = admin.describe_topics([TOPIC], missing_ok=True)
    if TOPIC not in topics:
        return History((), True)  # no transaction was ever used
    tp = TopicPartition(TOPIC, coordinator_partition(transactional_id, len(topics[TOPIC].partitions)))
    ((start, end),) = bounds(admin, [tp]).values()
    then_ms = int(time.time() * 1000) - span_ms
    first = admin.list_offsets({tp: then_ms})[tp].offset
    begin = max(start, end - RECORDS_MAX, first if first >= 0 else end)
    steps, position = _read(admin, tp, begin, end, transactional_id)
    return History(tuple(steps[-STEPS_MAX:]), position >= end and begin >= first and len(steps) <= STEPS_MAX)


def _read(
    admin: AdminClient, tp: TopicPartition, begin: int, end: int, transactional_id: str
) -> tuple[list[Step], int]:
    """Return the transitions of an id between two offsets, and the position reached in time."""
    steps: list[Step] = []
    fetcher = Fetcher(admin.client, isolation="read_uncommitted", partition_bytes_max=FETCH_BYTES_MAX)
    fetcher.assign({tp: begin}, {tp: end}, check=False)
    deadline = time.monotonic() + READ_SECONDS_MAX
    while fetcher.position(tp) < end and (left := deadline - time.monotonic()) > 0:
        for record in fetcher.poll(left * 1000):
            if (step := _step(record, transactional_id)) is not None:
                steps.append(step)
    return steps, fetcher.position(tp)


def _step(record: FetchedRecord, transactional_id: str) -> Step | None:
    """Return the transition in a record; None for other ids, and for unknown kinds of records."""
    try:
        (version,) = _version.unpack_from(record.key or b"")
        key = TransactionLogKey.decode(version, (record.key or b"")[_version.size :])
        if key.transactional_id != transactional_id:
            return None
        if record.value is None:
            return Step(record.timestamp, FORGOTTEN)
        (version,) = _version.unpack_from(record.value)
        value = TransactionLogValue.decode(version, record.value[_version.size :])
    except (struct.error, WireError, ValueError):
        return None
    status = value.transaction_status
    return Step(
        value.transaction_last_update_timestamp_ms,
        STATES[status] if 0 <= status < len(STATES) else f"state {status}",
        value.producer_id,
        value.producer_epoch,
        sum(len(row.partition_ids) for row in value.transaction_partitions or ()),
    )
