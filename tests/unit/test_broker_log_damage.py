"""Damaged, truncated and lost files of a log: they are reported at the start, and the rest of the log is readable."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.log import manager as manager_module
from headrace.broker.log.files import replace_file
from headrace.broker.log.producer_snapshots import write_snapshot
from headrace.broker.log.producer_state import ProducerStateManager
from headrace.broker.log.recovery import PartitionFacts
from headrace.broker.log.validation import Origin
from headrace.errors import BrokerError, Code, IllegalStateError
from headrace.wire.records import BatchProducer, read_batches
from tests.support.log_rig import LogRig, batch, committed_values, find_by_time, read_all, state_of, values_of, visible

pytestmark = pytest.mark.slow

SMALL = {"internal_segment_bytes": "600", "index_interval_bytes": "100"}


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


def fill(rig: LogRig, rounds: int = 24):
    """Write several segments with committed and aborted transactions."""
    log = rig.log(**SMALL)
    for n in range(rounds):
        rig.append(log, b"plain %d" % n, b"second")
        rig.append(log, b"in a transaction %d" % n, producer=BatchProducer(2, 0, n, transactional=True))
        if n % 2:
            rig.mark(log, 2, 0, committed=n % 4 == 1)
    assert len(log.segments) > 5
    return log


def files(rig: LogRig, suffix: str) -> list[Path]:
    return sorted(path for path in (rig.root / "t-0").iterdir() if path.name.endswith(suffix))


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def stop_and(rig: LogRig, damage: Callable[[], object], *, clean: bool = True) -> LogRig:
    """Stop, or crash after everything is on disk; damage the files; start again."""

    async def run() -> LogRig:
        if clean:
            await rig.manager.stop()
            damage()
            return LogRig(rig.root, rig.clock, rig.defaults, rig.facts)
        for log in rig.manager.all:
            log.flush()
        await rig.manager.write_checkpoints()
        damage()
        return rig.crash()

    return asyncio.run(run())


def read_code(log, offset):
    with pytest.raises(BrokerError) as caught:
        log.read(offset, 1 << 20, end_offset=log.end_offset, at_least_one=True)
    return caught.value.code


def readable(log):
    """Return all records that can be read from any offset, by offset."""
    records, refusals = {}, set()
    for offset in range(log.start_offset, log.end_offset):
        try:
            part = log.read(offset, 1 << 20, end_offset=log.end_offset, at_least_one=True)
        except BrokerError as error:
            refusals.add(error.code)
            continue
        assert part.data, f"offset {offset}: neither records nor an error"
        for each in read_batches(part.data):
            for record in each.records():
                records[record.offset] = record.value
    assert refusals <= {Code.CORRUPT_MESSAGE}
    return records


def last_value(log):
    part = log.read(log.end_offset - 1, 1 << 20, end_offset=log.end_offset, at_least_one=True)
    return next(iter(read_batches(part.data))).records()[-1].value


# --- the transaction index ---


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["flipped", "cut", "an entry less", "lost", "emptied", "swapped", "garbage"])
def test_an_altered_transaction_index_is_rebuilt(rig, how, clean, caplog):
    log = fill(rig)
    visible, state = committed_values(log), state_of(log)
    path = files(rig, ".txnindex")[1]

    def damage() -> None:
        match how:
            case "flipped":
                flip(path, 2 + 8 + 7)  # the first offset, by one: an aborted record would be visible
            case "cut":
                os.truncate(path, path.stat().st_size - 1)
            case "an entry less":
                os.truncate(path, path.stat().st_size - 34)
            case "lost":
                path.unlink()
            case "emptied":
                path.write_bytes(b"")
            case "swapped":
                shutil.copyfile(files(rig, ".txnindex")[2], path)
            case "garbage":
                path.write_bytes(b"\xff" * 68)

    again = stop_and(rig, damage, clean=clean)
    reopened = again.log(**SMALL)
    assert committed_values(reopened) == visible
    assert state_of(reopened)["aborted"] == state["aborted"]
    assert path.name in caplog.text
    assert all(record.levelno >= logging.WARNING for record in caplog.records if path.name in record.message)
    caplog.clear()
    assert committed_values(stop_and(again, lambda: None).log(**SMALL)) == visible
    assert not caplog.records


def test_a_flipped_bit_anywhere_in_a_transaction_index_is_detected(rig):
    log = fill(rig)
    visible = committed_values(log)
    path = files(rig, ".txnindex")[1]
    asyncio.run(rig.manager.stop())
    for at in range(0, path.stat().st_size, 3):
        copy = rig.root.with_name(f"copy-{at}")
        shutil.copytree(rig.root, copy)
        flip(copy / "t-0" / path.name, at, at % 8)
        assert committed_values(LogRig(copy, rig.clock).log(**SMALL)) == visible


def test_a_log_without_its_segment_checkpoint_is_read_again(rig):
    log = fill(rig)
    state = state_of(log)

    def damage() -> None:
        (rig.root / "t-0" / "segment-checkpoint").unlink()
        flip(files(rig, ".txnindex")[1], 17)

    assert state_of(stop_and(rig, damage).log(**SMALL)) == state


@pytest.mark.parametrize("how", ["older", "of another partition"])
def test_a_segment_checkpoint_of_another_state_hides_no_record(rig, how, caplog):
    log = fill(rig)
    path = rig.root / "t-0" / "segment-checkpoint"
    older = rig.root.with_name("older")
    shutil.copyfile(path, older)
    other = rig.log("u", **SMALL)
    for n in range(40):
        rig.append(other, b"other %d" % n)
        rig.append(log, b"more %d" % n)
    state = state_of(log)
    source = older if how == "older" else rig.root / "u-0" / "segment-checkpoint"
    reopened = stop_and(rig, lambda: shutil.copyfile(source, path)).log(**SMALL)
    assert state_of(reopened) == state
    if how != "older":  # an older one has fewer rows, but no wrong ones
        assert "segment-checkpoint is damaged and not used: it is of u-0" in caplog.text


def test_a_checkpoint_of_an_earlier_clean_stop_hides_no_record(rig, caplog):
    fill(rig, 23)
    older = rig.root.with_name("older")
    path = rig.root / "t-0" / "segment-checkpoint"
    again = stop_and(rig, lambda: shutil.copyfile(path, older))
    log = again.log(**SMALL)
    for n in range(40):
        again.append(log, b"more %d" % n)
    state = state_of(log)
    reopened = stop_and(again, lambda: shutil.copyfile(older, path)).log(**SMALL)
    assert state_of(reopened) == state
    assert "segment-checkpoint does not match this log" in caplog.text


# --- closed segments ---


@pytest.mark.behaviour("B14")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["a byte less", "a batch less", "emptied", "lost"])
@pytest.mark.parametrize("which", [0, 2])
def test_a_cut_or_lost_closed_segment_is_reported_and_the_rest_is_readable(rig, which, how, clean, caplog):
    log = fill(rig)
    records = readable(log)
    path = files(rig, ".log")[which]
    segment = log.segments[which]
    end = log.segments[which + 1].base_offset
    positions, headers = zip(*segment.headers(0), strict=True)

    def damage() -> None:
        if how == "lost":
            path.unlink()
        else:
            kept = {"a byte less": segment.size_bytes - 1, "a batch less": positions[-1], "emptied": 0}[how]
            os.truncate(path, kept)

    again = stop_and(rig, damage, clean=clean)
    reopened = again.log(**SMALL)
    message = next(record.message for record in caplog.records if record.levelno == logging.ERROR)
    assert path.name in message
    assert f"to {end - 1} " in message
    first = segment.base_offset if how in ("lost", "emptied") else headers[-1].base_offset
    assert f"offsets {first} to" in message
    assert (reopened.start_offset, reopened.end_offset) == (log.start_offset, log.end_offset)
    assert read_code(reopened, first) == read_code(reopened, end - 1) == Code.CORRUPT_MESSAGE
    assert readable(reopened) == {offset: v for offset, v in records.items() if not first <= offset < end}
    # The next start reports the damage too, and new records are safe.
    again.append(reopened, b"next")
    caplog.clear()
    third = stop_and(again, lambda: None, clean=clean).log(**SMALL)
    assert path.name in caplog.text
    assert read_code(third, first) == Code.CORRUPT_MESSAGE
    assert last_value(third) == b"next"


def test_retention_and_truncation_are_not_reported_as_losses(rig, caplog):
    log = fill(rig)
    log.delete_records(log.segments[2].base_offset)
    asyncio.run(rig.manager.delete_old())
    log.truncate(log.segments[-2].base_offset + 1)
    for clean in (False, True):
        reopened = stop_and(rig, lambda: None, clean=clean).log(**SMALL)
        assert read_all(reopened) == read_all(log)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("which", [1, -1])
@pytest.mark.parametrize("where", ["base offset", "length", "epoch", "magic", "crc", "attributes", "delta", "value"])
def test_a_flipped_bit_in_a_batch_is_reported_and_its_records_are_not_served(rig, which, where, caplog):
    log = fill(rig)
    records = readable(log)
    path = files(rig, ".log")[which]
    segment = log.segments[which]
    position, header = [*segment.headers(0)][0 if which == -1 else 1]
    at = {"base offset": 7, "length": 10, "epoch": 15, "magic": 16, "crc": 20, "attributes": 22, "delta": 26}
    again = stop_and(rig, lambda: flip(path, position + at.get(where, header.size - 3), bit=1))
    reopened = again.log(**SMALL)
    assert path.name in caplog.text
    assert reopened.end_offset == log.end_offset
    got = readable(reopened)
    assert got.items() <= records.items(), "a record was changed without an error"
    assert header.base_offset not in got
    ends = [*(each.base_offset for each in log.segments[1:]), log.end_offset]
    end = ends[log.segments.index(segment)]
    outside = {offset for offset in records if not segment.base_offset <= offset < end}
    assert outside <= got.keys()


def test_segments_not_read_at_the_start_are_verified_in_the_background(rig, caplog, monkeypatch):
    log = fill(rig)
    path = files(rig, ".log")[1]
    at = [*log.segments[1].headers(0)][1][1]
    monkeypatch.setattr(manager_module, "VERIFY_AT_START_BYTES", 0)
    again = stop_and(rig, lambda: flip(path, path.stat().st_size - 3))
    reopened = again.log(**SMALL)
    assert not caplog.records
    assert not reopened.damaged
    asyncio.run(again.manager.verify_segments())
    assert path.name in caplog.text
    (damage,) = reopened.damaged
    assert at.base_offset < damage.first_offset < damage.end_offset == log.segments[2].base_offset


def test_compaction_does_not_copy_damaged_segments(rig, caplog, monkeypatch):
    options = {**SMALL, "cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
    log = rig.log(**options)
    for n in range(40):
        rig.append(log, (b"key %d" % (n % 10), b"value %d" % n), (b"other %d" % n, b"value"))
    path = files(rig, ".log")[0]
    monkeypatch.setattr(manager_module, "VERIFY_AT_START_BYTES", 0)
    again = stop_and(rig, lambda: flip(path, path.stat().st_size - 3))
    reopened = again.log(**options)
    asyncio.run(again.manager.compact())
    assert f"{path}: at byte" in caplog.text
    assert read_code(reopened, reopened.segments[1].base_offset - 1) == Code.CORRUPT_MESSAGE
    caplog.clear()
    asyncio.run(again.manager.compact())
    assert not caplog.records


@pytest.mark.parametrize("how", ["flipped", "a byte less", "a batch less"])
def test_recovery_without_replicas_continues_behind_a_damaged_closed_segment(rig, how, caplog):
    log = fill(rig)
    records = readable(log)
    segment, end = log.segments[1], log.segments[2].base_offset
    positions, headers = zip(*segment.headers(0), strict=True)
    path, whole = files(rig, ".log")[1], segment.size_bytes
    if how == "flipped":
        flip(path, positions[-1] + 70)
    else:
        os.truncate(path, whole - 1 if how == "a byte less" else positions[-1])
    rig.facts = PartitionFacts(is_alone=True)
    size, first = path.stat().st_size, headers[-1].base_offset
    crashed = rig.crash()
    for again in (crashed, crashed.crash(), stop_and(crashed, lambda: None)):
        reopened = again.log(**SMALL)
        assert readable(reopened) == {offset: v for offset, v in records.items() if not first <= offset < end}
        assert reopened.end_offset == log.end_offset
        assert (again.root / "t-0" / path.name).stat().st_size == size
    assert caplog.text.count(f"offsets {first} to {end - 1} ") == 3, "every start reports it"


@pytest.mark.parametrize("clean", [True, False])
def test_leader_epochs_of_another_log_hide_no_record(rig, clean, caplog):
    log = fill(rig)
    other = rig.log("u")
    for epoch in range(1, 5):
        other.append(batch(b"a", b"b"), leader_epoch=epoch)
    records, epochs = readable(log), log.epochs.rows
    name = "leader-epoch-checkpoint"
    again = stop_and(rig, lambda: shutil.copyfile(rig.root / "u-0" / name, rig.root / "t-0" / name), clean=clean)
    reopened = again.log(**SMALL)
    assert readable(reopened) == records
    assert reopened.epochs.rows == epochs
    assert f"t-0/{name} does not match this log" in caplog.text


def test_recovery_keeps_the_bytes_that_it_cuts_off(rig, caplog):
    log = fill(rig)
    path = files(rig, ".log")[1]
    whole = path.read_bytes()
    later = [each.read_bytes() for each in files(rig, ".log")[2:]]
    flip(path, 61 + 8)
    reopened = rig.crash().log(**SMALL)
    end = reopened.end_offset
    kept = sorted(reopened.directory.glob("*.damaged"))
    assert kept[0].name == f"{end:020d}.log.damaged"
    assert (reopened.directory / path.name).read_bytes() + kept[0].read_bytes() == path.read_bytes() != whole
    assert [each.read_bytes() for each in kept[1:]] == later
    assert all(each.name in caplog.text for each in kept)
    assert log.end_offset > end


def test_a_batch_whose_offset_is_impossible_is_cut_off_and_kept(rig, caplog):
    log = rig.log()
    sizes = []
    for value in (b"a", b"b"):
        rig.append(log, value)
        sizes.append(log.size_bytes)
    flip(next(rig.root.rglob("*.log")), sizes[0])  # the first byte of the second batch: no checksum covers it
    reopened = rig.crash().log()
    assert reopened.end_offset == 1
    assert [len(path.read_bytes()) for path in reopened.directory.glob("*.damaged")] == [sizes[1] - sizes[0]]
    assert "00000000000000000000.log" in caplog.text


@pytest.mark.parametrize("offset", [0, 2**40])
def test_indexes_are_rebuilt_from_a_segment_with_an_impossible_offset(rig, offset):
    log = fill(rig)
    expected = log.segments[1].max_timestamp

    def damage() -> None:
        path = files(rig, ".log")[1]
        data = bytearray(path.read_bytes())
        data[:8] = offset.to_bytes(8, "big")
        path.write_bytes(data)
        for index in (path.with_suffix(".index"), path.with_suffix(".timeindex"), path.parent / "segment-checkpoint"):
            index.unlink()

    reopened = stop_and(rig, damage).log(**SMALL)
    assert reopened.segments[1].max_timestamp <= expected
    asyncio.run(rig.manager.delete_old())


def test_bytes_kept_by_a_recovery_are_not_overwritten_by_the_next(rig):
    log = rig.log()
    for value in (b"a", b"b"):
        rig.append(log, value)
    first = rig
    for value in (b"c", b"d"):
        flip(next(first.root.rglob("*.log")), 61 + 4)
        first = first.crash()
        reopened = first.log()
        assert reopened.end_offset == 0
        rig.append(reopened, value)
    kept = sorted(reopened.directory.glob("*.damaged*"))
    assert [path.name for path in kept] == [f"{0:020d}.log.damaged", f"{0:020d}.log.damaged.1"]
    assert len(kept[0].read_bytes()) == 2 * len(kept[1].read_bytes())
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)


# --- the last segment after a crash ---


def one_segment(rig: LogRig):
    """Write ten batches of two records; return the log and the position of each batch."""
    log = rig.log()
    for n in range(10):
        rig.append(log, b"value %d" % n, b"second %d" % n)
    (segment,) = log.segments
    return log, [position for position, _ in segment.headers(0)]


@pytest.mark.parametrize("at", [61 + 8, 8, 9, 11, 16, 17, 23, 57])
@pytest.mark.parametrize("which", [0, 4, 8])
def test_batches_behind_damage_stay_in_a_log_without_replicas(rig, which, at, caplog):
    log, positions = one_segment(rig)
    lost = range(2 * which, 2 * which + 2)
    records = {offset: value for offset, value in readable(log).items() if offset not in lost}
    rig.facts = PartitionFacts(is_alone=True)
    flip(files(rig, ".log")[0], positions[which] + at, 4)
    crashed = rig.crash()
    for again in (crashed, crashed.crash(), stop_and(crashed, lambda: None)):
        reopened = again.log()
        assert reopened.end_offset == log.end_offset
        assert readable(reopened) == records
        assert read_code(reopened, lost[0]) == Code.CORRUPT_MESSAGE
    shown = [record for record in caplog.records if f"offsets {lost[0]} to {lost[-1]} " in record.getMessage()]
    assert len(shown) == 3, "every start reports it"
    assert all(record.levelno == logging.ERROR and ".log" in record.getMessage() for record in shown)
    rig.append(reopened, b"new")
    assert last_value(reopened) == b"new"
    assert reopened.end_offset == log.end_offset + 1


def test_a_damaged_batch_is_kept_and_no_record_behind_it_is_duplicated(rig):
    _, positions = one_segment(rig)
    rig.facts = PartitionFacts(is_alone=True)
    path = files(rig, ".log")[0]
    flip(path, positions[4] + 70)
    data = path.read_bytes()
    reopened = rig.crash().log()
    kept = [each.read_bytes() for each in sorted(reopened.directory.glob("*.log*"))]
    assert kept == [data[: positions[4]], data[positions[4] : positions[5]], data[positions[5] :]]


def test_several_damaged_batches_in_the_last_segment_are_separate_ranges(rig):
    log, positions = one_segment(rig)
    records = readable(log)
    rig.facts = PartitionFacts(is_alone=True)
    path = files(rig, ".log")[0]
    data = bytearray(path.read_bytes())
    data[positions[2] + 70] ^= 1
    data[positions[5] : positions[7]] = bytes(positions[7] - positions[5])
    path.write_bytes(data[:-1])  # and the last batch is torn
    reopened = rig.crash().log()
    assert reopened.end_offset == 18
    lost = {4, 5, *range(10, 14), 18, 19}
    assert readable(reopened) == {offset: value for offset, value in records.items() if offset not in lost}


def test_a_torn_batch_with_a_batch_among_its_records_is_cut_off(rig):
    log = rig.log()
    rig.append(log, b"whole")
    size = log.size_bytes
    inner = bytearray(batch(b"inner"))
    inner[7] = 5
    rig.append(log, bytes(inner), b"." * 100)
    rig.facts = PartitionFacts(is_alone=True)
    os.truncate(files(rig, ".log")[0], log.size_bytes - 10)
    reopened = rig.crash().log()
    assert reopened.end_offset == 1
    assert len(reopened.segments) == 1
    assert [len(path.read_bytes()) for path in reopened.directory.glob("*.damaged")] == [log.size_bytes - 10 - size]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("bit", [*range(1, 31)])
def test_a_flipped_bit_in_a_base_offset_is_detected_and_moves_no_record(rig, bit, alone, caplog):
    log, positions = one_segment(rig)
    records = readable(log)
    rig.facts = PartitionFacts(is_alone=alone)
    flip(files(rig, ".log")[0], positions[3] + 7 - bit // 8, bit % 8)
    reopened = rig.crash().log()
    assert reopened.end_offset == (log.end_offset if alone else 6)
    assert readable(reopened).items() <= records.items()
    assert f"{0:020d}.log" in caplog.text


@pytest.mark.parametrize("bit", [1, 4, 20])
def test_a_gap_before_the_last_batch_of_an_uncompacted_log_is_reported(rig, bit, caplog):
    _, positions = one_segment(rig)
    rig.facts = PartitionFacts(is_alone=True, is_contiguous=True)
    flip(files(rig, ".log")[0], positions[9] + 7 - bit // 8, bit % 8)
    moved = 18 ^ 1 << bit
    crashed = rig.crash()
    for again in (crashed, crashed.crash(), stop_and(crashed, lambda: None)):
        reopened = again.log()
        if moved < 18:  # it goes back: it is cut off and kept
            assert reopened.end_offset == 18
            assert list(reopened.directory.glob("*.damaged"))
            assert f"{0:020d}.log" in caplog.text
            return
        assert read_code(reopened, 18) == Code.CORRUPT_MESSAGE
    assert caplog.text.count(f"offsets 18 to {moved - 1} are lost or damaged") == 3, "every start reports it"


def test_a_leader_epoch_that_differs_from_its_neighbours_is_reported(rig, caplog):
    _, positions = one_segment(rig)
    rig.facts = PartitionFacts(is_alone=True)
    flip(files(rig, ".log")[0], positions[3] + 12 + 2, 0)
    reopened = rig.crash().log()
    assert reopened.epochs.rows == [(0, 0)]
    assert read_code(reopened, 6) == Code.CORRUPT_MESSAGE
    assert len(readable(reopened)) == 18
    assert "leader epoch 256" in caplog.text


@pytest.mark.parametrize("compacted", [True, False])
def test_a_last_segment_of_another_partition_is_reported_after_a_crash(rig, compacted, caplog):
    log, other = rig.log(), rig.log("u")
    for n in range(5):
        rig.append(log, b"value %d" % n)
    for n in range(8):
        rig.append(other, b"before %d" % n)
    other.roll()
    rig.append(other, b"other")
    rig.append(other, b"more")
    log.roll()
    rig.append(log, b"last")
    rig.facts = PartitionFacts(is_alone=True, is_contiguous=not compacted)
    path = rig.root / "t-0" / f"{5:020d}.log"
    shutil.copyfile(rig.root / "u-0" / f"{8:020d}.log", path)
    assert f"t-0/{path.name}" not in caplog.text
    rig.crash()
    assert f"t-0/{path.name}" in caplog.text


def test_a_last_segment_with_offsets_below_its_name_is_not_served_after_a_crash(rig, caplog):
    log, other = rig.log(), rig.log("u")
    for n in range(5):
        rig.append(log, b"value %d" % n)
    for n in range(8):
        rig.append(other, b"other %d" % n)
    log.roll()
    rig.append(log, b"last")
    rig.facts = PartitionFacts(is_alone=True)
    path = rig.root / "t-0" / f"{5:020d}.log"
    shutil.copyfile(rig.root / "u-0" / f"{0:020d}.log", path)
    data = path.read_bytes()
    reopened = rig.crash().log()
    assert values_of(reopened) == [b"value %d" % n for n in range(5)]
    assert [each.read_bytes() for each in reopened.directory.glob("*.damaged")] == [data]
    assert f"t-0/{path.name}" in caplog.text


@pytest.mark.parametrize("records", [1, 3, 9])
@pytest.mark.parametrize("first", [3, 5, 6, 9])
def test_no_record_of_another_partition_is_served_after_a_clean_stop(rig, first, records, caplog):
    log, other = rig.log(), rig.log("u")
    for n in range(5):
        rig.append(log, b"value %d" % n)
    for n in range(first):
        rig.append(other, b"before %d" % n)
    for each, count in ((log, 3), (other, records)):
        each.roll()
        for n in range(count):
            rig.append(each, b"last %d of %s" % (n, each.topic.encode()))
    path, source = rig.root / "t-0" / f"{5:020d}.log", rig.root / "u-0" / f"{first:020d}.log"
    again = stop_and(rig, lambda: shutil.copyfile(source, path))
    for attempt in (again, stop_and(again, lambda: None)):
        reopened = attempt.log()
        assert readable(reopened) == {n: b"value %d" % n for n in range(5)}
        assert reopened.end_offset == 8
    assert caplog.text.count("t-0: offsets 5 to 7 are lost or damaged") == 2, "every start reports it"
    assert path.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("is_compacted", [True, False], ids=["still compacted", "no longer compacted"])
def test_gaps_that_compaction_left_in_a_replica_are_not_damage(rig, is_compacted, caplog):
    leader, follower = rig.log("leader"), rig.log()
    for n in range(20):
        rig.append(leader, b"value %d" % n)
    for each in [*leader.batches()][::3]:
        follower.append(each.view, origin=Origin.REPLICATION)
    records = readable(follower)
    rig.facts = PartitionFacts(is_alone=True, is_contiguous=not is_compacted)
    reopened = rig.crash().log()
    assert readable(reopened) == records
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


# --- transactions whose marker may be lost ---

P, Q = 2, 3  # producers
HOW = ["crash", "crash after a flush", "clean stop"]


def open_again(rig: LogRig, how: str, damage: Callable[[], object]) -> LogRig:
    """Stop as `how` says, damage the files, and start again without other replicas."""
    rig.facts = PartitionFacts(is_alone=True)
    if how == "crash":
        damage()
        return rig.crash()
    return stop_and(rig, damage, clean=how == "clean stop")


def opened(rig: LogRig):
    """Return the log with the high watermark at its end."""
    log = rig.log()
    log.advance_high_watermark(log.end_offset)
    return log


def committed(log) -> tuple[dict[int, bytes | None], set[int]]:
    """Return what read_committed readers get from any offset, by offset, and the offsets that are refused."""
    values: dict[int, bytes | None] = {}
    refused = set()
    for offset in range(log.start_offset, log.last_stable_offset):
        try:
            part = log.read(offset, 1 << 20, end_offset=log.last_stable_offset, at_least_one=True, committed_only=True)
        except BrokerError as error:
            refused.add((offset, error.code))
            continue
        aborted = sorted(log.aborted.between(offset, part.next_offset), key=lambda each: each.first_offset)
        for each in visible(part.data, aborted):
            assert values.setdefault(each.offset, each.value) == each.value
    assert {code for _, code in refused} <= {Code.CORRUPT_MESSAGE}
    return values, {offset for offset, _ in refused}


def with_marker(rig: LogRig, where: str, then: str = "nothing"):
    """Write a marker at offset 3 that commits offset 1; return the log, its segment file and the marker's position."""
    log = rig.log()
    rig.append(log, b"plain")
    rig.append(log, b"first", producer=BatchProducer(P, 0, 0, transactional=True))
    rig.append(log, b"also plain")
    rig.mark(log, P, 0, committed=True)
    segment = log.segments[0]
    position = [*segment.headers(0)][3][0]
    if where == "closed segment":
        log.roll()
    rig.append(log, b"later")
    if then != "nothing":
        rig.append(log, b"second", producer=BatchProducer(P, 0, 1, transactional=True))
    if then in ("commits", "aborts"):
        rig.mark(log, P, 0, committed=then == "commits")
    return log, Path(segment.file.path), position


