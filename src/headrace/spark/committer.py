"""The driver's part of the commit protocol: who may be seen, and when.

    begin    take the lock → read the log → hold the sink → finish what is decided → abort what is left over
    commit   decided before? → the same rows: done; others: an error.  Else: check → DECIDE → end → mark as finished
    abort    only what no decision holds

Spark may serve each commit of a run in another process. The lock of the ledger goes to the process that opened it last;
the right to decide stays with the run that the log names as the holder of the sink (holders.py). A process that has
lost the lock takes it again, reads what is new, and goes on if its run still holds the sink.

What a crash leaves is mended by the next `begin`, whoever calls it: docs/exactly-once.md goes through the cases.
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
from headrace.spark.commit_log import CommitTimes, Stopwatch
from headrace.spark.decisions import Decision, Fingerprint, TaskTransaction
from headrace.spark.failpoints import NO_FAILPOINTS, Failpoints
from headrace.spark.holders import DriverProcess, Holder, Holders, this_driver, utc_text
from headrace.spark.ledger import REDO_TRANSACTION_MS, TRANSACTION_MS, Rows
from headrace.spark.origins import NOTHING, STATELESS, Coverage, OriginReport, base_for, covered_by
from headrace.spark.redo import Outcome
from headrace.spark.sink_errors import FencedError, InDoubtError, NotDecidedError, RepeatedBatchError, SinkError
from headrace.spark.sink_options import CHECK_FINGERPRINT, CHECK_NONE, SEPARATOR
from headrace.spark.transactions import Ending, OpenState
from headrace.telemetry.listeners import NULL_COMMIT_LISTENER, CommitListener, CommitPhase

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
    """Another process has opened the ledger since this one did."""


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
        self._listener: CommitListener = NULL_COMMIT_LISTENER  # of the commit or abort in progress
        self._now_ms = now_ms
        self._on_close = on_close
        self._replay_check = replay_check
        self._driver = this_driver() if driver is None else driver
        self._is_alone = is_alone
        self._decisions: dict[str, Decision] | None = None  # None: not begun
        self._next_batch = -1  # the batch that comes next, unless other processes serve some of this run
        self._last_decided = -1
        self._has_told_skipped = False
        self._is_clean = False  # whether what older runs left open is aborted
        self._is_open_for_redo = False  # with the long transaction time-out of a redo

    # -- what Spark calls ------------------------------------------------------------------------

    def commit(self, batch: Batch, listener: CommitListener = NULL_COMMIT_LISTENER) -> None:
        """After this the batch is seen, whole and once; after an error that it raises, run the batch again."""
        self._listener = listener
        try:
            self._commit(batch)
        except (FencedError, InDoubtError, RepeatedBatchError):
            self._forget()
            raise

    def abort(self, batch: Batch, listener: CommitListener = NULL_COMMIT_LISTENER) -> None:
        """The batch failed. What was decided all the same is carried out; where nobody can tell, nothing is done."""
        self._listener = listener
        self._listener.phase_started(CommitPhase.ABORT)
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
        self._is_clean = False
        self._ledger.close()

    # -- begin -----------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> None:
        """Take the lock, and read. A run that is new to the sink takes it over, unless its first batch is refused."""
        self._listener.phase_started(CommitPhase.BEGIN)
        self._reach("begin.fence")
        with self._locked():
            self._ledger.open()
        self._is_open_for_redo = False
        self._reach("begin.read")
        self._decisions = self._ledger.read()
        self._check_holder(partial(self._leave_to_holder, batch))
        if not self._is_stale(batch) and not self._is_repeated(batch):
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
        self._listener.phase_started(CommitPhase.CHECK)
        self._reach("begin.done")

    def _check_holder(self, leave: Callable[[], str]) -> None:
        """Stop here if another run has taken the sink over from this one. `leave` says what becomes of the batch."""
        holders = self._ledger.holders
        if holders.is_fenced(self._run):
            raise FencedError(
                f"sink.id {self._sink!r} is held by another driver: {holders.last}. {leave()} If that driver runs "
                "this query, restarted, let this one end; if both are meant to run, give each a sink.id of its own"
            )

    def _leave_to_holder(self, batch: Batch) -> str:
        """Another run goes on with the sink: end what this one has written as the log says, and tell how."""
        decision = self._known(batch.query)
        is_ours = decision is not None and (decision.run, decision.batch) == (self._run, batch.number)
        try:
            if decision is not None and is_ours:
                self._transactions.end(self._unended(decision), committed=True)
            elif batch.number != self._last_decided:
                self._abort_undecided(batch, decision)
        except HeadraceError as error:
            log.warning("sink %s: batch %d is left to the new driver: %s", self._sink, batch.number, error)
        if is_ours or batch.number == self._last_decided:
            return f"Batch {batch.number} was decided before that, and is delivered."
        if decision is not None and decision.batch > batch.number:
            return f"Batch {batch.number} was decided, by this driver or that one, and is delivered."
        return f"What this driver wrote for batch {batch.number} is not seen."

    def _hold(self) -> None:
        holders = self._ledger.holders
        if self._is_alone or holders.is_held_by(self._run):
            return
        before = holders.last
        with self._locked():
            self._ledger.hold(holders.followed_by(Holder(self._run, self._driver, self._now_ms())))
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
        """Open transactions of this sink that are in no decision, and never will be: their driver is fenced.

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
        for _ in range(1 + REOPENS_MAX):
            try:
                self._commit_once(batch)
            except _SupersededError as error:
                if self._is_alone:
                    raise FencedError(
                        f"sink {self._sink!r} is this write's own, and another process has opened it. This is a defect "
                        "of headrace: please report it"
                    ) from error
                # A process of this run, or of one that never came to hold the sink: the next round reads who.
                self._next_batch = -1
            else:
                self._next_batch = batch.number + 1
                return
        raise FencedError(
            f"sink.id {self._sink!r} was opened by other processes {REOPENS_MAX} times during the commit of batch "
            f"{batch.number}, while {self._ledger.holders.last} holds it. Look for drivers that are started again and "
            "again with this sink.id"
        )

    def _commit_once(self, batch: Batch) -> None:
        is_first = self._decisions is None
        watch, times = Stopwatch(), CommitTimes(batch.number, batch.rows, len(batch.transactions), batch.had_retries)
        # Batches of a run are numbered without a gap: after one, another process of this run has the lock.
        # One that looks stale may have been planned with decisions that this process has not read yet.
        if is_first or batch.number != self._next_batch or self._is_open_for_redo or self._is_stale(batch):
            self._begin(batch)
            if self._is_open_for_redo:  # in a decision, a driver that dies holds up all readers of the log
                self._begin(batch)
        times.begin_ms = watch.lap_ms()
        self._check_base(batch)
        self._check_repeated(batch)
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
        if not is_first and (batch.transactions or batch.had_retries):
            self._abort_leftovers(batch)
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
                "planned, perhaps the same (source.offsets). Nothing of the batch is seen; it can be run again, and is "
                "then planned anew. Stop the other query first"
            )

    def _check_order(self, batch: Batch, last: Decision | None) -> None:
        """Refuse rows from before what the query has covered: of a stateful query, or of a topic that is read twice.

        The offsets of such a query do not say which rows it has delivered.
        """
        if batch.origin is None or last is None:
            return
        for source, ((first, _), *_) in batch.origin.covered.intervals.items():
            passed = last.offsets.intervals.get(source)
            if passed is not None and first <= passed[-1][1]:
                raise SinkError(
                    f"batch {batch.number} has a row from offset {first} of {source}, and earlier batches of query "
                    f"{batch.query} have rows up to {passed[-1][1]}. {STATELESS}, which read a topic once. Leave "
                    "source.offsets out, and set a new sink.id. Nothing of the batch is seen"
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
        if self._replay_check == CHECK_NONE:
            return True
        if batch.origin is not None and last.offsets.intervals and not last.offsets.has(batch.origin.covered):
            return False  # equal rows from other offsets are other rows
        if self._replay_check == CHECK_FINGERPRINT and batch.fingerprint is not None and last.fingerprint is not None:
            return batch.fingerprint == last.fingerprint
        return batch.rows == last.rows

    def _skip_replay(self, batch: Batch, last: Decision) -> None:
        self._listener.phase_started(CommitPhase.REPLAY)
        self._reach("replay.abort")
        self._abort_undecided(batch, last)
        is_proven = None not in (batch.fingerprint, last.fingerprint) and batch.fingerprint == last.fingerprint
        log.log(
            logging.INFO if is_proven else logging.WARNING,
            "sink %s: batch %d of query %s was decided before, by %s: its %d rows are not written again%s",
            *(self._sink, batch.number, batch.query, _decider(last), batch.rows),
            "" if is_proven else f" (replay.check={self._replay_check}: that they are the same rows is not known)",
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
        )
        self._listener.phase_started(CommitPhase.DECIDE)
        self._reach("decide.begin")
        with self._locked():
            self._ledger.write(
                decision,
                batch.inline,
                # Of a sink that others may open, the log has to tell what became of a write that is refused.
                is_erased=batch.is_forgotten and decision.is_finished and self._is_alone,
                on_rows=lambda: self._reach("decide.rows"),
                on_written=lambda: self._reach("decide.written"),
            )
        self._last_decided = batch.number
        self._remember(decision)
        self._listener.phase_started(CommitPhase.END)
        self._reach("decide.done")
        return decision

    def _coverage(self, batch: Batch) -> tuple[Coverage, Coverage]:
        """`offsets` and `base` of a decision on the batch: without source.offsets, those of the last decision."""
        last = self._known(batch.query)
        if batch.origin is None:
            return (NOTHING, NOTHING) if last is None else (last.offsets, last.base)
        base = base_for(self._decisions or {}, batch.query, batch.number)
        return covered_by(last, batch.origin.covered), base

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
                if decision.is_finished:
                    return
        self._listener.phase_started(CommitPhase.FINISH)
        self._reach("end.done")
        decision = decision.finished()
        with self._locked():
            self._ledger.write(decision, is_erased=is_erased)
        self._remember(decision)
        self._reach("finish.done")

    def _unended(self, decision: Decision) -> list[TaskTransaction]:
        return [one for one in decision.transactions if one.id not in decision.redone]

    def _write_again(self, decision: Decision, transaction: TaskTransaction) -> Decision:
        """In one transaction with the receipt for it: it happens once, however often it is begun."""
        self._listener.phase_started(CommitPhase.REDO)
        self._reach("redo.begin")
        log.warning(
            "sink %s: %r of batch %d was decided and had expired: its %d records are written again",
            *(self._sink, transaction.id, decision.batch, transaction.record_count),
        )
        with self._locked():
            self._ledger.open(REDO_TRANSACTION_MS)
        self._is_open_for_redo = True
        self._decisions = self._ledger.read()
        self._check_holder(lambda: f"Batch {decision.batch} is decided, and finished by that driver.")
        found = self._known(decision.query)
        if found is None or found.batch < decision.batch:
            raise SinkError(
                f"the decision on batch {decision.batch} of query {decision.query!r} (sink.id {self._sink!r}) is gone "
                f"from the decision topic, which has {'nothing' if found is None else f'batch {found.batch}'} in its "
                "place. Was the topic deleted? Compare the rows of this batch with what is in their topics"
            )
        if found.is_finished or found.batch > decision.batch:  # by another process of this run: nobody else could
            return decision.finished()
        if transaction.id in found.redone:
            return found
        decision = found.with_redone(transaction)
        with self._locked():
            self._ledger.write(
                decision,
                self._redo.rows(decision, transaction),
                on_written=lambda: self._reach("redo.written"),
            )
        self._remember(decision)
        self._listener.transaction_redone()
        self._listener.phase_started(CommitPhase.END)
        self._reach("redo.done")
        return decision

    def _known(self, query: str) -> Decision | None:
        return None if self._decisions is None else self._decisions.get(query)

    def _remember(self, decision: Decision) -> None:
        if self._decisions is not None:
            self._decisions[decision.query] = decision


def _decider(decision: Decision) -> str:
    where = "" if decision.driver is None else f" ({decision.driver})"
    return f"run {decision.run}{where} at {utc_text(decision.at_ms)}"


def _repeated_text(sink: str, batch: Batch, last: Decision) -> str:
    now = f"{batch.rows} rows" if batch.fingerprint is None else str(batch.fingerprint)
    then = f"{last.rows} rows" if last.fingerprint is None else str(last.fingerprint)
    if batch.query.startswith(WRITE_PREFIX):
        return (
            f"write.id {batch.query.removeprefix(WRITE_PREFIX)!r} was used before for other rows: now {now}; then "
            f"{then}, decided by {_decider(last)}. Nothing of this write is seen. Use a new write.id for new rows; "
            "to repeat a write, give it the rows that it had"
        )
    what = "comes again with other rows" if batch.number == last.batch else f"comes after batch {last.batch}"
    return (
        f"batch {batch.number} of query {batch.query} (sink.id {sink!r}) {what}: now {now}; batch {last.batch} had "
        f"{then}, decided by {_decider(last)}. The checkpoint is older than what was delivered: it was restored from "
        "a backup, or is a copy of one that another query has gone on with. Nothing of this batch is seen. Go on "
        f"with the checkpoint that has batch {last.batch}; or set a new sink.id to deliver the rows of this "
        "checkpoint all the same, those of the batches since then once more"
        + (
            "; or, if the query computes other rows when a batch is run again, see the option replay.check"
            if batch.number == last.batch
            else ""
        )
    )
