"""LogManager: the lock of the folder, creation and deletion of logs, flushes, checkpoints, background tasks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from headrace.broker.log import LogConfig, LogManager
from headrace.broker.log.files import File, FileCache
from headrace.errors import BrokerError, Code, IllegalStateError
from headrace.wire.records import BatchProducer
from tests.support.fake_internal import START_MS
from tests.support.log_rig import TOPIC_ID, LogRig, batch, state_of, values_of

OTHER_ID = bytes(range(16, 32))


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


# --- the folder ---


def test_the_error_for_a_locked_folder_names_the_process(rig):
    with pytest.raises(IllegalStateError, match=f"is used by another broker .process {os.getpid()}"):
        LogManager(rig.root, rig.clock, {})


def test_a_killed_process_releases_its_lock(tmp_path, rig):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from headrace.broker.clock import LoopClock; from headrace.broker.log import LogManager\n"
        "manager = LogManager(Path(sys.argv[1]), LoopClock(), {}); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "other")], capture_output=True, timeout=30)
    assert done.returncode == -9, done.stderr
    LogRig(tmp_path / "other")


def test_unknown_folders_are_ignored(rig, tmp_path):
    rig.append(rig.log(), b"a")
    for name in ("catalog", "no-number-", "bad name-3", "..-1"):
        (rig.root / name).mkdir()
    (rig.root / "file-7").write_text("not a folder")
    reopened = rig.crash()
    assert [each.name for each in reopened.manager.all] == ["t-0"]
    assert (reopened.root / "bad name-3").exists()


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../up", "a" * 250, "ä"])
def test_topic_names_are_checked_before_a_folder_is_created(rig, topic):
    before = sorted(rig.root.rglob("*"))
    with pytest.raises(BrokerError) as caught:
        rig.log(topic)
    assert caught.value.code == Code.INVALID_TOPIC_EXCEPTION
    assert sorted(rig.root.rglob("*")) == before


# --- one log ---


def test_a_log_is_looked_up_by_topic_and_partition(rig):
    log = rig.log("orders", 3)
    assert rig.manager.get("orders", 3) is log
    assert rig.manager.get("orders", 2) is None
    assert (log.topic, log.index, log.topic_id, log.directory.name) == ("orders", 3, TOPIC_ID, "orders-3")


def test_creating_an_existing_log_updates_its_options(rig):
    log = rig.log()
    again = rig.log(retention_ms="5")
    assert again is log
    assert log.config.retention_ms == 5


def test_a_log_with_another_topic_id_is_not_reused(rig):
    log = rig.log()
    with pytest.raises(BrokerError) as caught:
        rig.manager.create("t", 0, OTHER_ID, log.config)
    assert caught.value.code == Code.INCONSISTENT_TOPIC_ID


def test_topic_names_may_look_like_partition_names(rig):
    rig.append(rig.log("a-1", 0), b"a")
    rig.append(rig.log("a", 10), b"b")
    reopened = rig.crash().manager
    names = {(each.topic, each.index) for each in reopened.all}
    assert names == {("a-1", 0), ("a", 10)}
    assert all(each.topic_id == TOPIC_ID for each in reopened.all)


def test_a_deleted_log_frees_its_name_at_once_and_its_files_later(rig):
    async def run():
        name = "t" * 249
        log = rig.log(name, 7, file_delete_delay_ms="1000")
        rig.append(log, b"old")
        rig.manager.delete(name, 7)
        assert rig.manager.get(name, 7) is None
        (away,) = rig.root.glob("*-delete")
        fresh = rig.manager.create(name, 7, OTHER_ID, log.config)
        assert fresh.end_offset == 0
        await rig.clock.run(1000)
        await asyncio.gather(*rig.manager._tasks)
        assert not away.exists()
        rig.manager.delete("no such topic", 0)

    asyncio.run(run())


def test_an_interrupted_deletion_is_completed_after_a_crash(rig):
    log = rig.log()
    rig.append(log, b"old")
    rig.manager.delete("t", 0)
    reopened = rig.crash()
    assert reopened.manager.all == []
    assert not list(reopened.root.glob("*-delete"))


def test_a_new_log_does_not_inherit_checkpoints_of_a_deleted_one(rig, caplog):
    async def run():
        log = rig.log()
        rig.append(log, *[b"old"] * 10)
        log.delete_records(8)
        await rig.manager.write_checkpoints()
        rig.manager.delete("t", 0)
        rig.append(rig.manager.create("t", 0, OTHER_ID, log.config), b"a", b"b")

    asyncio.run(run())
    caplog.clear()
    reopened = rig.crash()
    (log,) = reopened.manager.all
    assert (log.start_offset, log.end_offset, values_of(log)) == (0, 2, [b"a", b"b"])
    assert not reopened.manager.lost_tails
    assert not caplog.records


# --- flushing ---


def test_concurrent_callers_share_a_flush(rig, monkeypatch):
    async def run():
        log = rig.log()
        await rig.manager.flushed(log)
        flushes = 0
        real = log.flush
        gate = threading.Event()

        def counted():
            nonlocal flushes
            flushes += 1
            real()
            gate.wait(10)

        monkeypatch.setattr(log, "flush", counted)
        waits = []
        for n in range(20):
            rig.append(log, b"%d" % n)
            waits.append(asyncio.create_task(rig.manager.flushed(log)))
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*waits)
        assert flushes <= 2  # the one of the first caller, and one for all later callers
        assert log.recovery_point == log.end_offset == 20

    asyncio.run(run())


def test_a_failed_flush_fails_all_waiting_callers(rig, monkeypatch):
    async def run():
        log = rig.log()
        rig.append(log, b"a")

        def broken(fd):
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", broken)
        results = await asyncio.gather(*(rig.manager.flushed(log) for _ in range(3)), return_exceptions=True)
        codes = [result.code for result in results if isinstance(result, BrokerError)]
        assert codes == [Code.KAFKA_STORAGE_ERROR] * 3

    asyncio.run(run())


def test_flush_messages_and_flush_ms_trigger_a_flush(rig):
    by_count = rig.log("a", flush_messages="3")
    by_time = rig.log("b", flush_ms="1000")
    never = rig.log("c")
    for log in (by_count, by_time, never):
        log.flush()
        rig.append(log, b"1", b"2")
        assert not log.needs_flush
    rig.append(by_count, b"3")
    assert by_count.needs_flush
    rig.clock.now_ms += 1000
    assert by_time.needs_flush
    by_time.flush()
    by_count.flush()
    assert not by_time.needs_flush
    assert not by_count.needs_flush
    assert not never.needs_flush


def test_closed_segments_are_flushed_in_the_background(rig, monkeypatch):
    """The last segment is not flushed: a write to a file waits while the file is forced to disk."""
    forced = set()
    real = os.fsync

    def noting(fd):
        forced.add(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    async def run():
        log = rig.log(internal_segment_bytes="200")
        for n in range(6):
            rig.append(log, b"%d" % n * 60)
        assert log.recovery_point == 0
        monkeypatch.setattr(os, "fsync", noting)
        await rig.manager.flush_due()
        *closed, last = log.segments
        assert closed
        assert {segment.file.path for segment in closed} <= forced
        assert last.file.path not in forced
        assert log.recovery_point == last.base_offset < log.end_offset
        await rig.manager.write_checkpoints()
        reopened = rig.crash().log()
        assert reopened.recovery_point == log.recovery_point

    asyncio.run(run())


def test_a_flush_overtaken_by_a_truncation_keeps_the_recovery_point(rig, monkeypatch):
    log = rig.log()
    rig.append(log, b"a")
    rig.append(log, b"b")
    real = os.fsync

    def truncating(fd):
        if log.end_offset == 2:
            log.truncate(1)
            rig.append(log, b"other")
            rig.append(log, b"more")
        real(fd)

    monkeypatch.setattr(os, "fsync", truncating)
    log.flush()
    assert log.recovery_point == 0


# --- background tasks ---


def test_background_tasks_run_at_their_intervals(tmp_path):
    async def run():
        defaults = {
            "log.retention.check.interval.ms": "1000",
            "log.cleaner.backoff.ms": "1000",
            "producer.id.expiration.check.interval.ms": "1000",
            "producer.id.expiration.ms": "500",
            "log.flush.offset.checkpoint.interval.ms": "1000",
        }
        rig = LogRig(tmp_path / "logs", defaults=defaults)
        old = rig.log("old", retention_ms="500")
        keyed = rig.log("keyed", cleanup_policy="compact", min_cleanable_dirty_ratio="0")
        rig.append(old, b"a", producer=BatchProducer(1, 0, 0))
        for value in (b"1", b"2"):
            rig.append(keyed, (b"k", value))
        keyed.roll()
        rig.manager.start()
        for _ in range(3):
            await rig.clock.run(1000)
            await asyncio.gather(*rig.manager._tasks)
        assert old.start_offset == 1
        assert old.producers.views() == []
        assert values_of(keyed) == [b"2"]
        assert (rig.root / "recovery-point-offset-checkpoint").exists()
        await rig.manager.stop()

    asyncio.run(run())


def test_producers_expire_after_the_time_that_was_set_last(rig):
    async def run():
        log = rig.log("idle")
        rig.append(log, b"a", producer=BatchProducer(1, 0, 0))
        await rig.clock.run(1000)
        await rig.manager.expire_producers()
        assert len(log.producers.views()) == 1
        rig.manager.reconfigure({"producer.id.expiration.ms": "500"})
        await rig.manager.expire_producers()
        assert log.producers.views() == []

    asyncio.run(run())


def test_a_background_task_follows_a_changed_interval(tmp_path, monkeypatch):
    async def run():
        rig = LogRig(tmp_path / "logs", defaults={"log.cleaner.backoff.ms": "1000"})
        runs = []

        async def compact():
            runs.append(rig.clock.time_ms())

        monkeypatch.setattr(rig.manager, "compact", compact)
        rig.manager.start()
        rig.manager.reconfigure({"log.cleaner.backoff.ms": "200"})
        for _ in range(14):
            await rig.clock.run(100)
            await asyncio.gather(*rig.manager._tasks)
        assert [time_ms - runs[0] for time_ms in runs] == [0, 200, 400]
        await rig.manager.stop()

    asyncio.run(run())


def test_a_failed_background_task_is_retried(rig, monkeypatch, caplog):
    async def run():
        turns = 0

        async def failing():
            nonlocal turns
            turns += 1
            raise RuntimeError("not today")

        monkeypatch.setattr(rig.manager, "delete_old", failing)
        rig.manager.start()
        await rig.clock.run(900_000)
        await rig.manager.stop()
        assert turns == 3
        assert "not today" in caplog.text

    asyncio.run(run())


def test_a_stop_does_not_wait_for_timers(rig):
    async def run():
        log = rig.log(file_delete_delay_ms="999999")
        rig.append(log, b"a")
        rig.manager.delete("t", 0)
        rig.manager.start()
        await rig.manager.stop()
        assert not list(rig.root.glob("*-delete"))
        assert (rig.root / ".kafka_cleanshutdown").exists()

    asyncio.run(run())


def test_a_failed_fsync_makes_the_stop_unclean(rig, monkeypatch):
    async def run():
        log = rig.log()
        rig.append(log, b"a")
        real = os.fsync

        def broken(fd):
            if threading.current_thread() is not threading.main_thread() and not log.failed:
                raise OSError(5, "Input/output error")
            real(fd)

        monkeypatch.setattr(os, "fsync", broken)
        await rig.manager.stop()
        assert not (rig.root / ".kafka_cleanshutdown").exists()

    asyncio.run(run())


# --- many logs ---


def test_many_partitions_share_few_open_files(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.broker.log.files.FILES_OPEN_MAX", 10)
    rig = LogRig(tmp_path / "logs")
    logs = [rig.log("t", n) for n in range(60)]
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(3):
        for n, log in enumerate(logs):
            rig.append(log, b"%d %d" % (turn, n))
            assert log.read(turn, 100, end_offset=99, at_least_one=True).data
    assert len(os.listdir("/proc/self/fd")) <= before + 10
    assert all(len(values_of(log)) == 3 for log in logs)
    reopened = rig.crash()
    assert [state_of(reopened.log("t", n))["bytes"] for n in range(60)] == [state_of(log)["bytes"] for log in logs]


def test_the_file_in_use_stays_open(tmp_path):
    cache = FileCache(files_max=3)
    hot, *others = [File(str(tmp_path / f"{n}"), cache) for n in range(20)]
    first = hot.fd()
    for other in others:
        assert other.fd() >= 0
        assert hot.fd() == first
    assert len(cache) == 3
    hot.close()
    hot.close()
    assert len(cache) == 2


def test_broker_options_are_defaults_of_topic_options(tmp_path):
    rig = LogRig(tmp_path / "logs", defaults={"log.retention.hours": "2", "log.segment.bytes": "2000000"})
    config = rig.log().config
    assert (config.retention_ms, config.segment_bytes) == (7_200_000, 2_000_000)
    rig.append(rig.log(), b"a", time_ms=START_MS)
    assert rig.crash().manager.all[0].config == config


def test_a_manager_without_logs_starts_and_stops(tmp_path):
    async def run():
        rig = LogRig(tmp_path / "new" / "folder")
        rig.manager.start()
        await rig.manager.stop()
        again = LogRig(rig.root)
        assert again.manager.all == []
        again.manager.create("t", 0, TOPIC_ID, LogConfig.resolve({})).append(batch(b"a"))
        await again.manager.stop()

    asyncio.run(run())