@pytest.mark.behaviour("B14")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("then", ["nothing", "goes on", "commits", "aborts"])
@pytest.mark.parametrize("where", ["closed segment", "last segment"])
def test_a_lost_marker_hides_no_committed_record_without_an_error(rig, where, then, how, caplog):
    _, path, position = with_marker(rig, where, then)
    again = open_again(rig, how, lambda: flip(path, position + 70))
    expected = {0: b"plain", 4: b"later"} | ({5: b"second"} if then == "commits" else {})
    for attempt in (again, stop_and(again, lambda: None), again.crash()):
        reopened = opened(attempt)
        assert committed(reopened) == (expected, {1, 2, 3})
        assert len(readable(reopened)) == reopened.end_offset - 1, "other readers get all but the marker"
        assert reopened.last_stable_offset == (5 if then == "goes on" else reopened.end_offset)
    named = "at offset 3 may have ended there, so readers of committed records are refused from offset 1 on"
    assert sum(record.levelno == logging.ERROR and named in record.getMessage() for record in caplog.records) == 3


@pytest.mark.parametrize("how", ["crash", "crash after a flush"])
def test_a_producer_whose_marker_was_lost_continues_with_its_next_transaction(rig, how):
    _, path, position = with_marker(rig, "last segment")
    again = open_again(rig, how, lambda: flip(path, position + 70))
    log = opened(again)
    for sequence, commits in ((1, False), (2, True)):
        again.append(log, b"number %d" % sequence, producer=BatchProducer(P, 0, sequence, transactional=True))
        assert log.last_stable_offset == log.end_offset - 1
        again.mark(log, P, 0, committed=commits)
    assert committed(log) == ({0: b"plain", 4: b"later", 7: b"number 2"}, {1, 2, 3})
    assert committed(stop_and(again, lambda: None).log()) == committed(log)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_known_to_be_open_behind_damage_is_not_affected(rig, commits, how):
    log = rig.log()
    rig.append(log, b"of Q", producer=BatchProducer(Q, 0, 0, transactional=True))
    rig.append(log, b"first", producer=BatchProducer(P, 0, 0, transactional=True))
    rig.mark(log, P, 0, committed=True)
    position = [*log.segments[0].headers(0)][2][0]
    path = Path(log.segments[0].file.path)
    log.roll()  # writes a snapshot in which the transaction of Q is open
    rig.append(log, b"later")
    again = open_again(rig, how, lambda: flip(path, position + 70))
    reopened = opened(again)
    assert reopened.last_stable_offset == 0
    assert reopened.producers.is_open(Q, 0)
    again.mark(reopened, Q, 0, committed=commits)
    values = {0: b"of Q"} if commits else {}
    assert committed(reopened) == ({**values, 3: b"later"}, {1, 2})


