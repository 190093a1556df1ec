"""Hostile peers get errors and do not affect others."""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from headrace.broker import EmbeddedBroker
from headrace.broker.handlers import fetch
from headrace.broker.log.log_segments import find_record
from headrace.broker.ports import free_port
from headrace.errors import Code
from headrace.wire import message_sets
from headrace.wire.api.metadata import ApiVersionsRequest
from headrace.wire.api.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.api.topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.compression import compress
from headrace.wire.fields import Records
from headrace.wire.layout import CODEC_MASK, HEADER_BYTES, Record
from headrace.wire.records import encode
from tests.support.bystander import Bystander
from tests.support.own_broker import OpenBroker
from tests.support.peers.connection import Connection
from tests.support.pipelining import RawConnection, frame
from tests.support.stored import stored_batches
from tests.support.waiting import eventually

ROUNDS = int(os.environ.get("HEADRACE_HOSTILE_ROUNDS", "1"))
"""How often each attack is repeated; more often on request."""
P99_SECONDS_MAX = 0.5
LOADED = 4
"""The latency bound, as a multiple of the undisturbed latency, for busy machines."""
MEMORY_GROWTH_BYTES_MAX = 200 * 1024 * 1024
HELD_BYTES_MAX = 700 * 1024 * 1024  # by open connections
ZSTD, GZIP = 4, 1
BOMB_BYTES = 128 * 1024 * 1024


def resident_bytes(pid: int | None) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def peaceful_p99(broker: EmbeddedBroker, topic: str) -> float:
    with Bystander(broker.bootstrap, topic) as bystander:
        time.sleep(0.5)
    return bystander.p99_seconds


def bound(peaceful_seconds: float) -> float:
    return max(P99_SECONDS_MAX, LOADED * peaceful_seconds)


def bomb(codec: int = ZSTD, size: int = BOMB_BYTES) -> bytes:
    """Return a batch with a valid header and a huge number of zero bytes as records."""
    batch = bytearray(encode([Record(0, 1, None, b"", ())]))[:HEADER_BYTES] + compress(codec, bytes(size))
    return sealed(batch, codec)


def sealed(batch: bytearray, codec: int) -> bytes:
    from headrace.wire.kernel import kernel

    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec & CODEC_MASK)
    struct.pack_into(">I", batch, 17, kernel.crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def produce_all(topic: str, batches: list[bytes]) -> ProduceRequest:
    """Return a request with a batch for each partition of a topic."""
    parts = [PartitionProduceData(partition_index=n, records=data) for n, data in enumerate(batches)]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=parts)])


@pytest.mark.parametrize("codec", [ZSTD] if ROUNDS == 1 else [ZSTD, GZIP])
def test_zip_bombs_are_rejected_and_block_nobody(codec):
    with EmbeddedBroker() as broker:
        topic = broker.create_topic("bombed", 100)
        broker.create_topic("bystander")
        peaceful = peaceful_p99(broker, "bystander")
        before = resident_bytes(broker.pid)
        request = produce_all(topic, [bomb(codec)] * 100)
        with Bystander(broker.bootstrap, "bystander") as bystander, Connection(broker.bootstrap) as connection:
            for _ in range(ROUNDS):
                response = connection.call(request, 9)
                ((*responses,),) = (topic.partition_responses for topic in response.responses)
                assert {response.error_code for response in responses} == {Code.MESSAGE_TOO_LARGE}
                assert "decompress" in (responses[0].error_message or "")
                # Two threads may each hold a batch and its parts.
                assert resident_bytes(broker.pid) - before < MEMORY_GROWTH_BYTES_MAX
        assert bystander.p99_seconds < bound(peaceful), (bystander.p99_seconds, peaceful)
        assert max(bystander.seconds) < 4 * bound(peaceful)


def half_frame(size: int, sent: int) -> bytes:
    """Return the beginning of a larger request."""
    return struct.pack(">i", size) + bytes(sent)


def test_incomplete_frames_of_closed_connections_are_freed():
    count, sent = 20, 20 * 1024 * 1024
    with EmbeddedBroker() as broker:
        broker.create_topic("bystander")
        peaceful = peaceful_p99(broker, "bystander")
        before = resident_bytes(broker.pid)
        data = half_frame(100 * 1024 * 1024, sent)
        with Bystander(broker.bootstrap, "bystander") as bystander:
            for _ in range(ROUNDS):
                raws = [RawConnection(broker.bootstrap) for _ in range(count)]
                for raw in raws:
                    with suppress(OSError):  # the broker may have closed it
                        raw.send(data)
                during = resident_bytes(broker.pid)
                for raw in raws:
                    raw.close()
                assert during - before < HELD_BYTES_MAX
                # Memory of one connection may be reused for the next.
                eventually("the memory is free", lambda: resident_bytes(broker.pid) - before < 100 * 1024 * 1024)
        assert bystander.p99_seconds < bound(peaceful), (bystander.p99_seconds, peaceful)


def test_the_stalest_incomplete_frame_is_dropped_at_the_limit(monkeypatch, tmp_path):
    monkeypatch.setattr("headrace.broker.server.server.HELD_BYTES_MAX", 1024 * 1024)
    options = {"socket.request.max.bytes": 500_000}
    with EmbeddedBroker(options, data_dir=tmp_path / "data", in_process=True) as broker:
        raws = [RawConnection(broker.bootstrap) for _ in range(6)]
        for raw in raws[:3]:
            raw.send(half_frame(400_000, 300_000))
        eventually("two and a bit fit", lambda: raws[0].is_closed())
        for raw in raws:
            raw.close()


