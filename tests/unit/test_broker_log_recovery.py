"""Restarts: after a clean stop the log is the same, after a crash a prefix with the state that belongs to it."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.log import Origin
from headrace.broker.log import manager as manager_module
from headrace.broker.log.producer_snapshots import snapshot_offsets
from headrace.wire.records import BatchProducer, Marker
from tests.support.examples import examples
from tests.support.log_rig import LogRig, batch, read_all, replicate, rows_of, state_of, values_of

SMALL = {"internal_segment_bytes": "600", "index_interval_bytes": "100"}


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


def fill(rig, log, rounds: int = 12) -> None:
    """Write plain and idempotent batches, and transactions that are committed, aborted and left open."""
    for n in range(rounds):
        rig.append(log, b"plain %d" % n)
        rig.append(log, b"a%d" % n, b"b", producer=BatchProducer(1, 0, 2 * n))
        rig.append(log, b"t%d" % n, producer=BatchProducer(2, 0, n, transactional=True))
        if n % 3 == 1:
            rig.mark(log, 2, 0, committed=n % 2 == 0, coordinator=n)
    rig.append(log, b"other", producer=BatchProducer(3, 5, 0, transactional=True))
    log.append(batch(b"of the next leader"), leader_epoch=4)
    log.advance_high_watermark(log.end_offset)


def log_file(rig: LogRig, name: str = "t-0") -> Path:
    return sorted((rig.root / name).glob("*.log"))[-1]


# --- clean stops ---


@pytest.mark.parametrize("options", [{}, SMALL])
def test_a_clean_restart_changes_nothing(rig, options):
    async def run():
        log = rig.log(**options)
        fill(rig, log)
        log.append_marker(2, 0, Marker(False, 50), leader_epoch=4)  # above the high watermark
        log.append(batch(b"z"), leader_epoch=4)
        before = state_of(log)
        again = await rig.restart()
        reopened = again.log(**options)
        assert state_of(reopened) == before
        assert reopened.append(batch(b"a11", b"b", producer=BatchProducer(1, 0, 22))).duplicate
        fill_more = reopened.append(batch(b"next", producer=BatchProducer(1, 0, 24)))
        assert fill_more.first_offset == before["offsets"][3]
        await again.manager.stop()

    asyncio.run(run())


def test_a_clean_restart_does_not_read_records(rig, monkeypatch):
    monkeypatch.setattr(manager_module, "VERIFY_AT_START_BYTES", 0)  # only a search for damage reads records

    async def run():
        log = rig.log(**SMALL)
        fill(rig, log)
        await rig.manager.stop()
        for path in rig.root.glob("t-0/*.log"):  # only the last batch is read
            data = bytearray(path.read_bytes())
            if path != log_file(rig):
                data[61:] = bytes(len(data) - 61)
                path.write_bytes(data)
        reopened = LogRig(rig.root, rig.clock).log()
        assert reopened.end_offset == log.end_offset

    asyncio.run(run())


def test_many_clean_restarts_leave_few_files(rig):
    async def run():
        now = rig
        for n in range(6):
            now.append(now.log(), b"v%d" % n)
            now = await now.restart()
        assert len(snapshot_offsets(rig.root / "t-0")) == 1
        assert values_of(now.log()) == [b"v%d" % n for n in range(6)]
        await now.manager.stop()

    asyncio.run(run())


def test_a_wrong_mark_of_a_clean_stop_is_detected(rig, caplog):
    async def run():
        log = rig.log()
        fill(rig, log)
        end = log.end_offset
        await rig.manager.stop()
        with open(log_file(rig), "ab") as file:
            file.write(b"\0\0\0garbage" * 20)
        reopened = LogRig(rig.root, rig.clock).log()
        assert reopened.end_offset == end
        assert "recovering it although the last stop was clean" in caplog.text

    asyncio.run(run())


# --- crashes ---


@pytest.mark.parametrize("options", [{}, SMALL])
def test_everything_acknowledged_survives_a_crash(rig, options):
    log = rig.log(**options)
    fill(rig, log)
    reopened = rig.crash().log(**options)
    before, after = state_of(log), state_of(reopened)
    assert after["bytes"] == before["bytes"]
    assert after["aborted"] == before["aborted"]
    assert after["epochs"] == before["epochs"]
    reopened.advance_high_watermark(reopened.end_offset)
    assert state_of(reopened) == before


@pytest.mark.behaviour("B14")
def test_a_torn_tail_is_cut_at_every_byte(rig, tmp_path, caplog):
    log = rig.log()
    rig.append(log, b"first", producer=BatchProducer(1, 0, 0))
    rig.append(log, b"second", producer=BatchProducer(2, 0, 0, transactional=True))
    kept = log.segments[0].size_bytes
    rig.append(log, b"torn", b"too", producer=BatchProducer(1, 0, 1))
    whole = log_file(rig).read_bytes()
    for size in range(kept, len(whole)):
        root = tmp_path / f"torn-{size}"
        shutil.copytree(rig.root, root)
        (root / "t-0" / log_file(rig).name).write_bytes(whole[:size])
        caplog.clear()
        again = LogRig(root, rig.clock)
        reopened = again.log()
        assert values_of(reopened) == [b"first", b"second"]
        assert (reopened.end_offset, log_file(again).stat().st_size) == (2, kept)
        if size > kept:
            assert f"{size - kept} of {size} bytes cut off at offset 2" in caplog.text
        assert not reopened.append(batch(b"torn", b"too", producer=BatchProducer(1, 0, 1))).duplicate
        assert reopened.producers.is_open(2, 0)
        again.manager.delete("t", 0)


@pytest.mark.parametrize("where", ["attributes", "value", "crc", "offset", "length", "count"])
def test_a_damaged_batch_ends_the_log(rig, where, caplog):
    log = rig.log()
    for n in range(5):
        rig.append(log, b"value %d" % n)
    batch_bytes = log.segments[0].size_bytes // 5
    at = (
        2 * batch_bytes
        + {"attributes": 21, "value": batch_bytes - 3, "crc": 18, "offset": 0, "length": 8, "count": 57}[where]
    )
    data = bytearray(log_file(rig).read_bytes())
    data[at] ^= 0x80
    log_file(rig).write_bytes(data)
    reopened = rig.crash().log()
    assert values_of(reopened) == [b"value 0", b"value 1"]
    assert f"{3 * batch_bytes} of {5 * batch_bytes} bytes cut off at offset 2" in caplog.text


def test_damage_in_an_older_segment_ends_the_log_there(rig):
    log = rig.log(**SMALL)
    fill(rig, log)
    everything = rows_of(log)
    bases = [segment.base_offset for segment in log.segments]
    path = rig.root / "t-0" / f"{bases[1]:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = rig.crash()
    reopened = again.log(**SMALL)
    assert bases[1] < reopened.end_offset <= bases[2]
    assert [segment.base_offset for segment in reopened.segments] == bases[:2]
    assert rows_of(reopened) == everything[: len(rows_of(reopened))]
    assert max(snapshot_offsets(reopened.directory)) <= reopened.end_offset
    # Appends continue from there.
    again.append(reopened, b"next")
    assert values_of(again.crash().log(**SMALL))[-1] == b"next"


def test_segments_below_the_recovery_point_are_not_read_again(rig):
    log = rig.log(**SMALL)
    fill(rig, log)
    log.flush()
    assert log.recovery_point == log.end_offset
    asyncio.run(rig.manager.write_checkpoints())
    first = sorted((rig.root / "t-0").glob("*.log"))[0]
    data = bytearray(first.read_bytes())
    data[-1] ^= 1  # not read by the recovery
    first.write_bytes(data)
    reopened = rig.crash().log(**SMALL)
    assert reopened.end_offset == log.end_offset


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "idempotent", "transactional", "commit", "abort", "roll", "flush"]), st.integers(1, 3)
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ACTIONS, st.data())
def test_a_crash_at_any_byte_leaves_a_prefix_and_its_state(tmp_path_factory, actions, data):
    root = tmp_path_factory.mktemp("crash")
    rig = LogRig(root / "logs")
    log = rig.log(**SMALL)
    states = [state_of(log)]
    sequences = dict.fromkeys(range(1, 7), 0)
    for action, pid in actions:
        match action:
            case "plain":
                log.append(batch(b"v%d" % log.end_offset), leader_epoch=log.end_offset // 10)
            case "idempotent" | "transactional":
                pid += 3 * (action == "transactional")
                producer = BatchProducer(pid, 0, sequences[pid], action == "transactional")
                log.append(batch(b"p", producer=producer), leader_epoch=log.end_offset // 10)
                sequences[pid] += 1
            case "commit" | "abort":
                log.append_marker(pid + 3, 0, Marker(action == "commit", 0), leader_epoch=log.end_offset // 10)
            case "roll":
                log.roll()
            case "flush":
                log.flush()
                asyncio.run(rig.manager.write_checkpoints())
        states.append(state_of(log))
    # The process dies; the last segment may be lost from any byte above the recovery point on.
    path = Path(log.segments[-1].file.path)
    lost_max = log.segments[-1].size_bytes if log.recovery_point <= log.segments[-1].base_offset else 0
    if path.exists():
        os.truncate(path, path.stat().st_size - data.draw(st.integers(0, lost_max)))
    reopened = rig.crash().log(**SMALL)
    got = state_of(reopened)
    expected = next(state for state in states if len(state["bytes"]) == len(got["bytes"]))
    assert got["bytes"] == expected["bytes"]
    assert got["aborted"] == expected["aborted"]
    reopened.advance_high_watermark(reopened.end_offset)
    reference = rig.manager.create("reference", 0, bytes(16), log.config)
    if got["bytes"]:
        reference.append(got["bytes"], origin=Origin.REPLICATION)
    reference.advance_high_watermark(reference.end_offset)
    assert state_of(reopened) == state_of(reference)


def test_a_recovered_log_can_be_recovered_again(rig):
    log = rig.log(**SMALL)
    fill(rig, log)
    once = rig.crash()
    twice = once.crash()
    assert state_of(twice.log(**SMALL)) == state_of(once.log(**SMALL))


# --- files that are lost or damaged ---


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", "-checkpoint"])
@pytest.mark.parametrize("damage", ["lost", "emptied", "garbage"])
def test_lost_or_damaged_indexes_and_snapshots_are_rebuilt(rig, suffix, damage, clean):
    async def run():
        log = rig.log(**SMALL)
        fill(rig, log)
        before = state_of(log)
        if clean:
            await rig.manager.stop()
        for path in rig.root.rglob(f"*{suffix}"):
            if damage == "lost":
                path.unlink()
            else:
                path.write_bytes(b"" if damage == "emptied" else b"\x01garbage!" * 3)
        reopened = (LogRig(rig.root, rig.clock) if clean else rig.crash()).log(**SMALL)
        reopened.advance_high_watermark(reopened.end_offset)
        after = state_of(reopened)
        if suffix == ".snapshot":  # replayed from the start
            assert after["producers"] == before["producers"]
        assert after == before
        assert read_all(reopened, bytes_max=100) == before["bytes"]
        assert reopened.segments.batch_for_time(rows_of(log)[-1].timestamp, 0)

    asyncio.run(run())


def test_an_index_of_another_segment_is_not_used(rig):
    async def run():
        log = rig.log(**SMALL)
        fill(rig, log)
        data = read_all(log)
        await rig.manager.stop()
        indexes = sorted(rig.root.glob("t-0/*.index"))
        shutil.copyfile(indexes[1], indexes[0])
        reopened = LogRig(rig.root, rig.clock).log(**SMALL)
        parts = [reopened.read(n, 1, end_offset=99, at_least_one=True) for n in _firsts(reopened)]
        assert b"".join(bytes(part.data) for part in parts) == data

    asyncio.run(run())


def _firsts(log) -> list[int]:
    return [each.header.base_offset for each in log.batches()]


def test_temporary_files_are_deleted(rig):
    log = rig.log()
    rig.append(log, b"a")
    folder = rig.root / "t-0"
    for name in ("00000000000000000000.log.cleaned", "00000000000000000003.log.deleted", "leader-epoch-checkpoint.tmp"):
        (folder / name).write_bytes(b"rubbish")
    reopened = rig.crash().log()
    assert values_of(reopened) == [b"a"]
    assert not [path for path in reopened.directory.iterdir() if path.suffix in (".cleaned", ".deleted", ".tmp")]


# --- followers ---


@pytest.mark.parametrize("at", [0, 1, 5, 17, 30, 46])
def test_a_truncated_log_equals_one_that_was_never_longer(rig, at):
    leader, short, long = rig.log("leader"), rig.log("short", **SMALL), rig.log("long", **SMALL)
    fill(rig, leader)
    replicate(leader, long, bytes_max=1)
    ends = [0, *(each.header.last_offset + 1 for each in leader.batches())]
    end = max(offset for offset in ends if offset <= at)
    while short.end_offset < end:
        part = leader.read(short.end_offset, 1, end_offset=leader.end_offset, at_least_one=True)
        short.append(part.data, origin=Origin.REPLICATION)
    long.truncate(at)
    for log in (long, short):
        log.advance_high_watermark(log.end_offset)
    assert state_of(long) == state_of(short)
    replicate(leader, long)
    replicate(leader, short)
    assert state_of(long) == state_of(short)
    crashed = rig.crash()
    assert state_of(crashed.log("long", **SMALL))["bytes"] == state_of(leader)["bytes"]


def test_truncating_to_the_end_or_beyond_does_nothing(rig):
    log = rig.log()
    fill(rig, log)
    before = state_of(log)
    log.truncate(log.end_offset)
    log.truncate(999)
    assert state_of(log) == before


def test_a_truncated_log_may_be_recovered_at_once(rig):
    log = rig.log(**SMALL)
    fill(rig, log)
    log.flush()
    log.truncate(10)
    reopened = rig.crash().log(**SMALL)
    reopened.advance_high_watermark(reopened.end_offset)
    assert state_of(reopened) == state_of(log)


def test_a_log_whose_files_cannot_be_deleted_keeps_its_segments(rig, monkeypatch):
    log = rig.log(**SMALL)
    fill(rig, log)
    count = len(log.segments)

    def fail(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail)
        with pytest.raises(OSError, match="input/output error"):
            log.truncate_fully(1000)
    assert len(log.segments) == count
    asyncio.run(rig.manager.write_checkpoints())
    asyncio.run(rig.manager.delete_old())
    log.truncate_fully(1000)
    assert (log.start_offset, log.end_offset) == (1000, 1000)


def test_a_follower_can_restart_at_a_higher_offset(rig):
    log = rig.log(**SMALL)
    fill(rig, log)
    log.truncate_fully(1000)
    assert (log.start_offset, log.end_offset, log.high_watermark, log.size_bytes) == (1000, 1000, 1000, 0)
    assert log.producers.views() == []
    log.append(batch(b"x", offset=1000, leader_epoch=9), origin=Origin.REPLICATION)
    reopened = rig.crash().log(**SMALL)
    assert (reopened.start_offset, reopened.end_offset, values_of(reopened)) == (1000, 1001, [b"x"])
