"""What a commit works with: a batch as its tasks have reported it, and the committer's interfaces to the cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.spark.commit_times import TaskPhases
from headrace.spark.decisions import Decision, Fingerprint, TaskTransaction
from headrace.spark.holders import Holders
from headrace.spark.origins import OriginReport

if TYPE_CHECKING:
    from headrace.spark.ledger import Rows
    from headrace.spark.transactions import EndTxnResult, OpenState, Outcome

WRITE_PREFIX = "write:"
"""Prefix of the query name of a batch write."""


@dataclass(slots=True)
class Batch:
    """What the tasks of a batch have reported."""

    query: str
    number: int
    transactions: list[TaskTransaction] = field(default_factory=list)
    inline: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    had_retries: bool = False
    erase_decision: bool = False
    """Replace the decision by a tombstone when the batch is finished: a write without write.id is never replayed."""
    fingerprint: Fingerprint | None = None
    """Of all rows; None if unknown, then rows are only counted."""
    origin: OriginReport | None = None
    """The source offsets of the rows; None without the option source.offsets."""
    phases: TaskPhases = field(default_factory=TaskPhases)

    @property
    def inline_rows(self) -> int:
        return sum(columns.num_rows for _, columns in self.inline)

    @property
    def rows(self) -> int:
        return self.inline_rows + sum(transaction.record_count for transaction in self.transactions)

    @property
    def is_write(self) -> bool:
        """Whether this is a batch write and not a batch of a stream."""
        return self.query.startswith(WRITE_PREFIX)


class LedgerPort(Protocol):
    """`ledger.Ledger`, as the committer uses it."""

    def open(self, transaction_ms: int = ...) -> None: ...
    def read(self) -> dict[str, Decision]: ...
    @property
    def holders(self) -> Holders: ...
    def write_holders(self, holders: Holders) -> None: ...
    def write(
        self,
        decision: Decision,
        rows: Rows = (),
        *,
        as_tombstone: bool = False,
        on_rows: Callable[[], None] = ...,
        on_written: Callable[[], None] = ...,
    ) -> None: ...
    def close(self) -> None: ...


class TransactionsPort(Protocol):
    """`transactions.Transactions`, as the committer uses it."""

    def end(
        self, transactions: Sequence[TaskTransaction], *, committed: bool, between: Callable[[], None] = ...
    ) -> dict[str, EndTxnResult]: ...
    def describe(self, ids: Collection[str]) -> dict[str, OpenState] | None: ...
    def open_ids(self, prefix: str) -> list[str] | None: ...
    def open_longer_than(self, age_ms: int, transactions: Sequence[TaskTransaction]) -> list[str] | None: ...
    def fence(self, ids: Collection[str]) -> None: ...


class RedoPort(Protocol):
    """`transactions.Redo`, as the committer uses it."""

    def outcome(self, decision: Decision, transaction: TaskTransaction) -> Outcome: ...
    def rows(self, decision: Decision, transaction: TaskTransaction) -> Rows: ...
