"""The whole commit protocol on a broker: several drivers, fencing, and clocks that differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.errors import HeadraceError
from headrace.spark import decisions
from headrace.spark.commit_types import Batch
from headrace.spark.decisions import TaskTransaction
from headrace.spark.errors import FencedError, NotDecidedError
from headrace.spark.failpoints import FailpointError
from headrace.spark.holders import WRITE_RUN_PREFIX
from headrace.spark.ledger import Ledger
from headrace.spark.transactions import ONGOING
from tests.support.sink_rig import QUERY, SinkRig, Steps, hours_from_now
from tests.support.waiting import eventually

EXPIRY_MS = "3000"
STARTS_MAX = 5


def open_ids(rig: SinkRig) -> list[str]:
    return rig.transactions.open_ids(rig.sink) or []


def test_batches_are_visible_once_and_nothing_is_left_open(rig):
    driver = rig.driver()
    for number in range(3):
        tasks = [rig.task([f"a{number}"], batch=number), rig.task([f"b{number}"], batch=number, partition=1)]
        inline = rig.task([f"c{number}"], batch=number, commit__mode="inline")
        driver.commit(rig.batch(number, *tasks, inline))
    assert sorted(rig.rows()) == [f"{letter}{number}" for letter in "abc" for number in range(3)]
    assert not open_ids(rig)
    assert rig.ledger().read()[QUERY].is_finished


@pytest.mark.behaviour("S05")
def test_a_decided_transaction_that_expired_is_written_again_once(rig):
    """On a busy machine it may expire before the decision: then nothing is decided, and the batch is run again."""

    def wait_for_expiry() -> None:
        eventually("the expiry", lambda: not open_ids(rig))

    for _ in range(STARTS_MAX):
        report = rig.task(["a1", "a2"], kafka__transaction__timeout__ms=EXPIRY_MS)
        try:
            rig.driver("run", Steps(decide__done=wait_for_expiry)).commit(rig.batch(0, report))
            break
        except NotDecidedError:
            continue
    assert rig.rows() == ["a1", "a2"]
    assert rig.ledger().read()[QUERY].redone == {report.transaction.id}


@pytest.mark.behaviour("S05")
def test_a_decided_transaction_that_was_aborted_is_written_again_once(rig):
    report = rig.task(["a1", "a2"])
    steps = Steps(decide__done=lambda: rig.transactions.fence([report.transaction.id]))
    driver = rig.driver("run", steps)
    driver.commit(rig.batch(0, report))
    assert rig.rows() == ["a1", "a2"]
    decision = rig.ledger().read()[QUERY]
    assert decision.is_finished
    assert decision.redone == {report.transaction.id}


@pytest.mark.parametrize("step", ["decide__begin", "decide__written", "decide__done", "end__between", "end__done"])
def test_a_driver_that_dies_with_a_decision_in_parts_is_continued_by_the_next(rig: SinkRig, monkeypatch, step):
    monkeypatch.setattr(decisions, "RECORD_BYTES_MAX", 100)

    def die() -> None:
        raise FailpointError("on purpose")

    def batch(run: str) -> Batch:
        return rig.batch(0, *(rig.task([f"a{number}"], run=run) for number in range(5)))

    with pytest.raises(HeadraceError, match="on purpose"):
        rig.driver("run-1", Steps(**{step: die})).commit(batch("run-1"))
    rig.driver("run-2").commit(batch("run-2"))
    assert sorted(rig.rows()) == [f"a{number}" for number in range(5)]
    assert not open_ids(rig)
    assert rig.ledger().read()[QUERY].is_finished


def test_a_redo_reads_the_decisions_of_other_drivers_first(rig):
    """Between finding a transaction aborted and writing it again, another driver has done all of it."""
    report = rig.task(["a1", "a2"])
    successor = rig.driver("run-2")

    def take_over() -> None:
        successor.commit(rig.batch(1, rig.task(["b1"], run="run-2", batch=1)))

    steps = Steps(decide__done=lambda: rig.transactions.fence([report.transaction.id]), redo__begin=take_over)
    with pytest.raises(FencedError, match=rig.sink):
        rig.driver("run", steps).commit(rig.batch(0, report))
    assert sorted(rig.rows()) == ["a1", "a2", "b1"]


def test_a_finished_redo_of_another_driver_is_not_repeated(rig):
    """The same, with the batch itself finished by the other driver and nothing after it."""
    report = rig.task(["a1", "a2"])

    def take_over() -> None:
        successor = rig.driver("run-2")
        successor.commit(rig.batch(0, rig.task(["a1", "a2"], run="run-2")))
        successor.close()

    steps = Steps(decide__done=lambda: rig.transactions.fence([report.transaction.id]), redo__begin=take_over)
    with pytest.raises(FencedError, match=rig.sink):
        rig.driver("run", steps).commit(rig.batch(0, report))
    assert rig.rows() == ["a1", "a2"]


def test_a_transaction_whose_id_is_used_again_is_not_decided(rig):
    """The id is open, but in another epoch: the task's own transaction was aborted."""
    report = rig.task(["a1"], batch=0)
    newer = rig.task(["a2"], batch=1)
    assert newer.transaction.id == report.transaction.id
    with pytest.raises(NotDecidedError, match=f"{report.transaction.id}' is Ongoing"):
        rig.driver().commit(rig.batch(0, report))
    assert rig.ledger().read() == {}
    assert rig.rows() == []