def test_a_transaction_begun_behind_damage_is_not_affected(rig):
    log, path, position = with_marker(rig, "last segment")
    rig.append(log, b"of Q", producer=BatchProducer(Q, 0, 0, transactional=True))
    again = open_again(rig, "crash", lambda: flip(path, position + 70))
    reopened = opened(again)
    assert reopened.last_stable_offset == 5
    again.mark(reopened, Q, 0, committed=True)
    assert committed(reopened) == ({0: b"plain", 4: b"later", 5: b"of Q"}, {1, 2, 3})


def test_a_second_damaged_range_does_not_extend_over_the_first(rig):
    log, path, first = with_marker(rig, "last segment", "commits")
    second = [*log.segments[0].headers(0)][6][0]
    rig.append(log, b"end")

    def damage() -> None:
        flip(path, first + 70)
        flip(path, second + 70)

    reopened = opened(open_again(rig, "crash", damage))
    assert [each.undecided_offset for each in reopened.damaged] == [1, 5]
    assert committed(reopened) == ({0: b"plain", 4: b"later", 7: b"end"}, {1, 2, 3, 5, 6})


def test_undecided_transactions_of_damage_found_in_the_background_are_refused(rig, caplog, monkeypatch):
    _, path, position = with_marker(rig, "closed segment", "aborts")
    monkeypatch.setattr(manager_module, "VERIFY_AT_START_BYTES", 0)
    again = open_again(rig, "clean stop", lambda: flip(path, position + 70))
    reopened = opened(again)
    assert not reopened.damaged
    asyncio.run(again.manager.verify_segments())
    assert committed(reopened) == ({0: b"plain", 4: b"later"}, {1, 2, 3})
    assert caplog.text.count("refused from offset 1 on") == 1


