"""One load against one broker, in a separate process: prints a line of JSON. Driven by bench.broker.

The loads are of finished bytes, so that what is measured is the broker: requests are encoded once and sent again and
again over one pipelined connection; responses are counted, not decoded.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import struct
import time

from headrace.wire.api.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.api.metadata import ApiVersionsRequest
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.frames import encode_request
from headrace.wire.layout import Record
from headrace.wire.records import encode

SOCKET_SECONDS_MAX = 60
IN_FLIGHT_BYTES = 1024 * 1024
"""Requests in flight: enough that the broker never waits for the client."""
FETCH_BYTES = 1024 * 1024
FETCHES_AHEAD = 2
VALUE_BYTES = 100

_size = struct.Struct(">i")


def connect(bootstrap: str) -> socket.socket:
    host, port = bootstrap.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=SOCKET_SECONDS_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def batch_of(size_bytes: int) -> bytes:
    """Return a batch of 100-byte records, of at most this size."""
    value = os.urandom(VALUE_BYTES)
    count = (size_bytes - 61) // (VALUE_BYTES + 9)
    return bytes(encode([Record(n, 1_700_000_000_000, None, value, ()) for n in range(count)]))


def read_frame(connection: socket.socket) -> bytes:
    """Read one response with its size."""
    data = _read(connection, 4)
    return data + _read(connection, _size.unpack(data)[0])


def _read(connection: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = connection.recv(size)
        if not part:
            raise ConnectionError("the broker hung up")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def produce_frame(topic: str, partition: int, batch: bytes) -> bytes:
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(partition_index=partition, records=batch)]
            )
        ],
    )
    return b"".join(encode_request(request, 9, 1, "bench"))


def produce(bootstrap: str, topic: str, batch_bytes: int, total_bytes: int, partition: int = 0) -> dict[str, float]:
    """Pipelined produce requests of one batch each, acks=all."""
    batch = batch_of(batch_bytes)
    frame = produce_frame(topic, partition, batch)
    requests = max(50, total_bytes // len(batch))
    ahead = max(2, IN_FLIGHT_BYTES // len(frame))
    with connect(bootstrap) as connection:
        connection.sendall(frame)
        response_bytes = len(read_frame(connection))  # all responses have this size
        started = time.perf_counter()
        sent = completed = received = 0
        while completed < requests:
            while sent < requests and sent - completed < ahead:
                connection.sendall(frame)
                sent += 1
            received += len(connection.recv(65536))
            completed = received // response_bytes
        seconds = time.perf_counter() - started
    return {"requests_per_s": requests / seconds, "mb_per_s": requests * len(batch) / seconds / 1e6}


def produce_on_many(
    bootstrap: str, topic: str, batch_bytes: int, total_bytes: int, connections_count: int
) -> dict[str, float]:
    """The same on several connections, from one thread; the requests in flight are shared by the connections."""
    batch = batch_of(batch_bytes)
    frame = produce_frame(topic, 0, batch)
    requests = max(50, total_bytes // len(batch))
    ahead = max(2, IN_FLIGHT_BYTES // len(frame) // connections_count)
    sockets = [connect(bootstrap) for _ in range(connections_count)]
    for connection in sockets:
        connection.sendall(frame)
        response_bytes = len(read_frame(connection))
    started = time.perf_counter()
    received = dict.fromkeys(sockets, 0)
    for connection in sockets:
        connection.sendall(frame * ahead)
    sent, completed = ahead * len(sockets), 0
    while completed < requests:
        for connection in select.select(sockets, [], [], SOCKET_SECONDS_MAX)[0]:
            before = received[connection] // response_bytes
            received[connection] += len(connection.recv(65536))
            done = received[connection] // response_bytes - before
            completed += done
            count = min(done, max(0, requests - sent))
            connection.sendall(frame * count)
            sent += count
    seconds = time.perf_counter() - started
    for connection in sockets:
        connection.close()
    return {"requests_per_s": completed / seconds, "mb_per_s": completed * len(batch) / seconds / 1e6}


def fetch(bootstrap: str, topic: str, total_bytes: int) -> dict[str, float]:
    """Pipelined fetches of the same megabyte of cached data, over and over."""
    request = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[
            FetchTopic(
                topic=topic, partitions=[FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=FETCH_BYTES)]
            )
        ],
    )
    frame = b"".join(encode_request(request, 11, 1, "bench"))
    room = bytearray(1024 * 1024)
    with connect(bootstrap) as connection:
        connection.sendall(frame)
        response_bytes = len(read_frame(connection))
        fetches = total_bytes // response_bytes
        started = time.perf_counter()
        sent = completed = received = 0
        while completed < fetches:
            while sent < fetches and sent - completed < FETCHES_AHEAD:
                connection.sendall(frame)
                sent += 1
            received += connection.recv_into(room)
            completed = received // response_bytes
        seconds = time.perf_counter() - started
    return {"requests_per_s": fetches / seconds, "mb_per_s": fetches * response_bytes / seconds / 1e6}


def transactions(bootstrap: str, topic: str, count: int) -> dict[str, float]:
    """One record at a time, with headrace's producer."""
    from headrace import Producer

    with Producer({"bootstrap.servers": bootstrap, "transactional.id": f"bench-{os.getpid()}"}) as producer:
        producer.init_transactions()
        for _ in range(20):
            with producer.transaction():
                producer.send(topic, b"warm up", partition=0)
        started = time.perf_counter()
        for _ in range(count):
            with producer.transaction():
                producer.send(topic, b"x" * VALUE_BYTES, partition=0)
        return {"transactions_per_s": count / (time.perf_counter() - started)}


def connections(bootstrap: str, count: int) -> dict[str, float]:
    """Open connections, use each once, then all of them again while all are open."""
    frame = b"".join(encode_request(ApiVersionsRequest(), 0, 1, "bench"))
    held = []
    started = time.perf_counter()
    for _ in range(count):
        connection = connect(bootstrap)
        connection.sendall(frame)
        read_frame(connection)
        held.append(connection)
    opened = time.perf_counter()
    for connection in held:
        connection.sendall(frame)
    for connection in held:
        read_frame(connection)
    seconds = time.perf_counter() - opened
    for connection in held:
        connection.close()
    return {"connections_per_s": count / (opened - started), "requests_per_s": count / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["produce", "fetch", "transactions", "connections"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--partition", type=int, default=0, help="to produce to")
    parser.add_argument("--batch-bytes", type=int, default=16384)
    parser.add_argument("--total-bytes", type=int, default=1 << 29)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=1, help="to produce on")
    options = parser.parse_args()
    if options.kind == "produce" and options.connections > 1:
        sizes = options.batch_bytes, options.total_bytes
        figures = produce_on_many(options.bootstrap, options.topic, *sizes, options.connections)
    elif options.kind == "produce":
        figures = produce(options.bootstrap, options.topic, options.batch_bytes, options.total_bytes, options.partition)
    elif options.kind == "fetch":
        figures = fetch(options.bootstrap, options.topic, options.total_bytes)
    elif options.kind == "transactions":
        figures = transactions(options.bootstrap, options.topic, options.count)
    else:
        figures = connections(options.bootstrap, options.count)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
