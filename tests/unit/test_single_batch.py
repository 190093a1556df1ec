"""Produce requests with one batch: the kernel's short cut agrees with the message classes, and refuses the rest."""

from __future__ import annotations

import random

import pytest

from headrace.wire.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.wire.frames import decode_request_header, encode_request, encode_response
from headrace.wire.kernel import kernel
from headrace.wire.layout import HEADER_BYTES, BatchHeader, Record, header_layout
from headrace.wire.records import BatchProducer, encode

pytestmark = pytest.mark.both_kernels

VERSIONS = range(3, 14)
TOPIC_ID = bytes(range(16))
TIME = 1_700_000_000_000


def batch_of(count: int = 3, **options) -> bytes:
    return bytes(encode([Record(n, TIME + n, b"k" if n else None, b"v" * n, ()) for n in range(count)], **options))


def topic_of(version: int, *partitions: PartitionProduceData) -> TopicProduceData:
    if version >= 13:
        return TopicProduceData(topic_id=TOPIC_ID, partition_data=partitions)
    return TopicProduceData(name="örders", partition_data=partitions)


def frame_of(version: int, records: bytes | None, **changes) -> bytes:
    topic = topic_of(version, PartitionProduceData(partition_index=7, records=records))
    fields = {"acks": -1, "timeout_ms": 30_000, "topic_data": [topic], **changes}
    return b"".join(encode_request(ProduceRequest(**fields), version, 5, "client"))[4:]


def scan(frame: bytes, version: int):
    return kernel.scan_produce(frame, decode_request_header(frame)[1], version)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_single_batch_is_returned_with_its_header(version):
    batch = batch_of(producer=BatchProducer(9, 1, 4))
    frame = frame_of(version, batch)
    scanned = scan(frame, version)
    assert scanned is not None
    assert scanned[:4] == (-1, 30_000, TOPIC_ID if version >= 13 else "örders", 7)
    assert scanned.header == BatchHeader._make(header_layout.unpack_from(batch))
    assert isinstance(scanned.header, BatchHeader)
    assert frame[scanned.start : scanned.stop] == batch
    assert scanned.keyless == 0


def damaged(batch: bytes, position: int, value: int) -> bytes:
    """A batch with another byte, and a checksum for it."""
    changed = bytearray(batch)
    changed[position] = value
    changed[17:21] = kernel.crc32c(changed[21:]).to_bytes(4, "big")
    return bytes(changed)


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
def test_everything_else_is_left_to_the_handler(version):
    plain = batch_of()
    two = [topic_of(version, *(PartitionProduceData(partition_index=n, records=plain) for n in range(2)))]
    topic = topic_of(version, PartitionProduceData(partition_index=0, records=plain))
    frames = {
        "no records": frame_of(version, None),
        "empty": frame_of(version, b""),
        "short": frame_of(version, plain[: HEADER_BYTES - 1]),
        "truncated": frame_of(version, plain[:-1]),
        "two batches": frame_of(version, plain * 2),
        "no topic": frame_of(version, plain, topic_data=[]),
        "two topics": frame_of(version, plain, topic_data=[topic, topic]),
        "two partitions": frame_of(version, plain, topic_data=two),
        "transactional id": frame_of(version, plain, transactional_id="t"),
        "compressed": frame_of(version, batch_of(codec=1)),
        "transactional": frame_of(version, damaged(plain, 22, 0x10)),
        "control": frame_of(version, damaged(plain, 22, 0x20)),
        "append time": frame_of(version, damaged(plain, 22, 0x08)),
        "magic": frame_of(version, damaged(plain, 16, 1)),
        "base offset": frame_of(version, damaged(plain, 7, 1)),
        "count": frame_of(version, damaged(plain, 60, 2)),
        "delta": frame_of(version, damaged(plain, 26, 9)),
        "sequence": frame_of(version, batch_of(producer=BatchProducer(9, 1, -1))),
        "record": frame_of(version, damaged(plain, HEADER_BYTES, 0x7F)),
        "checksum": frame_of(version, plain[:-1] + bytes([plain[-1] ^ 1])),
    }
    assert [name for name, frame in frames.items() if scan(frame, version) is not None] == []
    assert scan(frame_of(version, plain) + b"\0", version) is None
    assert kernel.scan_produce(frame_of(version, plain), 10_000, version) is None


@pytest.mark.parametrize("version", [3, 9, 13])
def test_a_damaged_request_is_refused_or_read_within_its_bounds(version):
    chance = random.Random(version)
    frame = frame_of(version, batch_of())
    position = decode_request_header(frame)[1]
    for _ in range(3000):
        changed = bytearray(frame)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(position, len(changed))] = chance.randrange(256)
        cut = bytes(changed[: chance.randint(position, len(changed))])
        scanned = kernel.scan_produce(cut, position, version)
        if scanned is not None:
            assert position < scanned.start < scanned.stop <= len(cut)
            assert kernel.crc32c(cut[scanned.start + 21 : scanned.stop]) == scanned.header.crc


@pytest.mark.parametrize("version", VERSIONS)
def test_the_response_has_the_bytes_of_the_message(version):
    for text in ("orders", "örders", "x" * 249):
        topic = TOPIC_ID if version >= 13 else text
        partition = PartitionProduceResponse(
            partition_index=7, base_offset=2**40, log_append_time_ms=-1, log_start_offset=12
        )
        row = TopicProduceResponse(partition_responses=[partition])
        row = row.replace(topic_id=topic) if version >= 13 else row.replace(name=topic)
        response = ProduceResponse(responses=[row])
        expected = b"".join(encode_response(response, version, 77))
        assert kernel.encode_produced(version, 77, topic, 7, 2**40, 12) == expected
