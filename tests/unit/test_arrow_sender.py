"""Whole columns into the queues: where rows without a partition go, and what is refused before anything is sent."""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import chain, pairwise

import pyarrow as pa
import pytest

from headrace.errors import RecordTooLargeError
from headrace.producer import arrow
from headrace.producer.arrow import ArrowSender
from headrace.producer.queues import PartitionQueue
from headrace.wire.columns import HEADERS_TYPE
from headrace.wire.kernel import KERNEL_NAME
from headrace.wire.records import read_batches
from tests.support.rig import Rig

pytestmark = pytest.mark.both_kernels

NAMES = {name: name for name in ("key", "value", "headers", "partition", "timestamp")}
ROWS = 5000


def sender_of(rig: Rig, max_request_bytes: int = 1 << 20) -> ArrowSender:
    return ArrowSender(
        rig.accumulator,
        rig.pool,
        rig.clock,
        batch_bytes=1024,
        max_request_bytes=max_request_bytes,
        hashes_keys=True,
    )


def queues_after(rig: Rig, table: pa.Table) -> list[PartitionQueue]:
    """Send a table; return the queues of its topic."""
    sender = sender_of(rig)
    sender.check(table, NAMES)
    sender.send(rig.accumulator.topic("t", 4), rig.metadata.cluster, table, NAMES, 1000)
    return rig.accumulator.topics["t"].queues


def send(rig: Rig, table: pa.Table) -> dict[int, list[int]]:
    """Partition → the numbers in the values of its rows, in the order of the queues."""
    sent: defaultdict[int, list[int]] = defaultdict(list)
    for queue in queues_after(rig, table):
        for batch in queue.batches:
            (sealed,) = read_batches(batch.seal(0, None))
            assert all(record.timestamp == rig.clock.time_ms() for record in sealed.records())
            sent[queue.partition] += [int(record.value or b"") for record in sealed.records()]
    return sent


@pytest.fixture
def rig() -> Rig:
    return Rig(partitions=4, total_bytes=1 << 24)


@pytest.fixture
def values() -> list[bytes]:
    return [b"%0100d" % number for number in range(ROWS)]


def test_rows_without_key_and_partition_change_partition_with_every_batch(rig, values, monkeypatch):
    monkeypatch.setattr(arrow, "BATCH_BYTES_MIN", 20_000)
    sent = send(rig, pa.table({"value": values}))
    assert set(sent) == {0, 1, 2, 3}
    assert sorted(chain.from_iterable(sent.values())) == list(range(ROWS))
    for rows in sent.values():
        steps = sum(after - before != 1 for before, after in pairwise(rows))
        assert rows == sorted(rows)
        assert steps < 20, "rows that follow one another stay together"


def test_rows_that_name_a_partition_go_there_and_the_others_fill_the_gaps(rig, values):
    partitions = [3 if number % 2 else None for number in range(ROWS)]
    sent = send(rig, pa.table({"value": values, "partition": pa.array(partitions, pa.int64())}))
    assert set(range(1, ROWS, 2)) <= set(sent[3])
    assert sorted(chain.from_iterable(sent.values())) == list(range(ROWS))


def test_rows_with_a_key_go_where_the_key_belongs(rig, values):
    sent = send(rig, pa.table({"value": values, "key": [b"one key"] * ROWS}))
    assert list(map(len, sent.values())) == [ROWS]


def test_slices_of_a_table_have_the_same_number_of_rows(rig, values, monkeypatch):
    monkeypatch.setattr(arrow, "BATCH_BYTES_MIN", 1 << 20)
    table = pa.table({"value": values, "key": [b"one key"] * ROWS})
    monkeypatch.setattr(arrow, "SLICE_BYTES", table.nbytes * 2 // 5)  # two slices and a half
    (sent,) = (queue.batches for queue in queues_after(rig, table) if queue.batches)
    assert [batch.record_count for batch in sent] == [1667, 1667, 1666]


def test_no_rows_are_no_batches(rig):
    assert send(rig, pa.table({"value": pa.array([], pa.binary())})) == {}
    assert rig.pool.available_bytes == rig.pool.total_bytes


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_string(), pa.binary_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_a_row_that_no_request_can_carry_is_named_whatever_its_type(rig, kind):
    table = pa.table({"value": pa.array(["x", "x" * 900, "x" * 990]).cast(kind), "key": ["k" * 50] * 3})
    with pytest.raises(RecordTooLargeError, match="row 2 has 1040 bytes of key and value"):
        sender_of(rig, max_request_bytes=1100).check(table, NAMES)


@pytest.mark.behaviour("S04")
@pytest.mark.parametrize("columns", ["value", "value and key", "value and headers"])
def test_batches_are_filled_without_a_python_call_for_each_row(rig, values, columns):
    if KERNEL_NAME != "compiled":
        pytest.skip("the reference kernel is Python: it makes calls for each row")
    table: dict[str, object] = {"value": values}
    if "key" in columns:
        table["key"] = values
    if "headers" in columns:
        table["headers"] = pa.array([[{"key": "h", "value": b"1"}]] * ROWS, HEADERS_TYPE)
    sender, topic = sender_of(rig), rig.accumulator.topic("t", 4)
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        sender.send(topic, rig.metadata.cluster, pa.table(table), {name: name for name in table}, 1000)
    finally:
        sys.setprofile(None)
    batches = sum(len(queue.batches) for queue in topic.queues)
    assert 1 <= batches < ROWS / 100
    assert count < ROWS / 10
