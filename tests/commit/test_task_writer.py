"""Tasks on a broker: what they write, what they leave open, and what they report."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from headrace.producer.accumulator import Accumulator
from headrace.producer.sequences import SequenceTable
from headrace.producer.serializers import DoubleSerializer
from headrace.producer.transactions import TransactionManager
from headrace.spark.decisions import Span
from headrace.spark.errors import BadRowError, FencedError, SinkError
from headrace.spark.task_writer import merged
from headrace.spark.transactions import EndTxnResult
from headrace.wire.kernel import KERNEL_NAME
from tests.support.allocations import PeakBlocks
from tests.support.crashes import open_transactions
from tests.support.sink_rig import PARTITIONS, SinkRig
from tests.support.topics import unique
from tests.support.waiting import eventually

SECONDS_MAX = 20


def end(rig: SinkRig, report, *, committed: bool = True) -> EndTxnResult:
    (ending,) = rig.transactions.end([report.transaction], committed=committed).values()
    return ending


def columns(values: list[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values), "partition": pa.array([0] * len(values), pa.int32())})


def open_ids(rig: SinkRig) -> list[str]:
    return rig.transactions.open_ids(rig.sink) or []


def test_the_report_counts_the_rows_of_all_sends(rig):
    parts = [["a1", "a2", "a3"], ["a4"], ["a5", "a6"]]
    report = rig.task(*parts, partition=1)
    assert report.row_count == 6
    assert report.transaction.spans == (Span(rig.topic, 1, 0, 5, 6),)
    assert report.transaction.record_count == 6


def test_a_transaction_is_left_open_as_soon_as_all_records_have_results(rig, monkeypatch):
    """The I/O thread may still be at work with the last batch when flush() returns."""
    is_detached = threading.Event()
    finish, begin_reset = Accumulator.finish, TransactionManager.begin_reset

    def finish_late(self, batch):
        assert is_detached.wait(SECONDS_MAX)
        finish(self, batch)

    def note_reset(self, transactional_id):
        if self.transaction_started:
            is_detached.set()
        return begin_reset(self, transactional_id)

    monkeypatch.setattr(Accumulator, "finish", finish_late)
    monkeypatch.setattr(TransactionManager, "begin_reset", note_reset)
    report = rig.task(["a1"], partition=1)
    assert report.transaction.record_count == 1


ROWS, ROWS_IN_BATCH = 100_000, 10_000
BLOCKS_MAX = ROWS_IN_BATCH // 3
"""For the batches in flight and their results."""


def blocks_of_task(rig: SinkRig, rows: int, **options: str) -> int:
    """Return how many blocks of Python's memory a task needs at most to write these rows."""
    batches = []
    for first in range(0, rows, ROWS_IN_BATCH):
        keys = pa.array(range(first, min(first + ROWS_IN_BATCH, rows)), pa.int64())
        batches.append(pa.RecordBatch.from_pydict({"key": keys, "value": keys.cast(pa.float64())}))
    given = {"kafka__key__serializer": "long", "kafka__value__serializer": "double", **options}
    end(rig, rig.write(iter(batches[:1]), **given), committed=False)  # type: ignore[arg-type]  # first: imports
    with PeakBlocks() as blocks:
        report = rig.write(iter(batches), batch=1, **given)
    assert report.row_count == rows
    return blocks.count


@pytest.mark.behaviour("S04")
@pytest.mark.skipif(KERNEL_NAME == "python", reason="the Python kernel works row by row")
@pytest.mark.parametrize("partitioner", ["round-robin", "key-hash-round-robin", "uniform-sticky", "default-2.4"])
def test_a_task_with_built_in_plug_ins_creates_no_python_object_for_each_row(rig, partitioner):
    assert blocks_of_task(rig, ROWS, kafka__partitioner__class=partitioner) < BLOCKS_MAX


class RowsOnly(DoubleSerializer):
    def serialize(self, topic, value, headers):
        return super().serialize(topic, value, headers)