def test_a_truncation_behind_damage_reopens_no_transaction(rig):
    _, path, position = with_marker(rig, "last segment", "goes on")
    reopened = opened(open_again(rig, "crash", lambda: flip(path, position + 70)))
    reopened.truncate(5)
    assert reopened.last_stable_offset == reopened.end_offset == 5
    assert committed(reopened) == ({0: b"plain", 4: b"later"}, {1, 2, 3})


# --- indexes, snapshots, epochs, checkpoints ---


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_flipped_bit_anywhere_in_an_index_is_detected_on_use(rig, suffix, caplog):
    log = rig.log(**{"internal_segment_bytes": "4000", "index_interval_bytes": "100"})
    for n in range(80):
        rig.append(log, b"value %d" % n, time_ms=rig.clock.time_ms() + n)
    data, times = read_all(log), [each.timestamp for each in rows(log)]
    path = files(rig, suffix)[0]
    asyncio.run(rig.manager.stop())
    for at in range(0, path.stat().st_size, 7):
        copy = rig.root.with_name(f"copy-{at}")
        shutil.copytree(rig.root, copy)
        flip(copy / "t-0" / path.name, at, at % 8)
        caplog.clear()
        reopened = LogRig(copy, rig.clock).log()
        assert read_all(reopened, bytes_max=100) == data
        by_time = [find_by_time(reopened, time) for time in times]
        assert [each and each.offset for each in by_time] == [*range(80)]
        assert path.stem in caplog.text


