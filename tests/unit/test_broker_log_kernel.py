"""Both kernels cut and scan batches in the same way, whatever the bytes are."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.log.decompression import release
from headrace.errors import MalformedError, WireError
from headrace.wire import _reference as reference
from headrace.wire.kernel import KERNEL_NAME, kernel
from headrace.wire.layout import HEADER_BYTES, Record
from headrace.wire.records import BatchProducer, encode, read_batches
from tests.support.log_rig import batch

pytestmark = pytest.mark.both_kernels

FEW = b"".join(
    (
        batch(b"a", b"b" * 40, b"c"),
        batch(b"d" * 300, offset=3, producer=BatchProducer(1, 2, 3, transactional=True), leader_epoch=-1),
        batch((b"k", None), offset=9, leader_epoch=7),
    )
)
OFFSETS = st.integers(-1, 12)
SIZES = st.integers(0, len(FEW) + 10)


def outcome(function, *args):
    """Return the result of a call, or the type of its error: the messages differ."""
    try:
        return function(*args)
    except WireError as error:
        return type(error)


@given(SIZES, OFFSETS, OFFSETS, SIZES)
def test_cut_batches_is_the_same_in_both_kernels(size, offset, end_offset, bytes_max):
    data = FEW[:size]
    assert kernel.cut_batches(data, offset, end_offset, bytes_max) == reference.cut_batches(
        data, offset, end_offset, bytes_max
    )


@given(st.integers(0, len(FEW) - 1), st.integers(1, 255), OFFSETS, st.booleans(), st.integers(0, 4))
def test_a_changed_byte_gives_the_same_result_in_both_kernels(position, change, offset, verify, count_max):
    data = bytearray(FEW)
    data[position] ^= change
    assert outcome(kernel.cut_batches, data, offset, 12, 500) == outcome(reference.cut_batches, data, offset, 12, 500)
    assert kernel.scan_batches(data, 0, 0, count_max, verify) == reference.scan_batches(data, 0, 0, count_max, verify)


@given(st.binary(max_size=200))
def test_random_bytes_give_the_same_result_in_both_kernels(data):
    assert outcome(kernel.cut_batches, data, 0, 9, 99) == outcome(reference.cut_batches, data, 0, 9, 99)
    assert kernel.scan_batches(data, 0, 0, 9, True) == reference.scan_batches(data, 0, 0, 9, True)
    assert outcome(kernel.scan_records, data, 3) == outcome(reference.scan_records, data, 3)


@given(st.integers(0, 60))
def test_a_scan_returns_where_and_why_it_ended(cut):
    headers, position, problem = kernel.scan_batches(FEW[: len(FEW) - cut], 0, 0, 99, True)
    if cut:
        assert (len(headers), bool(problem)) == (2, True)
        assert position == sum(header.size for header in headers)
    else:
        assert ([header.base_offset for header in headers], position, problem) == ([0, 3, 9], len(FEW), "")


def test_a_scan_returns_the_headers():
    headers, _, _ = kernel.scan_batches(FEW, 0, 0, 99, True)
    assert headers == [each.header for each in read_batches(FEW)]


@pytest.mark.parametrize("index", range(3))
def test_scan_records_returns_positions_and_keys(index):
    each = list(read_batches(FEW))[index]
    payload = bytes(each.payload())
    rows = kernel.scan_records(payload, each.header.record_count)
    assert rows == reference.scan_records(payload, each.header.record_count)
    assert b"".join(payload[start:end] for start, end, *_ in rows) == payload
    assert [(row[2], row[4], row[5]) for row in rows] == [
        (record.offset - each.header.base_offset, record.key, record.value is not None) for record in each.records()
    ]


def test_an_incomplete_batch_returns_how_many_bytes_are_needed():
    first = len(batch(b"a", b"b" * 40, b"c"))
    assert kernel.cut_batches(FEW[: first - 1], 0, 99, 9999) == (0, 0, -1, -1, first)
    assert kernel.cut_batches(FEW[:30], 0, 99, 9999) == (0, 0, -1, -1, HEADER_BYTES)
    assert kernel.cut_batches(FEW, 12, 99, 9999) == (len(FEW), len(FEW), -1, -1, HEADER_BYTES)


def test_a_timestamp_is_found_in_a_payload():
    rows = [Record(n, 100 + time, None, b"v", ()) for n, time in enumerate((0, 5, 3, 9, 9))]
    payload = bytes(encode(rows)[HEADER_BYTES:])
    assert kernel.find_timestamp(payload, 5, 0, 0) == (0, 0)
    assert kernel.find_timestamp(payload, 5, 4, 0) == (1, 5)
    assert kernel.find_timestamp(payload, 5, 4, 2) == (3, 9)
    assert kernel.find_timestamp(payload, 5, -(2**63), 4) == (4, 9)
    assert kernel.find_timestamp(payload, 5, 10, 0) is None
    with pytest.raises(MalformedError):
        kernel.find_timestamp(payload[:-3], 5, 10, 0)


@pytest.mark.parametrize("how", ["scan", "decode"])
def test_a_batch_of_many_records_lets_other_threads_run(how):
    count = 1_000_000 if KERNEL_NAME == "compiled" else 100_000  # enough for a tenth of a second
    (batch_read,) = read_batches(batch((b"k", b"v")))
    payload = bytes(batch_read.payload()) * count

    def turns_of_another_thread() -> int:
        begun, ended = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            records: list[Any] = []
            if how == "scan":
                records = kernel.scan_records(payload, count)
            else:
                records = kernel.decode_records(payload, count, 0, 0, -1)
            ended.set()
            release(records)

        worker = threading.Thread(target=work)
        worker.start()
        begun.wait(20)
        turns = 0
        while not ended.is_set():
            turns += 1
            time.sleep(0.001)
        worker.join(60)
        return turns

    # The operating system may not run the other thread in time on a busy machine. A kernel that keeps the GIL fails
    # every attempt.
    assert any(turns_of_another_thread() >= 8 for _ in range(20))
