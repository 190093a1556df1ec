"""The commit protocol on a model of Kafka: a driver is killed at every failpoint, and another one takes over."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from headrace.errors import TimedOutError
from headrace.spark.commit_types import Batch
from headrace.spark.committer import Committer
from headrace.spark.decisions import Decision, Fingerprint, Span, TaskTransaction
from headrace.spark.errors import (
    FencedError,
    InDoubtError,
    LostError,
    NotDecidedError,
    RepeatedBatchError,
    SinkError,
)
from headrace.spark.failpoints import FAILPOINTS
from headrace.spark.holders import DriverProcess, Holders
from headrace.spark.ledger import TRANSACTION_MS
from headrace.spark.origins import OriginColumns, OriginFilter, base_for, known_origins
from headrace.spark.transactions import EndTxnResult, OpenState, Outcome
from headrace.telemetry.listeners import CommitPhase

SINK, QUERY = "sink", "query"
DRIVER_FAILPOINTS = [name for name in FAILPOINTS if not name.startswith("task.")]
NOW = 1_000_000
TIMEOUT_MS = 100_000


class Crash(BaseException):
    """The process is killed: the code under test must not catch this."""


class DyingAt:
    """Failpoints that kill the process at one of them, once, or call `instead`."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name
        self.reached: list[str] = []
        self.instead: Callable[[], object] | None = None

    def reach(self, name: str) -> None:
        assert name in FAILPOINTS
        self.reached.append(name)
        if name == self._name:
            self._name = None
            if self.instead is None:
                raise Crash(name)
            self.instead()


@dataclass
class World:
    """What survives a driver: the log, the coordinators, and what readers see."""

    visible: list[str] = field(default_factory=list)
    decisions: dict[str, Decision] = field(default_factory=dict)
    states: dict[tuple[str, int, int], str] = field(default_factory=dict)
    rows: dict[tuple[str, int, int], list[str]] = field(default_factory=dict)
    holders: Holders = field(default_factory=Holders)
    owner: object = None
    opens: int = 0
    decided_within_ms: list[int] = field(default_factory=list)
    """The transaction time-out of each decision, in order."""
    refusals: int = 0
    epochs: Counter[str] = field(default_factory=Counter)
    age_ms: int = 0
    is_old_broker: bool = False
    are_gone: bool = False
    lose_response: bool = False
    unreachable: bool = False

    def write_in_transaction(self, run: str, number: int, rows: list[str]) -> TaskTransaction:
        """A task has written rows and left its transaction open."""
        identifier = f"{SINK}~{run}~worker~{number}"
        self.epochs[identifier] += 1
        span = Span("topic", 0, 0, len(rows) - 1, len(rows))
        made = TaskTransaction(identifier, number, self.epochs[identifier], True, (span,))
        self.states[made.identity] = "open"
        self.rows[made.identity] = rows
        return made

    def expire(self) -> None:
        self.states = {key: "aborted" if state == "open" else state for key, state in self.states.items()}

    def end(self, identity: tuple[str, int, int], committed: bool) -> EndTxnResult:
        target, state = "committed" if committed else "aborted", self.states[identity]
        if state == target:
            return EndTxnResult.DONE
        if state != "open":
            return EndTxnResult.REFUSED
        self.states[identity] = target
        if committed:
            self.visible += self.rows[identity]
        return EndTxnResult.DONE

    @property
    def open(self) -> list[tuple[str, int, int]]:
        return [key for key, state in self.states.items() if state == "open"]


class FakeLedger:
    def __init__(self, world: World) -> None:
        self.world = world
        self.token: object = None
        self.holders = Holders()
        self.transaction_ms = 0

    def open(self, transaction_ms: int = TRANSACTION_MS) -> None:
        self.token = self.world.owner = object()
        self.world.opens += 1
        self.transaction_ms = transaction_ms

    def read(self) -> dict[str, Decision]:
        if self.world.unreachable:
            raise TimedOutError("no broker")
        self.holders = self.world.holders
        return dict(self.world.decisions)

    def write_holders(self, holders: Holders) -> None:
        if self.token is not self.world.owner:
            raise FencedError("fenced")
        self.holders = self.world.holders = holders

    def write(
        self,
        decision: Decision,
        rows: Any = (),
        *,
        as_tombstone: bool = False,
        on_rows: Any = lambda: None,
        on_written: Any = lambda: None,
    ) -> None:
        texts = [text for _, columns in rows for text in columns["value"].to_pylist()]
        on_rows()
        on_written()
        if self.token is not self.world.owner:
            self.world.refusals += 1
            raise FencedError("fenced")
        self.world.visible += texts
        if decision.query not in self.world.decisions or decision.batch > self.world.decisions[decision.query].batch:
            self.world.decided_within_ms.append(self.transaction_ms)
        self.world.decisions[decision.query] = decision
        if as_tombstone:
            del self.world.decisions[decision.query]
        if self.world.lose_response:
            self.world.lose_response = False
            raise InDoubtError("no response")

    def close(self) -> None:
        self.token = None


class FakeTransactions:
    def __init__(self, world: World) -> None:
        self.world = world

    def end(self, transactions: Any, *, committed: bool, between: Any = lambda: None) -> dict[str, EndTxnResult]:
        results = {}
        for number, task in enumerate(transactions):
            results[task.id] = self.world.end(task.identity, committed)
            if number == 0 and len(transactions) > 1:
                between()
        return results

    def describe(self, ids: Any) -> dict[str, OpenState]:
        return {id_: OpenState("Ongoing", pid, epoch, TIMEOUT_MS) for id_, pid, epoch in self.world.open if id_ in ids}

    def open_ids(self, prefix: str) -> list[str]:
        return [id_ for id_, _, _ in self.world.open if id_.startswith(prefix)]

    def open_longer_than(self, age_ms: int, transactions: Any) -> list[str] | None:
        if self.world.is_old_broker:
            return None
        return [task.id for task in transactions if task.identity in self.world.open and self.world.age_ms > age_ms]

    def fence(self, ids: Any) -> None:
        for identity in self.world.open:
            if identity[0] in ids:
                self.world.end(identity, committed=False)


class FakeRedo:
    def __init__(self, world: World) -> None:
        self.world = world

    def outcome(self, decision: Decision, transaction: TaskTransaction) -> Outcome:
        if self.world.are_gone:
            raise LostError("gone")
        is_seen = self.world.states[transaction.identity] == "committed"
        return Outcome.VISIBLE if is_seen else Outcome.ABORTED

    def rows(self, decision: Decision, transaction: TaskTransaction) -> Any:
        yield "topic", columns(self.world.rows[transaction.identity])


