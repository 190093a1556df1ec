"""The operations of a history: what clients, drivers and brokers did, in the order in which it happened.

    producers   SendOp            a value, which is unique in the history
                TransactionOp     init, commit or abort
    consumers   ReadOp            records of a partition in the order read; the last read of all is `final`
                SeekOp            the next read of a partition starts elsewhere
                AcknowledgeOp     records that a member of a share group accepted
    Spark       BatchOp           the rows of a micro-batch
    brokers     ReplicaOp         the log of a replica at the end, batch by batch

An operation with phases begins with INVOKE and ends with one of the other three. After INFO, or without an end, its
outcome is unknown: it may have happened, or may happen later.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from headrace.errors import HeadraceError


class InvalidHistoryError(HeadraceError, ValueError):
    """A history that cannot be checked: a line that is not an operation, or a value that is not unique."""


class Phase(StrEnum):
    """The begin of an operation, or its outcome as the client knows it."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"  # it did not happen, and never will
    INFO = "info"  # unknown: a time-out, a lost connection


class Action(StrEnum):
    """What a transactional producer does."""

    INIT = "init"
    COMMIT = "commit"
    ABORT = "abort"


class SendOp(NamedTuple):
    """A process sends a value. The operations of a process are in the order of its sends."""

    phase: Phase
    process: str
    value: str
    topic: str
    partition: int | None = None  # None: the client chooses one, or it is unknown
    offset: int | None = None  # of OK; None: unknown, as for a duplicate batch
    transaction: str | None = None  # of INVOKE
    time_s: float | None = None


class TransactionOp(NamedTuple):
    """A producer initialises its transactional id, or ends a transaction.

    A transaction whose commit was never invoked must not become visible. FAIL of a commit means that the transaction is
    not committed.
    """

    action: Action
    phase: Phase
    process: str
    transaction: str | None = None  # None: INIT
    transactional_id: str | None = None
    producer: str | None = None  # the instance of the client, if the process uses several
    time_s: float | None = None


class ReadOp(NamedTuple):
    """Records that a reader got from a partition, in this order.

    A `final` read has all records from the first offset to the end. It is done when all faults are healed and no
    transaction is open. A partition has one for each isolation level.
    """

    process: str
    topic: str
    partition: int
    committed: bool  # isolation.level=read_committed
    records: tuple[tuple[int, str], ...]  # offset, value
    high_watermark: int | None = None  # in the same response
    final: bool = False
    time_s: float | None = None


class SeekOp(NamedTuple):
    """A reader continues elsewhere: after a seek, or because a group assigned the partition to it."""

    process: str
    topic: str
    partition: int
    offset: int | None = None  # None: unknown
    time_s: float | None = None


class AcknowledgeOp(NamedTuple):
    """A member of a share group accepts records: INVOKE before the request, OK when the broker has persisted it."""

    phase: Phase
    process: str
    group: str
    values: tuple[str, ...]
    time_s: float | None = None


class BatchOp(NamedTuple):
    """A driver delivers a micro-batch of a query. A batch can be invoked again, with the same rows."""

    phase: Phase
    process: str
    query: str
    batch: int
    values: tuple[str, ...] = ()  # of INVOKE
    time_s: float | None = None


class StoredBatch(NamedTuple):
    """A record batch of a replica."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    digest: str  # of all its bytes


class ReplicaOp(NamedTuple):
    """The log of a partition on one broker, after the run."""

    broker: int
    topic: str
    partition: int
    batches: tuple[StoredBatch, ...]
    time_s: float | None = None


Operation: TypeAlias = SendOp | TransactionOp | ReadOp | SeekOp | AcknowledgeOp | BatchOp | ReplicaOp
