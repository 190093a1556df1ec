"""The memory of a consumer whose application stalls, and its heartbeats meanwhile, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pyarrow as pa
import pytest

from headrace import Producer

MIB = 1024 * 1024
TOPIC_BYTES = 128 * MIB
PARTITIONS = 8
FETCH_BYTES_MAX = 8 * MIB
SLACK_BYTES = 16 * MIB
"""Freed memory that allocators keep, and the batch that exceeds the limit."""
PROGRAM = """
import json, sys, time
from headrace import Consumer

bootstrap, topic, group, bytes_max, count, kind = sys.argv[1:]


def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def heartbeats(consumer):
    return next(value for name, value in consumer.metrics().items() if name.name == "heartbeat-total")


def poll(consumer, timeout):
    if kind == "records":
        return len(consumer.poll(timeout, max_records=10))
    batch = consumer.poll_arrow(timeout)
    return 0 if batch is None else batch.num_rows


options = dict(auto_offset_reset="earliest", fetch_max_bytes=int(bytes_max), heartbeat_interval_ms=200)
options |= dict(session_timeout_ms=6000, max_poll_interval_ms=3000, enable_auto_commit=False)
with Consumer(bootstrap_servers=bootstrap, group_id=group, **options) as consumer:
    consumer.subscribe([topic])
    seen = 0
    while not seen:
        seen = poll(consumer, 1)
    before = memory("VmRSS")
    beats = [heartbeats(consumer)]
    deadline = time.monotonic() + 2
    peak = 0
    while time.monotonic() < deadline:  # the application works, and does not poll
        peak = max(peak, memory("VmRSS"))
        time.sleep(0.05)
    beats.append(heartbeats(consumer))
    generation = consumer.group_metadata().generation_id
    deadline = time.monotonic() + 20
    while consumer.group_metadata().generation_id == generation and time.monotonic() < deadline:
        time.sleep(0.05)  # it is stuck, now: it leaves the group after max.poll.interval.ms
    left = consumer.group_metadata().generation_id != generation
    total, deadline = 0, time.monotonic() + 60
    while total < int(count) and time.monotonic() < deadline:  # from the start: nothing was committed
        total += poll(consumer, 1)
        peak = max(peak, memory("VmRSS"))
    print(json.dumps({"grown": peak - before, "beats": beats[1] - beats[0], "left": left, "total": total}))
"""


@pytest.fixture(scope="module")
def filled():
    """Topics with 128 MiB in values of a kilobyte, by broker."""
    topics: dict[str, str] = {}

    def fill(broker) -> str:
        if broker.bootstrap not in topics:
            topic = topics[broker.bootstrap] = f"large-{uuid.uuid4().hex[:8]}"
            broker.create_topic(topic, PARTITIONS)
            rows = 16 * 1024
            batch = pa.record_batch({"value": pa.array([bytes(1024)] * rows)})
            with Producer(bootstrap_servers=broker.bootstrap, batch_size=65_536) as producer:
                for _ in range(TOPIC_BYTES // (rows * 1024)):
                    producer.send_arrow(topic, batch).result(60)
        return topics[broker.bootstrap]

    return fill


@pytest.mark.behaviour("C06")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["records", "columns"])
def test_a_stalled_application_costs_bounded_memory_and_heartbeats_go_on(either, filled, kind):
    topic, count = filled(either), TOPIC_BYTES // 1024
    arguments = [either.bootstrap, topic, f"stalled-{uuid.uuid4().hex[:8]}", str(FETCH_BYTES_MAX), str(count), kind]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["grown"] < 2 * FETCH_BYTES_MAX + SLACK_BYTES  # what is buffered, and what the application has
    assert result["beats"] >= 5
    assert result["left"]
    assert result["total"] == count