DESCRIPTORS = 64
CROWD = 200


@contextmanager
def broker_with_few_descriptors(folder: Path) -> Iterator[tuple[str, Path]]:
    """Return the address of a broker with DESCRIPTORS file descriptors, and its log file."""
    log, port = folder / "broker.log", free_port()
    start = [sys.executable, "-m", "headrace", "broker", "start", "--listen", f"127.0.0.1:{port}"]
    command = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *start, "--data-dir", str(folder / "data")]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder)
    try:
        eventually("the broker listens", lambda: responses(f"127.0.0.1:{port}") or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield f"127.0.0.1:{port}", log
    finally:
        process.terminate()
        process.wait(30)


def responses(bootstrap: str) -> bool:
    try:
        with Connection(bootstrap) as connection:
            connection.call(ApiVersionsRequest(), 0)
    except OSError:
        return False
    return True


def test_connections_beyond_the_descriptor_limit_wait(tmp_path):
    record = bytes(encode([Record(0, 1, None, b"value", ())]))
    with broker_with_few_descriptors(tmp_path) as (bootstrap, log), Connection(bootstrap) as connection:
        for name, partitions in (("bystander", 1), ("wide", DESCRIPTORS)):
            create = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            connection.call(CreateTopicsRequest(topics=[create], timeout_ms=5000), 5)
        began = time.monotonic()
        with Bystander(bootstrap, "bystander") as bystander:
            for _ in range(ROUNDS):
                crowd = [RawConnection(bootstrap) for _ in range(CROWD)]
                for raw in crowd:
                    raw.send(frame(ApiVersionsRequest(), 0))
                eventually("some of them are served", partial(any_can_read, crowd))
                # Connected clients can use more segments than there are descriptors.
                response = connection.call(produce_all("wide", [record] * DESCRIPTORS), 9)
                assert {each.error_code for each in response.responses[0].partition_responses} == {0}
                assert 0 < sum(map(can_read, crowd)) < DESCRIPTORS
                eventually("a second has passed", lambda: time.monotonic() - began > 1)
                lines = log.read_text().count("out of file descriptors")
                assert 1 <= lines <= 1 + (time.monotonic() - began)
                for raw in crowd:
                    raw.close()
                eventually("new connections are served again", lambda: responses(bootstrap))
        assert bystander.p99_seconds < P99_SECONDS_MAX * LOADED
        assert "Traceback" not in log.read_text()


def any_can_read(raws: list[RawConnection]) -> bool:
    return any(map(can_read, raws))


def can_read(raw: RawConnection) -> bool:
    return bool(select.select([raw.socket], [], [], 0)[0])


def test_batches_are_converted_for_old_clients_off_the_event_loop(monkeypatch, tmp_path):
    convert, threads = fetch._as_message_set, []

    def noting(*arguments):
        threads.append(threading.current_thread().name)
        return convert(*arguments)

    monkeypatch.setattr(fetch, "_as_message_set", noting)
    with OpenBroker(tmp_path / "data") as broker, Connection(broker.bootstrap) as connection:
        topic = broker.do(lambda inner: inner.topic_manager.create("old", 1).name)
        assert connection.produce(topic, bytes(encode([Record(0, 1, None, b"value", ())], codec=GZIP))).error_code == 0
        assert b"value" in gunzipped(connection.fetch(topic, version=2).records)
    assert [name.startswith("headrace-checking") for name in threads] == [True]


def gunzipped(records: Records) -> bytes:
    """Return the content of a message set with one compressed message."""
    assert isinstance(records, bytes | bytearray | memoryview)
    (record,) = message_sets.decode(records)
    return record.value or b""


def test_timestamps_in_large_batches_are_searched_off_the_event_loop(monkeypatch, tmp_path):
    find, threads = find_record, []

    def noting(*arguments):
        record = find(*arguments)
        threads.append(threading.current_thread().name)
        return record

    monkeypatch.setattr("headrace.broker.handlers.list_offsets.find_record", noting)
    large = [Record(n, 100 + n, None, bytes(1000), ()) for n in range(2000)]
    with OpenBroker(tmp_path / "data") as broker, Connection(broker.bootstrap) as connection:
        topic = broker.do(lambda inner: inner.topic_manager.create("timed", 1).name)
        assert connection.produce(topic, bytes(encode(large, codec=ZSTD))).error_code == 0
        part = ListOffsetsPartition(partition_index=0, timestamp=1000)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[part])])
        response = connection.call(request, 7)
        assert response.topics[0].partitions[0].offset == 900
    assert [name.startswith("headrace-checking") for name in threads] == [True]


def test_a_batch_validated_in_a_thread_keeps_its_order(broker, topic):
    large = [Record(n, 1, None, bytes(1000), ()) for n in range(1000)]
    with RawConnection(broker.bootstrap) as raw:
        for turn in range(6):
            records = large if turn % 2 == 0 else [Record(0, 1, None, b"small", ())]
            raw.send(frame(produce_all(topic, [bytes(encode(records, codec=ZSTD))]), 9, turn))
        assert raw.correlation_ids(6) == [*range(6)]
    sizes = [header.record_count for header in stored_batches(broker, topic)]
    assert sizes == [1000, 1, 1000, 1, 1000, 1]
