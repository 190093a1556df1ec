"""Retention by age, by size and below the start offset; rolling of segments; DeleteRecords; a full disk."""

from __future__ import annotations

import asyncio
import errno

import pytest

from headrace.broker.log import Log, Origin
from headrace.broker.log.producer_snapshots import snapshot_offsets
from headrace.errors import BrokerError, Code
from headrace.wire.records import BatchProducer
from tests.support.fake_internal import START_MS
from tests.support.log_rig import LogRig, batch, state_of, values_of

DAY_MS = 24 * 60 * 60 * 1000


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


def fill(rig: LogRig, log: Log, count: int = 20, step_ms: int = 1000) -> int:
    """Write one segment for each batch and return the size of a batch."""
    for n in range(count):
        size = rig.append(log, b"%02d" % n * 50, time_ms=START_MS + n * step_ms).size_bytes
        log.roll()
    return size


def clean(rig) -> None:
    asyncio.run(rig.manager.delete_old())


# --- rolling ---


def test_a_full_segment_is_rolled(rig):
    size = len(batch(b"v" * 100))
    log = rig.log(internal_segment_bytes=str(3 * size))
    for _ in range(7):
        rig.append(log, b"v" * 100)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    assert sorted(path.name for path in log.directory.glob("*.log")) == [f"{base:020d}.log" for base in (0, 3, 6)]


def test_a_segment_is_rolled_after_segment_ms(rig):
    log = rig.log(segment_ms="1000")
    rig.append(log, b"a", time_ms=START_MS)
    rig.append(log, b"b", time_ms=START_MS + 1000)
    rig.append(log, b"c", time_ms=START_MS + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_segment_ms_uses_the_clock_for_records_without_timestamps(rig):
    log = rig.log(segment_ms="1000")
    rig.append(log, b"a", time_ms=-1)
    rig.clock.now_ms += 1001
    rig.append(log, b"b", time_ms=-1)
    assert len(log.segments) == 2


def test_a_full_index_rolls_the_segment(rig):
    log = rig.log(segment_index_bytes="36", index_interval_bytes="0")
    for _ in range(20):
        rig.append(log, b"v")
    assert len(log.segments) > 3
    assert all(len(segment.index) <= 4 for segment in log.segments)


def test_offsets_too_far_apart_do_not_share_a_segment(rig):
    log = rig.log()
    log.append(batch(b"a", offset=5, leader_epoch=0), origin=Origin.REPLICATION)
    log.append(batch(b"b", offset=5 + 2**31, leader_epoch=0), origin=Origin.REPLICATION)
    assert [segment.base_offset for segment in log.segments] == [0, 5 + 2**31]
    assert values_of(rig.crash().log()) == [b"a", b"b"]


def test_an_empty_segment_is_not_rolled(rig):
    log = rig.log()
    log.roll()
    rig.append(log, b"a")
    log.roll()
    log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 1]


# --- retention ---


@pytest.mark.behaviour("B14")
def test_segments_with_old_records_only_are_deleted(rig):
    log = rig.log(retention_ms="10000")
    fill(rig, log)
    rig.clock.now_ms += 15_500  # records up to the sixth are older than ten seconds
    clean(rig)
    assert log.start_offset == 6
    assert values_of(log) == [b"%02d" % n * 50 for n in range(6, 20)]
    with pytest.raises(BrokerError) as caught:
        log.read(5, 100, end_offset=20, at_least_one=True)
    assert caught.value.code == Code.OFFSET_OUT_OF_RANGE


def test_offsets_continue_after_all_segments_are_deleted(rig):
    log = rig.log(retention_ms="10000")
    rig.append(log, b"a", b"b")
    rig.clock.now_ms += DAY_MS
    clean(rig)
    assert (log.start_offset, log.end_offset, log.size_bytes) == (2, 2, 0)
    assert rig.append(log, b"c").first_offset == 2
    reopened = rig.crash().log()
    assert (reopened.start_offset, reopened.end_offset) == (2, 3)


def test_segments_above_the_high_watermark_are_not_deleted(rig):
    log = rig.log(retention_ms="1000")
    for _ in range(4):
        log.append(batch(b"v"))
        log.roll()
    log.advance_high_watermark(2)
    rig.clock.now_ms += DAY_MS
    clean(rig)
    assert log.start_offset == 2


@pytest.mark.behaviour("B14")
def test_the_oldest_segments_beyond_retention_bytes_are_deleted(rig):
    log = rig.log()
    size = fill(rig, log, 10)
    log.reconfigure(rig.log("x", retention_bytes=str(4 * size + 1)).config)
    clean(rig)
    assert log.start_offset == 5
    assert log.size_bytes == 5 * size


