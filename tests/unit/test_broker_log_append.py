"""Appends to a log: offsets, refused batches and their error codes, conversions, replication and disk errors."""

from __future__ import annotations

import asyncio
import errno
import os
import struct

import pytest

from headrace.broker.log import Origin
from headrace.broker.log.files import reserve
from headrace.errors import BrokerError, Code
from headrace.wire import message_sets
from headrace.wire.compression import CODEC_IDS
from headrace.wire.kernel import kernel
from headrace.wire.layout import BatchHeader, Record, header_layout
from headrace.wire.records import BatchProducer, Marker, encode_marker
from tests.support.fake_internal import START_MS
from tests.support.log_rig import LogRig, batch, batches_of, replicate, rows_of, state_of, values_of

pytestmark = pytest.mark.both_kernels

HOUR_MS = 3_600_000


@pytest.fixture
def rig(tmp_path):
    return LogRig(tmp_path / "logs")


def changed(data: bytes, **fields: int) -> bytes:
    """Return a batch with other header fields and a valid checksum."""
    header = BatchHeader._make(header_layout.unpack_from(data))._replace(**fields)
    rest = header_layout.pack(*header)[21:] + data[61:]
    if "crc" not in fields:
        header = header._replace(crc=kernel.crc32c(rest))
    return header_layout.pack(*header)[:21] + rest


def refused(log, data, magic_allowed=2, **how) -> int:
    before = state_of(log)
    with pytest.raises(BrokerError) as caught:
        log.append(log.prepare(data, magic_allowed=magic_allowed) if magic_allowed < 2 else data, **how)
    assert state_of(log) == before
    return caught.value.code


# --- offsets ---


def test_offsets_follow_one_another(rig):
    log = rig.log()
    assert rig.append(log, b"a", b"b", b"c")[:2] == (0, 2)
    assert rig.append(log, b"d")[:2] == (3, 3)
    assert log.end_offset == 4
    assert [row.offset for row in rows_of(log)] == [0, 1, 2, 3]


@pytest.mark.behaviour("B08")
def test_base_offset_and_epoch_are_patched_and_nothing_else(rig):
    log = rig.log()
    rig.append(log, b"before")
    sent = batch(b"x" * 100, b"y", producer=BatchProducer(7, 0, 0))
    log.append(sent, leader_epoch=5)
    stored = bytes(batches_of(log)[1].view)
    assert struct.unpack_from(">qii", stored) == (1, len(sent) - 12, 5)
    assert stored[16:] == sent[16:]


def test_an_append_leaves_the_high_watermark_where_it_is(rig):
    log = rig.log()
    log.append(batch(b"a", b"b"))
    assert (log.high_watermark, log.last_stable_offset, log.end_offset) == (0, 0, 2)
    assert log.advance_high_watermark(1)
    assert not log.advance_high_watermark(1)
    assert not log.advance_high_watermark(0)
    assert log.advance_high_watermark(99)
    assert log.high_watermark == 2


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_type_is_accepted(rig, kind):
    log = rig.log()
    log.append(kind(batch(b"a")))
    assert values_of(log) == [b"a"]


# --- invalid batches ---

