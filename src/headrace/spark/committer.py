"""The commit protocol, on the driver (docs/exactly-once.md).

    begin    take the sink lock → read the decisions → take the sink over → finish decided batches → abort leftovers
    commit   decided before? → same rows: skip; other rows: error.  Else: check → DECIDE → end → finish
    abort    end the transactions of a failed batch: commit those of a decision, abort the others

Spark may run each commit of a run in another process. Opening the ledger takes the sink lock from the process that
opened it before. Which run may decide is in the holder record (holders.py): a process that has lost the lock takes it
again, reads the new decisions, and continues if its run still holds the sink.

The next `begin` of any run finishes or aborts what a crash has left.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from functools import partial

from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import HeadraceError
from headrace.spark.commit_times import CommitTimes, Stopwatch
from headrace.spark.commit_types import Batch, LedgerPort, RedoPort, TransactionsPort
from headrace.spark.decisions import Decision, TaskTransaction
from headrace.spark.errors import FencedError, InDoubtError, NotDecidedError, RepeatedBatchError, SinkError
from headrace.spark.failpoints import NO_FAILPOINTS, Failpoints
from headrace.spark.holders import DriverProcess, Holder, this_driver
from headrace.spark.ledger import REDO_TRANSACTION_MS
from headrace.spark.origins import NOTHING
from headrace.spark.replays import ReplayChecks
from headrace.spark.sink_options import CHECK_FINGERPRINT, SEPARATOR
from headrace.spark.transactions import EndTxnResult, Outcome, check_open
from headrace.telemetry.listeners import NULL_COMMIT_LISTENER, CommitListener, CommitPhase

log = logging.getLogger("headrace.spark")

REOPENS_MAX = 5
"""How often one commit takes the sink lock again after losing it to another process."""


class _LockLostError(Exception):
    """The ledger's producer is fenced: another process has the sink lock, or the brokers have ended its session."""


