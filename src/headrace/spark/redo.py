"""A decided transaction that its coordinator will not commit: what became of it, and its rows once more.

    refused → outcome: what does a reader of committed records see? → VISIBLE: it was committed before
                                                                    → ABORTED: it expired; rows() has them once more
                                                                    → neither: LostError

Aborted records stay in the log like any others: only readers of committed records pass them by. They are known by
producer id and epoch, which no other transaction has, and are numbered without a gap: sequence numbers from 0 to
count−1 prove that nothing is missing, checksums of the batches that nothing has changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import Enum, auto
from typing import Literal

import pyarrow as pa

from headrace.client.blocking import BlockingClient
from headrace.client.fetcher import Fetcher
from headrace.client.offsets import EARLIEST, LATEST, Isolation, list_offsets
from headrace.errors import BrokerError, Code
from headrace.spark.decisions import Decision, Span, TaskTransaction
from headrace.spark.sink_errors import LostError, SinkError
from headrace.wire.columns import ArrowDecoder
from headrace.wire.records import RecordBatch

SETTLE_SECONDS_MAX = 60.0
"""How long a transaction may take to be over that its coordinator calls ended."""
READ_SECONDS_MAX = 600.0
PAUSE_SECONDS = 0.05
POLL_MS = 500
Level = Literal["read_committed", "read_uncommitted"]


class Outcome(Enum):
    VISIBLE = auto()
    ABORTED = auto()


class Redo:
    """Reads the log."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def outcome(self, decision: Decision, transaction: TaskTransaction) -> Outcome:
        """What readers of committed records see of it. It is one transaction: any partition speaks for all."""
        lost: list[Span] = []
        for span in transaction.spans:
            if self._is_gone(span):
                lost.append(span)
                continue
            self._wait_until_settled(span)
            seen = sum(batch.header.record_count for batch in self._batches(transaction, span, "read_committed"))
            if seen:
                return Outcome.VISIBLE
            if sum(batch.header.record_count for batch in self._batches(transaction, span, "read_uncommitted")):
                return Outcome.ABORTED
            lost.append(span)  # cleaned away: committed or not, nobody can tell any more
        raise _lost(decision, transaction, lost)

    def rows(self, decision: Decision, transaction: TaskTransaction) -> Iterator[tuple[str, pa.RecordBatch]]:
        """All its rows, to the partitions where they were, in pieces of what a fetch brings."""
        for span in transaction.spans:
            if self._is_gone(span):
                raise _lost(decision, transaction, [span])
            expected = 0
            for batch in self._batches(transaction, span, "read_uncommitted"):
                header = batch.header
                if header.base_sequence != expected or header.record_count != header.last_offset_delta + 1:
                    raise _lost(decision, transaction, [span])
                expected += header.record_count
                yield span.topic, _columns(batch, span.partition)
            if expected != span.count:
                raise _lost(decision, transaction, [span])

    def _is_gone(self, span: Span) -> bool:
        """Whether records of the span were deleted, with their topic perhaps, which may have been created again."""
        try:
            start = list_offsets(self._client, {span.place: EARLIEST})[span.place].offset
            end = list_offsets(self._client, {span.place: LATEST})[span.place].offset
        except BrokerError as error:
            if error.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                return True
            raise
        return start > span.first or end <= span.last

    def _wait_until_settled(self, span: Span) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while (
            list_offsets(self._client, {span.place: LATEST}, Isolation.READ_COMMITTED)[span.place].offset <= span.last
        ):
            if time.monotonic() > deadline:
                raise SinkError(
                    f"{span.place} has had an open transaction before offset {span.last} for {SETTLE_SECONDS_MAX:g} s: "
                    "what readers will see there cannot be told yet. Start the query again later"
                )
            time.sleep(PAUSE_SECONDS)

    def _batches(self, transaction: TaskTransaction, span: Span, isolation: Level) -> Iterator[RecordBatch]:
        """The batches of the transaction in one partition that such a reader is given."""
        deadline = time.monotonic() + READ_SECONDS_MAX
        with Fetcher(self._client, isolation=isolation, max_wait_ms=POLL_MS) as fetcher:
            fetcher.assign({span.place: span.first}, until={span.place: span.last + 1})
            while not fetcher.is_finished():
                if time.monotonic() > deadline:
                    raise SinkError(f"{span.place} could not be read up to {span.last} in {READ_SECONDS_MAX:g} s")
                for batches in fetcher.poll_batches(POLL_MS).values():
                    for batch in batches:
                        header = batch.header
                        if (header.producer_id, header.producer_epoch) == (transaction.producer_id, transaction.epoch):
                            yield batch


def _columns(batch: RecordBatch, partition: int) -> pa.RecordBatch:
    decoder = ArrowDecoder(with_headers=True, bytes_hint=batch.header.size)
    decoder.add(batch)
    found = decoder.finish()
    places = pa.repeat(pa.scalar(partition, pa.int32()), found.num_rows)
    return found.drop_columns(["offset"]).append_column("partition", places)


def _lost(decision: Decision, transaction: TaskTransaction, spans: list[Span]) -> LostError:
    where = ", ".join(f"{span.place} offsets {span.first} to {span.last} ({span.count} records)" for span in spans)
    return LostError(
        f"batch {decision.batch} of query {decision.query!r} (sink.id {decision.sink!r}) was decided, but a part of it "
        f"was not committed in time and is gone from the log: {where}. It was deleted by retention, by compaction or "
        f"with its topic, after its transaction {transaction.id!r} had expired. To go on, write these rows again from "
        "their source, then use a new sink.id and checkpoint; nothing else was lost"
    )
