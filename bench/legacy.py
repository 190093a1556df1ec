"""`make bench-legacy`: the 0.8 producer side by side with today's, on one broker.

    async   messages a second until all are acknowledged, by single messages and by lists, against today's `send`
    sync    the time of `send`, against that of one bare round trip: a finished request on a blocking socket

A round runs every case once; medians are over rounds. 100-byte values, all replicas acknowledge. The
broker is Apache Kafka 3.9, the last one that takes the formats of 0.8, or our own (`--broker headrace`).
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness import SHORT_LOGS
from headrace import Producer as TodaysProducer
from headrace.client.addresses import Endpoint, parse
from headrace.legacy import KeyedMessage, Producer
from headrace.wire import frames, message_sets
from headrace.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.layout import NO_TIMESTAMP, Record

TOPIC = "bench-legacy"
PARTITIONS = 4
LATENCY_TOPIC = "bench-legacy-1"  # one partition: the broker is to do the same for both
VALUE = b"v" * 100
LIST_MESSAGES = 1000
ACKS = -1
BATCH_MESSAGES = 2000  # 250 KB, as today's has in a request of 4 batches
QUEUE_MESSAGES = 10_000
SEND_BUFFER_BYTES = 256 * 1024  # room for all of a request
TIMEOUT_MS = 10_000
WARM_UP_ROUNDS = 2
JVM_OPTIONS = ("-Xmx1g", "-Xms1g")

TODAY, SINGLE, LISTS = "today's send()", "0.8 async, single messages", "0.8 async, lists"
ROUND_TRIP, SYNC = "bare round trip", "0.8 sync send()"
TARGETS = (
    # what, ours, theirs, how many times slower at most
    ("async, single messages", SINGLE, TODAY, 3.0),
    ("async, lists", LISTS, TODAY, 3.0),
    ("sync", SYNC, ROUND_TRIP, 1.5),
)


def async_producer(bootstrap: str) -> Producer:
    return Producer(
        metadata_broker_list=bootstrap,
        producer_type="async",
        request_required_acks=ACKS,
        batch_num_messages=BATCH_MESSAGES,
        queue_buffering_max_messages=QUEUE_MESSAGES,
        send_buffer_bytes=SEND_BUFFER_BYTES,
    )


def send_single(bootstrap: str, count: int) -> None:
    with async_producer(bootstrap) as producer:
        send = producer.send
        for _ in range(count):
            send(KeyedMessage(TOPIC, VALUE))


def send_lists(bootstrap: str, count: int) -> None:
    with async_producer(bootstrap) as producer:
        for _ in range(count // LIST_MESSAGES):
            producer.send([KeyedMessage(TOPIC, VALUE) for _ in range(LIST_MESSAGES)])


def send_today(bootstrap: str, count: int) -> None:
    with TodaysProducer(bootstrap_servers=bootstrap, batch_size=65536, linger_ms=5, acks="all") as producer:
        send = producer.send
        for _ in range(count):
            send(TOPIC, VALUE)


@contextmanager
def round_trip(endpoint: Endpoint) -> Iterator[Callable[[], object]]:
    """Send a prepared request and wait for the response: the lower bound of any producer."""
    data = message_sets.encode([Record(0, NO_TIMESTAMP, None, VALUE, ())], magic=0)
    part = PartitionProduceData(partition_index=0, records=data)
    topics = [TopicProduceData(name=LATENCY_TOPIC, partition_data=[part])]
    request = ProduceRequest(acks=ACKS, timeout_ms=TIMEOUT_MS, topic_data=topics)
    frame = b"".join(frames.encode_request(request, 0, 0, ""))
    with socket.create_connection(endpoint, TIMEOUT_MS / 1000) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send_request() -> None:
            connected.sendall(frame)
            assert connected.recv(4096)

        yield send_request


def measure_latency_us(bootstrap: str, count: int) -> dict[str, float]:
    """Return medians of calls that alternate between the cases."""
    taken: defaultdict[str, list[float]] = defaultdict(list)
    message = KeyedMessage(LATENCY_TOPIC, VALUE)
    with (
        Producer(metadata_broker_list=bootstrap, request_required_acks=ACKS) as producer,
        round_trip(parse(bootstrap)[0]) as send_request,
    ):
        cases: tuple[tuple[str, Callable[[], object]], ...] = (
            (ROUND_TRIP, send_request),
            (SYNC, lambda: producer.send(message)),
        )
        for number in range(count):
            for name, call in cases:
                started = time.perf_counter_ns()
                call()
                if number >= count // 5:  # the rest warms up
                    taken[name].append((time.perf_counter_ns() - started) / 1000)
    return {name: statistics.median(times) for name, times in taken.items()}


def measure(bootstrap: str, rounds: int, messages: int, calls: int) -> dict[str, dict[str, float]]:
    """Medians by case: µs a message or a call, and of CPU."""
    samples: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    # Today's is so much faster that it sends more records; otherwise its start would dominate.
    senders = ((TODAY, send_today, 4 * messages), (SINGLE, send_single, messages), (LISTS, send_lists, messages))
    for number in range(WARM_UP_ROUNDS + rounds):
        for name, send, count in senders:
            print(
                f"\r\033[Kround {number + 1} of {WARM_UP_ROUNDS + rounds}: {name}", end="", file=sys.stderr, flush=True
            )
            cpu, started = time.process_time(), time.perf_counter()
            send(bootstrap, count)
            wall_us, cpu_us = (time.perf_counter() - started) * 1e6, (time.process_time() - cpu) * 1e6
            if number >= WARM_UP_ROUNDS:
                samples[name].append({"us": wall_us / count, "cpu_us": cpu_us / count})
        latency = measure_latency_us(bootstrap, calls)
        if number >= WARM_UP_ROUNDS:
            for name, median_us in latency.items():
                samples[name].append({"us": median_us})
    print("\r\033[K", end="", file=sys.stderr)
    return {
        name: {figure: statistics.median(row[figure] for row in rows) for figure in rows[0]}
        for name, rows in samples.items()
    }


def verdicts(results: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    return [
        {
            "what": f"{what} vs {theirs}",
            "times_slower": results[ours]["us"] / results[theirs]["us"],
            "at_most": limit,
            "met": results[ours]["us"] / results[theirs]["us"] <= limit,
        }
        for what, ours, theirs, limit in TARGETS
    ]


def show(results: dict[str, dict[str, float]], rows: list[dict[str, Any]]) -> None:
    width = max(map(len, results))
    print(f"{'':{width}}  {'a second':>12}  {'µs each':>9}  {'CPU µs':>7}")
    for name, figures in results.items():
        cpu = f"{figures['cpu_us']:>7.2f}" if "cpu_us" in figures else ""
        print(f"{name:{width}}  {1e6 / figures['us']:>12,.0f}  {figures['us']:>9.2f}  {cpu}")
    print()
    for row in rows:
        verdict = "met" if row["met"] else "MISSED"
        print(f"{row['what']:45}  {row['times_slower']:>6.2f} × slower  ≤ {row['at_most']}  {verdict}")


@contextmanager
def running_broker(kind: str) -> Iterator[str]:
    """Yield the address of a broker with the topic."""
    if kind == "headrace":
        from headrace.broker import EmbeddedBroker

        with EmbeddedBroker() as embedded:
            embedded.create_topic(TOPIC, PARTITIONS)
            embedded.create_topic(LATENCY_TOPIC, 1)
            yield embedded.bootstrap
        return
    from tests.support.peers.maven import kafka_jars
    from tests.support.peers.real_kafka import RealKafka

    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        broker = RealKafka(kafka_jars("3.9.1"), Path(folder) / "kafka", SHORT_LOGS, jvm_options=JVM_OPTIONS)
        broker.start()
        try:
            broker.create_topic(TOPIC, PARTITIONS)
            broker.create_topic(LATENCY_TOPIC, 1)
            yield broker.bootstrap
        finally:
            broker.remove()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--broker", choices=("apache", "headrace"), default="apache")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000, help="of an async run")
    parser.add_argument("--calls", type=int, default=1000, help="of a sync run")
    options = parser.parse_args()
    with running_broker(options.broker) as bootstrap:
        results = measure(bootstrap, options.rounds, options.messages, options.calls)
    rows = verdicts(results)
    if options.json:
        print(json.dumps({"broker": options.broker, "results": results, "targets": rows}, indent=2))
    else:
        show(results, rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