class Committer:
    """Commits the batches of one run of one sink. Not thread-safe."""

    def __init__(
        self,
        sink: str,
        run: str,
        ledger: LedgerPort,
        transactions: TransactionsPort,
        redo: RedoPort,
        *,
        failpoints: Failpoints = NO_FAILPOINTS,
        now_ms: Callable[[], int] = SYSTEM_CLOCK.time_ms,
        on_close: Callable[[], None] = lambda: None,
        replay_check: str = CHECK_FINGERPRINT,
        driver: DriverProcess | None = None,
        is_single_use: bool = False,
    ) -> None:
        """`is_single_use`: the sink id was generated for one write, so no other run can take the sink over."""
        self._sink, self._run = sink, run
        self._ledger = ledger
        self._transactions = transactions
        self._redo = redo
        self._reach = failpoints.reach
        self._listener: CommitListener = NULL_COMMIT_LISTENER  # of the commit or abort in progress
        self._now_ms = now_ms
        self._on_close = on_close
        self._replays = ReplayChecks(sink, replay_check)
        self._driver = this_driver() if driver is None else driver
        self._is_single_use = is_single_use
        self._decisions: dict[str, Decision] = {}  # of each query, as read by the last `_begin`
        self._has_begun = False
        self._next_batch = -1  # expected, unless other processes commit some batches of this run
        self._last_decided = -1
        self._is_clean = False  # whether leftovers from before this process began are aborted
        self._has_taken_over = False  # in this process, and leftovers of all other runs are not aborted yet
        self._may_have_duplicates = False  # whether a duplicate attempt of a task of the last batch may still write
        self._is_open_for_redo = False  # with the long transaction time-out of a redo

    # -- commit ----------------------------------------------------------------------------------

    def commit(self, batch: Batch, listener: CommitListener = NULL_COMMIT_LISTENER) -> None:
        """Make a batch visible, whole and once. The errors say whether it is, and what to do."""
        self._listener = listener
        try:
            self._commit(batch)
        except InDoubtError as error:
            self._reset()
            raise InDoubtError(
                f"{error}. {self._replays.in_doubt_remedy(batch, is_single_use=self._is_single_use)}"
            ) from error
        except (FencedError, RepeatedBatchError):
            self._reset()
            raise

    def _commit(self, batch: Batch) -> None:
        cause: BaseException | None = None
        for _ in range(1 + REOPENS_MAX):
            try:
                self._commit_once(batch)
            except _LockLostError as error:
                # To a process of this run, to a run that has not taken the sink over, or by a time-out of the brokers.
                # The next attempt reads whether this run still holds the sink.
                self._next_batch, cause = -1, error.__cause__
            else:
                self._next_batch = batch.number + 1
                return
        raise FencedError(f"{self._gave_up_text(batch)}. The last error was: {cause}") from cause

    def _commit_once(self, batch: Batch) -> None:
        is_first = not self._has_begun
        watch, times = Stopwatch(), CommitTimes(batch.number, batch.rows, len(batch.transactions), batch.had_retries)
        times.set_phases(batch.phases)
        # Batches of a run are numbered without a gap: after a gap, another process of this run has the lock.
        # A batch that looks stale may have been planned with decisions that this process has not read yet.
        is_stale = self._replays.is_stale(batch, self._decisions)
        if is_first or batch.number != self._next_batch or self._is_open_for_redo or is_stale:
            self._may_have_duplicates = True  # other processes of this run may have committed the batches before
            self._begin(batch)
            if self._is_open_for_redo:  # a driver that dies in a decision blocks readers for the transaction time-out
                self._begin(batch)
        else:
            self._check_conflict(batch)
        times.begin_ms = watch.lap_ms()
        last = self._decisions.get(batch.query)
        if last is None and batch.erase_decision and batch.number == self._last_decided:
            return  # finished and erased in an earlier attempt
        if last is not None and not last.is_finished:
            self._carry_out(last)
        if last is not None and batch.number <= last.batch:
            self._skip_replay(batch, last)
            return
        self._replays.check_order(batch, last)
        self._replays.log_skipped(batch, self._decisions)
        if not batch.transactions and not batch.inline_rows:
            return
        self._check(batch)
        times.check_ms = watch.lap_ms()
        decision = self._decide(batch)
        times.decide_ms = watch.lap_ms()
        self._carry_out(decision, as_tombstone=batch.erase_decision)
        if batch.erase_decision and decision.is_finished and not self._is_single_use:
            with self._locked():
                self._ledger.write(decision, as_tombstone=True)
        times.end_ms = watch.lap_ms()
        # A duplicate attempt may begin its transaction after this commit: the next commit looks again, inline or not.
        may_have_duplicates = bool(batch.transactions) or batch.had_retries
        if not is_first and (may_have_duplicates or self._may_have_duplicates):
            self._abort_leftovers(batch)
        self._may_have_duplicates = may_have_duplicates
        times.clean_ms = watch.lap_ms()
        times.log(self._sink)

    # -- begin -----------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> None:
        """Take the lock and read the decisions. A new run takes the sink over, unless its first batch is refused."""
        self._listener.phase_started(CommitPhase.BEGIN)
        self._reach("begin.fence")
        with self._locked():
            self._ledger.open()
        self._is_open_for_redo = False
        self._reach("begin.read")
        self._decisions = self._ledger.read()
        self._has_begun = True
        self._check_holder(partial(self._yield_to_holder, batch))
        if not self._replays.is_conflicting(batch, self._decisions.get(batch.query)):
            self._take_over()
        for decision in list(self._decisions.values()):  # they are decided, whatever becomes of this batch
            if not decision.is_finished:
                self._reach("begin.finish")
                self._carry_out(decision)
        self._replays.check_not_stale(batch, self._decisions)
        self._check_conflict(batch)
        if not self._is_clean:
            self._abort_leftovers(batch)
            self._is_clean = True
        self._listener.phase_started(CommitPhase.CHECK)
        self._reach("begin.done")

    def _check_holder(self, end_batch: Callable[[], str]) -> None:
        """Raise if another run has taken the sink over. `end_batch` ends the batch and returns its outcome in words."""
        holders = self._ledger.holders
        last = holders.last
        if last is None or not holders.is_fenced(self._run):
            return
        if last.process == self._driver:
            raise FencedError(
                f"sink.id {self._sink!r} is held by another query of this driver, or by a later start of this query: "
                f"{last}. {end_batch()} If two queries of the driver have this sink.id, give each its own sink.id"
            )
        raise FencedError(
            f"sink.id {self._sink!r} is held by another driver: {last}. {end_batch()} If that driver runs this query "
            "after a restart, stop this one; if both are meant to run, give each its own sink.id"
        )

    def _yield_to_holder(self, batch: Batch) -> str:
        """End the transactions of this run as the decisions say, and return the outcome in words."""
        decision = self._decisions.get(batch.query)
        is_ours = decision is not None and (decision.run, decision.batch) == (self._run, batch.number)
        try:
            if decision is not None and is_ours:
                self._transactions.end(decision.unended, committed=True)
            elif batch.number != self._last_decided:
                self._abort_undecided(batch, decision)
        except HeadraceError as error:
            log.warning("sink %s: batch %d is left to the new run: %s", self._sink, batch.number, error)
        if is_ours or batch.number == self._last_decided:
            return f"Batch {batch.number} was decided before that, and is delivered."
        if decision is not None and decision.batch > batch.number:
            return f"Batch {batch.number} was decided by one of the two runs, and is delivered."
        return f"The rows that this run wrote for batch {batch.number} are not visible."

    def _take_over(self) -> None:
        """Append this run to the holder record, unless it holds the sink already."""
        holders = self._ledger.holders
        if self._is_single_use or holders.is_held_by(self._run):
            return
        previous = holders.last
        with self._locked():
            self._ledger.write_holders(holders.followed_by(Holder(self._run, self._driver, self._now_ms())))
        self._has_taken_over = True
        log.info(
            "sink %s: run %s (%s) holds the sink now%s",
            *(self._sink, self._run, self._driver, "" if previous is None else f"; the previous holder was {previous}"),
        )
        self._reach("begin.held")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Raise _LockLostError if another process has taken the lock during the block."""
        try:
            yield
        except FencedError as error:
            raise _LockLostError from error

    def _abort_leftovers(self, batch: Batch) -> None:
        """Abort open transactions of this sink that are in no decision, and never will be.

        These are transactions of this run, except those of the batch, and of runs that held the sink before it. A run
        that the holder record does not name has either died before its first commit or is about to take the sink over.
        Only a run that has just taken the sink over itself aborts those: later it may be the one that is fenced, and
        would abort transactions of its successor.

        Until they are aborted, read_committed readers wait for them. If aborting fails, they expire.
        """
        prefix = self._sink + SEPARATOR  # of `sink~run~worker~number`
        ended_runs = {self._run, *self._ledger.holders.runs_before(self._run)}
        try:
            leftovers = {
                transactional_id
                for transactional_id in self._transactions.open_ids(prefix) or ()
                if self._has_taken_over or transactional_id.removeprefix(prefix).split(SEPARATOR)[0] in ended_runs
            } - {transaction.id for transaction in batch.transactions}
            if leftovers:
                self._reach("begin.abort")
                self._transactions.fence(leftovers)
                log.info("sink %s: aborted %d leftover transactions", self._sink, len(leftovers))
            self._has_taken_over = False
        except HeadraceError as error:
            log.warning("sink %s: leftover transactions are not aborted and will expire: %s", self._sink, error)

    # -- replays ---------------------------------------------------------------------------------

    def _check_conflict(self, batch: Batch) -> None:
        """Refuse a batch whose number was decided before for other rows, and abort its transactions."""
        last = self._decisions.get(batch.query)
        if last is None or not self._replays.is_conflicting(batch, last):
            return
        try:
            self._abort_undecided(batch, last)
        except HeadraceError as error:
            log.warning("sink %s: transactions of batch %d will expire: %s", self._sink, batch.number, error)
        raise self._replays.conflict(batch, last)

    def _skip_replay(self, batch: Batch, last: Decision) -> None:
        self._listener.phase_started(CommitPhase.REPLAY)
        self._reach("replay.abort")
        self._abort_undecided(batch, last)
        self._replays.log_replay(batch, last)
        if batch.erase_decision:
            with self._locked():
                self._ledger.write(last.finished(), as_tombstone=True)

    # -- check -----------------------------------------------------------------------------------

    def _check(self, batch: Batch) -> None:
        """Refuse to decide on transactions that are not open any more, or are about to expire."""
        if not batch.transactions:
            return
        try:
            check_open(self._transactions, batch)
        except NotDecidedError:
            # A run that takes the sink over aborts open transactions: then that is the cause to report.
            with contextlib.suppress(HeadraceError):
                self._decisions = self._ledger.read()
            self._check_holder(partial(self._yield_to_holder, batch))
            raise
        self._reach("check.done")

    # -- decide ----------------------------------------------------------------------------------

    def _decide(self, batch: Batch) -> Decision:
        """Write inline rows and decision in one transaction: when it is committed, the batch is decided."""
        offsets, base = self._replays.coverage(batch, self._decisions)
        decision = Decision(
            self._sink,
            batch.query,
            self._run,
            batch.number,
            tuple(batch.transactions),
            batch.inline_rows,
            self._now_ms(),
            is_finished=not batch.transactions,
            fingerprint=batch.fingerprint,
            driver=self._driver,
            offsets=offsets,
            base=base,
            batch_offsets=NOTHING if batch.origin is None else batch.origin.covered.hull(),
        )
        self._listener.phase_started(CommitPhase.DECIDE)
        self._reach("decide.begin")
        # If other runs may open the sink, the log has to show the outcome of a write that fails.
        as_tombstone = batch.erase_decision and decision.is_finished and self._is_single_use
        try:
            self._ledger.write(
                decision,
                batch.inline,
                as_tombstone=as_tombstone,
                on_rows=lambda: self._reach("decide.rows"),
                on_written=lambda: self._reach("decide.written"),
            )
        except FencedError as error:
            if as_tombstone:
                raise InDoubtError(f"the rows were sent; the log does not show their outcome: {error}") from error
            raise _LockLostError from error
        self._last_decided = batch.number
        self._decisions[decision.query] = decision
        self._listener.phase_started(CommitPhase.END)
        self._reach("decide.done")
        return decision

    # -- end and finish --------------------------------------------------------------------------

    def _carry_out(self, decision: Decision, *, as_tombstone: bool = False) -> None:
        """Commit the transactions of a decision, and mark it as finished. Any process may repeat this."""
        if decision.is_finished:
            return
        unended = decision.unended
        try:
            results = self._transactions.end(unended, committed=True, between=lambda: self._reach("end.between"))
        except SinkError:
            raise
        except HeadraceError as error:
            raise InDoubtError(
                f"batch {decision.batch} is decided, but not all of its transactions could be committed: {error}"
            ) from error
        for task in unended:
            if results[task.id] is EndTxnResult.REFUSED and self._redo.outcome(decision, task) is Outcome.ABORTED:
                decision = self._write_again(decision, task)
                if decision.is_finished:
                    return
        self._listener.phase_started(CommitPhase.FINISH)
        self._reach("end.done")
        decision = decision.finished()
        with self._locked():
            self._ledger.write(decision, as_tombstone=as_tombstone)
        self._decisions[decision.query] = decision
        self._reach("finish.done")

    def _write_again(self, decision: Decision, transaction: TaskTransaction) -> Decision:
        """Redo: write the rows of an expired transaction again, in one transaction with the record that they are.

        So they are written once, however often a redo is begun.
        """
        self._listener.phase_started(CommitPhase.REDO)
        self._reach("redo.begin")
        log.warning(
            "sink %s: transaction %r of batch %d was decided and has expired: writing its %d records again",
            *(self._sink, transaction.id, decision.batch, transaction.record_count),
        )
        with self._locked():
            self._ledger.open(REDO_TRANSACTION_MS)
        self._is_open_for_redo = True
        self._decisions = self._ledger.read()
        self._check_holder(lambda: f"Batch {decision.batch} is decided, and that run finishes it.")
        current = self._decisions.get(decision.query)
        if current is None or current.batch < decision.batch:
            raise SinkError(
                f"the decision on batch {decision.batch} of query {decision.query!r} (sink.id {self._sink!r}) is gone "
                f"from the decision topic, whose last one is {'none' if current is None else f'batch {current.batch}'}"
                ". Was the topic deleted? Compare the rows of this batch with what is in their topics"
            )
        if current.is_finished or current.batch > decision.batch:  # by another process of this run: no other run could
            return decision.finished()
        if transaction.id in current.redone:
            return current
        decision = current.with_redone(transaction)
        rows = self._redo.rows(decision, transaction)
        with self._locked():
            self._ledger.write(decision, rows, on_written=lambda: self._reach("redo.written"))
        self._decisions[decision.query] = decision
        self._listener.transaction_redone()
        self._listener.phase_started(CommitPhase.END)
        self._reach("redo.done")
        return decision

    # -- abort -----------------------------------------------------------------------------------

    def abort(self, batch: Batch, listener: CommitListener = NULL_COMMIT_LISTENER) -> None:
        """End the transactions of a failed batch: commit those of a decision, abort the others.

        If the decisions cannot be read, nothing is ended.
        """
        self._listener = listener
        self._listener.phase_started(CommitPhase.ABORT)
        self._reach("abort.begin")
        self._reset()
        try:
            # Tasks that were killed have not reported, and have left their transactions open.
            open_ids = self._transactions.open_ids(SEPARATOR.join((self._sink, self._run, ""))) or ()
            if not batch.transactions and not open_ids:
                return
            decision = self._ledger.read().get(batch.query)
            if decision is not None and not decision.is_finished:
                self._transactions.end(decision.unended, committed=True)
            self._abort_undecided(batch, decision)
            decided = () if decision is None else decision.transactions
            self._transactions.fence(set(open_ids) - {task.id for task in (*decided, *batch.transactions)})
        except HeadraceError as error:
            log.warning("sink %s: batch %d is not aborted; the next start does it: %s", self._sink, batch.number, error)

    def _abort_undecided(self, batch: Batch, decision: Decision | None) -> None:
        undecided = [task for task in batch.transactions if decision is None or not decision.holds(task)]
        if undecided:
            self._transactions.end(undecided, committed=False)

    def close(self) -> None:
        self._reset()
        self._on_close()

    def _reset(self) -> None:
        """Drop cached decisions; the next commit re-reads them. Raises nothing: the error that led here is reported."""
        self._decisions = {}
        self._has_begun = self._is_clean = self._has_taken_over = False
        try:
            self._ledger.close()
        except Exception:
            log.warning("sink %s: closing its producer failed", self._sink, exc_info=True)

    def _gave_up_text(self, batch: Batch) -> str:
        last = self._ledger.holders.last
        fact = f"sink.id {self._sink!r} was fenced {1 + REOPENS_MAX} times during the commit of batch {batch.number}"
        if last is not None and last.run != self._run:
            return f"{fact}; {last} holds it. Look for drivers that are started repeatedly with this sink.id"
        return (
            f"{fact}, although this run still holds it. Either processes that do not hold it open it repeatedly: look "
            "for drivers that are started and die with this sink.id. Or the brokers end its transactions early: look "
            "for their time-outs (transaction.timeout.ms, transactional.id.expiration.ms)"
        )