@pytest.mark.parametrize("policy", ["compact", ""])
def test_age_and_size_are_ignored_without_the_delete_policy(rig, policy):
    log = rig.log(cleanup_policy=policy, retention_ms="1", retention_bytes="1")
    for n in range(5):
        rig.append(log, (b"k%d" % n, b"v"))
        log.roll()
    rig.clock.now_ms += DAY_MS
    clean(rig)
    assert log.start_offset == 0


def test_retention_of_minus_one_keeps_everything(rig):
    log = rig.log(retention_ms="-1")
    fill(rig, log)
    rig.clock.now_ms += 1000 * DAY_MS
    clean(rig)
    assert log.start_offset == 0


def test_retention_uses_the_file_time_for_records_without_timestamps(rig):
    log = rig.log(retention_ms="1000")
    rig.append(log, b"a", time_ms=-1)
    log.roll()
    clean(rig)
    assert log.start_offset == 0
    rig.clock.now_ms += 2000
    clean(rig)
    assert log.start_offset == 1


def test_deleted_files_are_renamed_and_removed_after_the_delay(rig):
    async def run():
        log = rig.log(retention_ms="1000", file_delete_delay_ms="5000")
        fill(rig, log, 3, step_ms=0)
        rig.clock.now_ms += 2000
        await rig.manager.delete_old()
        assert len(list(log.directory.glob("*.log.deleted"))) == 3
        assert len(list(log.directory.glob("*.log"))) == 1
        await rig.clock.run(4999)
        assert list(log.directory.glob("*.deleted"))
        await rig.clock.run(1)
        await asyncio.gather(*rig.manager._tasks)
        assert not list(log.directory.glob("*.deleted"))
        assert snapshot_offsets(log.directory) == [3]

    asyncio.run(run())


# --- DeleteRecords ---


def test_records_below_an_offset_can_be_deleted(rig):
    log = rig.log()
    fill(rig, log, 5)
    assert log.delete_records(3) == 3
    assert log.delete_records(2) == 3
    assert values_of(log) == [b"%02d" % n * 50 for n in (3, 4)]
    clean(rig)
    assert [segment.base_offset for segment in log.segments] == [3, 4, 5]
    assert log.delete_records(-1) == 5


def test_records_above_the_high_watermark_cannot_be_deleted(rig):
    log = rig.log()
    rig.append(log, b"a", b"b")
    log.append(batch(b"c"))
    for offset in (3, -2):
        with pytest.raises(BrokerError) as caught:
            log.delete_records(offset)
        assert caught.value.code == Code.OFFSET_OUT_OF_RANGE
    assert log.delete_records(-1) == 2


def test_a_start_offset_within_a_batch_survives_a_crash(rig):
    log = rig.log()
    rig.append(log, b"a", b"b", b"c")
    log.delete_records(2)
    reopened = rig.crash().log()
    assert (reopened.start_offset, reopened.end_offset) == (2, 3)
    assert reopened.read(2, 1, end_offset=3, at_least_one=True).first_offset == 0


def test_a_transaction_that_begins_below_the_start_keeps_readers_at_the_start(rig):
    log = rig.log()
    rig.append(log, b"a", producer=BatchProducer(1, 0, 0, transactional=True))
    rig.append(log, b"b")
    log.delete_records(1)
    assert log.last_stable_offset == 1
    rig.mark(log, 1, 0, committed=False)
    assert log.last_stable_offset == 3
    assert log.aborted.between(1, 3) == [(1, 0)]


def test_deleting_records_keeps_the_producer_state(rig):
    log = rig.log()
    rig.append(log, b"a", producer=BatchProducer(1, 0, 0))
    log.delete_records(1)
    assert log.append(batch(b"a", producer=BatchProducer(1, 0, 0))).duplicate
    before = state_of(log)["producers"]
    log.roll()
    clean(rig)
    assert log.size_bytes == 0
    assert state_of(rig.crash().log())["producers"] == before


# --- a full disk ---


@pytest.fixture
def full_disk(monkeypatch):
    """Return a function after which no small file can be written."""

    def refuse(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    def fill_up():
        for module in ("checkpoints", "files", "producer_snapshots"):
            monkeypatch.setattr(f"headrace.broker.log.{module}.replace_file", refuse)

    return fill_up


def test_records_can_be_deleted_on_a_full_disk(rig, full_disk):
    log = rig.log()
    fill(rig, log, 5)
    full_disk()
    assert log.delete_records(3) == 3
    clean(rig)
    assert log.segments[0].base_offset == log.start_offset == 3
    assert len(values_of(log)) == 2


def test_retention_frees_space_on_a_full_disk(rig, full_disk):
    logs = [rig.log("t", n, retention_bytes="0") for n in range(2)]
    for log in logs:
        fill(rig, log, 5)
        rig.append(log, b"last")
    full_disk()
    clean(rig)
    for log in logs:
        assert values_of(log) == [b"last"], "there is no space for the next segment"
