"""Reads of whole batches from an offset on, look-ups by timestamp, and leader epochs."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.log import Log, OffsetAndTimestamp, Origin, files, segment
from headrace.errors import BrokerError, Code
from headrace.wire.compression import CODEC_IDS
from headrace.wire.records import read_batches
from tests.support.examples import examples
from tests.support.fake_internal import START_MS
from tests.support.log_rig import LogRig, batch, find_by_time, read_all, rows_of, values_of

pytestmark = pytest.mark.both_kernels


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


def offsets(part) -> list[tuple[int, int]]:
    return [(each.header.base_offset, each.header.last_offset) for each in read_batches(part.data)]


def read(log, offset, bytes_max=1 << 20, *, end=None, at_least_one=True):
    return log.read(offset, bytes_max, end_offset=log.high_watermark if end is None else end, at_least_one=at_least_one)


def test_a_read_begins_with_the_batch_that_has_the_offset(rig):
    log = rig.log()
    rig.append(log, b"a", b"b", b"c")
    rig.append(log, b"d", b"e")
    assert offsets(read(log, 0)) == [(0, 2), (3, 4)]
    assert offsets(read(log, 2)) == [(0, 2), (3, 4)]
    assert offsets(read(log, 3)) == [(3, 4)]
    part = read(log, 1)
    assert (part.first_offset, part.next_offset) == (0, 5)


def test_a_read_is_cut_at_whole_batches(rig):
    log = rig.log()
    size = rig.append(log, b"a" * 100).size_bytes
    for _ in range(9):
        rig.append(log, b"a" * 100)
    assert len(read(log, 0, 3 * size).data) == 3 * size
    assert len(read(log, 0, 4 * size - 1).data) == 3 * size
    assert read(log, 0, 4 * size - 1).next_offset == 3


def test_the_first_batch_is_returned_even_if_it_is_too_large(rig):
    log = rig.log()
    size = rig.append(log, b"a" * 50_000).size_bytes
    rig.append(log, b"b")
    assert len(read(log, 0, 10).data) == size
    assert len(read(log, 0, 0).data) == size
    assert bytes(read(log, 0, size - 1, at_least_one=False).data) == b""
    assert bytes(read(log, 0, 1, at_least_one=False).data) == b""
    assert len(read(log, 0, size, at_least_one=False).data) == size


def test_a_batch_that_reaches_the_end_offset_is_not_returned(rig):
    log = rig.log()
    rig.append(log, b"a", b"b")
    rig.append(log, b"c", b"d")
    assert offsets(read(log, 0, end=4)) == [(0, 1), (2, 3)]
    assert offsets(read(log, 0, end=3)) == [(0, 1)]
    assert offsets(read(log, 0, end=2)) == [(0, 1)]
    assert offsets(read(log, 0, end=1)) == []
    assert offsets(read(log, 2, end=2)) == []


def test_offsets_outside_the_log_are_out_of_range(rig):
    log = rig.log()
    rig.append(log, b"a", b"b", b"c")
    log.delete_records(1)
    for offset in (-1, 0, 4):
        with pytest.raises(BrokerError) as caught:
            read(log, offset)
        assert caught.value.code == Code.OFFSET_OUT_OF_RANGE
    part = read(log, 3)
    assert (bytes(part.data), part.next_offset) == (b"", 3)
    assert offsets(read(log, 1)) == [(0, 2)]


@pytest.mark.behaviour("B14")
def test_reads_continue_in_the_next_segment(rig):
    log = rig.log(internal_segment_bytes="1000")
    for n in range(50):
        rig.append(log, b"%d" % n * 100)
    assert len(log.segments) > 5
    assert read_all(log) == b"".join(bytes(each.view) for each in log.batches())
    assert values_of(log) == [b"%d" % n * 100 for n in range(50)]
    for n in range(50):
        assert offsets(read(log, n, 1)) == [(n, n)]


def test_reads_skip_gaps(rig):
    """Compaction leaves gaps within a segment and at its end."""
    log = rig.log(internal_segment_bytes="300")
    for offset in (5, 6, 20, 40, 41, 100):
        log.append(batch(b"v" * 60, offset=offset, leader_epoch=0), origin=Origin.REPLICATION)
    log.advance_high_watermark(101)
    assert len(log.segments) == 3
    for requested, first in [(0, 5), (5, 5), (7, 20), (21, 40), (30, 40), (42, 100), (99, 100)]:
        assert offsets(read(log, requested, 1)) == [(first, first)]


def test_large_batches_are_read_with_a_small_index_interval(rig):
    log = rig.log(index_interval_bytes="0", internal_segment_bytes="200000")
    for n in range(40):
        rig.append(log, b"x" * (n * 997 % 20_000), b"y")
    for offset in range(80):
        assert offsets(read(log, offset, 1)) == [(offset // 2 * 2, offset // 2 * 2 + 1)]


def test_large_reads_use_memory_maps(rig, monkeypatch):
    monkeypatch.setattr(files, "MAP_BYTES", 1 << 20)
    monkeypatch.setattr(segment, "MAP_BYTES", 1 << 20)
    monkeypatch.setattr(files, "MAP_GROWTH_BYTES_MIN", 1 << 18)
    monkeypatch.setattr(files, "MAPS_MAX", 2)
    log = rig.log(max_message_bytes="5000000")
    values = [os.urandom(1) * (n * 7919 % 200_000) for n in range(60)] + [b"z" * 3_000_000] + [b"end"] * 3
    for value in values:
        rig.append(log, value)
    everything = b"".join(bytes(each.view) for each in log.batches())
    assert len(everything) > 8_000_000
    for bytes_max in (300_000, 900_000, 20_000_000):
        assert read_all(log, bytes_max=bytes_max) == everything
    assert isinstance(read(log, 0, 900_000).data, memoryview)


def test_data_that_was_read_is_valid_after_a_truncation(rig, monkeypatch):
    monkeypatch.setattr(files, "MAP_GROWTH_BYTES_MIN", 1 << 18)
    log = rig.log()
    for n in range(20):
        rig.append(log, b"%d" % (n % 10) * 50_000)
    held = read(log, 0, 1 << 20).data
    before = bytes(held)
    assert isinstance(held, memoryview)
    log.truncate(3)
    rig.append(log, b"other" * 30_000)
    assert bytes(held) == before
    assert len(values_of(log)) == 4


def test_data_that_was_read_is_valid_after_its_segment_is_deleted(rig):
    log = rig.log(internal_segment_bytes="1000", retention_ms="1")
    for n in range(20):
        rig.append(log, b"%d" % n * 100)
    held = read(log, 0, 500).data
    before = bytes(held)
    rig.clock.now_ms += 10_000
    log.delete_records(15)
    assert bytes(held) == before


BATCHES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 3000), st.booleans()), min_size=1, max_size=25
)  # records, bytes of the first, whether to roll after it


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES, st.data())
def test_reads_match_a_list_of_batches(tmp_path_factory, shape, data):
    rig = LogRig(tmp_path_factory.mktemp("logs"))
    log = rig.log(index_interval_bytes="500", internal_segment_bytes="9000")
    model = []  # first offset, last offset, bytes
    for count, size, roll in shape:
        info = rig.append(log, b"v" * size, *[b"w"] * (count - 1))
        model.append((info.first_offset, info.last_offset, info.size_bytes))
        if roll:
            log.roll()
    for _ in range(10):
        offset = data.draw(st.integers(0, log.end_offset))
        end = data.draw(st.integers(0, log.end_offset))
        bytes_max = data.draw(st.integers(0, 12_000))
        at_least_one = data.draw(st.booleans())
        part = log.read(offset, bytes_max, end_offset=end, at_least_one=at_least_one)
        got = offsets(part)
        allowed = [row for row in model if row[1] >= offset and row[1] < end]
        expected = [row[:2] for row in allowed[: len(got)]]
        assert got == expected
        first_bytes = allowed[0][2] if allowed else 0
        assert len(part.data) <= (max(bytes_max, first_bytes) if at_least_one else bytes_max)
        if allowed and offset < end and (at_least_one or first_bytes <= bytes_max):
            assert got
            assert part.next_offset == got[-1][1] + 1


# --- look-up by timestamp ---


def test_the_first_record_at_or_after_a_timestamp(rig):
    log = rig.log(internal_segment_bytes="600", index_interval_bytes="100")
    for n in range(30):
        rig.append(log, b"a" * 20, b"b" * 20, time_ms=START_MS + n * 100, step_ms=10)
    assert len(log.segments) > 3
    for n in range(30):
        assert find(log, START_MS + n * 100) == (2 * n, START_MS + n * 100, 0)
        assert find(log, START_MS + n * 100 + 1) == (2 * n + 1, START_MS + n * 100 + 10, 0)
        if n < 29:
            assert find(log, START_MS + n * 100 + 11) == (2 * n + 2, START_MS + n * 100 + 100, 0)
    assert find(log, 0) == (0, START_MS, 0)
    assert find(log, START_MS + 2911) is None


def find(log: Log, timestamp: int, end: int | None = None) -> OffsetAndTimestamp | None:
    match = find_by_time(log, timestamp)
    return match if match is not None and match.offset < (log.high_watermark if end is None else end) else None


def test_look_ups_by_timestamp_begin_at_the_start_offset(rig):
    log = rig.log()
    for n in range(5):
        rig.append(log, b"a", time_ms=START_MS + n)
    assert find(log, START_MS + 3, end=4) == (3, START_MS + 3, 0)
    assert find(log, START_MS + 3, end=3) is None
    log.delete_records(2)
    assert find(log, START_MS) == (2, START_MS + 2, 0)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=4), min_size=1, max_size=25))
def test_look_ups_by_timestamp_match_a_scan(tmp_path_factory, times):
    rig = LogRig(tmp_path_factory.mktemp("logs"))
    log = rig.log(internal_segment_bytes="400", index_interval_bytes="100")
    for row in times:
        for time in row:
            rig.append(log, b"v" * 30, time_ms=START_MS + time, codec=CODEC_IDS["gzip"] if time % 2 else 0)
    rows = [(row.offset, row.timestamp) for row in rows_of(log)]
    for time in range(START_MS, START_MS + 52):
        expected = next((row for row in rows if row[1] >= time), None)
        match = find(log, time)
        assert (match and match[:2]) == expected
    highest = max(time for _, time in rows)
    assert log.segments.max_timestamp == highest
    newest = find(log, highest, end=log.end_offset)
    assert newest is not None
    assert newest[:2] == next(row for row in rows if row[1] == highest)


def test_the_highest_timestamp(rig):
    log = rig.log()
    assert log.segments.max_timestamp == -1
    rig.append(log, b"a", b"b", b"c", time_ms=START_MS, step_ms=5)
    rig.append(log, b"d", time_ms=START_MS)
    log.append(batch(b"e"), leader_epoch=0)
    assert find(log, log.segments.max_timestamp, end=5) == (2, START_MS + 10, 0)
    assert find(log, log.segments.max_timestamp, end=2) is None


def test_look_ups_by_timestamp_use_the_append_time(rig):
    log = rig.log(message_timestamp_type="LogAppendTime")
    rig.append(log, b"a", b"b", time_ms=7, step_ms=1)
    rig.clock.now_ms += 50
    rig.append(log, b"c", b"d", time_ms=7)
    assert find(log, START_MS + 1) == (2, START_MS + 50, 0)
    assert find(log, log.segments.max_timestamp, end=9) == (2, START_MS + 50, 0)


# --- epochs ---


def test_the_end_of_an_epoch(rig):
    log = rig.log()
    assert (log.latest_epoch, log.end_of_epoch(0)) == (-1, (-1, -1))
    for epoch, count in [(0, 2), (3, 1), (4, 3)]:
        for _ in range(count):
            log.append(batch(b"v"), leader_epoch=epoch)
    assert log.latest_epoch == 4
    assert [log.end_of_epoch(epoch) for epoch in range(-1, 6)] == [
        (-1, -1),
        (0, 2),
        (0, 2),
        (0, 2),
        (3, 3),
        (4, 6),
        (-1, -1),
    ]
    log.advance_high_watermark(6)
    log.delete_records(3)
    assert log.end_of_epoch(0) == (0, 3)
    log.begin_epoch(9)
    assert (log.latest_epoch, log.end_of_epoch(4)) == (9, (4, 6))
    log.truncate(4)
    assert (log.latest_epoch, log.end_of_epoch(4)) == (4, (4, 4))