def test_a_task_with_a_serializer_for_rows_creates_objects_for_each_row(rig):
    """The count above does detect them."""
    rows = 2 * BLOCKS_MAX
    name = f"{__name__}.{RowsOnly.__qualname__}"
    assert blocks_of_task(rig, rows, kafka__value__serializer=name) > rows


def test_rows_without_a_partition_are_reported_for_each_partition(rig):
    report = rig.task([f"{number}" for number in range(100)], partition=None)
    assert [span.partition for span in report.transaction.spans] == [*range(PARTITIONS)]
    assert report.transaction.record_count == 100
    for span in report.transaction.spans:
        assert (span.first, span.last - span.first + 1) == (0, span.count)


def test_a_task_leaves_its_transaction_open_under_the_identity_that_it_reports(rig):
    report = rig.task(["a1", "a2"])
    assert open_transactions(rig.broker.bootstrap, rig.topic)
    state = rig.transactions.describe([report.transaction.id])[report.transaction.id]
    assert state.is_of(report.transaction)
    assert end(rig, report) is EndTxnResult.DONE
    assert rig.rows() == ["a1", "a2"]


def test_tasks_of_one_batch_have_separate_transactions(rig):
    reports = [rig.task([name]) for name in ("a1", "a2")]
    assert len({report.transaction.id for report in reports}) == 2
    assert end(rig, reports[0]) is EndTxnResult.DONE
    assert end(rig, reports[1], committed=False) is EndTxnResult.DONE
    assert rig.rows() == ["a1"]


def test_the_next_batch_uses_an_id_again_with_another_epoch(rig):
    first = rig.task(["a1"], batch=0)
    end(rig, first)
    second = rig.task(["a2"], batch=1)
    assert first.transaction.id == second.transaction.id
    assert first.transaction.identity != second.transaction.identity
    assert end(rig, second) is EndTxnResult.DONE
    assert rig.rows() == ["a1", "a2"]


def test_a_task_leaves_what_the_io_thread_owns_to_the_io_thread(rig, monkeypatch):
    """Between two transactions the producer is reset, including its sequence numbers."""
    clear = SequenceTable.clear
    threads = set()

    def noted(table: SequenceTable, *, is_same_id: bool) -> None:
        threads.add(threading.current_thread().name)
        clear(table, is_same_id=is_same_id)

    monkeypatch.setattr(SequenceTable, "clear", noted)
    for batch in range(2):
        end(rig, rig.task([f"a{batch}"], batch=batch))
    assert threads
    assert threading.current_thread().name not in threads


@pytest.mark.parametrize("mode", ["auto", "inline"])
def test_few_rows_are_sent_inline_in_the_report(rig, mode):
    report = rig.task(["a1", "a2"], ["a3"], commit__mode=mode)
    assert report.transaction is None
    assert not open_ids(rig)
    values = [value for topic, columns in merged([report]) for value in columns["value"].to_pylist()]
    assert values == ["a1", "a2", "a3"]
    assert rig.rows() == []


def test_inline_rows_of_all_tasks_are_one_batch_of_their_topic(rig):
    reports = [rig.task([f"{task}-1"], [f"{task}-2"], commit__mode="inline") for task in range(3)]
    ((topic, columns),) = merged(reports)
    assert topic == rig.topic
    assert columns["value"].to_pylist() == ["0-1", "0-2", "1-1", "1-2", "2-1", "2-2"]


def test_inline_rows_of_a_topic_stay_in_order_if_only_some_have_a_key(rig):
    rows = [{"value": ["1"]}, {"value": ["2"], "key": ["k"]}, {"value": ["3"]}, {"value": ["4"]}]
    report = rig.task(["0"], commit__mode="inline")
    report.inline = [(rig.topic, to_ipc(pa.RecordBatch.from_pydict(columns))) for columns in rows]
    assert [columns["value"].to_pylist() for _, columns in merged([report])] == [["1"], ["2"], ["3", "4"]]


