"""The driver's part of the commit protocol: who may be seen, and when.

    begin    take the lock → read the log → hold the sink → finish what is decided → abort what is left over
    commit   decided before? → the same rows: done; others: an error.  Else: check → DECIDE → end → mark as finished
    abort    only what no decision holds

Spark may serve each commit of a run in another process. The lock of the ledger goes to the process that opened it last;
only the run that the log names as the holder of the sink may decide (holders.py). A process that has lost the lock
takes it again, reads what is new, and goes on if its run still holds the sink.

The next `begin` of any run completes or aborts what a crash has left: docs/exactly-once.md goes through the cases.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import pyarrow as pa

from headrace.client.clock import SYSTEM_CLOCK
from headrace.errors import HeadraceError
from headrace.spark.commit_times import CommitTimes, Stopwatch
from headrace.spark.decisions import Decision, Fingerprint, TaskTransaction
from headrace.spark.errors import FencedError, InDoubtError, NotDecidedError, RepeatedBatchError, SinkError
from headrace.spark.failpoints import NO_FAILPOINTS, Failpoints
from headrace.spark.holders import DriverProcess, Holder, Holders, this_driver, utc_text
from headrace.spark.ledger import REDO_TRANSACTION_MS, TRANSACTION_MS, Rows
from headrace.spark.origins import ID_PREFIX, NOTHING, STATELESS, Coverage, OriginReport, base_for, covered_by
from headrace.spark.sink_options import CHECK_FINGERPRINT, CHECK_NONE, SEPARATOR
from headrace.spark.transactions import Ending, OpenState, Outcome

log = logging.getLogger("headrace.spark")

WRITE_PREFIX = "write:"
"""Of the name of a batch write among the queries of a sink."""
SPARE_MS_MAX = 60_000
SPARE_SHARE = 4
"""A transaction has time to spare if a minute is left, or a quarter of its time-out where that is less."""
REOPENS_MAX = 5
"""How often a commit takes the lock of the ledger again, when other processes have taken it meanwhile."""


class LedgerPort(Protocol):
    def open(self, transaction_ms: int = TRANSACTION_MS) -> None: ...
    def read(self) -> dict[str, Decision]: ...
    @property
    def holders(self) -> Holders: ...
    def hold(self, holders: Holders) -> None: ...
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
    fingerprint: Fingerprint | None = None
    """Of all its rows; None if it is not known, then rows are only counted."""
    origin: OriginReport | None = None
    """Where its rows come from; None without the option source.offsets."""

    @property
    def inline_rows(self) -> int:
        return sum(columns.num_rows for _, columns in self.inline)

    @property
    def rows(self) -> int:
        return self.inline_rows + sum(one.record_count for one in self.transactions)


class _SupersededError(Exception):
    """The ledger's producer is fenced: the lock is with another process, or the brokers have ended it."""


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
        *,
        replay_check: str = CHECK_FINGERPRINT,
        driver: DriverProcess | None = None,
        is_alone: bool = False,
    ) -> None:
        """`is_alone`: no other run knows the name of this sink, so that nobody can take it over."""
        self._sink = sink
        self._run = run
        self._ledger = ledger
        self._transactions = transactions
        self._redo = redo
        self._reach = failpoints.reach
        self._now_ms = now_ms
        self._on_close = on_close
        self._replay_check = replay_check
        self._driver = this_driver() if driver is None else driver
        self._is_alone = is_alone
        self._decisions: dict[str, Decision] | None = None  # None: not begun
        self._next_batch = -1  # the batch that comes next, unless other processes serve some of this run
        self._last_decided = -1
        self._has_told_skipped = False
        self._is_clean = False  # whether what was left open before this process began is aborted
        self._has_taken_over = False  # and not aborted yet what all other runs have left open
        self._may_have_twins = False  # whether tasks of the last batch may have a twin that is still writing
        self._is_open_for_redo = False  # with the long transaction time-out of a redo

    # -- what Spark calls ------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """After this the batch is seen, whole and once; the error that it raises says what to do otherwise."""
        try:
            self._commit(batch)
        except InDoubtError as error:
            self._forget()
            raise InDoubtError(f"{error}. {self._remedy_text(batch)}") from error
        except (FencedError, RepeatedBatchError):
            self._forget()
            raise

    def _remedy_text(self, batch: Batch) -> str:
        """What to do about a batch of which it is not known whether it is decided, or whether all of it is seen."""
        if not batch.query.startswith(WRITE_PREFIX):
            return "Start the query again: it reads first what was decided, and finishes it"
        if not batch.is_forgotten:
            return (
                "Run the write again with the same rows and write.id: it reads first what was decided, and finishes it"
            )
        finish = "" if self._is_alone else f"The next write to sink.id {self._sink!r} finishes what was decided. "
        return (
            f"{finish}Compare the topic with the rows before you run this write again: it has no write.id to be "
            "recognised by, so rows that were delivered would be delivered again. Set write.id to make a write "
            "repeatable"
        )

    def abort(self, batch: Batch) -> None:
        """End what the tasks of a failed batch have written: commit it if it was decided all the same, else abort it.

        If the log cannot be read, nothing is done.
        """
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
            decided = () if decision is None else decision.transactions
            self._transactions.fence(set(open_ids) - {task.id for task in (*decided, *batch.transactions)})
        except HeadraceError as error:
            log.warning("sink %s: batch %d is left as it is, for the next start: %s", self._sink, batch.number, error)

    def close(self) -> None:
        self._forget()
        self._on_close()

    def _forget(self) -> None:
        """Begin with reading the log at the next commit. Raises nothing: the error that led here is the one to show."""
        self._decisions = None
        self._is_clean = self._has_taken_over = False
        try:
            self._ledger.close()
        except Exception:
            log.warning("sink %s: closing its producer failed", self._sink, exc_info=True)

    # -- begin -----------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> None:
        """Take the lock, and read. A run that is new to the sink takes it over, unless its first batch is refused."""
        self._reach("begin.fence")
        with self._locked():
            self._ledger.open()
        self._is_open_for_redo = False
        self._reach("begin.read")
        self._decisions = self._ledger.read()
        self._check_holder(partial(self._leave_to_holder, batch))
        if not self._is_repeated(batch):
            self._hold()
        for decision in list(self._decisions.values()):  # whatever becomes of this batch: they are decided
            if not decision.is_finished:
                self._reach("begin.finish")
                self._carry_out(decision)
        self._check_base(batch)
        self._check_repeated(batch)
        if not self._is_clean:
            self._abort_leftovers(batch)
            self._is_clean = True
        self._reach("begin.done")

    def _check_holder(self, leave: Callable[[], str]) -> None:
        """Raise if another run has taken the sink over from this one. `leave` ends the batch, and says how."""
        holders = self._ledger.holders
        last = holders.last
        if last is None or not holders.is_fenced(self._run):
            return
        if last.process == self._driver:
            raise FencedError(
                f"sink.id {self._sink!r} is held by another query of this driver, or by a later start of this query: "
                f"{last}. {leave()} If two queries of the driver have this sink.id, give each a sink.id of its own"
            )
        raise FencedError(
            f"sink.id {self._sink!r} is held by another driver: {last}. {leave()} If that driver runs "
            "this query, restarted, let this one end; if both are meant to run, give each a sink.id of its own"
        )

    def _leave_to_holder(self, batch: Batch) -> str:
        """End what this run has written, as the log says, and return how: another run goes on with the sink."""
        decision = self._known(batch.query)
        is_ours = decision is not None and (decision.run, decision.batch) == (self._run, batch.number)
        try:
            if decision is not None and is_ours:
                self._transactions.end(self._unended(decision), committed=True)
            elif batch.number != self._last_decided:
                self._abort_undecided(batch, decision)
        except HeadraceError as error:
            log.warning("sink %s: batch %d is left to the new run: %s", self._sink, batch.number, error)
        if is_ours or batch.number == self._last_decided:
            return f"Batch {batch.number} was decided before that, and is delivered."
        if decision is not None and decision.batch > batch.number:
            return f"Batch {batch.number} was decided, by this run or that one, and is delivered."
        return f"What this run wrote for batch {batch.number} is not seen."

    def _hold(self) -> None:
        holders = self._ledger.holders
        if self._is_alone or holders.is_held_by(self._run):
            return
        before = holders.last
        with self._locked():
            self._ledger.hold(holders.followed_by(Holder(self._run, self._driver, self._now_ms())))
        self._has_taken_over = True
        log.info(
            "sink %s: run %s (%s) holds it now%s",
            *(self._sink, self._run, self._driver, "" if before is None else f"; before, {before} did"),
        )
        self._reach("begin.held")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Around what needs the lock: _SupersededError if another process has taken it meanwhile."""
        try:
            yield
        except FencedError as error:
            raise _SupersededError from error

    def _abort_leftovers(self, batch: Batch) -> None:
        """Abort open transactions of this sink that are in no decision, and never will be.

        These are transactions of this run, except those of the batch, and of runs that held the sink before it. A run
        that the holder record does not name has either died before its first commit or is about to take the sink over.
        Only a run that has just taken the sink over itself aborts those: later it may be the one that is fenced, and
        would abort transactions of its successor.

        Until they are aborted, readers of committed records wait for them. Should it fail, they expire.
        """
        prefix = self._sink + SEPARATOR
        ended_runs = {self._run, *self._ledger.holders.runs_before(self._run)}
        try:
            leftovers = {
                transactional_id
                for transactional_id in self._transactions.open_ids(prefix) or ()
                if self._has_taken_over or _run_of(transactional_id, prefix) in ended_runs
            } - {transaction.id for transaction in batch.transactions}
            if leftovers:
                self._reach("begin.abort")
                self._transactions.fence(leftovers)
                log.info("sink %s: aborted %d transactions that were left over", self._sink, len(leftovers))
            self._has_taken_over = False
        except HeadraceError as error:
            log.warning("sink %s: leftover transactions will have to expire: %s", self._sink, error)

    # -- commit ----------------------------------------------------------------------------------

    def _commit(self, batch: Batch) -> None:
        cause: BaseException | None = None
        for _ in range(1 + REOPENS_MAX):
            try:
                self._commit_once(batch)
            except _SupersededError as error:
                # By a process of this run or of one that never came to hold the sink, or by a time-out of the brokers:
                # the next round reads whether this run still holds the sink.
                self._next_batch, cause = -1, error.__cause__
            else:
                self._next_batch = batch.number + 1
                return
        raise FencedError(f"{self._gave_up_text(batch)}. The last refusal was: {cause}") from cause

    def _gave_up_text(self, batch: Batch) -> str:
        last = self._ledger.holders.last
        fact = f"sink.id {self._sink!r} was fenced {1 + REOPENS_MAX} times during the commit of batch {batch.number}"
        if last is not None and last.run != self._run:
            return f"{fact}; {last} holds it. Look for drivers that are started again and again with this sink.id"
        return (
            f"{fact}, although this run still holds it. Either processes that do not hold it open it again and again: "
            "look for drivers that are started and die with this sink.id. Or the brokers end its transactions early: "
            "look for their time-outs (transaction.timeout.ms, transactional.id.expiration.ms)"
        )

    def _commit_once(self, batch: Batch) -> None:
        is_first = self._decisions is None
        watch, times = Stopwatch(), CommitTimes(batch.number, batch.rows, len(batch.transactions), batch.had_retries)
        # Batches of a run are numbered without a gap: after one, another process of this run has the lock.
        # One that looks stale may have been planned with decisions that this process has not read yet.
        if is_first or batch.number != self._next_batch or self._is_open_for_redo or self._is_stale(batch):
            self._may_have_twins = True  # other processes of this run may have served the batches before
            self._begin(batch)
            if self._is_open_for_redo:  # in a decision, a driver that dies holds up all readers of the log
                self._begin(batch)
        else:  # `_begin` has checked it otherwise; that it is not stale is known from the condition
            self._check_repeated(batch)
        times.begin_ms = watch.lap_ms()
        last = self._known(batch.query)
        if last is None and batch.is_forgotten and batch.number == self._last_decided:
            return  # in an earlier round: it is finished and erased
        if last is not None and not last.is_finished:
            self._carry_out(last)
        if last is not None and batch.number <= last.batch:
            self._skip_replay(batch, last)
            if batch.is_forgotten:
                with self._locked():
                    self._ledger.write(last.finished(), is_erased=True)
            return
        self._check_order(batch, last)
        self._tell_skipped(batch)
        if not batch.transactions and not batch.inline_rows:
            return
        self._check(batch)
        times.check_ms = watch.lap_ms()
        decision = self._decide(batch)
        times.decide_ms = watch.lap_ms()
        self._carry_out(decision, is_erased=batch.is_forgotten)
        if batch.is_forgotten and decision.is_finished and not self._is_alone:
            with self._locked():
                self._ledger.write(decision, is_erased=True)
        times.end_ms = watch.lap_ms()
        # A twin that has lost may begin its transaction after this commit: the next one looks again, inline or not.
        may_have_twins = bool(batch.transactions) or batch.had_retries
        if not is_first and (may_have_twins or self._may_have_twins):
            self._abort_leftovers(batch)
        self._may_have_twins = may_have_twins
        times.clean_ms = watch.lap_ms()
        times.tell(self._sink)

    def _is_stale(self, batch: Batch) -> bool:
        """Whether it was planned before another query has decided: then it may repeat rows of that one."""
        if batch.origin is None:
            return False
        return base_for(self._decisions or {}, batch.query, batch.number).digest() != batch.origin.base_digest

    def _check_base(self, batch: Batch) -> None:
        if self._is_stale(batch):
            raise NotDecidedError(
                f"batch {batch.number}: another query of sink.id {self._sink!r} has delivered rows since the batch was "
                "planned, perhaps the same (source.offsets). Nothing of the batch is seen. Start this query again: the "
                "batch is then planned with what the other query has delivered. This run holds the sink now, so that "
                "the other query is fenced at its next commit"
            )

    def _check_order(self, batch: Batch, last: Decision | None) -> None:
        """Refuse rows from before what the query has covered.

        They are rows of a stateful query, of a topic that is read twice, or of a topic that was recreated, where topics
        go by name. In all three cases the offsets do not say which rows were delivered.
        """
        if batch.origin is None or last is None:
            return
        for source, ((first, _), *_) in batch.origin.covered.intervals.items():
            covered = last.offsets.intervals.get(source)
            if covered is not None and first <= covered[-1][1]:
                recreated = (
                    "The rows have no topic id, so the topic may have been deleted and created again: then set a new "
                    "sink.id. Otherwise, "
                )
                stateful = (
                    f"{STATELESS}, which read a topic once. Leave source.offsets out, and set a new sink.id. Nothing "
                    "of the batch is seen"
                )
                raise SinkError(
                    f"batch {batch.number} has a row from offset {first} of {source}, and earlier batches of query "
                    f"{batch.query} have rows up to {covered[-1][1]}. "
                    f"{'' if source.topic.startswith(ID_PREFIX) else recreated}{stateful}"
                )

    def _tell_skipped(self, batch: Batch) -> None:
        origin = batch.origin
        if origin is None or not origin.skipped:
            return
        known = self._decisions or {}
        others = sorted(name for name, one in known.items() if name != batch.query and one.offsets.intervals)
        log.log(
            logging.INFO if self._has_told_skipped and not origin.unproven else logging.WARNING,
            "sink %s: batch %d of query %s: skipped %d rows whose source offsets were delivered before by %s%s",
            *(self._sink, batch.number, batch.query, origin.skipped, ", ".join(others)),
            f"; {origin.unproven} of them have no topic id: if the topic was recreated, they are lost"
            if origin.unproven
            else "",
        )
        self._has_told_skipped = True

    def _is_repeated(self, batch: Batch) -> bool:
        """Whether its number was decided before, for other rows. A healthy query replays its last batch only, as is."""
        last = self._known(batch.query)
        if last is None or batch.number > last.batch:
            return False
        return batch.number < last.batch or not self._is_same(batch, last)

    def _check_repeated(self, batch: Batch) -> None:
        last = self._known(batch.query)
        if last is None or not self._is_repeated(batch):
            return
        try:
            self._abort_undecided(batch, last)
        except HeadraceError as error:
            log.warning("sink %s: transactions of batch %d will have to expire: %s", self._sink, batch.number, error)
        raise RepeatedBatchError(_repeated_text(self._sink, batch, last))

    def _is_same(self, batch: Batch, last: Decision) -> bool:
        """Whether what comes again under the number of the last decision may be skipped: its rows are delivered."""
        if self._replay_check == CHECK_NONE:
            return True
        is_from_decided = _is_from_decided_records(batch, last)
        if is_from_decided is False:
            return False  # equal rows from other offsets are other rows
        if is_from_decided and batch.rows <= last.rows:
            return True  # the same source records, or what is left of them
        if self._replay_check == CHECK_FINGERPRINT and batch.fingerprint is not None and last.fingerprint is not None:
            return batch.fingerprint == last.fingerprint
        return batch.rows == last.rows

    def _skip_replay(self, batch: Batch, last: Decision) -> None:
        self._reach("replay.abort")
        self._abort_undecided(batch, last)
        is_proven = None not in (batch.fingerprint, last.fingerprint) and batch.fingerprint == last.fingerprint
        reason = ""
        if not is_proven:
            reason = f" (replay.check={self._replay_check}: that they are the same rows is not known)"
            if _is_from_decided_records(batch, last):
                reason = (
                    f", because they come from source records of the {last.rows} rows that were decided. They are not "
                    "the same rows: source records are gone since then (failOnDataLoss=false, retention, compaction), "
                    "or the query computes other rows when a batch is run again, or was changed"
                )
        log.log(
            logging.INFO if is_proven else logging.WARNING,
            "sink %s: batch %d of query %s was decided before, by %s: its %d rows are not written again%s",
            *(self._sink, batch.number, batch.query, _decider(last), batch.rows, reason),
        )

    def _check(self, batch: Batch) -> None:
        """Decide on nothing that is lost already, or soon will be."""
        if not batch.transactions:
            return
        try:
            self._check_open(batch)
        except NotDecidedError:
            # A run that takes the sink over aborts what it finds open: then that is the reason to name.
            with contextlib.suppress(HeadraceError):
                self._decisions = self._ledger.read()
            self._check_holder(partial(self._leave_to_holder, batch))
            raise
        self._reach("check.done")

    def _check_open(self, batch: Batch) -> None:
        states = self._transactions.describe([task.id for task in batch.transactions])
        if states is None:
            return
        for task in batch.transactions:
            state = states.get(task.id)
            if state is None or not state.is_of(task):
                what = "unknown" if state is None else state.state
                raise NotDecidedError(
                    f"batch {batch.number}: the transaction of a task is not open any more ({task.id!r} is {what}). It "
                    "expired (kafka.transaction.timeout.ms), or another query uses this sink.id. Nothing of the batch "
                    "is seen; it can be run again"
                )
        self._check_age(batch, min(states[task.id].timeout_ms for task in batch.transactions))

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
        offsets, base = self._coverage(batch)
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
        self._reach("decide.begin")
        # Of a sink that others may open, the log has to tell what became of a write that is refused.
        is_erased = batch.is_forgotten and decision.is_finished and self._is_alone
        try:
            self._ledger.write(
                decision,
                batch.inline,
                is_erased=is_erased,
                on_rows=lambda: self._reach("decide.rows"),
                on_written=lambda: self._reach("decide.written"),
            )
        except FencedError as error:
            if is_erased:
                raise InDoubtError(
                    f"the rows were sent, and the log does not tell what became of them: {error}"
                ) from error
            raise _SupersededError from error
        self._last_decided = batch.number
        self._remember(decision)
        self._reach("decide.done")
        return decision

    def _coverage(self, batch: Batch) -> tuple[Coverage, Coverage]:
        """`offsets` and `base` of a decision on the batch: without source.offsets, those of the last decision."""
        last = self._known(batch.query)
        if batch.origin is None:
            return (NOTHING, NOTHING) if last is None else (last.offsets, last.base)
        if last is not None and not last.offsets.intervals:
            log.warning(
                "sink %s: batch %d of query %s is the first one decided with source.offsets. Rows of earlier batches "
                "are not known by their offsets: a new checkpoint that reads them again delivers them again",
                *(self._sink, batch.number, batch.query),
            )
        base = base_for(self._decisions or {}, batch.query, batch.number)
        return covered_by(last, batch.origin.covered), base

    def _abort_undecided(self, batch: Batch, decision: Decision | None) -> None:
        undecided = [task for task in batch.transactions if decision is None or not decision.holds(task)]
        if undecided:
            self._transactions.end(undecided, committed=False)

    # -- carrying out ----------------------------------------------------------------------------

    def _carry_out(self, decision: Decision, *, is_erased: bool = False) -> None:
        """Commit the transactions of a decision, and mark it as finished. It may be repeated, by any process."""
        if decision.is_finished:
            return
        unended = self._unended(decision)
        try:
            endings = self._transactions.end(unended, committed=True, between=lambda: self._reach("end.between"))
        except HeadraceError as error:
            if isinstance(error, SinkError):
                raise
            raise InDoubtError(
                f"batch {decision.batch} is decided, but not all of its transactions could be committed: {error}"
            ) from error
        for task in unended:
            if endings[task.id] is Ending.REFUSED and self._redo.outcome(decision, task) is Outcome.ABORTED:
                decision = self._write_again(decision, task)
                if decision.is_finished:
                    return
        self._reach("end.done")
        decision = decision.finished()
        with self._locked():
            self._ledger.write(decision, is_erased=is_erased)
        self._remember(decision)
        self._reach("finish.done")

    def _unended(self, decision: Decision) -> list[TaskTransaction]:
        return [task for task in decision.transactions if task.id not in decision.redone]

    def _write_again(self, decision: Decision, transaction: TaskTransaction) -> Decision:
        """Write the rows of an expired transaction again, in one transaction with the note of it in the decision.

        So they are written once, however often this is begun.
        """
        self._reach("redo.begin")
        log.warning(
            "sink %s: %r of batch %d was decided and had expired: its %d records are written again",
            *(self._sink, transaction.id, decision.batch, transaction.record_count),
        )
        with self._locked():
            self._ledger.open(REDO_TRANSACTION_MS)
        self._is_open_for_redo = True
        self._decisions = self._ledger.read()
        self._check_holder(lambda: f"Batch {decision.batch} is decided, and finished by that run.")
        known = self._known(decision.query)
        if known is None or known.batch < decision.batch:
            raise SinkError(
                f"the decision on batch {decision.batch} of query {decision.query!r} (sink.id {self._sink!r}) is gone "
                f"from the decision topic, which has {'nothing' if known is None else f'batch {known.batch}'} in its "
                "place. Was the topic deleted? Compare the rows of this batch with what is in their topics"
            )
        if known.is_finished or known.batch > decision.batch:  # by another process of this run: no other run could
            return decision.finished()
        if transaction.id in known.redone:
            return known
        decision = known.with_redone(transaction)
        with self._locked():
            self._ledger.write(
                decision,
                self._redo.rows(decision, transaction),
                on_written=lambda: self._reach("redo.written"),
            )
        self._remember(decision)
        self._reach("redo.done")
        return decision

    def _known(self, query: str) -> Decision | None:
        return None if self._decisions is None else self._decisions.get(query)

    def _remember(self, decision: Decision) -> None:
        if self._decisions is not None:
            self._decisions[decision.query] = decision


def _run_of(transactional_id: str, prefix: str) -> str:
    """The run whose task uses this id: `sink~run~worker~number`."""
    return transactional_id.removeprefix(prefix).partition(SEPARATOR)[0]


def _decider(decision: Decision) -> str:
    where = "" if decision.driver is None else f" ({decision.driver})"
    return f"run {decision.run}{where} at {utc_text(decision.at_ms)}"


def _is_from_decided_records(batch: Batch, last: Decision) -> bool | None:
    """Whether all rows come from source offsets of the batch that was decided; None if that is not known."""
    if batch.origin is None or not last.batch_offsets.intervals or last.batch_offsets.may_have(batch.origin.covered):
        return None
    return last.batch_offsets.has(batch.origin.covered)


def _repeated_text(sink: str, batch: Batch, last: Decision) -> str:
    now = f"{batch.rows} rows" if batch.fingerprint is None else str(batch.fingerprint)
    then = f"{last.rows} rows" if last.fingerprint is None else str(last.fingerprint)
    if batch.query.startswith(WRITE_PREFIX):
        return (
            f"write.id {batch.query.removeprefix(WRITE_PREFIX)!r} was used before for other rows: now {now}; then "
            f"{then}, decided by {_decider(last)}. Nothing of this write is seen. Use a new write.id for new rows; "
            "to repeat a write, give it the rows that it had. If it computes other rows each time (rand(), uuid()), "
            "set replay.check=rows or replay.check=none: then the rows of the first write stand"
        )
    is_last = batch.number == last.batch
    return (
        f"batch {batch.number} of query {batch.query} (sink.id {sink!r}) "
        f"{'comes again with other rows' if is_last else f'comes after batch {last.batch}'}: now {now}; batch "
        f"{last.batch} had {then}, decided by {_decider(last)}. Nothing of this batch is seen. Possible causes, the "
        f"most likely first: {_CAUSES_LAST_BATCH if is_last else _CAUSES_EARLIER_BATCH} go on with the checkpoint that "
        f"has batch {last.batch}, or set a new sink.id, which delivers the rows of this checkpoint, some of them once "
        "more"
    )


_CAUSES_LAST_BATCH = (
    "(1) the query computes other rows when a batch is run again (rand(), uuid(), a table that has changed), or was "
    "changed; (2) source records are gone since then (failOnDataLoss=false, retention, compaction); (3) the checkpoint "
    "was restored from a backup, or copied. For (1) and (2), start the query with replay.check=rows if the number of "
    "rows is the same, else with replay.check=none: the rows that were decided stand, those that come now are not "
    "delivered. For (3),"
)
_CAUSES_EARLIER_BATCH = (
    "(1) the checkpoint was restored from a backup; (2) it is a copy, and another query has gone on with the other "
    "copy; (3) its newest files are lost. For all of them,"
)