@pytest.mark.parametrize("end", ["committed", "aborted", "fenced"])
def test_a_transaction_that_has_ended_is_not_decided(rig, end):
    report = rig.task(["a1"])
    if end == "fenced":
        rig.transactions.fence([report.transaction.id])
    else:
        rig.transactions.end([report.transaction], committed=end == "committed")
    with pytest.raises(NotDecidedError, match="not open any more"):
        rig.driver().commit(rig.batch(0, report))
    assert rig.ledger().read() == {}


def inline(rig: SinkRig, number: int) -> Batch:
    return rig.batch(number, rig.task([f"a{number}"], batch=number, commit__mode="inline"))


@pytest.mark.parametrize("api", ["EndTxn", "Produce"])
@pytest.mark.parametrize("error", ["PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"])
def test_a_fenced_producer_of_the_run_that_holds_the_sink_continues(rig, broker, api, error):
    """Its transaction timed out, or its id was forgotten after a week without a batch: the holder is the same."""
    driver = rig.driver()
    driver.commit(inline(rig, 0))
    with broker.faults.inject(api=api, error=error, count=1) as fault:
        driver.commit(inline(rig, 1))
        assert fault.hits == 1
    assert rig.rows() == ["a0", "a1"]


def test_the_error_of_a_repeatedly_fenced_producer_names_no_driver(rig, broker):
    driver = rig.driver()
    driver.commit(inline(rig, 0))
    fault = broker.faults.inject(api="EndTxn", error="INVALID_PRODUCER_ID_MAPPING")
    with fault, pytest.raises(FencedError, match=r"fenced 6 times .* although this run still holds it") as caught:
        driver.commit(inline(rig, 1))
    assert "the brokers have forgotten its transactional id" in str(caught.value)
    assert rig.rows() == ["a0"]


HOLDER_BYTES_MAX = 200
WRITES = 5


def write_batch(rig: SinkRig, run: str) -> Batch:
    return replace(inline(rig, 0), query=f"write:{run}", erase_decision=True)


def test_batch_writes_of_one_driver_leave_one_entry_in_the_holder_record(rig):
    """As those of foreachBatch: their runs would push the runs of streams out of the record."""
    stream = rig.driver("stream")
    stream.commit(inline(rig, 0))
    runs = [f"{WRITE_RUN_PREFIX}{number}" for number in range(WRITES)]
    for run in runs:
        rig.driver(run).commit(write_batch(rig, run))
    ledger = rig.ledger()
    ledger.read()
    assert [holder.run for holder in ledger.holders.history] == ["stream", runs[-1]]
    assert len(ledger.holders.encode()) < HOLDER_BYTES_MAX
    with pytest.raises(FencedError, match=f"held by another query of this driver, .*: run {runs[-1]}"):
        stream.commit(inline(rig, 1))


