"""One consumer of `make bench-consumer`, in a separate process: reads a topic, and prints one line of JSON.

python -m bench.consumer_client CLIENT --bootstrap … --topic … --records … --partitions …
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.producer_client import cpu_seconds

POLL_RECORDS = 10_000
SECONDS_MAX = 120.0


def timed(records: int, poll: Callable[[], int]) -> dict[str, float]:
    """Rate and CPU of polls, from the first records on, so that the connection set-up does not count."""
    deadline = time.monotonic() + SECONDS_MAX
    count = 0
    while not count:
        count = poll()
    skipped = count
    cpu, started = cpu_seconds(), time.perf_counter()
    while count < records:
        count += poll()
        if time.monotonic() > deadline:
            raise SystemExit(f"{count} of {records} records after {SECONDS_MAX:g} s")
    seconds = time.perf_counter() - started
    measured = count - skipped
    return {
        "records_per_s": measured / seconds,
        "cpu_us": (cpu_seconds() - cpu) / measured * 1e6,
    }


def headrace(options: argparse.Namespace, kind: str) -> dict[str, float]:
    from headrace import Consumer, TopicPartition

    consumer = Consumer(
        bootstrap_servers=options.bootstrap, auto_offset_reset="earliest", max_poll_records=POLL_RECORDS
    )
    consumer.assign([TopicPartition(options.topic, number) for number in range(options.partitions)])

    def records() -> int:
        return len(consumer.poll(1))

    def columns() -> int:
        batch = consumer.poll_arrow(1)
        return 0 if batch is None else int(batch.num_rows)

    result = timed(options.records, columns if kind == "arrow" else records)
    consumer.close()
    return result


def confluent(options: argparse.Namespace, kind: str) -> dict[str, float]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(options.topic, number, 0) for number in range(options.partitions)])
    result = timed(options.records, lambda: len(consumer.consume(POLL_RECORDS, 1)))
    consumer.close()
    return result


def aiokafka(options: argparse.Namespace, kind: str) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def main() -> dict[str, float]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([TopicPartition(options.topic, number) for number in range(options.partitions)])

        async def poll() -> int:
            polled = await consumer.getmany(timeout_ms=1000, max_records=POLL_RECORDS)
            return sum(map(len, polled.values()))

        count = await poll()
        skipped, cpu, started = count, cpu_seconds(), time.perf_counter()
        while count < options.records:
            count += await poll()
        seconds, used = time.perf_counter() - started, cpu_seconds() - cpu
        await consumer.stop()
        measured = count - skipped
        return {"records_per_s": measured / seconds, "cpu_us": used / measured * 1e6}

    return asyncio.run(main())


def kafka_python(options: argparse.Namespace, kind: str) -> dict[str, float]:
    from kafka import KafkaConsumer, TopicPartition

    consumer: Any = KafkaConsumer(
        bootstrap_servers=options.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    consumer.assign([TopicPartition(options.topic, number) for number in range(options.partitions)])

    def poll() -> int:
        return sum(map(len, consumer.poll(timeout_ms=1000, max_records=POLL_RECORDS).values()))

    result = timed(options.records, poll)
    consumer.close()
    return result


CLIENTS: dict[str, Callable[[argparse.Namespace, str], dict[str, float]]] = {
    "headrace": headrace,
    "confluent": confluent,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("--kind", default="records")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--partitions", type=int, default=4)
    options = parser.parse_args()
    print(json.dumps(CLIENTS[options.client](options, options.kind)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
