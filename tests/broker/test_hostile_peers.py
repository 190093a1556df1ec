"""Peers that want to harm others: they get an error, and the others do not notice."""

from __future__ import annotations

import os
import struct
import time

import pytest

from bystander import Bystander
from headrace.broker import EmbeddedBroker
from headrace.errors import Code
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from headrace.wire.compression import compress
from headrace.wire.layout import CODEC_MASK, HEADER_BYTES, Record
from headrace.wire.records import encode
from peers.connection import Connection

ROUNDS = int(os.environ.get("HEADRACE_HOSTILE_ROUNDS", "1"))
"""How often each attack is repeated: many times over by whoever has the time."""
P99_SECONDS_MAX = 0.25
LOADED = 4
"""On a machine that is busy anyway, the bound is this many times what the bystander needs in peace."""
MEMORY_GROWTH_BYTES_MAX = 700 * 1024 * 1024
ZSTD, GZIP = 4, 1
BOMB_BYTES = 128 * 1024 * 1024


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def peaceful_p99(broker: EmbeddedBroker, topic: str) -> float:
    with Bystander(broker.bootstrap, topic) as bystander:
        time.sleep(0.5)
    return bystander.p99_seconds


def bound(peaceful_seconds: float) -> float:
    return max(P99_SECONDS_MAX, LOADED * peaceful_seconds)


def bomb(codec: int = ZSTD, size: int = BOMB_BYTES) -> bytes:
    """A batch whose header is right, and whose records are nothing but zeros, a great many of them."""
    batch = bytearray(encode([Record(0, 1, None, b"", ())]))[:HEADER_BYTES] + compress(codec, bytes(size))
    return sealed(batch, codec)


def sealed(batch: bytearray, codec: int) -> bytes:
    from headrace.wire.kernel import kernel

    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec & CODEC_MASK)
    struct.pack_into(">I", batch, 17, kernel.crc32c(memoryview(batch)[21:]))
    return bytes(batch)


def produce_all(topic: str, batches: list[bytes]) -> ProduceRequest:
    """A batch for each partition of a topic."""
    parts = [PartitionProduceData(partition_index=n, records=data) for n, data in enumerate(batches)]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=parts)])


@pytest.mark.parametrize("codec", [ZSTD] if ROUNDS == 1 else [ZSTD, GZIP])
def test_zip_bombs_are_refused_and_hold_up_nobody(codec):
    with EmbeddedBroker() as broker:
        topic = broker.create_topic("bombed", 100)
        broker.create_topic("bystander")
        peaceful = peaceful_p99(broker, "bystander")
        assert broker.pid is not None
        before = resident_bytes(broker.pid)
        request = produce_all(topic, [bomb(codec)] * 100)
        with Bystander(broker.bootstrap, "bystander") as bystander, Connection(broker.bootstrap) as connection:
            for _ in range(ROUNDS):
                response = connection.call(request, 9)
                assert isinstance(response, ProduceResponse)
                ((*answers,),) = (topic.partition_responses for topic in response.responses)
                assert {answer.error_code for answer in answers} == {Code.MESSAGE_TOO_LARGE}
                assert "decompress" in (answers[0].error_message or "")
        assert bystander.p99_seconds < bound(peaceful), (bystander.p99_seconds, peaceful)
        assert max(bystander.seconds) < 4 * bound(peaceful)
        assert resident_bytes(broker.pid) - before < MEMORY_GROWTH_BYTES_MAX