def to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def test_a_task_with_too_many_inline_bytes_writes_all_rows_in_a_transaction(rig):
    parts = [[f"{number:0100d}"] for number in range(50)]
    report = rig.task(*parts, commit__mode="auto", commit__inline__bytes__max="2000")
    assert report.inline == []
    assert report.transaction.record_count == 50
    end(rig, report)
    assert rig.rows() == [row for (row,) in parts]


def test_the_error_of_an_inline_task_with_too_many_bytes_names_the_limit(rig):
    parts = [[f"{number:0100d}"] for number in range(50)]
    with pytest.raises(SinkError, match=r"commit\.inline\.bytes\.max \(2000 bytes\): set commit\.mode=auto"):
        rig.task(*parts, commit__mode="inline", commit__inline__bytes__max="2000")
    assert not open_ids(rig)


@pytest.mark.parametrize("mode", ["parallel", "auto"])
def test_a_task_without_rows_leaves_nothing(rig, mode):
    report = rig.task([], commit__mode=mode)
    assert (report.transaction, report.inline, report.row_count) == (None, [], 0)
    assert not open_ids(rig)


def test_a_failing_task_aborts_its_transaction_and_the_worker_stays_usable(rig):
    def failing():
        yield pa.RecordBatch.from_pydict({"value": ["a1"]})
        raise RuntimeError("the query failed")

    with pytest.raises(RuntimeError, match="the query failed"):
        rig.write(failing())
    assert not open_ids(rig)
    end(rig, rig.task(["a2"]))
    assert rig.rows() == ["a2"]


def test_a_row_that_can_never_be_sent_fails_the_task(rig):
    with pytest.raises(BadRowError):
        rig.task(["a1"], ["x" * 2_000_000])
    assert not open_ids(rig)


def test_a_row_that_can_never_be_sent_goes_to_the_dead_letters_with_the_rest(rig):
    letters = rig.broker.create_topic(unique("letters"))
    options = {"on__bad__row": "dead-letter", "dead__letter__topic": letters}
    report = rig.task(["a1"], ["x" * 2_000_000], ["a2"], **options)
    assert report.dead_count == 1
    assert {(span.topic, span.count) for span in report.transaction.spans} == {(rig.topic, 2), (letters, 1)}


def test_at_least_once_rows_are_visible_as_soon_as_they_are_written(rig):
    report = rig.task(["a1", "a2"], delivery="at-least-once")
    assert (report.transaction, report.inline) == (None, [])
    assert rig.rows() == ["a1", "a2"]


def test_a_task_whose_transaction_another_run_has_ended_names_that_run(rig):
    """Brokers return INVALID_PRODUCER_EPOCH, or PRODUCER_FENCED: neither tells the user who did it."""

    def rows():
        yield columns(["a1"])
        eventually("the transaction of the task", lambda: open_ids(rig), SECONDS_MAX)
        rig.driver("later").commit(rig.batch(0, rig.task(["b1"], run="later")))
        yield columns(["a2"])

    with pytest.raises(FencedError) as caught:
        rig.write(rows(), run="earlier", kafka__linger__ms="0")
    error = str(caught.value)
    assert f"of sink.id '{rig.sink}' was ended before the task was done, by another driver or query, which" in error
    assert "holds the sink now: run later (host " in error
    assert "give each its own sink.id" in error
    assert rig.rows() == ["b1"]


def test_a_task_whose_transaction_has_timed_out_names_the_option(rig):
    def rows():
        yield columns(["a1"])
        eventually("the transaction of the task", lambda: open_ids(rig), SECONDS_MAX)
        eventually("its time-out", lambda: not open_ids(rig), SECONDS_MAX)
        yield columns(["a2"])

    with pytest.raises(SinkError, match=r"was ended .*, by its time-out \(kafka.transaction.timeout.ms is 200\)"):
        rig.write(rows(), kafka__linger__ms="0", kafka__transaction__timeout__ms="200")
    assert rig.rows() == []
