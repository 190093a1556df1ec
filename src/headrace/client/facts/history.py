"""The steps that a transactional id has gone through, read from the log of its coordinator.

    id → partition of __transaction_state → its records of the last minutes → those of the id, in order

Every step of a transaction is a record there, so nothing is missed between two looks, however short a transaction is.
The log is compacted: of what is long past only the last step is left.
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
from headrace.wire.hashing import coordinator_partition
from headrace.wire.transaction_log import TransactionLogKey, TransactionLogValue

TOPIC = "__transaction_state"
SPAN_MS = 15 * 60 * 1000
RECORDS_MAX = 20_000
"""Of the log, for one look: what lies before them is left out."""
STEPS_MAX = 100
READ_SECONDS_MAX = 5.0
FETCH_BYTES_MAX = 4 * 1024 * 1024

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")
"""By their numbers in the log."""
FORGOTTEN = "Forgotten"

_version = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Step:
    """What the coordinator wrote down, and when."""

    at_ms: int
    state: str
    producer_id: int | None = None
    producer_epoch: int | None = None
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """The last steps of an id, the newest last."""

    steps: tuple[Step, ...]
    is_whole: bool
    """Whether all of the time was looked at; if not, there was too much in the log, or too little time."""


def history_of(admin: AdminClient, transactional_id: str, span_ms: int = SPAN_MS) -> History:
    """The steps of the last minutes."""
    found = admin.describe_topics([TOPIC], missing_ok=True)
    if TOPIC not in found:
        return History((), True)  # nobody has ever used a transaction
    place = TopicPartition(TOPIC, coordinator_partition(transactional_id, len(found[TOPIC].partitions)))
    ((start, end),) = bounds(admin, [place]).values()
    then_ms = int(time.time() * 1000) - span_ms
    first = admin.list_offsets({place: then_ms})[place].offset
    begin = max(start, end - RECORDS_MAX, first if first >= 0 else end)
    steps, position = _read(admin, place, begin, end, transactional_id)
    return History(tuple(steps[-STEPS_MAX:]), position >= end and begin >= first and len(steps) <= STEPS_MAX)


def _read(
    admin: AdminClient, place: TopicPartition, begin: int, end: int, transactional_id: str
) -> tuple[list[Step], int]:
    """The steps of an id between two offsets, and how far there was time to read."""
    steps: list[Step] = []
    fetcher = Fetcher(admin.client, isolation="read_uncommitted", partition_bytes_max=FETCH_BYTES_MAX)
    fetcher.assign({place: begin}, {place: end}, check=False)
    deadline = time.monotonic() + READ_SECONDS_MAX
    while fetcher.position(place) < end and (left := deadline - time.monotonic()) > 0:
        for record in fetcher.poll(left * 1000):
            if (step := _step(record, transactional_id)) is not None:
                steps.append(step)
    return steps, fetcher.position(place)


def _step(record: FetchedRecord, transactional_id: str) -> Step | None:
    """None for the records of other ids, and for kinds of records that are not known."""
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
