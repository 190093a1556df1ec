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
from headrace import Consumer, RebalanceListener

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


class Losses(RebalanceListener):
    count = 0

    def on_lost(self, partitions):
        self.count += len(partitions)


losses = Losses()
options = dict(auto_offset_reset="earliest", fetch_max_bytes=int(bytes_max), heartbeat_interval_ms=200)
options |= dict(session_timeout_ms=6000, max_poll_interval_ms=3000, enable_auto_commit=False)
with Consumer(bootstrap_servers=bootstrap, group_id=group, **options) as consumer:
    consumer.subscribe([topic], listener=losses)
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
    time.sleep(2)  # longer than max.poll.interval.ms: it leaves the group
    highest, total, deadline = peak, 0, time.monotonic() + 60
    while (not losses.count or total < int(count)) and time.monotonic() < deadline:
        rows = poll(consumer, 1)
        total = total + rows if losses.count else 0  # then from the start: nothing was committed
        highest = max(highest, memory("VmRSS"))
    result = {"stalled": peak - before, "reading": highest - before, "beats": beats[1] - beats[0]}
    print(json.dumps({**result, "lost": losses.count, "total": total}))
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
@pytest.mark.every_run("apache-columns", "headrace-records")
@pytest.mark.parametrize("kind", ["records", "columns"])
def test_a_stalled_application_costs_bounded_memory_and_heartbeats_go_on(either, filled, kind):
    topic, count = filled(either), TOPIC_BYTES // 1024
    arguments = [either.bootstrap, topic, f"stalled-{uuid.uuid4().hex[:8]}", str(FETCH_BYTES_MAX), str(count), kind]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["stalled"] < FETCH_BYTES_MAX + SLACK_BYTES
    assert result["reading"] < TOPIC_BYTES // 2
    assert result["beats"] >= 5
    assert result["lost"] == PARTITIONS
    assert result["total"] == count