def rows(log):
    return [row for each in log.batches() for row in each.records()]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["flipped", "swapped"])
def test_the_previous_snapshot_is_used_if_one_is_damaged(rig, how, clean, caplog):
    log = fill(rig)
    state = state_of(log)

    def damage() -> None:
        older, newest = files(rig, ".snapshot")[-2:]
        if how == "flipped":
            flip(newest, newest.stat().st_size // 2)
        else:
            shutil.copyfile(older, newest)

    reopened = stop_and(rig, damage, clean=clean).log(**SMALL)
    reopened.advance_high_watermark(reopened.end_offset)
    assert state_of(reopened) == state
    assert ".snapshot is damaged" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "garbage", [b"\0" * 20, b"0\n1\n\0 7\n", b"0\n1\n3 -1\n", b"0\n2\n5 9\n4 3\n", b"\xff\xfe", "flip"]
)
def test_a_damaged_leader_epoch_checkpoint_is_rebuilt_from_the_log(rig, garbage, clean, caplog):
    log = fill(rig)
    log.append(batch(b"of the next leader"), leader_epoch=4)
    log.append(batch(b"of the leader after it"), leader_epoch=6)
    log.advance_high_watermark(log.end_offset)
    epochs = log.epochs.rows
    path = rig.root / "t-0" / "leader-epoch-checkpoint"

    def damage() -> None:
        if garbage == "flip":
            flip(path, 6)  # 4 becomes 5
        else:
            path.write_bytes(garbage)

    reopened = stop_and(rig, damage, clean=clean).log(**SMALL)
    assert reopened.epochs.rows == epochs
    assert "leader-epoch-checkpoint is damaged" in caplog.text
    assert values_of(reopened) == values_of(log)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"]
)
def test_a_flipped_digit_in_a_checkpoint_hides_no_record(rig, name, clean, caplog):
    log = fill(rig)
    log.delete_records(3)
    values = values_of(log)

    def damage() -> None:
        data = (rig.root / name).read_bytes()
        flip(rig.root / name, data.index(b"t 0 ") + 4, bit=2)

    reopened = stop_and(rig, damage, clean=clean).log(**SMALL)
    assert values_of(reopened)[-len(values) :] == values
    assert f"{name} is damaged and not used" in caplog.text