def columns(rows: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": rows})


class Driver:
    """A process that commits for a run of the query; there may be several of them for one run."""

    def __init__(self, world: World, run: str, dies_at: str | None = None, **options: Any) -> None:
        self.world = world
        self.run = run
        self.failpoints = DyingAt(dies_at)
        self.committer = Committer(
            SINK,
            run,
            FakeLedger(world),
            FakeTransactions(world),
            FakeRedo(world),
            failpoints=self.failpoints,  # type: ignore[arg-type]
            now_ms=lambda: NOW,
            **{"driver": DriverProcess("host-of-" + run, 4711, 1_700_000_000_000), **options},
        )

    def tasks(self, number: int, mode: str) -> Batch:
        """Run the two tasks of a batch; each has the same rows on every replay."""
        parts = [[f"{number}-{task}-{row}" for row in range(2)] for task in range(2)]
        batch = Batch(QUERY, number, fingerprint=Fingerprint(4, 1000 + number))
        for task, rows in enumerate(parts):
            if mode == "parallel" or (mode == "mixed" and task == 0):
                batch.transactions.append(self.world.write_in_transaction(self.run, task, rows))
            else:
                batch.inline.append(("topic", columns(rows)))
        return batch

    def process(self, number: int, mode: str) -> Batch:
        batch = self.tasks(number, mode)
        self.committer.commit(batch)
        return batch


def expected(batches: int) -> list[str]:
    return [f"{number}-{task}-{row}" for number in range(batches) for task in range(2) for row in range(2)]


MODES = ["inline", "parallel", "mixed"]


@pytest.mark.parametrize("mode", MODES)
def test_every_batch_is_visible_once_and_nothing_is_left_open(mode):
    world = World()
    driver = Driver(world, "run")
    for number in range(3):
        driver.process(number, mode)
    assert sorted(world.visible) == expected(3)
    assert not world.open
    assert world.decisions[QUERY].is_finished
    assert world.decisions[QUERY].batch == 2


# The failpoints of a driver without leftovers, and the one of a driver whose batch is decided.
COMMON_FAILPOINTS = [
    "begin.fence",
    "begin.read",
    "begin.held",
    "begin.done",
    "decide.begin",
    "decide.rows",
    "decide.written",
    "decide.done",
]
TRANSACTION_FAILPOINTS = ["check.done", "end.done", "finish.done"]
CELLS = [(failpoint, mode) for failpoint in COMMON_FAILPOINTS for mode in MODES]
CELLS += [(failpoint, mode) for failpoint in TRANSACTION_FAILPOINTS for mode in ("parallel", "mixed")]
CELLS += [("end.between", "parallel")]
RECOVERY_FAILPOINTS = {
    "begin.finish",
    "begin.abort",
    "redo.begin",
    "redo.written",
    "redo.done",
    "replay.abort",
    "abort.begin",
}


def test_every_failpoint_of_the_driver_is_tested():
    assert {failpoint for failpoint, _ in CELLS} | RECOVERY_FAILPOINTS == set(DRIVER_FAILPOINTS)


def assert_all_seen_once(world: World, batches: int) -> None:
    assert sorted(world.visible) == expected(batches)
    assert not world.open


@pytest.mark.behaviour("S06")
@pytest.mark.parametrize("expires", [False, True], ids=["in time", "expired"])
@pytest.mark.parametrize(("failpoint", "mode"), CELLS)
def test_a_driver_may_be_killed_at_any_failpoint(failpoint, mode, expires):
    """It is killed in batch 1; the next driver must finish or abort that, even if transactions have expired."""
    world = World()
    Driver(world, "run-1").process(0, mode)
    with pytest.raises(Crash):
        Driver(world, "run-2", failpoint).process(1, mode)
    if expires:
        world.expire()
    successor = Driver(world, "run-3")
    for number in (1, 2):
        successor.process(number, mode)
    assert_all_seen_once(world, 3)


@pytest.mark.parametrize("expires", [False, True], ids=["in time", "expired"])
@pytest.mark.parametrize("first", ["decide.begin", "decide.done", "end.between"])
@pytest.mark.parametrize(
    "second", ["begin.fence", "begin.read", "begin.finish", "begin.abort", "begin.done", "replay.abort"]
)
def test_a_driver_may_die_while_it_mends_what_another_left(first, second, expires):
    world = World()
    with pytest.raises(Crash):
        Driver(world, "run-1", first).process(0, "parallel")
    world.write_in_transaction(
        "run-1", 7, ["of a duplicate attempt"]
    )  # so that there is something to abort in any case
    mending = Driver(world, "run-2", second)
    is_passed = not (first == "decide.begin" and second in ("begin.finish", "replay.abort"))
    if is_passed:
        with pytest.raises(Crash):
            mending.process(0, "parallel")
    if expires:
        world.expire()
    Driver(world, "run-3").process(0, "parallel")
    assert_all_seen_once(world, 1)


@pytest.mark.parametrize("decides", [False, True])
def test_a_driver_may_die_when_it_begins_to_abort(decides):
    world = World(lose_response=decides)
    dying = Driver(world, "run-1", "abort.begin")
    batch = dying.tasks(0, "parallel")
    if decides:
        with pytest.raises(InDoubtError):
            dying.committer.commit(batch)
    with pytest.raises(Crash):
        dying.committer.abort(batch)
    Driver(world, "run-2").process(0, "parallel")
    assert_all_seen_once(world, 1)


@pytest.mark.parametrize("failpoint", ["redo.begin", "redo.written", "redo.done", "begin.finish", "end.done"])
def test_a_driver_may_be_killed_during_a_redo(failpoint):
    world = World()
    dying = Driver(world, "run-1", "decide.done")
    with pytest.raises(Crash):
        dying.process(0, "parallel")
    world.expire()
    second = Driver(world, "run-2", failpoint)
    with pytest.raises(Crash):
        second.process(0, "parallel")
    third = Driver(world, "run-3")
    third.process(0, "parallel")
    assert sorted(world.visible) == expected(1)
    assert not world.open


def test_no_decision_is_taken_with_the_long_time_out_of_a_redo():
    """A driver that dies in a decision holds up the readers of all sinks until its transaction expires."""
    world = World()
    with pytest.raises(Crash):
        Driver(world, "run-1", "decide.done").process(0, "parallel")
    world.expire()
    successor = Driver(world, "run-2")
    successor.process(1, "parallel")  # it writes batch 0 again, then decides its own
    assert "redo.done" in successor.failpoints.reached
    successor.failpoints._name, successor.failpoints.instead = "decide.done", world.expire
    successor.process(2, "parallel")
    assert successor.failpoints.reached.count("redo.done") == 4
    successor.process(3, "parallel")
    assert world.decided_within_ms == [TRANSACTION_MS] * 4
    assert sorted(world.visible) == expected(4)


def test_a_decided_batch_with_lost_records_stops_every_start():
    world = World()
    with pytest.raises(Crash):
        Driver(world, "run-1", "decide.done").process(0, "parallel")
    world.expire()
    world.are_gone = True
    for run in ("run-2", "run-3"):
        with pytest.raises(LostError):
            Driver(world, run).process(0, "parallel")
    assert world.visible == []
    assert not world.decisions[QUERY].is_finished


def test_commit_called_again_for_a_batch_changes_nothing():
    world = World()
    driver = Driver(world, "run")
    driver.process(0, "parallel")
    batch = driver.process(1, "mixed")
    driver.committer.commit(batch)
    assert sorted(world.visible) == expected(2)


def test_a_replay_of_a_decided_batch_is_aborted():
    world = World()
    Driver(world, "run-1").process(0, "parallel")
    successor = Driver(world, "run-2")
    successor.process(0, "parallel")
    assert "replay.abort" in successor.failpoints.reached
    assert sorted(world.visible) == expected(1)
    assert not world.open


def test_a_zombie_driver_is_fenced_and_its_transactions_are_aborted():
    world = World()
    zombie = Driver(world, "run-1")
    zombie.process(0, "parallel")
    late = zombie.tasks(1, "mixed")
    successor = Driver(world, "run-2")
    successor.process(1, "mixed")
    with pytest.raises(FencedError, match="run run-2"):
        zombie.committer.commit(late)
    zombie.committer.abort(late)
    successor.process(2, "mixed")
    assert sorted(world.visible) == expected(3)
    assert not world.open


def test_a_zombie_with_inline_rows_only_is_fenced():
    world = World()
    zombie = Driver(world, "run-1")
    zombie.process(0, "inline")
    late = zombie.tasks(1, "inline")
    Driver(world, "run-2").process(1, "inline")
    with pytest.raises(FencedError):
        zombie.committer.commit(late)
    assert sorted(world.visible) == expected(2)


@pytest.mark.parametrize("mode", MODES)
def test_an_abort_after_a_commit_with_a_lost_response_undoes_nothing(mode):
    world = World(lose_response=True)
    driver = Driver(world, "run-1")
    batch = driver.tasks(0, mode)
    with pytest.raises(InDoubtError):
        driver.committer.commit(batch)
    driver.committer.abort(batch)
    assert sorted(world.visible) == expected(1)
    Driver(world, "run-2").process(0, mode)
    assert sorted(world.visible) == expected(1)
    assert not world.open


def test_abort_of_an_undecided_batch_aborts_its_transactions():
    world = World()
    driver = Driver(world, "run")
    batch = driver.tasks(0, "parallel")
    driver.committer.abort(batch)
    assert not world.open
    assert world.visible == []


def test_abort_leaves_everything_where_it_cannot_read_what_was_decided():
    world = World(unreachable=True)
    driver = Driver(world, "run")
    driver.committer.abort(driver.tasks(0, "parallel"))
    assert len(world.open) == 2


def test_a_batch_with_a_lost_transaction_is_not_decided():
    world = World()
    driver = Driver(world, "run")
    batch = driver.tasks(0, "parallel")
    world.end(batch.transactions[1].identity, committed=False)
    with pytest.raises(NotDecidedError, match="not open any more"):
        driver.committer.commit(batch)
    driver.committer.abort(batch)
    assert world.decisions == {}
    assert not world.open


def test_a_batch_with_transactions_about_to_expire_is_not_decided():
    world = World(age_ms=TIMEOUT_MS * 3 // 4 + 1)
    driver = Driver(world, "run")
    with pytest.raises(NotDecidedError, match="open for more than 75 s and expires after 100 s"):
        driver.process(0, "parallel")
    assert world.decisions == {}


@pytest.mark.parametrize(("age_ms", "is_old_broker"), [(TIMEOUT_MS * 3 // 4, False), (TIMEOUT_MS - 1, True)])
def test_a_batch_with_time_to_spare_or_of_unknown_age_is_decided(age_ms, is_old_broker):
    world = World(age_ms=age_ms, is_old_broker=is_old_broker)
    Driver(world, "run").process(0, "parallel")
    assert sorted(world.visible) == expected(1)


def test_leftovers_of_older_runs_and_of_duplicate_attempts_are_aborted():
    world = World()
    world.write_in_transaction("older-run", 7, ["left over"])
    driver = Driver(world, "run")
    driver.process(0, "parallel")
    assert not world.open
    world.write_in_transaction("run", 9, ["of a duplicate attempt"])
    driver.process(1, "parallel")
    assert not world.open
    assert sorted(world.visible) == expected(2)


def test_another_sink_is_none_of_our_business():
    world = World()
    other = world.write_in_transaction("run", 7, ["of another sink"])
    world.states[("sink2~run~worker~7", 1, 1)] = world.states.pop(other.identity)
    Driver(world, "run").process(0, "parallel")
    assert [id_ for id_, _, _ in world.open] == ["sink2~run~worker~7"]


def test_a_new_checkpoint_with_an_old_sink_id_starts_from_batch_0():
    world = World()
    Driver(world, "run-1").process(0, "parallel")
    newer = Driver(world, "run-2")
    batch = newer.tasks(0, "parallel")
    newer.committer.commit(replace(batch, query="another query"))
    assert sorted(world.visible) == sorted(expected(1) * 2)


def test_an_unfinished_batch_of_another_query_of_the_sink_is_finished():
    world = World()
    with pytest.raises(Crash):
        Driver(world, "run-1", "end.between").process(0, "parallel")
    newer = Driver(world, "run-2")
    newer.committer.commit(replace(newer.tasks(0, "inline"), query="another query"))
    assert sorted(world.visible) == sorted(expected(1) * 2)
    assert world.decisions[QUERY].is_finished


def test_an_empty_batch_needs_no_decision():
    world = World()
    Driver(world, "run").committer.commit(Batch(QUERY, 0))
    assert world.decisions == {}


@pytest.mark.parametrize("mode", MODES)
def test_a_write_without_write_id_leaves_no_decision(mode):
    world = World()
    driver = Driver(world, "run")
    driver.committer.commit(replace(driver.tasks(0, mode), erase_decision=True))
    assert sorted(world.visible) == expected(1)
    assert world.decisions == {}


# -- several processes of one run ----------------------------------------------------------------


@pytest.mark.behaviour("S11")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("processes", [2, 3])
def test_any_process_of_a_run_may_serve_a_commit(mode, processes):
    world = World()
    pool = [Driver(world, "run") for _ in range(processes)]
    for number in range(3 * processes):
        pool[number * number % processes].process(number, mode)
    assert_all_seen_once(world, 3 * processes)
    assert [holder.run for holder in world.holders.history] == ["run"]
    assert world.refusals == 0


def test_a_process_that_serves_all_commits_opens_the_ledger_once():
    world = World()
    driver = Driver(world, "run")
    for number in range(5):
        driver.process(number, "mixed")
    driver.committer.commit(Batch(QUERY, 5))
    driver.process(6, "mixed")
    assert world.opens == 1


@pytest.mark.behaviour("S11")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failpoint", COMMON_FAILPOINTS + TRANSACTION_FAILPOINTS + ["end.between"])
def test_another_process_may_take_the_lock_at_any_failpoint(failpoint, mode):
    """The other process opens the ledger and reads, as for a commit, and stops: the first one takes the lock again."""
    world = World()
    Driver(world, "run-1").process(0, mode)
    driver = Driver(world, "run-2", failpoint)
    batch = driver.tasks(1, mode)

    def take_lock() -> None:
        with pytest.raises(Crash):
            Driver(world, "run-2", "begin.done").committer.commit(batch)

    driver.failpoints.instead = take_lock
    driver.committer.commit(batch)
    driver.process(2, mode)
    assert_all_seen_once(world, 3)


@pytest.mark.behaviour("S06", "S11")
@pytest.mark.parametrize("expires", [False, True], ids=["in time", "expired"])
@pytest.mark.parametrize(("failpoint", "mode"), CELLS)
def test_another_process_of_the_run_continues_after_a_committing_process_died(failpoint, mode, expires):
    world = World()
    Driver(world, "run-1").process(0, mode)
    dying = Driver(world, "run-2", failpoint)
    batch = dying.tasks(1, mode)
    with pytest.raises(Crash):
        dying.committer.commit(batch)
    if expires:
        world.expire()
    other = Driver(world, "run-2")
    try:
        other.committer.commit(batch)
    except NotDecidedError:
        assert expires
        other = Driver(world, "run-3")
        other.process(1, mode)
    other.process(2, mode)
    assert_all_seen_once(world, 3)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_died_before_it_held_the_sink_fences_no_other(mode):
    world = World()
    driver = Driver(world, "run-1")
    driver.process(0, "inline")
    with pytest.raises(Crash):
        Driver(world, "run-2", "begin.read").committer.commit(Batch(QUERY, 1))
    driver.process(1, mode)
    assert_all_seen_once(world, 2)
    assert world.holders.is_held_by("run-1")


@pytest.mark.behaviour("S11")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_fresh", [False, True], ids=["same process", "another process"])
def test_the_older_of_two_applications_is_fenced_in_all_its_processes(mode, is_fresh):
    world = World()
    older = Driver(world, "run-1")
    older.process(0, mode)
    newer = Driver(world, "run-2")
    newer.process(1, mode)
    batch = older.tasks(2, mode)
    late = Driver(world, "run-1") if is_fresh else older
    for _ in range(2):
        with pytest.raises(FencedError) as caught:
            late.committer.commit(batch)
    assert str(caught.value) == (
        "sink.id 'sink' is held by another driver: run run-2 (host host-of-run-2, process 4711, started "
        "2023-11-14 22:13:20 UTC), since 1970-01-01 00:16:40 UTC. The rows that this run wrote for batch 2 are not "
        "visible. If that driver runs this query after a restart, stop this one; if both are meant to run, give each "
        "its own sink.id"
    )
    newer.process(2, mode)
    assert_all_seen_once(world, 3)


def test_the_error_of_a_run_fenced_by_a_query_of_its_driver_says_so():
    world = World()
    driver = DriverProcess("host", 4711, 1_700_000_000_000)
    older, newer = Driver(world, "run-1", driver=driver), Driver(world, "run-2", driver=driver)
    older.process(0, "inline")
    newer.process(1, "inline")
    with pytest.raises(FencedError) as caught:
        older.process(2, "inline")
    assert str(caught.value) == (
        "sink.id 'sink' is held by another query of this driver, or by a later start of this query: run run-2 (host "
        "host, process 4711, started 2023-11-14 22:13:20 UTC), since 1970-01-01 00:16:40 UTC. The rows that "
        "this run wrote for batch 2 are not visible. If two queries of the driver have this sink.id, give each its own "
        "sink.id"
    )


def test_a_run_whose_transactions_its_successor_aborted_gets_a_fenced_error():
    world = World()
    older = Driver(world, "run-1")
    older.process(0, "parallel")
    batch = older.tasks(1, "parallel")
    Driver(world, "run-2").committer.commit(Batch(QUERY, 1))
    with pytest.raises(FencedError, match="run run-2"):
        older.committer.commit(batch)


@pytest.mark.parametrize("failpoint", ["decide.done", "end.done"])
def test_the_error_of_a_driver_fenced_after_its_decision_says_it_is_delivered(failpoint):
    world = World()
    older = Driver(world, "run-1", failpoint)
    older.failpoints.instead = lambda: Driver(world, "run-2").process(1, "parallel")
    with pytest.raises(FencedError, match="Batch 0 was decided before that, and is delivered"):
        older.process(0, "parallel")
    assert_all_seen_once(world, 2)


def test_a_process_that_is_refused_while_it_takes_the_lock_takes_it_again(monkeypatch):
    world = World()
    refusals = iter([FencedError("two at once"), None])
    real = FakeLedger.open

    def open_second_time(self: FakeLedger, transaction_ms: int = 0) -> None:
        if (error := next(refusals, None)) is not None:
            raise error
        real(self, transaction_ms)

    monkeypatch.setattr(FakeLedger, "open", open_second_time)
    Driver(world, "run").process(0, "mixed")
    assert_all_seen_once(world, 1)


def test_a_process_that_keeps_losing_the_lock_gives_up():
    world = World()
    driver = Driver(world, "run-1")
    driver.process(0, "inline")

    class Robbed(FakeLedger):
        def write(self, *arguments: Any, **options: Any) -> None:
            raise FencedError("fenced")

    driver.committer._ledger = Robbed(world)
    driver.committer._ledger.read()
    with pytest.raises(
        FencedError, match=r"fenced 6 times during the commit of batch 1, although this run still holds it\."
    ):
        driver.process(1, "inline")
    assert world.visible == expected(1)


@pytest.mark.parametrize(("mode", "is_lost"), [("inline", False), ("inline", True), ("parallel", True)])
def test_a_fenced_write_of_a_single_use_sink_is_repeated_if_the_log_shows_it(mode, is_lost, monkeypatch):
    """Inline rows of a single-use sink leave no decision: then the batch is in doubt, and the error names no holder."""
    world = World()
    real, writes = FakeLedger.write, iter(range(100))

    def lose_first(self: FakeLedger, *arguments: Any, **options: Any) -> None:
        if next(writes) or not is_lost:
            real(self, *arguments, **options)
        else:
            raise FencedError("its transaction timed out")

    monkeypatch.setattr(FakeLedger, "write", lose_first)
    driver = Driver(world, "run", is_single_use=True)
    batch = replace(driver.tasks(0, mode), erase_decision=True)
    if is_lost and mode == "inline":
        with pytest.raises(InDoubtError, match="its transaction timed out"):
            driver.committer.commit(batch)
        return
    driver.committer.commit(batch)
    assert_all_seen_once(world, 1)


@pytest.mark.parametrize("failpoint", ["redo.begin", "redo.done"])
def test_a_redo_that_another_process_of_the_run_has_done_is_not_done_again(failpoint):
    world = World()
    with pytest.raises(Crash):
        Driver(world, "run-1", "decide.done").process(0, "parallel")
    world.expire()
    first = Driver(world, "run-2", failpoint)
    first.failpoints.instead = lambda: Driver(world, "run-2").process(0, "parallel")
    first.process(0, "parallel")
    assert_all_seen_once(world, 1)


def test_a_redo_of_a_driver_that_was_fenced_meanwhile_is_left_to_the_other():
    world = World()
    with pytest.raises(Crash):
        Driver(world, "run-1", "decide.done").process(0, "parallel")
    world.expire()
    first = Driver(world, "run-2", "redo.begin")
    first.failpoints.instead = lambda: Driver(world, "run-3").process(0, "parallel")
    with pytest.raises(FencedError, match=r"run run-3 .* Batch 0 is decided, and that run finishes it"):
        first.process(0, "parallel")
    assert_all_seen_once(world, 1)


def test_a_redo_without_its_decision_in_the_log_stops():
    world = World()
    with pytest.raises(Crash):
        Driver(world, "run-1", "decide.done").process(0, "parallel")
    world.expire()
    driver = Driver(world, "run-2", "redo.begin")
    driver.failpoints.instead = world.decisions.clear
    with pytest.raises(SinkError, match="is gone from the decision topic"):
        driver.process(0, "parallel")


def test_a_single_use_sink_has_no_holder():
    world = World()
    driver = Driver(world, "run", is_single_use=True)
    driver.committer.commit(replace(driver.tasks(0, "mixed"), erase_decision=True))
    assert world.holders == Holders()
    assert sorted(world.visible) == expected(1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_stored", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(3))
def test_a_write_that_leaves_no_decision_is_not_repeated_when_the_lock_is_lost(mode, is_stored, number, monkeypatch):
    """At its n-th write to the ledger, whose outcome is unknown."""
    world = World()
    real, left = FakeLedger.write, iter(range(100))

    def lose_lock(self: FakeLedger, *arguments: Any, **options: Any) -> None:
        is_lost = next(left) == number
        if is_stored or not is_lost:
            real(self, *arguments, **options)
        if is_lost:
            raise FencedError("fenced")

    monkeypatch.setattr(FakeLedger, "write", lose_lock)
    driver = Driver(world, "run")
    driver.committer.commit(replace(driver.tasks(0, mode), erase_decision=True))
    assert_all_seen_once(world, 1)


STREAM = "Start the query again: it reads the decisions first, and finishes the batch if it is decided"
REPEATABLE = "Run the write again with the same rows and write.id: it reads the decisions first"
SHARED_SINK = (
    "The next write to sink.id 'sink' finishes a decided batch. Compare the topic with the rows before you run"
)
OWN_SINK = "no response. Compare the topic with the rows before you run this write again: it has no write.id"


@pytest.mark.parametrize(
    ("query", "erase_decision", "is_single_use", "remedy"),
    [
        (QUERY, False, False, STREAM),
        ("write:id", False, False, REPEATABLE),
        ("write:run", True, False, SHARED_SINK),
        ("write:run", True, True, OWN_SINK),
    ],
    ids=["stream", "write.id", "sink.id alone", "neither"],
)
def test_the_remedy_for_a_batch_in_doubt_does_not_deliver_it_twice(query, erase_decision, is_single_use, remedy):
    world = World(lose_response=True)
    driver = Driver(world, "run", is_single_use=is_single_use)
    batch = replace(driver.tasks(0, "inline"), query=query, erase_decision=erase_decision)
    with pytest.raises(InDoubtError) as caught:
        driver.committer.commit(batch)
    assert remedy in str(caught.value)
    assert ("again with" in str(caught.value) or "the query again" in str(caught.value)) == (not erase_decision)


def test_a_close_that_fails_hides_no_error_and_leaves_nothing_open(monkeypatch, caplog):
    def fail(self: FakeLedger) -> None:
        raise OSError("socket is gone")

    monkeypatch.setattr(FakeLedger, "close", fail)
    closed: list[str] = []
    driver = Driver(World(lose_response=True), "run", on_close=lambda: closed.append("client"))
    with pytest.raises(InDoubtError, match="no response"):
        driver.process(0, "inline")
    driver.committer.close()
    assert closed == ["client"]
    assert "sink sink: closing its producer failed" in caplog.text


# -- repeated batches ----------------------------------------------------------------------------


def other_rows(world: World, run: str, number: int, mode: str) -> Batch:
    """Return a batch with this number and new rows."""
    rows = [f"other {n}" for n in range(4)]
    batch = Batch(QUERY, number, fingerprint=Fingerprint(4, 77))
    if mode == "inline":
        batch.inline.append(("topic", columns(rows)))
    else:
        batch.transactions.append(world.write_in_transaction(run, 5, rows))
    return batch


@pytest.mark.behaviour("S12")
@pytest.mark.parametrize("mode", ["inline", "parallel"])
def test_a_repeated_batch_number_with_other_rows_is_refused(mode):
    world = World()
    Driver(world, "run-1").process(0, mode)
    for number in (0, 0):
        with pytest.raises(RepeatedBatchError) as caught:
            Driver(world, "run-2").committer.commit(other_rows(world, "run-2", number, mode))
    assert str(caught.value) == (
        "batch 0 of query query (sink.id 'sink') comes again with other rows: now 4 rows with hash 000000000000004d; "
        "batch 0 had 4 rows with hash 00000000000003e8, decided by run run-1 (host host-of-run-1, process 4711, "
        "started 2023-11-14 22:13:20 UTC) at 1970-01-01 00:16:40 UTC. Nothing of this batch is visible. Possible "
        "causes, the most likely first: (1) the query computes other rows when a batch is run again (rand(), uuid(), a "
        "table that has changed), or was changed; (2) source records are gone since then (failOnDataLoss=false, "
        "retention, compaction); (3) the checkpoint was restored from a backup, or copied. For (1) and (2), start the "
        "query with replay.check=rows if the number of rows is the same, else with replay.check=none: the decided rows "
        "stand, the rows of this replay are not delivered. For (3), continue with the checkpoint that has batch 0, or "
        "set a new sink.id, which delivers the rows of this checkpoint, some of them a second time"
    )
    assert_all_seen_once(world, 1)


@pytest.mark.behaviour("S12")
@pytest.mark.parametrize("check", ["fingerprint", "rows", "none"])
@pytest.mark.parametrize("mode", ["inline", "parallel", "empty"])
def test_a_batch_before_the_last_decision_is_refused_with_every_replay_check(mode, check):
    """Also if it is empty: the checkpoint is an older one."""
    world = World()
    driver = Driver(world, "run-1")
    for number in range(3):
        driver.process(number, "parallel")
    restored = Driver(world, "run-2", replay_check=check)
    batch = Batch(QUERY, 1, fingerprint=Fingerprint()) if mode == "empty" else restored.tasks(1, mode)
    with pytest.raises(RepeatedBatchError, match=r"batch 1 of query query .* comes after batch 2: .*restored"):
        restored.committer.commit(batch)
    assert_all_seen_once(world, 3)


def test_a_decided_batch_is_finished_also_by_a_query_that_is_refused():
    """Continuing with another sink.id, the remedy in the error, must not leave a part of a batch."""
    world = World()
    with pytest.raises(Crash):
        Driver(world, "run-1", "end.between").process(0, "parallel")
    with pytest.raises(RepeatedBatchError):
        Driver(world, "run-2").committer.commit(other_rows(world, "run-2", 0, "inline"))
    assert_all_seen_once(world, 1)
    assert world.decisions[QUERY].is_finished


def test_a_query_that_is_refused_does_not_take_the_sink_over():
    world = World()
    driver = Driver(world, "run-1")
    for number in range(2):
        driver.process(number, "parallel")
    with pytest.raises(RepeatedBatchError):
        Driver(world, "run-2").process(0, "parallel")
    driver.process(2, "parallel")
    assert_all_seen_once(world, 3)
    assert world.holders.is_held_by("run-1")


@pytest.mark.behaviour("S12")
def test_a_copied_checkpoint_continues_and_the_original_is_refused_afterwards():
    """Blue, then green with a copy of its checkpoint, then blue again."""
    world = World()
    Driver(world, "blue").process(0, "parallel")
    green = Driver(world, "green")
    for number in (0, 1, 2):
        green.process(number, "parallel")
    with pytest.raises(RepeatedBatchError, match="decided by run green"):
        Driver(world, "blue-again").committer.commit(other_rows(world, "blue-again", 1, "parallel"))
    assert_all_seen_once(world, 3)


def test_a_healthy_query_with_empty_batches_is_never_refused():
    """After empty batches the last decision is older than the batch that is replayed."""
    world = World()
    driver = Driver(world, "run-1")
    driver.process(0, "mixed")
    for number in (1, 2):
        driver.committer.commit(Batch(QUERY, number, fingerprint=Fingerprint()))
    restarted = Driver(world, "run-2")
    restarted.committer.commit(Batch(QUERY, 2, fingerprint=Fingerprint()))
    restarted.process(3, "mixed")
    assert sorted(world.visible) == sorted(expected(1) + [row for row in expected(4) if row.startswith("3-")])


@pytest.mark.behaviour("S12")
def test_an_empty_replay_of_a_decided_batch_is_refused():
    world = World()
    Driver(world, "run-1").process(0, "mixed")
    with pytest.raises(RepeatedBatchError, match="now 0 rows"):
        Driver(world, "run-2").committer.commit(Batch(QUERY, 0, fingerprint=Fingerprint()))


@pytest.mark.behaviour("S12")
def test_a_skipped_replay_is_logged_with_rows_and_run(caplog):
    world = World()
    Driver(world, "run-1").process(0, "mixed")
    with caplog.at_level(logging.INFO, "headrace.spark"):
        Driver(world, "run-2").process(0, "mixed")
    (record,) = [record for record in caplog.records if "decided before" in record.message]
    assert record.levelname == "INFO"
    assert record.message == (
        "sink sink: batch 0 of query query was decided before, by run run-1 (host host-of-run-1, process 4711, started "
        "2023-11-14 22:13:20 UTC) at 1970-01-01 00:16:40 UTC: its 4 rows are not written again"
    )


@pytest.mark.parametrize("check", ["rows", "none"])
def test_replay_check_lets_a_replay_with_other_rows_be_skipped_with_a_warning(check, caplog):
    world = World()
    Driver(world, "run-1").process(0, "mixed")
    driver = Driver(world, "run-2", replay_check=check)
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        driver.committer.commit(other_rows(world, "run-2", 0, "parallel"))
    assert f"(replay.check={check}: whether they are the same rows is not known)" in caplog.text
    assert_all_seen_once(world, 1)


@pytest.mark.parametrize(("check", "is_refused"), [("fingerprint", True), ("rows", True), ("none", False)])
def test_a_replay_with_another_number_of_rows(check, is_refused):
    world = World()
    Driver(world, "run-1").process(0, "mixed")
    driver = Driver(world, "run-2", replay_check=check)
    batch = Batch(QUERY, 0, inline=[("topic", columns(["one"]))], fingerprint=Fingerprint(1, 1))
    with pytest.raises(RepeatedBatchError) if is_refused else contextlib.nullcontext():
        driver.committer.commit(batch)
    assert_all_seen_once(world, 1)


@pytest.mark.parametrize("rows", [4, 3])
def test_a_decision_of_version_1_is_compared_by_its_number_of_rows(rows, caplog):
    world = World()
    Driver(world, "run-1").process(0, "mixed")
    world.decisions[QUERY] = replace(world.decisions[QUERY], fingerprint=None, driver=None)
    batch = Batch(QUERY, 0, inline=[("topic", columns(["x"] * rows))], fingerprint=Fingerprint(rows, 5))
    with pytest.raises(RepeatedBatchError) if rows != 4 else contextlib.nullcontext():
        Driver(world, "run-2").committer.commit(batch)
    assert ("whether they are the same rows is not known" in caplog.text) == (rows == 4)
    assert_all_seen_once(world, 1)


@pytest.mark.behaviour("S12")
def test_a_write_id_that_was_used_for_other_rows_is_refused():
    world = World()
    first = Driver(world, "run-1")
    first.committer.commit(replace(first.tasks(0, "mixed"), query="write:daily"))
    again = Driver(world, "run-2")
    again.committer.commit(replace(again.tasks(0, "mixed"), query="write:daily"))
    with pytest.raises(RepeatedBatchError) as caught:
        Driver(world, "run-3").committer.commit(replace(other_rows(world, "run-3", 0, "parallel"), query="write:daily"))
    assert str(caught.value) == (
        "write.id 'daily' was used before for other rows: now 4 rows with hash 000000000000004d; then 4 rows with hash "
        "00000000000003e8, decided by run run-1 (host host-of-run-1, process 4711, started 2023-11-14 22:13:20 UTC) at "
        "1970-01-01 00:16:40 UTC. Nothing of this write is visible. Use a new write.id for new rows; to repeat a "
        "write, give it the rows that it had. If it computes other rows each time (rand(), uuid()), set "
        "replay.check=rows or replay.check=none: then the rows of the first write stand"
    )
    assert_all_seen_once(world, 1)


# -- source offsets: a query whose checkpoint is lost ----------------------------------------------


class CopyingQuery:
    """A query that delivers records of one source partition by offset, with its own checkpoint."""

    def __init__(self, world: World, query: str, position: int = 0) -> None:
        self.world, self.query, self.position, self.batch = world, query, position, 0

    def plan(self, driver: Driver, end: int, mode: str = "parallel", topic_id: str | None = "a") -> Batch:
        """Run the tasks for the records up to `end`, planned with the current decisions."""
        known = known_origins(self.world.decisions)
        base = base_for(known, self.query, self.batch)
        origins = OriginFilter(OriginColumns(), base, "the task")
        offsets = list(range(self.position, end))
        given = {"__topic": ["t"] * len(offsets), "__partition": [0] * len(offsets), "__offset": offsets}
        ids = pa.array([topic_id] * len(offsets), pa.string())
        left = origins.apply(pa.RecordBatch.from_pydict({**given, "__topic_id": ids})).column("__offset").to_pylist()
        rows = [str(offset) for offset in left]
        print_of_rows = Fingerprint(len(rows), sum(map(hash, left)) % 2**64)
        batch = Batch(self.query, self.batch, fingerprint=print_of_rows, origin=origins.report)
        if rows and mode == "parallel":
            batch.transactions.append(self.world.write_in_transaction(driver.run, self.batch, rows))
        elif rows:
            batch.inline.append(("topic", columns(rows)))
        return batch

    def process(self, driver: Driver, end: int, mode: str = "parallel", topic_id: str | None = "a") -> None:
        driver.committer.commit(self.plan(driver, end, mode, topic_id))
        self.position, self.batch = end, self.batch + 1


def assert_delivered_once(world: World, count: int) -> None:
    assert sorted(map(int, world.visible)) == list(range(count))
    assert not world.open


@pytest.mark.behaviour("S13")
@pytest.mark.parametrize(
    ("failpoint", "mode"), [cell for cell in CELLS if cell[1] != "mixed" and cell[0] != "end.between"]
)
def test_a_checkpoint_may_be_lost_after_a_crash_at_any_failpoint(failpoint, mode):
    world = World()
    older = CopyingQuery(world, "older")
    older.process(Driver(world, "run-1"), 4, mode)
    with pytest.raises(Crash):
        older.process(Driver(world, "run-2", failpoint), 8, mode)
    # Its checkpoint is lost: a new query begins at the first record, with batches of other sizes.
    newer, driver = CopyingQuery(world, "newer"), Driver(world, "run-3")
    for end in (3, 6, 10):
        newer.process(driver, end, mode)
    assert_delivered_once(world, 10)
    # And it may be lost again.
    CopyingQuery(world, "newest").process(Driver(world, "run-4"), 12, mode)
    assert_delivered_once(world, 12)


def test_a_replay_is_filtered_as_it_was_when_it_was_decided(caplog):
    world = World()
    older, newer = CopyingQuery(world, "older"), CopyingQuery(world, "newer")
    older.process(Driver(world, "run-1"), 4)
    newer.process(Driver(world, "run-2"), 8)  # records 0 to 3 are skipped
    older.process(Driver(world, "run-3"), 10)  # of the older query: records 4 to 7 are
    newer.position, newer.batch = 0, 0  # Spark has not seen the commit return
    newer.process(Driver(world, "run-4"), 8)
    newer.process(Driver(world, "run-4"), 12)
    assert_delivered_once(world, 12)
    assert "They are not the same rows" not in caplog.text


def test_a_query_that_began_later_leaves_the_records_before_it_to_the_next():
    world = World()
    CopyingQuery(world, "older", position=5).process(Driver(world, "run-1"), 8)
    CopyingQuery(world, "newer").process(Driver(world, "run-2"), 10)
    assert_delivered_once(world, 10)


@pytest.mark.parametrize("end", [4, 9])  # all rows are skipped in the first case
def test_a_batch_planned_before_another_query_has_decided_is_planned_again(end):
    world = World()
    older, newer = CopyingQuery(world, "older"), CopyingQuery(world, "newer")
    older.process(Driver(world, "run-1"), 4)
    driver = Driver(world, "run-2")
    stale = newer.plan(driver, end)
    active = Driver(world, "run-1b")
    older.process(active, 6)
    with pytest.raises(NotDecidedError, match=r"another query of sink.id 'sink' has delivered rows since the batch"):
        driver.committer.commit(stale)
    driver.committer.abort(stale)
    # An older query that stays active must not block the newer one for ever.
    with pytest.raises(FencedError, match=r"held by another driver: run run-2"):
        older.process(active, 8)
    newer.process(Driver(world, "run-3"), 9)
    assert_delivered_once(world, 9)


@pytest.mark.behaviour("S12")
@pytest.mark.parametrize("check", ["fingerprint", "rows"])
def test_equal_rows_from_other_source_offsets_are_no_replay(check):
    world = World()
    query = CopyingQuery(world, "query")
    query.process(Driver(world, "run-1"), 4)
    query.position, query.batch = 10, 0  # for example of an older backup
    driver = Driver(world, "run-2", replay_check=check)
    again = query.plan(driver, 14)
    with pytest.raises(RepeatedBatchError, match=r"batch 0 of query query .* comes again with other rows"):
        driver.committer.commit(replace(again, fingerprint=world.decisions["query"].fingerprint))
    assert_delivered_once(world, 4)


@pytest.mark.behaviour("S12")
def test_a_replay_with_fewer_rows_of_the_same_records_is_skipped_with_a_warning(caplog):
    """Retention or compaction has deleted records that were delivered."""
    world = World()
    query = CopyingQuery(world, "query")
    query.process(Driver(world, "run-1"), 4)
    query.process(Driver(world, "run-1"), 10)
    for first, count in ((7, 3), (10, 0)):
        query.position, query.batch = first, 1
        query.process(Driver(world, f"run-{first}"), 10)
        assert f"its {count} rows are not written again, because they come from source records of the 6" in caplog.text
    query.process(Driver(world, "run-3"), 12)
    assert_delivered_once(world, 12)


@pytest.mark.behaviour("S12")
@pytest.mark.parametrize("first", [3, 5])
def test_a_replay_with_rows_of_earlier_or_more_source_records_is_refused(first):
    world = World()
    query = CopyingQuery(world, "query")
    query.process(Driver(world, "run-1"), 4)
    query.process(Driver(world, "run-1"), 8)
    query.position, query.batch = first, 1
    with pytest.raises(RepeatedBatchError, match=r"source records are gone"):
        query.process(Driver(world, "run-2"), 7 if first == 3 else 9)  # no more rows than were decided
    assert_delivered_once(world, 8)


@pytest.mark.behaviour("S12")
def test_a_replay_with_more_rows_of_the_same_source_records_is_refused():
    """A filter was relaxed before the restart: some of the rows were never delivered."""
    world = World()
    query, driver = CopyingQuery(world, "query"), Driver(world, "run-1")
    query.process(driver, 4)
    query.batch, query.position = 0, 0
    more = Batch("query", 0, inline=[("topic", columns([str(n) for n in range(5)]))], fingerprint=Fingerprint(5, 1))
    with pytest.raises(RepeatedBatchError, match=r"now 5 rows .* batch 0 had 4 rows"):
        Driver(world, "run-2").committer.commit(replace(more, origin=query.plan(driver, 4).origin))
    assert sorted(map(int, world.visible)) == list(range(4))


def test_a_replay_of_a_batch_without_source_offsets_is_recognised_by_its_rows():
    """The option was set between the crash and the restart."""
    world = World()
    query, driver = CopyingQuery(world, "query"), Driver(world, "run-1")
    query.process(driver, 4)
    query.position, query.batch = 4, 1
    driver.committer.commit(replace(query.plan(driver, 8), origin=None))
    query.process(Driver(world, "run-2"), 8)
    assert_delivered_once(world, 8)


@pytest.mark.parametrize("topic_ids", [("a", None), (None, "a")])
def test_a_replay_is_recognised_by_its_rows_if_topic_ids_change(topic_ids):
    """The source, or the broker, was replaced between the crash and the restart."""
    world = World()
    query = CopyingQuery(world, "query")
    query.process(Driver(world, "run-1"), 4, topic_id=topic_ids[0])
    query.position, query.batch = 0, 0
    query.process(Driver(world, "run-2"), 4, topic_id=topic_ids[1])
    query.position, query.batch = 1, 0
    with pytest.raises(RepeatedBatchError):  # without a topic id, source offsets prove nothing
        query.process(Driver(world, "run-3"), 4, topic_id=topic_ids[1])
    assert_delivered_once(world, 4)


@pytest.mark.behaviour("S11")
def test_the_older_of_two_queries_with_source_offsets_gets_the_holder_in_its_error():
    world = World()
    older, newer = CopyingQuery(world, "older"), CopyingQuery(world, "newer", position=4)
    driver = Driver(world, "run-1")
    older.process(driver, 4)
    newer.process(Driver(world, "run-2"), 8)
    with pytest.raises(FencedError, match=r"held by another driver: run run-2"):
        older.process(driver, 10)  # planned after the other one has decided
    assert_delivered_once(world, 8)


@pytest.mark.behaviour("S13")
def test_skipped_rows_are_logged_with_the_query_that_delivered_them(caplog):
    world = World()
    CopyingQuery(world, "older").process(Driver(world, "run-1"), 6)
    newer, driver = CopyingQuery(world, "newer"), Driver(world, "run-2")
    caplog.clear()
    with caplog.at_level(logging.INFO, "headrace.spark"):
        for end in (2, 4, 8):
            newer.process(driver, end)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if "skipped" in record.getMessage()]
    text = "sink sink: batch {} of query newer: skipped 2 rows whose source offsets were delivered before by older"
    assert lines == [("WARNING", text.format(0)), ("INFO", text.format(1)), ("INFO", text.format(2))]
    # A batch of skipped rows only has no decision; the decision of the next batch records what was skipped.
    assert world.decisions["newer"].batch == 2
    assert world.decisions["newer"].base.to_json() == {"id:a:t": {"0": [[0, 5]]}}


def test_rows_skipped_without_a_topic_id_are_warned_of_every_time(caplog):
    world = World()
    CopyingQuery(world, "older").process(Driver(world, "run-1"), 6, topic_id=None)
    newer, driver = CopyingQuery(world, "newer"), Driver(world, "run-2")
    for end in (2, 4):
        newer.process(driver, end, topic_id=None)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 2
    assert all("2 of them have no topic id: if the topic was recreated, they are lost" in text for text in lines)


def test_what_was_covered_is_kept_by_batches_without_source_offsets():
    world = World()
    query, driver = CopyingQuery(world, "older"), Driver(world, "run-1")
    query.process(driver, 4)
    covered = world.decisions["older"].offsets
    driver.committer.commit(replace(query.plan(driver, 6), origin=None))
    assert world.decisions["older"].batch == 1
    assert world.decisions["older"].offsets == covered


@pytest.mark.parametrize(("topic_id", "is_named"), [(None, True), ("a", False)], ids=["by name", "by id"])
def test_a_recreated_source_topic_is_named_as_a_cause_where_topics_go_by_name(topic_id, is_named):
    """Its offsets begin at 0 again. With an id it would be another topic: then that is not the cause."""
    world = World()
    query, driver = CopyingQuery(world, "copy"), Driver(world, "run-1")
    query.process(driver, 4, topic_id=topic_id)
    query.position = 0
    with pytest.raises(SinkError, match="has a row from offset 0") as caught:
        driver.committer.commit(query.plan(driver, 2, topic_id=topic_id))
    assert (
        "the topic may have been deleted and created again: then set a new sink.id" in str(caught.value)
    ) == is_named


def test_source_offsets_that_begin_with_a_later_batch_are_warned_of(caplog):
    world = World()
    query, driver = CopyingQuery(world, "older"), Driver(world, "run-1")
    driver.committer.commit(replace(query.plan(driver, 4), origin=None))
    query.position, query.batch = 4, 1
    for end in (8, 10):
        query.process(driver, end)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("sink sink: batch 1 of query older is the first one decided with source.offsets.")
    CopyingQuery(world, "newer", position=2).process(Driver(world, "run-2"), 10)
    assert sorted(map(int, world.visible)) == [0, 1, 2, 2, 3, 3, *range(4, 10)]


def test_a_query_whose_rows_come_from_before_what_it_has_covered_is_stopped():
    """As those of a join that has held them back, or of a topic that is read twice."""
    world = World()
    query, driver = CopyingQuery(world, "joined"), Driver(world, "run-1")
    query.process(driver, 4)
    query.position = 3
    late = query.plan(driver, 8)
    with pytest.raises(
        SinkError, match=r"batch 1 has a row from offset 3 of partition 0 of topic 't' with id a, but earlier .* 3"
    ):
        driver.committer.commit(late)
    driver.committer.abort(late)
    assert_delivered_once(world, 4)


class RecordingListener:
    """Keeps the phases of a commit."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def phase_started(self, phase: CommitPhase) -> None:
        self.phases.append(phase)

    def transaction_redone(self) -> None:
        self.phases.append("redone")


@pytest.mark.parametrize(
    ("mode", "phases"),
    [("inline", "begin check decide end"), ("parallel", "begin check decide end finish")],
)
def test_listener_follows_the_phases_of_a_commit(mode, phases):
    driver, listener = Driver(World(), "run"), RecordingListener()
    driver.committer.commit(driver.tasks(0, mode), listener)
    assert listener.phases == phases.split()
    listener.phases.clear()
    driver.process(1, mode)
    assert listener.phases == []  # a listener follows one commit


def test_listener_follows_redo_replay_and_abort():
    world, listener = World(), RecordingListener()
    with pytest.raises(Crash):
        Driver(world, "run-1", "decide.done").process(0, "parallel")
    world.expire()
    heir = Driver(world, "run-2")
    heir.committer.commit(heir.tasks(0, "parallel"), listener)
    redo = ["redo", "redone", "end"]
    assert listener.phases == ["begin", *redo, *redo, "finish", "check", "begin", "check", "replay"]
    listener.phases.clear()
    heir.committer.abort(heir.tasks(1, "parallel"), listener)
    assert listener.phases == ["abort"]
