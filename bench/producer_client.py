"""One producer of `make bench-producer`, in a separate process: sends, and prints one line of JSON.

python -m bench.producer_client CLIENT --bootstrap … --topic … --records … [options]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

VALUE = b"v" * 100
BATCH_BYTES = 64 * 1024
LINGER_MS = 5
KEYS = [b"key-%05d" % number for number in range(10_000)]


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def timed(records: int, run: Callable[[], None]) -> dict[str, float]:
    """Rate and CPU of `run`, which returns when all is acknowledged."""
    cpu, started = cpu_seconds(), time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    return {"records_per_s": records / seconds, "cpu_us": (cpu_seconds() - cpu) / records * 1e6, "seconds": seconds}


def headrace(options: argparse.Namespace, kind: str) -> dict[str, float]:
    from headrace.producer.producer import Producer

    reporting = {} if options.view is None else {"metric.reporters": "view", "view.url": options.view}
    producer = Producer(
        reporting, bootstrap_servers=options.bootstrap, batch_size=options.batch_bytes, linger_ms=LINGER_MS, acks="all"
    )
    topic, count = options.topic, options.records
    for _ in range(1000):
        producer.send(topic, VALUE)
    producer.flush()
    responded = 0

    def on_delivery(metadata: Any, error: Any) -> None:
        nonlocal responded
        responded += 1

    def plain() -> None:
        send = producer.send
        for _ in range(count):
            send(topic, VALUE)
        producer.flush()

    def keyed() -> None:
        send, keys = producer.send, KEYS
        for number in range(count):
            send(topic, VALUE, keys[number % 10_000])
        producer.flush()

    def delivery() -> None:
        send = producer.send
        for _ in range(count):
            send(topic, VALUE, on_delivery=on_delivery)
        producer.flush()
        assert responded == count, (responded, count)

    if kind == "arrow":
        result = timed(count, _arrow_run(producer, topic, count))
    else:
        result = timed(count, {"send": plain, "keyed": keyed, "delivery": delivery}[kind])
    result["view_share"] = _view_cpu_seconds() / result["seconds"]
    producer.close()
    return result


def _view_cpu_seconds() -> float:
    """Return the CPU time of the thread that reports to a live view, if there is one."""
    clocks = (
        time.pthread_getcpuclockid(thread.ident)
        for thread in threading.enumerate()
        if thread.name == "headrace-view" and thread.ident is not None
    )
    return sum(map(time.clock_gettime, clocks))


def _arrow_run(producer: Any, topic: str, count: int) -> Callable[[], None]:
    """Rows and imports are prepared before the measurement, as for the other clients."""
    import pyarrow as pa

    rows = 100_000
    batch = pa.record_batch({"value": pa.array([VALUE] * rows, pa.binary())})
    producer.send_arrow(topic, batch.slice(0, 1000)).result(60)

    def run() -> None:
        deliveries = [producer.send_arrow(topic, batch) for _ in range(count // rows)]
        for each in deliveries:
            each.result(60)

    return run


def confluent(options: argparse.Namespace, kind: str) -> dict[str, float]:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "batch.size": options.batch_bytes,
            "linger.ms": LINGER_MS,
            "acks": "all",
            "enable.idempotence": True,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    topic, count = options.topic, options.records
    for _ in range(1000):
        producer.produce(topic, VALUE)
    producer.flush()
    responded = 0

    def on_delivery(error: Any, message: Any) -> None:
        nonlocal responded
        responded += 1

    def run() -> None:
        produce, keys = producer.produce, KEYS
        for number in range(count):
            while True:
                try:
                    if kind == "send":
                        produce(topic, VALUE)
                    elif kind == "keyed":
                        produce(topic, VALUE, keys[number % 10_000])
                    else:
                        produce(topic, VALUE, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.01)
            if kind == "delivery" and number % 1000 == 0:
                producer.poll(0)
        producer.flush()

    return timed(count, run)


def aiokafka(options: argparse.Namespace, kind: str) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    async def main() -> dict[str, float]:
        producer = AIOKafkaProducer(
            bootstrap_servers=options.bootstrap,
            max_batch_size=options.batch_bytes,
            linger_ms=LINGER_MS,
            acks="all",
            enable_idempotence=True,
        )
        await producer.start()
        cpu, started = cpu_seconds(), time.perf_counter()
        for _ in range(options.records):
            await producer.send(options.topic, VALUE)
        await producer.flush()
        seconds = time.perf_counter() - started
        cpu = cpu_seconds() - cpu
        await producer.stop()
        return {
            "records_per_s": options.records / seconds,
            "cpu_us": cpu / options.records * 1e6,
            "seconds": seconds,
        }

    return asyncio.run(main())


def kafka_python(options: argparse.Namespace, kind: str) -> dict[str, float]:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=options.bootstrap, batch_size=options.batch_bytes, linger_ms=LINGER_MS, acks="all"
    )
    producer.send(options.topic, VALUE).get(30)

    def run() -> None:
        for _ in range(options.records):
            producer.send(options.topic, VALUE)
        producer.flush()

    return timed(options.records, run)


def blast(options: argparse.Namespace, kind: str) -> dict[str, float]:
    """Send prepared batches over one socket, five requests in flight: the upper bound of the broker."""
    from headrace.wire import frames
    from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
    from headrace.wire.framing import FrameReader
    from headrace.wire.primitives import Buffer
    from headrace.wire.records import OpenBatch, seal

    batch = OpenBatch(bytearray(options.batch_bytes))
    now = int(time.time() * 1000)
    while batch.append(now, None, VALUE) >= 0:
        pass
    sealed = seal(batch)
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            TopicProduceData(
                name=options.topic,
                partition_data=[
                    PartitionProduceData(partition_index=partition, records=sealed)
                    for partition in range(options.partitions)
                ],
            )
        ],
    )
    host, _, port = options.bootstrap.partition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    requests = max(1, options.records // (batch.record_count * options.partitions))
    reader = FrameReader(frames.FRAME_BYTES_MAX)

    def run() -> None:
        waiting, responded, sent = 0, 0, 0
        while responded < requests:
            while waiting < 5 and sent < requests:
                left = deque(frames.encode_request(request, 9, sent, "blast"))
                while left:
                    done = sock.sendmsg(left)
                    while done and left:
                        part = memoryview(left.popleft())
                        if done < len(part):
                            left.appendleft(part[done:])
                            break
                        done -= len(part)
                sent += 1
                waiting += 1
            responses: list[Buffer] = []
            reader.feed(sock.recv(65536), responses)
            responded += len(responses)
            waiting -= len(responses)

    return timed(requests * batch.record_count * options.partitions, run)


def latency(options: argparse.Namespace, kind: str) -> dict[str, float]:
    """Milliseconds from send to acknowledgement at a steady rate, linger 0."""
    from headrace.producer.producer import Producer

    producer = Producer(bootstrap_servers=options.bootstrap, linger_ms=0, acks="all")
    producer.send(options.topic, VALUE).result(30)
    times: list[float] = []
    clock = time.perf_counter

    def send_one() -> None:
        sent = clock()
        producer.send(options.topic, VALUE, on_delivery=lambda metadata, error: times.append(clock() - sent))

    started, number = clock(), 0
    while number < options.records:
        due = int((clock() - started) * options.rate)
        while number < min(due, options.records):
            send_one()
            number += 1
        time.sleep(0.0005)
    producer.flush()
    producer.close()
    settled = sorted(times[len(times) // 5 :])  # the first fifth warms up, as ProducerPerformance users do
    return {
        "p50_ms": statistics.median(settled) * 1000,
        "p99_ms": settled[int(len(settled) * 0.99)] * 1000,
        "records_per_s": options.records / (clock() - started),
    }


def idle(options: argparse.Namespace, kind: str) -> dict[str, float]:
    """CPU of a connected producer with nothing to do, in percent of a core."""
    from headrace.producer.producer import Producer

    producer = Producer(bootstrap_servers=options.bootstrap)
    producer.send(options.topic, VALUE).result(30)
    time.sleep(0.5)
    cpu, seconds = cpu_seconds(), 5.0
    time.sleep(seconds)
    used = cpu_seconds() - cpu
    producer.close()
    return {"idle_percent": used / seconds * 100}


CLIENTS: dict[str, Callable[[argparse.Namespace, str], dict[str, float]]] = {
    "headrace": headrace,
    "confluent": confluent,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
    "blast": blast,
    "latency": latency,
    "idle": idle,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--kind", default="send")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batch-bytes", type=int, default=BATCH_BYTES)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--view", help="the address of a live view to report to")
    options = parser.parse_args()
    print(json.dumps(CLIENTS[options.client](options, options.kind)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
