"""A broker whose log files were damaged while it was stopped, as its clients and its operator see it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asking import ask
from headrace import Producer
from headrace.broker import EmbeddedBroker
from headrace.errors import Code
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.records import read_batches
from peers.connection import Connection

RECORDS = 40


def fetch(connection: Connection, offset: int):
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[wanted])]
    )
    ((answer,),) = (topic.partitions for topic in ask(connection, request, 12).responses)
    return answer


@pytest.mark.behaviour("B14")
@pytest.mark.parametrize("how", ["a byte less", "missing"])
def test_offsets_of_a_damaged_segment_fail_and_the_others_are_read(how, tmp_path: Path):
    with EmbeddedBroker(data_dir=tmp_path) as broker:
        broker.create_topic("t", configs={"internal.segment.bytes": "500"})
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
            for number in range(RECORDS):
                producer.send("t", b"value %d" % number).result(20)
        broker.stop()
        first, second, third = sorted((tmp_path / "t-0").glob("*.log"))[:3]
        if how == "missing":
            second.unlink()
        else:
            os.truncate(second, second.stat().st_size - 1)
        broker.start()
        begin, end = int(second.stem), int(third.stem)
        (damaged,) = broker.status()["damaged"]
        assert str(second) in damaged
        assert f"to {end - 1}:" in damaged
        with Connection(broker.bootstrap) as connection:
            assert fetch(connection, end - 1).error_code == Code.CORRUPT_MESSAGE
            values: dict[int, bytes | None] = {}
            for offset in [*range(begin), *range(end, RECORDS)]:
                answer = fetch(connection, offset)
                assert answer.error_code == Code.NONE
                values |= {
                    record.offset: record.value for batch in read_batches(answer.records) for record in batch.records()
                }
        assert values.keys() >= {*range(begin), *range(end, RECORDS)}
        assert all(value == b"value %d" % offset for offset, value in values.items())
        assert first.exists()
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            assert producer.send("t", b"next").result(20).offset == RECORDS
