"""Log files that were damaged while the broker was stopped, as clients and operators see them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace import Producer
from headrace.broker import EmbeddedBroker, EmbeddedCluster
from headrace.errors import Code
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.api.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.records import read_batches
from tests.support.peers.connection import Connection
from tests.support.waiting import eventually

RECORDS = 40
TIME_MS = 1_700_000_000_000


def fetch(connection: Connection, offset: int, *, committed: bool = False):
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=int(committed),
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    ((response,),) = (topic.partitions for topic in connection.call(request, 12).responses)
    return response


def offset_for(connection: Connection, timestamp_ms: int) -> int:
    part = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[part])])
    ((response,),) = (topic.partitions for topic in connection.call(request, 7).topics)
    assert response.error_code == Code.NONE
    return int(response.offset)


@pytest.mark.behaviour("B14")
@pytest.mark.parametrize("how", ["a byte less", "missing"])
def test_offsets_of_a_damaged_segment_fail_and_the_others_are_read(how, tmp_path: Path):
    with EmbeddedBroker(data_dir=tmp_path) as broker:
        broker.create_topic("t", configs={"internal.segment.bytes": "500"})
        with Producer(bootstrap_servers=broker.bootstrap, linger_ms=0) as producer:
            for number in range(RECORDS):
                producer.send("t", b"value %d" % number, timestamp_ms=TIME_MS + number).result(20)
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
        assert f"to {end - 1} are lost or damaged:" in damaged
        with Connection(broker.bootstrap) as connection:
            assert fetch(connection, end - 1).error_code == Code.CORRUPT_MESSAGE
            # A look-up by timestamp returns the damaged range, and does not silently skip it.
            offsets = {offset: offset_for(connection, TIME_MS + offset) for offset in (begin - 1, end - 1, end + 1)}
            lost = int(damaged.split("offsets ")[1].split(" ")[0])
            assert offsets == {begin - 1: begin - 1, end - 1: lost, end + 1: end + 1}
            values: dict[int, bytes | None] = {}
            for offset in [*range(begin), *range(end, RECORDS)]:
                response = fetch(connection, offset)
                assert response.error_code == Code.NONE
                values |= {
                    record.offset: record.value
                    for batch in read_batches(response.records)
                    for record in batch.records()
                }
        assert values.keys() >= {*range(begin), *range(end, RECORDS)}
        assert all(value == b"value %d" % offset for offset, value in values.items())
        assert first.exists()
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            assert producer.send("t", b"next").result(20).offset == RECORDS


@pytest.mark.behaviour("B14")
def test_a_single_replica_in_a_cluster_keeps_records_after_a_damaged_batch(tmp_path: Path):
    with EmbeddedCluster(2, data_dir=tmp_path) as cluster:
        cluster.create_topic("t", replication_factor=1)
        with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0) as producer:
            for number in range(RECORDS):
                producer.send("t", b"value %d" % number).result(20)
        broker = cluster.broker(cluster.describe_topic("t")[0]["leader"])
        broker.kill()
        (path,) = (broker.data_dir / "t-0").glob("*.log")
        data = bytearray(path.read_bytes())
        data[data.index(b"value 20")] ^= 1
        path.write_bytes(data)
        broker.start()
        eventually("it leads again", lambda: cluster.describe_topic("t")[0]["leader"] == broker.node_id)
        assert len(broker.status()["damaged"]) == 1
        with Connection(broker.bootstrap) as connection:
            assert fetch(connection, 20).error_code == Code.CORRUPT_MESSAGE
            response = fetch(connection, 21)
        values = [record.value for batch in read_batches(response.records) for record in batch.records()]
        assert values == [b"value %d" % number for number in range(21, RECORDS)]


@pytest.mark.behaviour("B14")
def test_read_committed_fetches_fail_at_a_transaction_with_a_damaged_marker(tmp_path: Path):
    with EmbeddedBroker(data_dir=tmp_path) as broker:
        broker.create_topic("t")
        with Producer(bootstrap_servers=broker.bootstrap, transactional_id="payments") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"committed").result(20)
            producer.commit_transaction()
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            assert producer.send("t", b"plain").result(20).offset == 2
        broker.stop()
        (path,) = (tmp_path / "t-0").glob("*.log")
        data = bytearray(path.read_bytes())
        marker = [*read_batches(data)][1]
        data[data.index(bytes(marker.view)) + marker.header.size - 1] ^= 1
        path.write_bytes(data)
        broker.start()
        with Connection(broker.bootstrap) as connection:
            codes = [
                [fetch(connection, offset, committed=committed).error_code for offset in range(3)]
                for committed in (False, True)
            ]
        assert codes == [[Code.NONE, Code.CORRUPT_MESSAGE, Code.NONE], [Code.CORRUPT_MESSAGE] * 2 + [Code.NONE]]
        (damaged,) = broker.status()["damaged"]
        assert "readers of committed records are refused from offset 0 on" in damaged