@pytest.mark.parametrize("alone", [True, False])
def test_a_missing_folder_is_reported_and_offsets_are_not_reused(rig, alone, caplog):
    log = fill(rig)
    rig.facts = PartitionFacts(is_alone=alone)
    again = stop_and(rig, lambda: shutil.rmtree(rig.root / "t-0"))
    reopened = again.log(**SMALL)
    assert f"{rig.root / 't-0'} is missing: its records up to offset {log.end_offset} are lost" in caplog.text
    assert reopened.end_offset == (log.end_offset if alone else 0), "a replica is fetched again from its leader"
    caplog.clear()
    again.log("u")
    assert not caplog.records


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_of_another_partition_is_not_accepted(rig, clean, caplog):
    log = fill(rig)
    other = rig.log("u", **SMALL)
    for n in range(12):
        rig.append(other, b"other %d" % n, b"second")
        rig.append(other, b"in a transaction %d" % n, producer=BatchProducer(2, 0, n, transactional=True))
        if n % 2:
            rig.mark(other, 2, 0, committed=n % 4 == 1)
    records = readable(log)
    path = files(rig, ".log")[0]
    again = stop_and(rig, lambda: shutil.copyfile(rig.root / "u-0" / path.name, path), clean=clean)
    reopened = again.log(**SMALL)
    assert path.name in caplog.text
    assert readable(reopened).items() <= records.items()
    assert min(readable(reopened)) == log.segments[1].base_offset