GOOD = batch(b"one", b"two")
WITH_PRODUCER = batch(b"one", b"two", producer=BatchProducer(5, 0, 0))
REFUSED = {
    "nothing": (b"", Code.INVALID_RECORD),
    "a few bytes": (GOOD[:20], Code.INVALID_RECORD),
    "a header cut short": (GOOD[:60], Code.INVALID_RECORD),
    "a batch cut short": (GOOD[:-1], Code.INVALID_RECORD),
    "two batches": (GOOD + GOOD, Code.INVALID_RECORD),
    "bytes after the batch": (GOOD + b"\0", Code.INVALID_RECORD),
    "a length below a header": (changed(GOOD, length=48), Code.CORRUPT_MESSAGE),
    "a negative length": (changed(GOOD, length=-1), Code.CORRUPT_MESSAGE),
    "magic 3": (changed(GOOD, magic=3), Code.INVALID_RECORD),
    "a wrong checksum": (changed(GOOD, crc=1), Code.CORRUPT_MESSAGE),
    "a flipped bit": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), Code.CORRUPT_MESSAGE),
    "a base offset": (changed(GOOD, base_offset=1), Code.INVALID_RECORD),
    "a count above the offsets": (changed(GOOD, record_count=3), Code.INVALID_RECORD),
    "a count below the offsets": (changed(GOOD, record_count=1), Code.INVALID_RECORD),
    "no records": (changed(GOOD, record_count=0, last_offset_delta=-1), Code.INVALID_RECORD),
    "a control batch": (changed(GOOD, attributes=0x20), Code.INVALID_RECORD),
    "a producer without a sequence": (changed(WITH_PRODUCER, base_sequence=-1), Code.INVALID_RECORD),
    "an unknown codec": (changed(GOOD, attributes=5), Code.UNSUPPORTED_COMPRESSION_TYPE),
    "the broker's timestamps": (changed(GOOD, attributes=8), Code.INVALID_TIMESTAMP),
    "a message set": (message_sets.encode([Record(0, 0, None, b"v", ())], magic=1), Code.INVALID_RECORD),
}


@pytest.mark.behaviour("B08")
@pytest.mark.parametrize("name", REFUSED)
def test_invalid_batches_are_refused_with_their_code(rig, name):
    data, code = REFUSED[name]
    log = rig.log()
    rig.append(log, b"before")
    assert refused(log, data) == code


def test_max_message_bytes_counts_the_whole_batch(rig):
    size = len(batch(b"v" * 200))
    log = rig.log(max_message_bytes=str(size))
    rig.append(log, b"v" * 200)
    assert refused(log, batch(b"v" * 201)) == Code.MESSAGE_TOO_LARGE


def test_a_batch_larger_than_a_segment_is_refused(rig):
    log = rig.log(internal_segment_bytes="500")
    assert refused(log, batch(b"v" * 500)) == Code.RECORD_LIST_TOO_LARGE


def test_a_compacted_topic_needs_keys(rig):
    log = rig.log(cleanup_policy="compact")
    assert refused(log, batch((b"k", b"v"), (None, b"v"))) == Code.INVALID_RECORD
    assert refused(log, batch((None, b"v"), codec=CODEC_IDS["gzip"])) == Code.INVALID_RECORD
    rig.append(log, (b"k", b"v"), (b"", None), codec=CODEC_IDS["zstd"])
    rig.mark(log, 5, 0, committed=True)
    assert log.end_offset == 3


@pytest.mark.parametrize("codec", CODEC_IDS.values())
def test_undecodable_records_are_refused_on_any_topic(rig, codec):
    data = changed(batch((b"k", b"v"), codec=codec), record_count=2, last_offset_delta=1)
    assert refused(rig.log(), data) == Code.INVALID_RECORD


# --- timestamps ---


def test_timestamps_outside_the_limits_are_refused(rig):
    log = rig.log(message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="500")
    rig.append(log, b"a", time_ms=START_MS - 1000)
    rig.append(log, b"b", time_ms=START_MS + 500)
    assert refused(log, batch(b"c", time_ms=START_MS - 1001)) == Code.INVALID_TIMESTAMP
    assert refused(log, batch(b"d", time_ms=START_MS + 501)) == Code.INVALID_TIMESTAMP
    assert refused(log, batch(b"d", b"e", time_ms=START_MS - 2000, step_ms=2000)) == Code.INVALID_TIMESTAMP
    rig.append(log, b"none at all", time_ms=-1)


def test_timestamps_may_be_an_hour_ahead_by_default(rig):
    log = rig.log()
    rig.append(log, b"a", time_ms=START_MS + HOUR_MS)
    assert refused(log, batch(b"b", time_ms=START_MS + HOUR_MS + 1)) == Code.INVALID_TIMESTAMP
    rig.append(log, b"old", time_ms=0)


@pytest.mark.parametrize("codec", [0, CODEC_IDS["lz4"]])
def test_log_append_time_sets_all_timestamps_and_updates_the_checksum(rig, codec):
    log = rig.log(message_timestamp_type="LogAppendTime")
    info = rig.append(log, b"a", b"b", codec=codec, time_ms=5, step_ms=1)
    assert info.append_time_ms == START_MS
    assert [(row.timestamp, row.value) for row in rows_of(log)] == [(START_MS, b"a"), (START_MS, b"b")]
    assert batches_of(log)[0].header.append_time == START_MS
    assert rig.crash().log().end_offset == 2