@pytest.mark.parametrize("step", ["begin__held", "decide__begin", "decide__written", "decide__done"])
def test_a_batch_write_continues_after_another_one_of_its_driver(rig, step):
    other = f"{WRITE_RUN_PREFIX}other"
    steps = Steps(**{step: lambda: rig.driver(other).commit(write_batch(rig, other))})
    run = f"{WRITE_RUN_PREFIX}own"
    rig.driver(run, steps).commit(write_batch(rig, run))
    assert rig.rows() == ["a0", "a0"]
    assert rig.ledger().read() == {}


# -- transactions that are left over -------------------------------------------------------------


@pytest.mark.parametrize("has_committed", [False, True], ids=["before its first commit", "after it"])
def test_a_driver_leaves_the_open_transactions_of_a_newer_run_alone(rig, has_committed):
    """That run is about to take the sink over, or has done so since the older driver finished its batch."""
    successor = rig.driver("run-2")

    def start_newer_run() -> None:
        if has_committed:
            successor.commit(rig.batch(2, rig.task(["c"], run="run-2", batch=2)))
        newer.append(rig.transaction(["d"], run="run-2", batch=3))

    newer: list[TaskTransaction] = []
    steps = Steps()
    driver = rig.driver("run", steps)
    driver.commit(rig.batch(0, rig.task(["a"], batch=0)))
    steps.add(finish__done=start_newer_run)
    driver.commit(rig.batch(1, rig.task(["b"], batch=1)))
    assert open_ids(rig) == [newer[0].id]
    successor.commit(Batch(QUERY, 3, newer))
    assert sorted(rig.rows()) == ["a", "b", *(["c"] if has_committed else []), "d"]


def test_a_run_that_takes_over_aborts_leftovers_of_all_runs(rig):
    rig.transaction(["x"], run="never-committed")
    older = rig.driver("older")
    older.commit(inline(rig, 0))
    driver = rig.driver("run")
    driver.commit(inline(rig, 1))
    assert not open_ids(rig)
    rig.transaction(["y"], run="older")
    driver.commit(rig.batch(2, rig.task(["a2"], batch=2)))
    assert not open_ids(rig)
    assert rig.rows() == ["a0", "a1", "a2"]


def test_the_next_batch_aborts_a_late_duplicate_attempt(rig):
    driver = rig.driver()
    driver.commit(rig.batch(0, rig.task(["a0"], batch=0)))
    rig.transaction(["x"])
    driver.commit(inline(rig, 1))
    assert not open_ids(rig)


def test_inline_batches_look_for_leftovers_after_another_process_has_served_the_run(rig, broker):
    """And once only: looking costs a request to every broker."""
    first, second = rig.driver(), rig.driver()
    first.commit(inline(rig, 0))
    second.commit(rig.batch(1, rig.task(["a1"], batch=1)))
    rig.transaction(["x"])
    first.commit(inline(rig, 2))
    assert not open_ids(rig)
    with broker.faults.inject(api="ListTransactions", delay_ms=1) as requests:
        first.commit(inline(rig, 3))
        assert requests.hits == 0


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_wrong_clock_of_the_driver_decides_nothing(rig, hours):
    """The age of a transaction comes from the broker's clock."""
    driver = rig.driver(now_ms=hours_from_now(hours))
    driver.commit(rig.batch(0, rig.task(["a1"])))
    assert rig.rows() == ["a1"]


def test_a_decision_whose_transaction_times_out_is_repeated(rig, monkeypatch):
    open_ledger = Ledger.open
    monkeypatch.setattr(Ledger, "open", lambda ledger: open_ledger(ledger, int(EXPIRY_MS)))

    def is_open() -> bool:
        return bool(rig.transactions.describe([rig.sink])[rig.sink].state == ONGOING)

    def hang() -> None:
        eventually("the decision is written", is_open)
        eventually("its transaction times out", lambda: not is_open())

    report = rig.task(["a1"], commit__mode="inline")
    rig.driver(steps=Steps(decide__written=hang)).commit(rig.batch(0, report))
    assert rig.rows() == ["a1"]