def test_the_error_of_an_unreadable_log_names_its_folder(rig):
    fill(rig)
    asyncio.run(rig.manager.stop())
    path = files(rig, ".log")[1]
    path.unlink()
    path.mkdir()
    with pytest.raises(IllegalStateError, match=r"the log in .*t-0 cannot be opened"):
        LogRig(rig.root, rig.clock)


def test_a_snapshot_below_the_first_segment_does_not_prevent_loading(rig):
    log = fill(rig)
    log.delete_records(log.segments[2].base_offset)
    asyncio.run(rig.manager.delete_old())
    for path in files(rig, ".snapshot"):
        path.unlink()
    write_snapshot(log.directory, 1, ProducerStateManager("t-0"))
    assert readable(rig.crash().log(**SMALL)) == readable(log)


# --- writes of checkpoints ---


def test_offsets_prepared_before_a_truncation_are_not_written_after_it(rig, monkeypatch):
    log = fill(rig)
    log.flush()

    async def run() -> None:
        held, in_thread = asyncio.Event(), asyncio.to_thread

        async def late(work, *arguments):
            await held.wait()
            return await in_thread(work, *arguments)

        monkeypatch.setattr(asyncio, "to_thread", late)
        writing = asyncio.ensure_future(rig.manager.write_checkpoints())
        await asyncio.sleep(0)  # the offsets are prepared, and the thread has not started
        log.truncate(5)
        held.set()
        await writing

    asyncio.run(run())
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert f"t 0 {log.end_offset}\n" in (rig.root / name).read_text()


def test_two_threads_replacing_a_file_do_not_share_a_temporary_file(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint"
    first_has_written, second_is_done = threading.Event(), threading.Event()
    replace, errors = os.replace, []

    def slow(source, target):
        if threading.current_thread() is first:
            first_has_written.set()
            assert second_is_done.wait(10)
        replace(source, target)

    def write() -> None:
        try:
            replace_file(path, b"first")
        except OSError as error:
            errors.append(error)

    first = threading.Thread(target=write)
    monkeypatch.setattr(os, "replace", slow)
    first.start()
    assert first_has_written.wait(10)
    replace_file(path, b"second")
    second_is_done.set()
    first.join(10)
    assert not errors
    assert path.read_bytes() == b"first"
    assert [*tmp_path.iterdir()] == [path]
