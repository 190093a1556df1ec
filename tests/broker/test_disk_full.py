"""A data folder on a full disk: errors, and recovery when there is space again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.errors import Code, HeadraceError
from headrace.wire.api.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.peers.connection import Connection
from tests.support.waiting import eventually

DISK_BYTES = 4 * 1024 * 1024
SEGMENT_BYTES = 200_000
VALUE_BYTES = 20_000
PRODUCES_MAX = 1000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate small file system."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fill the disk to the last byte."""
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return filler


def produce(connection: Connection, topic: str) -> int:
    data = bytes(encode([Record(0, 1, None, bytes(VALUE_BYTES), ())]))
    return connection.produce(topic, data).error_code


def delete_records(connection: Connection, topic: str, before: int) -> int:
    row = DeleteRecordsPartition(partition_index=0, offset=before)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[row])], timeout_ms=5000)
    response = connection.call(request, 2)
    return response.topics[0].partitions[0].error_code


def test_a_full_disk_rejects_records_until_some_are_deleted(disk):
    options = {"log.retention.check.interval.ms": 100, "log.segment.delete.delay.ms": 0}
    broker = EmbeddedBroker(options, data_dir=disk / "data").start()
    try:
        for name in ("bulk", "other"):
            broker.create_topic(name, configs={"internal.segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"})
        with Connection(broker.bootstrap) as connection:
            assert produce(connection, "other") == 0
            codes = [produce(connection, "bulk") for _ in range(DISK_BYTES // VALUE_BYTES)]
            assert set(codes) == {0, Code.KAFKA_STORAGE_ERROR}
            filler = fill(disk)
            for _ in range(100):
                assert produce(connection, "bulk") == Code.KAFKA_STORAGE_ERROR
            assert "No space left on device" in broker.log_text
            assert broker.log_text.count("cannot write") < 50, "a line for each request"
            assert len(connection.fetch("bulk").records or b"") > VALUE_BYTES  # what is there can be read
            stored = connection.fetch("bulk").high_watermark
            # Records are deleted though nothing can be written, and that makes room.
            assert delete_records(connection, "bulk", stored // 2) == 0
            assert connection.fetch("bulk", offset=stored // 2).log_start_offset == stored // 2
            eventually("there is room for records again", lambda: produce(connection, "bulk") == 0)
            filler.unlink()
            assert produce(connection, "other") == 0
            assert connection.fetch("bulk", offset=stored // 2).log_start_offset == stored // 2
        broker.restart()
        with Connection(broker.bootstrap) as connection:
            assert connection.fetch("bulk", offset=stored // 2).log_start_offset == stored // 2
            assert produce(connection, "bulk") == 0
        assert "Traceback" not in broker.log_text
    finally:
        broker.close()


def test_retention_frees_a_full_disk(disk):
    options = {"log.retention.check.interval.ms": 2000, "log.segment.delete.delay.ms": 0, "log.retention.ms": -1}
    broker = EmbeddedBroker(options, data_dir=disk / "data").start()
    try:
        broker.create_topic("bulk", configs={"internal.segment.bytes": str(SEGMENT_BYTES), "retention.bytes": "0"})
        with Connection(broker.bootstrap) as connection:
            codes = (produce(connection, "bulk") for _ in range(PRODUCES_MAX))
            assert Code.KAFKA_STORAGE_ERROR in codes, "the disk was never full"
            fill(disk)
            eventually("there is room for records again", lambda: produce(connection, "bulk") == 0)
        assert "Traceback" not in broker.log_text
    finally:
        broker.close()


def test_a_start_on_a_full_disk_reports_the_folder(disk):
    fill(disk)
    with pytest.raises(HeadraceError) as caught:
        EmbeddedBroker(data_dir=disk / "data").start()
    assert f"{disk / 'data'}" in str(caught.value)
    assert "full" in str(caught.value)