# --- conversion ---


@pytest.mark.parametrize("topic_codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", ["none", "zstd"])
def test_batches_are_recompressed_with_the_codec_of_the_topic(rig, topic_codec, sent):
    log = rig.log(compression_type=topic_codec)
    rig.append(log, b"a" * 500, b"b", codec=CODEC_IDS[sent], producer=BatchProducer(3, 1, 0), step_ms=7)
    (stored,) = batches_of(log)
    assert stored.header.codec == CODEC_IDS.get(topic_codec, 0)
    assert (stored.header.producer_id, stored.header.base_sequence) == (3, 0)
    assert [(row.timestamp, row.value) for row in stored.records()] == [
        (START_MS, b"a" * 500),
        (START_MS + 7, b"b"),
    ]


def test_a_batch_that_grows_beyond_the_limit_is_refused(rig):
    log = rig.log(compression_type="uncompressed", max_message_bytes="1000")
    assert refused(log, batch(b"a" * 5000, codec=CODEC_IDS["gzip"])) == Code.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["none", "gzip", "lz4"])
def test_message_sets_become_a_batch(rig, magic, codec):
    log = rig.log()
    rig.append(log, b"before")
    rows = [Record(n, START_MS + n, b"k%d" % n, b"v%d" % n, ()) for n in range(3)]
    info = log.append(log.prepare(message_sets.encode(rows, magic=magic, codec=CODEC_IDS[codec]), magic_allowed=magic))
    assert info[:2] == (1, 3)
    stored = batches_of(log)[1]
    assert stored.header.magic == 2
    assert stored.header.codec == CODEC_IDS[codec]
    times = [START_MS, START_MS + 1, START_MS + 2] if magic else [-1, -1, -1]
    assert [(row.offset, row.timestamp, row.key, row.value) for row in stored.records()] == [
        (n + 1, times[n], b"k%d" % n, b"v%d" % n) for n in range(3)
    ]


def test_old_producers_may_send_batches_too(rig):
    log = rig.log()
    log.append(log.prepare(batch(b"a"), magic_allowed=1))
    assert values_of(log) == [b"a"]


def test_damaged_message_sets_are_refused(rig):
    log = rig.log()
    good = message_sets.encode([Record(0, START_MS, b"k", b"v", ())], magic=1)
    assert refused(log, good[:-1] + b"x", magic_allowed=1) == Code.CORRUPT_MESSAGE
    assert refused(log, good[:-1], magic_allowed=1) == Code.INVALID_RECORD
    older = message_sets.encode([Record(0, START_MS, b"k", b"v", ())], magic=0)
    assert refused(log, good + older, magic_allowed=1) == Code.INVALID_RECORD
    compacted = rig.log("c", cleanup_policy="compact")
    keyless = message_sets.encode([Record(0, START_MS, None, b"v", ())], magic=1)
    assert refused(compacted, keyless, magic_allowed=1) == Code.INVALID_RECORD


# --- replication ---


