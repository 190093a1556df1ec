"""The driver's part of the commit protocol: who may be seen, and when.

    begin    fence older drivers → read the decisions → finish what is decided → abort what is left over
    commit   decided before? → done.  Else: check → DECIDE → end → mark as finished
    abort    only what no decision holds

What a crash leaves is mended by the next `begin`, whoever calls it: docs/exactly-once.md goes through the cases.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from headrace.client.clock import SYSTEM_CLOCK
from headrace.errors import HeadraceError
from headrace.spark.commit_log import CommitTimes, Stopwatch
from headrace.spark.decisions import Decision, TaskTransaction
from headrace.spark.failpoints import NO_FAILPOINTS, Failpoints
from headrace.spark.ledger import REDO_TRANSACTION_MS, TRANSACTION_MS, Rows
from headrace.spark.redo import Outcome
from headrace.spark.sink_errors import FencedError, InDoubtError, NotDecidedError, SinkError
from headrace.spark.sink_options import SEPARATOR
from headrace.spark.transactions import Ending, OpenState

log = logging.getLogger("headrace.spark")

SPARE_MS_MAX = 60_000
SPARE_SHARE = 4
"""A transaction has time to spare if a minute is left, or a quarter of its time-out where that is less."""


class LedgerPort(Protocol):
    def open(self, transaction_ms: int = TRANSACTION_MS) -> None: ...
    def read(self) -> dict[str, Decision]: ...
    def write(
        self,
        decision: Decision,
        rows: Rows = (),
        *,
        is_erased: bool = False,
        on_rows: Callable[[], None] = ...,
        on_written: Callable[[], None] = ...,
    ) -> None: ...
    def close(self) -> None: ...


class TransactionsPort(Protocol):
    def end(
        self, transactions: Sequence[TaskTransaction], *, committed: bool, between: Callable[[], None] = ...
    ) -> dict[str, Ending]: ...
    def describe(self, ids: Collection[str]) -> dict[str, OpenState] | None: ...
    def open_ids(self, prefix: str) -> list[str] | None: ...
    def open_longer_than(self, age_ms: int, transactions: Sequence[TaskTransaction]) -> list[str] | None: ...
    def fence(self, ids: Collection[str]) -> None: ...


class RedoPort(Protocol):
    def outcome(self, decision: Decision, transaction: TaskTransaction) -> Outcome: ...
    def rows(self, decision: Decision, transaction: TaskTransaction) -> Rows: ...


@dataclass(slots=True)
class Batch:
    """What the tasks of a batch have reported."""

    query: str
    number: int
    transactions: list[TaskTransaction] = field(default_factory=list)
    inline: list[tuple[str, pa.RecordBatch]] = field(default_factory=list)
    had_retries: bool = False
    is_forgotten: bool = False
    """Nobody will ever ask for it again: once it is finished, its decision is erased."""

    @property
    def inline_rows(self) -> int:
        return sum(columns.num_rows for _, columns in self.inline)

    @property
    def rows(self) -> int:
        return self.inline_rows + sum(one.record_count for one in self.transactions)


class Committer:
    """One driver's view of one sink. One thread."""

    def __init__(
        self,
        sink: str,
        run: str,
        ledger: LedgerPort,
        transactions: TransactionsPort,
        redo: RedoPort,
        failpoints: Failpoints = NO_FAILPOINTS,
        now_ms: Callable[[], int] = SYSTEM_CLOCK.time_ms,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._sink = sink
        self._run = run
        self._ledger = ledger
        self._transactions = transactions
        self._redo = redo
        self._reach = failpoints.reach
        self._now_ms = now_ms
        self._on_close = on_close
        self._decisions: dict[str, Decision] | None = None  # None: not begun

    # -- what Spark calls ------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """After this the batch is seen, whole and once; after an error that it raises, run the batch again."""
        try:
            self._commit(batch)
        except (FencedError, InDoubtError):
            self._forget()
            raise

    def abort(self, batch: Batch) -> None:
        """The batch failed. What was decided all the same is carried out; where nobody can tell, nothing is done."""
        self._reach("abort.begin")
        self._forget()
        try:
            # Tasks that were killed have reported nothing, and left open what they had.
            open_ids = self._transactions.open_ids(SEPARATOR.join((self._sink, self._run, ""))) or ()
            if not batch.transactions and not open_ids:
                return
            decision = self._ledger.read().get(batch.query)
            if decision is not None and not decision.is_finished:
                self._transactions.end(self._unended(decision), committed=True)
            self._abort_undecided(batch, decision)
            decided = {one.id for one in decision.transactions} if decision is not None else set()
            self._transactions.fence(set(open_ids) - decided - {one.id for one in batch.transactions})
        except HeadraceError as error:
            log.warning("sink %s: batch %d is left as it is, for the next start: %s", self._sink, batch.number, error)

    def close(self) -> None:
        self._forget()
        self._on_close()

    def _forget(self) -> None:
        """Whoever comes next begins anew, by reading."""
        self._decisions = None
        self._ledger.close()

    # -- begin -----------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> dict[str, Decision]:
        self._reach("begin.fence")
        self._ledger.open()
        self._reach("begin.read")
        self._decisions = self._ledger.read()
        for decision in list(self._decisions.values()):
            if not decision.is_finished:
                self._reach("begin.finish")
                self._carry_out(decision)
        self._abort_leftovers(batch)
        self._reach("begin.done")
        return self._decisions

    def _abort_leftovers(self, batch: Batch) -> None:
        """Open transactions of this sink that are in no decision, and never will be: their driver is shut out.

        Until they are aborted, readers of committed records wait for them. Should it fail, they expire.
        """
        try:
            found = self._transactions.open_ids(self._sink + SEPARATOR)
            left = set(found or ()) - {one.id for one in batch.transactions}
            if left:
                self._reach("begin.abort")
                self._transactions.fence(left)
                log.info("sink %s: aborted %d transactions that were left over", self._sink, len(left))
        except HeadraceError as error:
            log.warning("sink %s: leftover transactions will have to expire: %s", self._sink, error)

    # -- commit ----------------------------------------------------------------------------------

    def _commit(self, batch: Batch) -> None:
        is_first = self._decisions is None
        watch, times = Stopwatch(), CommitTimes(batch.number, batch.rows, len(batch.transactions), batch.had_retries)
        decisions = self._begin(batch) if self._decisions is None else self._decisions
        times.begin_ms = watch.lap_ms()
        last = decisions.get(batch.query)
        if last is not None and not last.is_finished:
            self._carry_out(last)
        if last is not None and batch.number <= last.batch:
            self._reach("replay.abort")
            self._abort_undecided(batch, last)
            return
        if not batch.transactions and not batch.inline_rows:
            return
        self._check(batch)
        times.check_ms = watch.lap_ms()
        decision = self._decide(batch)
        times.decide_ms = watch.lap_ms()
        self._carry_out(decision, is_erased=batch.is_forgotten)
        times.end_ms = watch.lap_ms()
        if not is_first and (batch.transactions or batch.had_retries):
            self._abort_leftovers(batch)
        times.clean_ms = watch.lap_ms()
        times.tell(self._sink)

    def _check(self, batch: Batch) -> None:
        """Decide on nothing that is lost already, or soon will be."""
        if not batch.transactions:
            return
        states = self._transactions.describe([one.id for one in batch.transactions])
        for one in batch.transactions if states is not None else ():
            state = states.get(one.id) if states is not None else None
            if state is None or not state.is_of(one):
                what = "unknown" if state is None else state.state
                raise NotDecidedError(
                    f"batch {batch.number}: the transaction of a task is not open any more ({one.id!r} is {what}). It "
                    "expired (kafka.transaction.timeout.ms), or another query uses this sink.id. Nothing of the batch "
                    "is seen; it can be run again"
                )
        if states is not None:
            self._check_age(batch, min(states[one.id].timeout_ms for one in batch.transactions))
        self._reach("check.done")

    def _check_age(self, batch: Batch, timeout_ms: int) -> None:
        """Brokers tell by their own clocks what is about to expire: this machine's may differ by any amount."""
        age_ms = timeout_ms - min(SPARE_MS_MAX, timeout_ms // SPARE_SHARE)
        old = self._transactions.open_longer_than(age_ms, batch.transactions)
        if old:
            raise NotDecidedError(
                f"batch {batch.number}: the transaction {old[0]!r} has been open for more than {age_ms / 1000:g} s and "
                f"expires after {timeout_ms / 1000:g} s (kafka.transaction.timeout.ms), too soon to decide on it. Make "
                "batches smaller, or raise the time-out, and transaction.max.timeout.ms of the brokers with it"
            )

    def _decide(self, batch: Batch) -> Decision:
        decision = Decision(
            self._sink,
            batch.query,
            self._run,
            batch.number,
            tuple(batch.transactions),
            batch.inline_rows,
            self._now_ms(),
            is_finished=not batch.transactions,
        )
        self._reach("decide.begin")
        try:
            self._ledger.write(
                decision,
                batch.inline,
                is_erased=batch.is_forgotten and decision.is_finished,
                on_rows=lambda: self._reach("decide.rows"),
                on_written=lambda: self._reach("decide.written"),
            )
        except FencedError:
            self._learn_after_fencing(batch)
            raise
        self._remember(decision)
        self._reach("decide.done")
        return decision

    def _learn_after_fencing(self, batch: Batch) -> None:
        """Another driver has taken over; whether ours was decided before that is in the log. It goes on from there."""
        try:
            decision = self._ledger.read().get(batch.query)
            if decision is not None and any(decision.holds(one) for one in batch.transactions):
                self._transactions.end(self._unended(decision), committed=True)
            else:
                self._abort_undecided(batch, decision)
        except HeadraceError as error:
            log.warning("sink %s: batch %d is left to the new driver: %s", self._sink, batch.number, error)

    def _abort_undecided(self, batch: Batch, decision: Decision | None) -> None:
        undecided = [one for one in batch.transactions if decision is None or not decision.holds(one)]
        if undecided:
            self._transactions.end(undecided, committed=False)

    # -- carrying out ----------------------------------------------------------------------------

    def _carry_out(self, decision: Decision, *, is_erased: bool = False) -> None:
        """To the end, from wherever it stopped. May be done any number of times, by anyone."""
        if decision.is_finished:
            return
        unended = self._unended(decision)
        try:
            endings = self._transactions.end(unended, committed=True, between=lambda: self._reach("end.between"))
        except HeadraceError as error:
            if isinstance(error, SinkError):
                raise
            raise InDoubtError(
                f"batch {decision.batch} is decided, but not all of its transactions could be committed: {error}. "
                "The next start of the query goes on with it"
            ) from error
        for one in unended:
            if endings[one.id] is Ending.REFUSED and self._redo.outcome(decision, one) is Outcome.ABORTED:
                decision = self._write_again(decision, one)
        self._reach("end.done")
        decision = decision.finished()
        self._ledger.write(decision, is_erased=is_erased)
        self._remember(decision)
        self._reach("finish.done")

    def _unended(self, decision: Decision) -> list[TaskTransaction]:
        return [one for one in decision.transactions if one.id not in decision.redone]

    def _write_again(self, decision: Decision, transaction: TaskTransaction) -> Decision:
        """In one transaction with the receipt for it: it happens once, however often it is begun."""
        self._reach("redo.begin")
        log.warning(
            "sink %s: %r of batch %d was decided and had expired: its %d records are written again",
            *(self._sink, transaction.id, decision.batch, transaction.record_count),
        )
        self._ledger.open(REDO_TRANSACTION_MS)
        found = self._ledger.read().get(decision.query)
        if found is None or found.batch != decision.batch or transaction.id in found.redone or found.is_finished:
            raise FencedError(
                f"another driver is at work with sink.id {self._sink!r}: it has finished batch {decision.batch}"
            )
        decision = found.with_redone(transaction)
        self._ledger.write(
            decision,
            self._redo.rows(decision, transaction),
            on_written=lambda: self._reach("redo.written"),
        )
        self._remember(decision)
        self._reach("redo.done")
        return decision

    def _remember(self, decision: Decision) -> None:
        if self._decisions is not None:
            self._decisions[decision.query] = decision
