"""What a check reports: the kinds of anomalies, and each anomaly with the operations that prove it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from headrace.types import TopicPartition
from headrace.verify.operations import (
    AcknowledgeOp,
    BatchOp,
    Operation,
    ReadOp,
    ReplicaOp,
    SeekOp,
    SendOp,
    StoredBatch,
    TransactionOp,
)


class AnomalyKind(StrEnum):
    """The kinds of anomalies."""

    LOST = "lost write"  # acknowledged or committed, but missing in the final read
    DUPLICATE = "duplicate"  # a value at two positions
    TORN = "torn transaction"  # only a part of a transaction or of a batch is visible
    ABORTED_READ = "aborted read"  # a read_committed reader got a record that was not committed
    DIRTY_READ = "dirty read"  # … got a record before its commit was requested
    ZOMBIE = "zombie commit"  # a producer committed after another one had initialised its transactional id
    REORDERED = "out of order"  # values of a process, or batches of a query, are not in the order of the sends
    PHANTOM = "phantom"  # a value that was never sent
    FAILED = "failed write"  # a value whose send, or whose batch, had failed
    MISPLACED = "misplaced write"  # a value in another partition than the one it was sent to
    CHANGED = "changed offset"  # the value of an offset has changed, or is gone
    SKIPPED = "skipped read"  # a reader passed a record without getting it
    WENT_BACK = "non-monotonic poll"  # a reader got an offset again
    TRUNCATED = "truncated log"  # a partition ends before a high watermark that a reader got
    DIVERGED = "diverged replicas"  # replicas have different batches
    CONFLICT = "conflicting batch"  # a batch was invoked again with other rows
    UNDELIVERED = "undelivered"  # no member of a share group got an acknowledged record
    ACCEPTED_TWICE = "accepted twice"  # a share group persisted the acceptance of a record twice
    INCOMPLETE = "incomplete history"  # a partition has no final read, so it cannot be checked


class Position(NamedTuple):
    """Partition and offset of a value."""

    partition: TopicPartition
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}@{self.offset}"


class Evidence(NamedTuple):
    """An operation that takes part in a proof. Reads are reduced to the records that matter."""

    line: int  # from 1
    operation: Operation
    records: int | None = None  # of the whole read

    def __str__(self) -> str:
        time_s = self.operation.time_s
        when = "" if time_s is None else f"{time_s:>10.3f} s  "
        return f"line {self.line:<8}{when}{describe(self.operation)}{self._reduced()}"

    def _reduced(self) -> str:
        operation = self.operation
        if not isinstance(operation, ReadOp) or self.records == len(operation.records):
            return ""
        return f" (of {self.records} records)"


class Anomaly(NamedTuple):
    """An anomaly, with the operations that prove it in the order in which they happened."""

    kind: AnomalyKind
    text: str
    evidence: tuple[Evidence, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.kind}: {self.text}", *(f"    {operation}" for operation in self.evidence)])


def describe(operation: Operation) -> str:
    """Return an operation as text of one line."""
    match operation:
        case SendOp():
            transaction = "" if operation.transaction is None else f" in transaction {operation.transaction}"
            return f"{operation.process}  send {operation.phase}  {operation.value!r} {_target(operation)}{transaction}"
        case TransactionOp():
            named = (operation.transaction, operation.transactional_id, operation.producer)
            texts = " ".join(str(name) for name in named if name is not None)
            return f"{operation.process}  {operation.action} {operation.phase}  {texts}"
        case ReadOp():
            kind = "final read" if operation.final else "poll"
            level = "committed" if operation.committed else "uncommitted"
            rows = ", ".join(f"{value!r}@{offset}" for offset, value in operation.records) or "nothing"
            end = "" if operation.high_watermark is None else f", end {operation.high_watermark}"
            return f"{operation.process}  {kind}  {operation.topic}-{operation.partition} {level}: {rows}{end}"
        case SeekOp():
            return f"{operation.process}  seek  {operation.topic}-{operation.partition} to {operation.offset}"
        case AcknowledgeOp():
            return f"{operation.process}  acknowledge {operation.phase}  {operation.group}: {_listed(operation.values)}"
        case BatchOp():
            rows = f": {_listed(operation.values)}" if operation.values else ""
            return f"{operation.process}  batch {operation.phase}  {operation.query} {operation.batch}{rows}"
        case ReplicaOp():
            batches = ", ".join(map(batch_text, operation.batches)) or "nothing"
            return f"broker {operation.broker}  replica  {operation.topic}-{operation.partition}: {batches}"


def batch_text(batch: StoredBatch) -> str:
    """Return a batch of a replica as text."""
    return f"{batch.base_offset}–{batch.last_offset} epoch {batch.leader_epoch} {batch.digest[:12]}"


def _target(operation: SendOp) -> str:
    partition = operation.topic if operation.partition is None else f"{operation.topic}-{operation.partition}"
    return partition if operation.offset is None else f"{partition}@{operation.offset}"


def _listed(values: tuple[str, ...]) -> str:
    return ", ".join(map(repr, values))
