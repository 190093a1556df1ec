"""Which batches belong to aborted transactions, and which markers nobody needs any more, as a log is read in order."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.log.replaying import marker_of
from headrace.wire.layout import CONTROL, TRANSACTIONAL
from headrace.wire.records import RecordBatch

AbortedRow = tuple[int, int, int, int]
"""Producer, first offset, offset of the marker, last stable offset after it."""


class TransactionsSeen:
    """Follows the transactions through the batches of a log."""

    def __init__(self, aborted: Iterable[AbortedRow]) -> None:
        self.kept_aborted: list[AbortedRow] = []  # of markers that were met and have to stay
        self._waiting = sorted(aborted, key=lambda row: row[1], reverse=True)  # the next one to begin is last
        self._aborted: dict[int, AbortedRow] = {}  # begun, marker not yet met
        self._with_records: set[int] = set()  # producers of those that had a batch
        self._committed: set[int] = set()  # producers whose transaction, not aborted, had a batch

    def is_discarded(self, batch: RecordBatch) -> bool:
        """Whether the records of a batch are of no use: aborted, or the marker of a transaction without records."""
        header = batch.header
        while self._waiting and self._waiting[-1][1] <= header.last_offset:
            row = self._waiting.pop()
            self._aborted.setdefault(row[0], row)
        if header.attributes & CONTROL:
            return self._is_idle_marker(batch)
        if not header.attributes & TRANSACTIONAL:
            return False
        if header.producer_id in self._aborted:
            self._with_records.add(header.producer_id)
            return True
        self._committed.add(header.producer_id)
        return False

    def _is_idle_marker(self, batch: RecordBatch) -> bool:
        producer_id = batch.header.producer_id
        marker = marker_of(batch)
        if marker is None:
            return not batch.header.record_count  # emptied before; other control records stay
        if marker.committed:
            had_records = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_records
        row = self._aborted.pop(producer_id, None)
        if row is None or producer_id not in self._with_records:
            return True
        self._with_records.discard(producer_id)
        self.kept_aborted.append(row)
        return False
