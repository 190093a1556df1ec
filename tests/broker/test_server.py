"""The network server: order, limits and misbehaving peers."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from headrace.broker import EmbeddedBroker
from headrace.errors import Code
from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.api.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataRequestTopic
from headrace.wire.api.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.layout import Record
from headrace.wire.records import encode
from tests.support.own_broker import OpenBroker
from tests.support.peers.connection import Connection
from tests.support.pipelining import RawConnection, frame, header
from tests.support.waiting import eventually

METADATA = MetadataRequest(topics=())
CONNECTIONS = 1000
GIVEN_UP_SECONDS = 0.3
DELAYED_ACKNOWLEDGEMENT_SECONDS = 0.04  # of Linux


def produce(topic: str, value: bytes = b"value", acks: int = -1) -> ProduceRequest:
    data = encode([Record(0, 1, None, value, ())])
    parts = [PartitionProduceData(partition_index=0, records=data)]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=parts)])


def fetch(
    topic: str, offset: int = 0, *, wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 24
) -> FetchRequest:
    fetch_partitions = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=fetch_partitions)],
    )


def is_well(broker: EmbeddedBroker) -> bool:
    with Connection(broker.bootstrap) as connection:
        connection.call(METADATA, 9)
    return True


def threads_and_memory(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/status") as file:
        rows = dict(line.split(":", 1) for line in file)
    return int(rows["Threads"]), int(rows["VmRSS"].split()[0]) * 1024


@pytest.mark.behaviour("B01")
def test_responses_keep_the_order_of_requests(broker, topic):
    with RawConnection(broker.bootstrap) as raw:
        began = time.monotonic()
        raw.send(frame(fetch(topic, wait_ms=500), 12, 1) + frame(METADATA, 9, 2) + frame(produce(topic), 9, 3))
        assert raw.correlation_ids(3) == [1, 2, 3]
        assert time.monotonic() - began > 0.4


def test_a_burst_of_requests_gets_responses_in_order(broker, topic):
    with RawConnection(broker.bootstrap) as raw:
        count = 500
        raw.send(b"".join(frame(produce(topic), 9, number) for number in range(count)))
        assert raw.correlation_ids(count) == list(range(count))


def test_responses_do_not_wait_for_tcp_acknowledgements(broker, topic):
    with RawConnection(broker.bootstrap) as raw:
        seconds = []
        for _ in range(40):
            began = time.monotonic()
            raw.send(b"".join(frame(fetch(topic, wait_ms=2), 12, number) for number in range(3)))
            assert raw.correlation_ids(3) == [0, 1, 2]
            seconds.append(time.monotonic() - began)
    assert min(seconds[20:]) < DELAYED_ACKNOWLEDGEMENT_SECONDS  # at first the kernel acknowledges at once


def test_requests_may_arrive_byte_by_byte(broker, topic):
    with RawConnection(broker.bootstrap) as raw:
        for byte in frame(METADATA, 9, 7) + frame(produce(topic), 9, 8):
            raw.send(bytes([byte]))
        assert raw.correlation_ids(2) == [7, 8]


def test_a_large_request_is_accepted(broker):
    topic = broker.create_topic("large", configs={"max.message.bytes": str(20_000_000)})
    with RawConnection(broker.bootstrap) as raw:
        raw.send(frame(produce(topic, bytes(10_000_000)), 9, 1))
        assert raw.correlation_ids(1) == [1]
        request = fetch(topic, max_bytes=100)
        raw.send(frame(request, 12))
        records = raw.response(request, 12).responses[0].partitions[0].records
        assert isinstance(records, memoryview | bytes)
        assert len(records) > 10_000_000


@pytest.mark.parametrize("size", [-1, -(2**31), 100 * 1024 * 1024 + 1, 2**31 - 1])
def test_a_frame_of_an_impossible_size_closes_the_connection_at_once(broker, size):
    with RawConnection(broker.bootstrap) as raw:
        raw.send(struct.pack(">i", size))
        assert raw.is_closed()
    assert is_well(broker)


@pytest.mark.parametrize(
    "bad",
    [
        b"\0\0\0\0",
        b"\0\0\0\x05hello",
        header(3, 9)[:-2] + b"\x7f\xff",  # a client id that is longer than the frame
        header(3, 9),  # no request after the header
        header(0, 9) + b"",
        struct.pack(">i", 14) + struct.pack(">hhih", 3, 1, 1, -1) + b"\x7f\xff\xff\xff",  # an endless array
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_a_malformed_request_closes_the_connection(broker, bad):
    with RawConnection(broker.bootstrap) as raw:
        raw.send(bad)
        assert raw.is_closed()
    assert is_well(broker)


@pytest.mark.parametrize(("api_key", "version"), [(99, 0), (3, 99), (0, -1), (4, 0), (68, 0)])
def test_an_unsupported_api_or_version_closes_the_connection(broker, api_key, version):
    with RawConnection(broker.bootstrap) as raw:
        raw.send(header(api_key, version))
        assert raw.is_closed()


@pytest.mark.parametrize("version", [5, 99, 2**15 - 1])
def test_an_unknown_api_versions_version_gets_the_supported_versions(broker, version):
    with RawConnection(broker.bootstrap) as raw:
        raw.send(header(18, version, 5))
        response = raw.response(ApiVersionsRequest(), 0)
        assert isinstance(response, ApiVersionsResponse)
        assert response.error_code == Code.UNSUPPORTED_VERSION
        assert any(row.api_key == 18 and row.max_version == 4 for row in response.api_keys)
        raw.send(frame(ApiVersionsRequest(), 0, 6))
        assert raw.correlation_ids(1) == [6]


def test_an_invalid_client_software_name_is_rejected(connection):
    good = ApiVersionsRequest(client_software_name="my-client", client_software_version="1.0")
    assert connection.call(good, 3).error_code == 0
    for name in ("", "-x", "a b", "ä"):
        bad = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
        assert connection.call(bad, 3).error_code == Code.INVALID_REQUEST


def test_features_have_the_versions_of_transactions_and_groups(connection):
    about = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    for version in (3, 4):
        response = connection.call(about, version)
        finalized = {row.name: row.max_version_level for row in response.finalized_features}
        assert finalized["transaction.version"] == 2
        assert finalized["group.version"] == 1
        assert response.finalized_features_epoch >= 0
        # Clients of version 3 cannot read a lowest level of 0 (KAFKA-17492).
        assert ("transaction.version" in {row.name for row in response.supported_features}) == (version == 4)


def test_a_peer_that_does_not_read_blocks_nobody(broker):
    topic = broker.create_topic("slow-reader")
    with Connection(broker.bootstrap) as connection:
        for _ in range(4):
            assert connection.produce(topic, encode([Record(0, 1, None, bytes(1_000_000), ())])).error_code == 0
    _, before = threads_and_memory(broker.pid)
    count = 60
    with RawConnection(broker.bootstrap, receive_buffer_bytes=65536) as raw:
        raw.send(b"".join(frame(fetch(topic), 12, number) for number in range(count)))
        for _ in range(20):
            assert is_well(broker)
        _, during = threads_and_memory(broker.pid)
        assert during - before < 40 * 1024 * 1024, "240 MB of responses are not held in memory"
        assert raw.correlation_ids(count) == list(range(count))


def test_reading_pauses_behind_a_request_that_waits(broker, topic):
    _, before = threads_and_memory(broker.pid)
    with RawConnection(broker.bootstrap) as raw:
        raw.socket.setblocking(False)
        raw.socket.send(frame(fetch(topic, wait_ms=20_000), 12))
        burst, sent = frame(produce(topic, bytes(60_000)), 9) * 10, 0
        stuck_since = None
        while stuck_since is None or time.monotonic() - stuck_since < GIVEN_UP_SECONDS:
            try:
                sent += raw.socket.send(burst)
                stuck_since = None
            except BlockingIOError:
                stuck_since = stuck_since or time.monotonic()
                time.sleep(0.01)
            assert sent < 100 * 1024 * 1024
        _, during = threads_and_memory(broker.pid)
        assert during - before < 20 * 1024 * 1024
    assert is_well(broker)


def test_a_disconnect_during_a_long_poll_leaks_nothing(tmp_path):
    with OpenBroker(tmp_path) as broker:
        topic = broker.do(lambda inner: inner.topic_manager.create("left", 1).name)
        raws = [RawConnection(broker.bootstrap) for _ in range(20)]
        for raw in raws:
            raw.send(frame(fetch(topic, wait_ms=60_000), 12))

        def waiting():
            return broker.do(lambda inner: len(inner.replicas.delayed_fetches))

        eventually("20 fetches that wait", lambda: waiting() == 20)
        for raw in raws:
            raw.close()
        eventually("nobody waits", lambda: waiting() == 0)


@pytest.fixture(scope="module")
def roomy():
    """Start a broker for many connections."""
    with EmbeddedBroker({"socket.listen.backlog.size": "1024"}) as running:
        yield running


def test_a_thousand_connections_are_held_and_cheap(roomy):
    broker = roomy
    _, before = threads_and_memory(broker.pid)
    raws = [RawConnection(broker.bootstrap) for _ in range(CONNECTIONS)]
    try:
        for raw in raws:
            raw.send(frame(METADATA, 9, 3))
        assert all(raw.correlation_ids(1) == [3] for raw in raws)
        _, after = threads_and_memory(broker.pid)
        assert (after - before) / CONNECTIONS < 20_000
        # An announced size of 100 MiB costs only the received bytes.
        for raw in raws:
            raw.send(struct.pack(">i", 100 * 1024 * 1024) + bytes(100))
        assert is_well(broker)
        _, promised = threads_and_memory(broker.pid)
        assert (promised - after) / CONNECTIONS < 20_000
    finally:
        for raw in raws:
            raw.close()
    assert is_well(broker)


@pytest.fixture(scope="module")
def strict():
    """Start a broker with short timeouts and low limits."""
    options = {"connections.max.idle.ms": "300", "max.connections": "5", "max.connections.per.ip": "5"}
    with EmbeddedBroker({**options, "socket.request.max.bytes": "10000"}) as running:
        yield running


def test_idle_connections_are_closed_unless_they_wait_for_a_response(strict):
    topic = strict.create_topic("idle")
    with RawConnection(strict.bootstrap) as idle, RawConnection(strict.bootstrap) as waiting:
        waiting.send(frame(fetch(topic, wait_ms=1500), 12, 9))
        assert idle.is_closed()
        assert waiting.correlation_ids(1) == [9]


def test_connections_beyond_the_limit_are_closed_at_once(strict):
    raws = [RawConnection(strict.bootstrap) for _ in range(5)]
    try:
        with RawConnection(strict.bootstrap) as one_more:
            assert one_more.is_closed()
        for raw in raws[:3]:
            raw.send(frame(METADATA, 9, 1))
            assert raw.correlation_ids(1) == [1]
    finally:
        for raw in raws:
            raw.close()
    eventually("room again", lambda: _responses(strict))


def _responses(broker):
    with RawConnection(broker.bootstrap) as raw:
        try:
            raw.send(frame(METADATA, 9, 1))
        except OSError:
            return False
        return raw.correlation_ids(1) == [1]


def test_a_small_request_queue_serves_all_clients(tmp_path):
    with EmbeddedBroker({"queued.max.requests": "2"}, data_dir=tmp_path) as own:
        topic = own.create_topic("queued")
        raws = [RawConnection(own.bootstrap) for _ in range(5)]
        try:
            for raw in raws:
                raw.send(frame(fetch(topic, wait_ms=100), 12, 0))
                raw.send(b"".join(frame(produce(topic, bytes(2000)), 9, number) for number in range(1, 200)))
            assert all(raw.correlation_ids(200) == list(range(200)) for raw in raws)
        finally:
            for raw in raws:
                raw.close()


def test_socket_request_max_bytes_is_enforced(strict):
    eventually("room again", lambda: _responses(strict))
    with RawConnection(strict.bootstrap) as raw:
        raw.send(struct.pack(">i", 10_001))
        assert raw.is_closed()


def test_an_unexpected_exception_gets_an_error_response(tmp_path):
    with OpenBroker(tmp_path) as own:
        own.inner.catalog.topics.by_name["x"] = 7  # type: ignore[assignment]
        with RawConnection(own.bootstrap) as raw:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="x")])
            raw.send(frame(request, 13))
            assert raw.response(request, 13).error_code == Code.UNKNOWN_SERVER_ERROR
            listing = ListOffsetsRequest(topics=[ListOffsetsTopic(name="x", partitions=[ListOffsetsPartition()])])
            raw.send(frame(listing, 7))  # an error code for each partition only
            ((row,),) = (topic.partitions for topic in raw.response(listing, 7).topics)
            assert row.error_code == Code.UNKNOWN_SERVER_ERROR
            raw.send(frame(request, 9))  # its response has no error code
            assert raw.is_closed()


def test_a_clean_stop_finishes_running_requests(tmp_path):
    with EmbeddedBroker(data_dir=tmp_path) as own:
        topic = own.create_topic("stopped")
        with RawConnection(own.bootstrap) as raw, RawConnection(own.bootstrap) as idle:
            raw.send(frame(produce(topic), 9, 1) + frame(fetch(topic, 1, wait_ms=30_000), 12, 2))
            assert raw.correlation_ids(1) == [1]
            began = time.monotonic()
            own.stop()
            assert time.monotonic() - began < 5
            assert raw.is_closed()
            assert idle.is_closed()
        own.start()
        with Connection(own.bootstrap) as connection:
            assert connection.fetch(topic).high_watermark == 1


def test_listening_on_ipv4_and_ipv6(tmp_path):
    with EmbeddedBroker({"listeners": "PLAINTEXT://[::1]:0"}, data_dir=tmp_path) as own:
        host, port = own.bootstrap.rsplit(":", 1)
        assert host == "[::1]"
        with socket.create_connection(("::1", int(port)), timeout=10) as raw:
            raw.sendall(frame(METADATA, 9, 4))
            assert raw.recv(1000)[4:8] == b"\0\0\0\x04"


def test_a_broker_that_cannot_bind_unlocks_its_directory(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        OpenBroker(tmp_path, listeners=f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}")
    with OpenBroker(tmp_path) as own:
        assert own.bootstrap
