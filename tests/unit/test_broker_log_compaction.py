"""Compaction: the last record of each key, tombstones, producers, transactions, selection of logs, crashes."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.log import compaction
from headrace.broker.log.compaction_filter import DELETE_HORIZON
from headrace.errors import BrokerError, Code, IllegalStateError
from headrace.wire.compression import CODEC_IDS
from headrace.wire.records import BatchProducer
from tests.support.examples import examples
from tests.support.fake_internal import START_MS
from tests.support.log_rig import (
    LogRig,
    batch,
    batches_of,
    committed_values,
    keys_and_values,
    producers_of,
    rows_of,
    state_of,
)

pytestmark = pytest.mark.slow

DAY_MS = 24 * 60 * 60 * 1000
COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.0"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Skip fsync: these tests do not cut the power."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


def compact(rig) -> None:
    asyncio.run(rig.manager.compact())


def put(rig, log, key: bytes, value: bytes | None, **how):
    return rig.append(log, (key, value), **how)


def contents(log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(row.offset, row.key, row.value) for row in rows_of(log)]


# --- the last of each key ---


def test_the_last_record_of_a_key_stays_at_its_offset(rig):
    log = rig.log(**COMPACT)
    for n in range(6):
        put(rig, log, b"k%d" % (n % 2), b"v%d" % n)
    log.roll()
    put(rig, log, b"k0", b"in the last segment")
    compact(rig)
    assert contents(log) == [(4, b"k0", b"v4"), (5, b"k1", b"v5"), (6, b"k0", b"in the last segment")]
    assert (log.start_offset, log.end_offset) == (0, 7)
    assert state_of(rig.crash().log(**COMPACT))["bytes"] == state_of(log)["bytes"]


def test_records_keep_their_bytes(rig):
    log = rig.log(**COMPACT)
    for codec in CODEC_IDS.values():
        rig.append(log, (b"a", b"1"), (b"b", b"2" * 300), (b"a", b"3"), codec=codec, step_ms=5)
    rig.append(log, (b"c", b"4"), (b"b", b"5"), (b"d", b"6"), (b"c", b"7"), codec=CODEC_IDS["lz4"], step_ms=5)
    log.roll()
    compact(rig)
    assert [(row.offset, row.timestamp, row.key, row.value) for row in rows_of(log)] == [
        (14, START_MS + 10, b"a", b"3"),
        (16, START_MS + 5, b"b", b"5"),
        (17, START_MS + 10, b"d", b"6"),
        (18, START_MS + 15, b"c", b"7"),
    ]
    first, last = batches_of(log)
    assert (first.header.base_offset, first.header.last_offset) == (12, 14)
    assert (last.header.base_offset, last.header.codec) == (15, CODEC_IDS["lz4"])


def test_reads_from_any_offset_find_the_next_record(rig):
    log = rig.log(**COMPACT, internal_segment_bytes="300")
    for n in range(40):
        put(rig, log, b"k%d" % (n % 7), b"v" * 30)
    compact(rig)
    left = [row.offset for row in rows_of(log)]
    for offset in range(40):
        part = log.read(offset, 1, end_offset=40, at_least_one=True)
        assert part.next_offset > offset
        assert part.next_offset - 1 in {row for row in left if row >= offset} | {
            each.header.last_offset for each in log.batches()
        }


def test_small_segments_are_merged(rig):
    log = rig.log(**COMPACT)
    for n in range(10):
        put(rig, log, b"k%d" % (n % 3), b"v%d" % n)
        log.roll()
    assert len(log.segments) == 11
    compact(rig)
    assert [segment.base_offset for segment in log.segments] == [0, 10]
    assert len(list(log.directory.glob("*.log"))) == 2
    assert keys_and_values(rows_of(log)) == {b"k0": b"v9", b"k1": b"v7", b"k2": b"v8"}


def test_segments_do_not_grow_beyond_their_size(rig):
    size = len(batch((b"key0", b"v" * 100)))
    log = rig.log(**COMPACT, internal_segment_bytes=str(4 * size))
    for n in range(30):
        put(rig, log, b"key%d" % (n % 10), b"v" * 100)
    compact(rig)
    assert all(segment.size_bytes <= 4 * size for segment in log.segments)


def test_more_keys_than_a_round_can_map_take_several_rounds(rig, monkeypatch):
    monkeypatch.setattr(compaction, "KEYS_MAX", 10)
    log = rig.log(**COMPACT)
    for n in range(60):
        put(rig, log, b"k%d" % (n % 30), b"v%d" % n)
    log.roll()
    ends = []
    for _ in range(8):
        compact(rig)
        ends.append(log.first_dirty_offset)
    assert ends == sorted(ends)
    assert ends[0] == 10
    assert ends[-1] == 60
    assert contents(log) == [(n, b"k%d" % (n % 30), b"v%d" % n) for n in range(30, 60)]


@pytest.mark.behaviour("B14")
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "put", "put", "delete", "roll", "compact", "wait", "crash"]),
            st.integers(0, 4),
            st.integers(1, 3),
        ),
        max_size=50,
    )
)
def test_a_compacted_log_has_the_last_value_of_each_key(tmp_path_factory, steps):
    rig = LogRig(tmp_path_factory.mktemp("compaction") / "logs")
    options = {**COMPACT, "internal_segment_bytes": "500", "delete_retention_ms": "1000"}
    log = rig.log(**options)
    model: dict[bytes, bytes | None] = {}
    end = 0
    for step, key, count in steps:
        if step in ("put", "delete"):
            rows = [(b"k%d" % ((key + n) % 5), None if step == "delete" else b"v%d" % (end + n)) for n in range(count)]
            model.update(rows)
            rig.append(log, *rows, time_ms=rig.clock.time_ms())
            end += count
        elif step == "roll":
            log.roll()
        elif step == "compact":
            compact(rig)
        elif step == "wait":
            rig.clock.now_ms += 700
        else:
            rig = rig.crash()
            log = rig.log(**options)
            log.advance_high_watermark(log.end_offset)
        assert log.end_offset == end
        remaining = {key: value for key, value in keys_and_values(rows_of(log)).items() if value is not None}
        assert remaining == {key: value for key, value in model.items() if value is not None}


# --- tombstones ---


def test_a_tombstone_stays_for_delete_retention_ms(rig):
    log = rig.log(**COMPACT, delete_retention_ms="10000")
    put(rig, log, b"k", b"v")
    put(rig, log, b"k", None, time_ms=START_MS + 3)
    put(rig, log, b"z", b"last of the round")
    log.roll()
    compact(rig)
    assert contents(log)[0] == (1, b"k", None)
    (tombstone, _) = batches_of(log)
    assert tombstone.header.attributes & DELETE_HORIZON
    assert tombstone.header.base_timestamp == START_MS + 10_000
    assert tombstone.records()[0].timestamp == START_MS + 3
    assert tombstone.header.max_timestamp == START_MS + 3
    for waited, left in [(9_999, 2), (1, 1)]:
        rig.clock.now_ms += waited
        put(rig, log, b"z", b"again", time_ms=rig.clock.time_ms())
        log.roll()
        compact(rig)
        assert len(contents(log)) == left


def test_a_key_written_again_after_a_tombstone_stays(rig):
    log = rig.log(**COMPACT, delete_retention_ms="0")
    put(rig, log, b"k", b"v")
    put(rig, log, b"k", None)
    put(rig, log, b"k", b"again")
    log.roll()
    for _ in range(3):
        compact(rig)
    assert contents(log) == [(2, b"k", b"again")]


# --- producers ---


def test_the_last_batch_of_a_producer_stays_without_its_records(rig):
    log = rig.log(**COMPACT)
    mine = [rig.append(log, (b"k", b"%d" % n), (b"l", b"x"), producer=BatchProducer(7, 3, 2 * n)) for n in range(3)]
    put(rig, log, b"k", b"newer")
    put(rig, log, b"l", b"newer")
    log.roll()
    before = producers_of(log)[7]
    compact(rig)
    assert contents(log) == [(6, b"k", b"newer"), (7, b"l", b"newer")]
    empty = batches_of(log)[0].header
    assert (empty.base_offset, empty.last_offset, empty.record_count) == (4, 5, 0)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence) == (7, 3, 4)
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    reopened = rig.crash().log(**COMPACT)
    entry = reopened.producers.entries[7]
    assert producers_of(reopened)[7][:4] == before[:4]
    assert entry.last_sequence == 5
    again = reopened.append(batch((b"k", b"2"), (b"l", b"x"), producer=BatchProducer(7, 3, 4)))
    assert again.duplicate
    assert again.first_offset == mine[2].first_offset
    with pytest.raises(BrokerError) as caught:
        reopened.append(batch((b"k", b"9"), producer=BatchProducer(7, 3, 8)))
    assert caught.value.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_last_batch_of_a_round_stays_so_that_offsets_are_not_reused(rig):
    log = rig.log(**COMPACT)
    put(rig, log, b"k", b"v")
    put(rig, log, b"k", None)
    log.roll()
    log.reconfigure(rig.log("x", **COMPACT, delete_retention_ms="0").config)
    for _ in range(3):
        compact(rig)
        put(rig, log, b"other", b"v", time_ms=START_MS + 1)
        log.roll()
    end = log.end_offset
    assert rig.crash().log(**COMPACT).end_offset == end


# --- transactions ---


def test_aborted_records_are_removed_and_later_their_marker(rig):
    log = rig.log(**COMPACT, delete_retention_ms="1000")
    mine = [BatchProducer(5, 0, n, transactional=True) for n in range(3)]
    put(rig, log, b"k", b"committed", producer=mine[0])
    rig.mark(log, 5, 0, committed=True)
    put(rig, log, b"k", b"aborted", producer=mine[1])
    put(rig, log, b"only", b"aborted", producer=mine[2])
    rig.mark(log, 5, 0, committed=False)
    put(rig, log, b"z", b"z")
    log.roll()
    assert committed_values(log) == [b"committed", b"z"]
    compact(rig)
    assert committed_values(log) == [b"committed", b"z"]
    assert contents(log) == [(0, b"k", b"committed"), (5, b"z", b"z")]
    controls = [each.header.base_offset for each in log.batches() if each.header.is_control]
    assert controls == [1, 4]  # the last batch of the producer stays, empty, and so its marker is needed
    assert log.aborted.between(0, 6) == [(5, 2)]
    # The producer continues: it has another last batch, and nothing is left of the aborted transaction.
    put(rig, log, b"y", b"y", producer=BatchProducer(5, 0, 3, transactional=True))
    rig.mark(log, 5, 0, committed=True)
    log.roll()
    for _ in range(3):
        compact(rig)
        rig.clock.now_ms += 1001
        put(rig, log, b"x", b"x", time_ms=rig.clock.time_ms())
        log.roll()
    assert log.aborted.between(0, 99) == []
    controls = [each.header.base_offset for each in log.batches() if each.header.is_control]
    assert controls == [1, 7]
    assert committed_values(log)[:2] == [b"committed", b"z"]
    assert len(batches_of(rig.crash().log(**COMPACT))) == len(batches_of(log))


def test_an_open_transaction_is_not_compacted(rig):
    log = rig.log(**COMPACT)
    put(rig, log, b"a", b"1")
    put(rig, log, b"a", b"2")
    log.roll()
    put(rig, log, b"a", b"open", producer=BatchProducer(5, 0, 0, transactional=True))
    put(rig, log, b"a", b"3")
    log.roll()
    put(rig, log, b"a", b"4")
    log.roll()
    compact(rig)
    assert [row[2] for row in contents(log)] == [b"2", b"open", b"3", b"4"]
    rig.mark(log, 5, 0, committed=False)
    log.roll()
    compact(rig)
    assert [row[2] for row in contents(log)] == [b"4"]
    assert committed_values(log) == [b"4"]


TRANSACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "commit", "abort", "plain", "roll", "compact", "wait", "crash"]),
        st.integers(1, 3),
        st.integers(0, 3),
    ),
    max_size=60,
)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TRANSACTIONS)
def test_a_compacted_log_has_the_last_committed_value_of_each_key(tmp_path_factory, steps):
    rig = LogRig(tmp_path_factory.mktemp("compaction") / "logs")
    options = {**COMPACT, "internal_segment_bytes": "500", "delete_retention_ms": "1000"}
    log = rig.log(**options)
    rows: list[tuple[int, bytes, bytes]] = []  # transaction, key, value
    committed = {-1}
    open_: dict[int, int] = {}
    sequences = dict.fromkeys((1, 2, 3), 0)
    for step, pid, key in steps:
        value = b"%d" % log.end_offset
        if step == "write":
            open_.setdefault(pid, log.end_offset)
            rows.append((open_[pid], b"k%d" % key, value))
            put(rig, log, b"k%d" % key, value, producer=BatchProducer(pid, 0, sequences[pid], transactional=True))
            sequences[pid] += 1
        elif step in ("commit", "abort"):
            if step == "commit" and pid in open_:
                committed.add(open_[pid])
            open_.pop(pid, None)
            rig.mark(log, pid, 0, committed=step == "commit")
        elif step == "plain":
            rows.append((-1, b"k%d" % key, value))
            put(rig, log, b"k%d" % key, value)
        elif step == "roll":
            log.roll()
        elif step == "compact":
            compact(rig)
        elif step == "wait":
            rig.clock.now_ms += 700
        else:
            rig = rig.crash()
            log = rig.log(**options)
            log.advance_high_watermark(log.end_offset)
    for pid in list(open_):
        rig.mark(log, pid, 0, committed=False)
    log.roll()
    for _ in range(3):
        expected = {key: value for transaction, key, value in rows if transaction in committed}
        seen = committed_values(log)
        by_key = {row.key: row.value for row in rows_of(log) if row.value in seen}
        assert by_key == expected
        for producer_id, sequence in sequences.items():
            if sequence:
                assert log.producers.entries[producer_id].last_sequence == sequence - 1
        compact(rig)
        rig.clock.now_ms += 2000
        rig = rig.crash()
        log = rig.log(**options)
        log.advance_high_watermark(log.end_offset)


# --- selection ---


def test_logs_below_the_dirty_ratio_are_not_compacted(rig):
    log = rig.log(cleanup_policy="compact", min_cleanable_dirty_ratio="0.5")
    for n in range(10):
        put(rig, log, b"k%d" % n, b"v" * 50)
    log.roll()
    compact(rig)
    assert log.first_dirty_offset == 10
    for n in range(9):
        put(rig, log, b"k%d" % n, b"v" * 50)
    log.roll()
    compact(rig)
    assert log.first_dirty_offset == 10
    put(rig, log, b"k9", b"v" * 50)
    log.roll()
    compact(rig)
    assert log.first_dirty_offset == 20


def test_records_younger_than_min_compaction_lag_are_not_compacted(rig):
    log = rig.log(**COMPACT, min_compaction_lag_ms="5000")
    for n in range(4):
        put(rig, log, b"k", b"%d" % n, time_ms=START_MS + n * 2000)
        log.roll()
    rig.clock.now_ms += 7000
    compact(rig)
    assert [row[2] for row in contents(log)] == [b"1", b"2", b"3"]


def test_max_compaction_lag_overrides_the_dirty_ratio(rig):
    log = rig.log(cleanup_policy="compact", min_cleanable_dirty_ratio="1.0", max_compaction_lag_ms="5000")
    put(rig, log, b"k", b"clean" * 100)
    log.roll()
    compact(rig)
    assert log.first_dirty_offset == 1
    put(rig, log, b"k", b"dirty")
    log.roll()
    compact(rig)
    assert log.first_dirty_offset == 1
    rig.clock.now_ms += 5001
    compact(rig)
    assert contents(log) == [(1, b"k", b"dirty")]


def test_policy_compact_delete_compacts_and_deletes(rig):
    log = rig.log(cleanup_policy="compact,delete", min_cleanable_dirty_ratio="0.0", retention_ms="10000")
    for n in range(4):
        put(rig, log, b"k%d" % (n % 2), b"v%d" % n, time_ms=START_MS + n * 4000)
        log.roll()
    compact(rig)
    assert [row[0] for row in contents(log)] == [2, 3]
    rig.clock.now_ms += 30_000
    asyncio.run(rig.manager.delete_old())
    assert (contents(log), log.start_offset) == ([], 4)


def test_the_cleaner_can_be_switched_off(tmp_path):
    rig = LogRig(tmp_path / "logs", defaults={"log.cleaner.enable": "false"})
    log = rig.log(**COMPACT)
    put(rig, log, b"k", b"1")
    put(rig, log, b"k", b"2")
    log.roll()
    compact(rig)
    assert len(contents(log)) == 2


def test_the_compacted_offset_survives_a_restart(rig):
    async def run():
        log = rig.log(**COMPACT)
        for n in range(4):
            put(rig, log, b"k", b"%d" % n)
        log.roll()
        await rig.manager.compact()
        again = await rig.restart()
        assert again.log(**COMPACT).first_dirty_offset == 4
        await again.manager.stop()

    asyncio.run(run())


# --- interruption ---


def prepared(rig):
    log = rig.log(**COMPACT, internal_segment_bytes="250")
    for n in range(30):
        put(rig, log, b"k%d" % (n % 4), b"v%d" % n, producer=BatchProducer(1, 0, n, transactional=True))
        if n % 5 == 4:
            rig.mark(log, 1, 0, committed=n % 2 == 0)
    rig.mark(log, 1, 0, committed=True)
    log.roll()
    return log


def test_a_crash_at_any_step_of_the_swap_loses_nothing(rig, tmp_path, monkeypatch):
    log = prepared(rig)
    seen = committed_values(log)
    expected = keys_and_values(row for row in rows_of(log) if row.value in seen)
    renames = 0
    real = os.replace

    def counted(*args):
        nonlocal renames
        real(*args)
        renames += 1
        shutil.copytree(rig.root, tmp_path / f"step-{renames}")

    plan = compaction.plan(log, rig.clock.time_ms())
    assert plan is not None
    result = compaction.run(plan)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", counted)
        compaction.swap_in(log, plan, result)
    assert renames > 10
    for step in range(1, renames + 1):
        reopened = LogRig(tmp_path / f"step-{step}", rig.clock).log(**COMPACT)
        reopened.advance_high_watermark(reopened.end_offset)
        assert reopened.end_offset == log.end_offset
        seen = committed_values(reopened)
        assert keys_and_values(row for row in rows_of(reopened) if row.value in seen) == expected
        assert not [path for path in reopened.directory.iterdir() if path.suffix in (".swap", ".cleaned")]


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied"])
def test_a_damaged_swap_file_does_not_replace_the_segments_it_was_made_of(rig, tmp_path, monkeypatch, damage, caplog):
    log = prepared(rig)
    originals = rows_of(log)
    steps: list[tuple[Path, int]] = []  # a copy of the folders, and the base offset of the damaged segment
    real = os.replace

    def copied(*args):
        real(*args)
        if swaps := list(log.directory.glob("*.log.swap")):
            root = tmp_path / f"step-{len(steps)}"
            shutil.copytree(rig.root, root)
            path = root / "t-0" / swaps[0].name
            steps.append((root, int(path.name.split(".")[0])))
            data = bytearray(path.read_bytes())
            if damage == "flipped" and data:
                data[-5] ^= 1
            path.write_bytes({"flipped": data, "cut": data[:-1], "emptied": b""}[damage])

    plan = compaction.plan(log, rig.clock.time_ms())
    assert plan is not None
    result = compaction.run(plan)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", copied)
        compaction.swap_in(log, plan, result)
    assert len(steps) > 5
    bases = [each.segment.base_offset for each in result.compacted]
    ends = dict(zip(bases, [*bases[1:], plan.end_offset], strict=True))
    for root, base_offset in steps:
        caplog.clear()
        reopened = LogRig(root, rig.clock).log(**COMPACT)
        span = range(base_offset, ends[base_offset])
        assert [row for row in rows_of(reopened) if row.offset in span] == [
            row for row in originals if row.offset in span
        ]
        assert reopened.end_offset == log.end_offset
        assert ".log.swap is kept as" in caplog.text
        assert list(reopened.directory.glob("*.log.damaged"))
        assert not [path for path in reopened.directory.iterdir() if path.suffix in (".swap", ".cleaned", ".deleted")]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_second_crash_while_originals_are_restored_loses_nothing(rig, tmp_path, monkeypatch, renames):
    log = rig.log(**COMPACT)
    for n in range(3):
        put(rig, log, b"k%d" % n, b"v%d" % n)
        log.roll()
    originals, real = rows_of(log), os.replace
    plan = compaction.plan(log, rig.clock.time_ms())
    assert plan is not None
    result = compaction.run(plan)

    def crash(source, target):
        if str(target).endswith(".log"):  # the copy is about to replace the originals
            shutil.copytree(rig.root, tmp_path / "first")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        compaction.swap_in(log, plan, result)
    (path,) = (tmp_path / "first" / "t-0").glob("*.log.swap")
    path.write_bytes(path.read_bytes()[:-1])
    left = renames

    def limited(source, target):
        nonlocal left
        if str(source).endswith(".deleted"):
            if not left:
                raise OSError("crashed")
            left -= 1
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", limited)
        with pytest.raises(IllegalStateError, match="crashed"):
            LogRig(tmp_path / "first", rig.clock)
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    assert rows_of(LogRig(tmp_path / "second", rig.clock).log(**COMPACT)) == originals


@pytest.mark.parametrize("event", ["truncate", "retention"])
def test_a_round_is_discarded_if_its_segments_have_changed(rig, event):
    log = prepared(rig)
    plan = compaction.plan(log, rig.clock.time_ms())
    assert plan is not None
    result = compaction.run(plan)
    if event == "truncate":
        log.truncate(5)
    else:
        log.delete_records(10)
        asyncio.run(rig.manager.delete_old())
    before = state_of(log)
    assert compaction.swap_in(log, plan, result) == []
    assert state_of(log) == before
    assert not list(log.directory.glob("*.cleaned"))


@pytest.mark.parametrize("event", ["deleted", "damaged"])
def test_a_failed_round_does_not_block_other_logs(rig, event, monkeypatch, caplog):
    bad, good = rig.log("bad", **COMPACT), rig.log("good", **COMPACT)
    for log in (bad, good):
        put(rig, log, b"k", b"1")
        put(rig, log, b"k", b"2")
        log.roll()
    real = compaction.run

    def interrupted(plan):
        if plan.folder == bad.directory and event == "deleted":
            rig.manager.delete("bad", 0)
        elif plan.folder == bad.directory:
            os.truncate(bad.segments[0].file.path, 100)
            plan.segments[0].size_bytes = 100
        return real(plan)

    async def run():
        monkeypatch.setattr(compaction, "run", interrupted)
        await rig.manager.compact()
        assert ("bad-0: not compacted" in caplog.text) == (event == "damaged")

    asyncio.run(run())
    assert contents(good) == [(1, b"k", b"2")]


def test_appends_continue_during_a_round(rig):
    log = prepared(rig)
    plan = compaction.plan(log, rig.clock.time_ms())
    assert plan is not None
    result = compaction.run(plan)
    put(rig, log, b"k0", b"meanwhile")
    compaction.swap_in(log, plan, result)
    assert contents(log)[-1][2] == b"meanwhile"
    reopened = rig.crash().log(**COMPACT)
    assert contents(reopened) == contents(log)