def test_a_follower_appends_batches_unchanged(rig):
    leader, follower = rig.log("a"), rig.log("b")
    for n in range(20):
        leader.append(batch(b"v%d" % n, b"w", producer=BatchProducer(3, 0, 2 * n)), leader_epoch=n // 7)
    rig.mark(leader, 3, 0, committed=False)
    replicate(leader, follower, bytes_max=500)
    assert state_of(follower) == state_of(leader)


def test_a_follower_refuses_damaged_batches_and_offsets_it_has(rig):
    log = rig.log()
    good = batch(b"a", b"b", offset=10, leader_epoch=1)
    log.append(good, origin=Origin.REPLICATION)
    assert log.end_offset == 12
    assert refused(log, good, origin=Origin.REPLICATION) == Code.CORRUPT_MESSAGE
    following = batch(b"c", offset=12, leader_epoch=1)
    assert refused(log, following + good, origin=Origin.REPLICATION) == Code.CORRUPT_MESSAGE
    assert refused(log, following[:-1] + b"x", origin=Origin.REPLICATION) == Code.CORRUPT_MESSAGE
    log.append(following + batch(b"d", offset=20, leader_epoch=2), origin=Origin.REPLICATION)
    assert (log.end_offset, log.latest_epoch) == (21, 2)


def test_batches_of_coordinators_need_no_sequence_numbers(rig):
    log = rig.log(cleanup_policy="compact")
    mine = BatchProducer(9, 2, -1, transactional=True)
    for n in range(3):
        log.append(batch((b"k%d" % n, b"v"), producer=mine), origin=Origin.COORDINATOR)
    assert log.producers.is_open(9, 2)
    log.append_marker(9, 2, Marker(True, 0), leader_epoch=0)
    assert not log.producers.is_open(9, 2)


def test_a_client_cannot_write_a_marker(rig):
    log = rig.log()
    assert refused(log, bytes(encode_marker(Marker(True, 0), 5, 0, START_MS))) == Code.INVALID_RECORD


# --- the disk ---


def test_a_full_disk_leaves_no_trace(rig, monkeypatch):
    log = rig.log()
    rig.append(log, b"before")
    size = log.segments[0].size_bytes

    def full(fd, parts, position):
        os.pwrite(fd, bytes(parts[0]) + b"half of it", position)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        assert refused(log, batch(b"lost", producer=BatchProducer(5, 0, 0))) == Code.KAFKA_STORAGE_ERROR
    assert os.stat(log.segments[0].file.path).st_size == size
    assert rig.append(log, b"after", producer=BatchProducer(5, 0, 0))[:2] == (1, 1)
    assert values_of(rig.crash().log()) == [b"before", b"after"]


def test_a_short_write_is_completed(rig, monkeypatch):
    log = rig.log()
    whole = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, position: whole(fd, b"".join(parts)[:30], position))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: whole(fd, bytes(data)[:17], position))
    rig.append(log, b"v" * 100)
    rig.append(log, b"w")
    assert values_of(log) == [b"v" * 100, b"w"]


def test_a_log_refuses_writes_after_a_failed_fsync(rig, monkeypatch):
    log = rig.log()
    rig.append(log, b"a")

    def broken(fd):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output"):
            log.flush()
    assert refused(log, batch(b"b")) == Code.KAFKA_STORAGE_ERROR


# --- reserved disk space ---


def reserved_bytes(path):
    """Return the allocated bytes of a file beyond its size."""
    status = os.stat(path)
    return status.st_blocks * 512 - status.st_size


def test_a_large_segment_reserves_disk_space_until_it_is_closed(rig):
    log = rig.log(segment_bytes=str(4 << 20))
    rig.append(log, b"x" * 900_000)
    first = log.segments[-1]
    assert reserved_bytes(first.file.path) < 100_000
    rig.append(log, b"x" * 900_000)
    size_bytes = os.path.getsize(first.file.path)
    assert size_bytes == first.size_bytes
    if reserved_bytes(first.file.path) < 1 << 20:
        pytest.skip("the file system of this machine reserves nothing")
    log.truncate(1)
    assert reserved_bytes(first.file.path) < 100_000
    while log.segments[-1] is first:
        rig.append(log, b"x" * 900_000)
    assert reserved_bytes(first.file.path) < 100_000
    assert os.path.getsize(first.file.path) == first.size_bytes


def test_disk_space_reserved_before_a_crash_is_released(rig):
    async def run():
        log = rig.log()
        rig.append(log, b"x" * 900_000)
        path = log.segments[-1].file.path
        await rig.manager.stop()
        size_bytes = os.path.getsize(path)
        fd = os.open(path, os.O_RDWR)
        reserve(fd, size_bytes + (2 << 20))
        os.close(fd)
        if reserved_bytes(path) < 1 << 20:
            pytest.skip("the file system of this machine reserves nothing")
        again = LogRig(rig.root).log()
        assert reserved_bytes(path) < 100_000
        assert again.end_offset == 1
        assert os.path.getsize(path) == size_bytes

    asyncio.run(run())
