"""A consumer as a finite Arrow stream: from its positions to the ends that the partitions have when it starts.

Partitions that have reached their end are paused, so that the others are read without newer records of these.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import IllegalStateError, TimedOutError
from headrace.types import TopicPartition

POLL_SECONDS = 0.5


class ArrowSource(Protocol):
    """The methods of a consumer that a stream uses."""

    def poll_arrow(self, timeout: float) -> pa.RecordBatch | None: ...
    def arrow_schema(self) -> pa.Schema: ...
    def assignment(self) -> set[TopicPartition]: ...
    def is_subscribed(self) -> bool: ...
    def position(self, partition: TopicPartition, timeout: float | None = None) -> int: ...
    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, int]: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...
    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...
    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...
    def paused(self) -> set[TopicPartition]: ...


def stream(consumer: ArrowSource, timeout: float) -> pa.RecordBatchReader:
    """Return a reader; it raises TimedOutError if nothing comes for `timeout` seconds."""
    first = _wait_for_assignment(consumer, timeout)
    return pa.RecordBatchReader.from_batches(consumer.arrow_schema(), _batches(consumer, timeout, first))


def _batches(consumer: ArrowSource, timeout: float, first: pa.RecordBatch | None) -> Iterator[pa.RecordBatch]:
    names = consumer.assignment() - consumer.paused()
    ends = consumer.end_offsets(names, timeout)
    paused: set[TopicPartition] = set()
    last_data = time.monotonic()
    try:
        batch = first
        while True:
            if batch is not None:
                last_data = time.monotonic()
                cut = _cut(consumer, batch, ends)
                if cut.num_rows:
                    yield cut
            finished = {
                name
                for name, end in ends.items()
                if name not in paused and name in consumer.assignment() and consumer.position(name, timeout) >= end
            }
            consumer.pause(finished)
            paused |= finished
            if not (ends.keys() & consumer.assignment()) - paused:
                return
            if time.monotonic() - last_data > timeout:
                raise TimedOutError(f"the stream got no records for {timeout:g} s, before the end of its partitions")
            batch = consumer.poll_arrow(POLL_SECONDS)
    finally:
        consumer.resume(paused & consumer.assignment())


def _wait_for_assignment(consumer: ArrowSource, timeout: float) -> pa.RecordBatch | None:
    """Poll until the group has assigned partitions; returns the first records, if they came already."""
    if consumer.assignment():
        return None
    if not consumer.is_subscribed():
        raise IllegalStateError("the consumer has no partitions: call assign() or subscribe() first")
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        batch = consumer.poll_arrow(POLL_SECONDS)
        if consumer.assignment():
            return batch
    raise TimedOutError(f"the group assigned no partitions to this consumer within {timeout:g} s")


def _cut(consumer: ArrowSource, batch: pa.RecordBatch, ends: Mapping[TopicPartition, int]) -> pa.RecordBatch:
    """Remove the rows after the ends, and move the positions back to the ends."""
    for name, end in ends.items():
        if name in consumer.assignment() and consumer.position(name) > end:
            is_later = pc.and_(
                pc.and_(pc.equal(batch["topic"], name.topic), pc.equal(batch["partition"], name.partition)),
                pc.greater_equal(batch["offset"], end),
            )
            if pc.any(is_later).as_py():
                batch = batch.filter(pc.invert(is_later))
                consumer.seek(name, end)
    return batch
