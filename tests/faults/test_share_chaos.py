"""Share groups while members and brokers are killed: every record is accepted by some member.

The result of an acknowledgement is unknown if the broker or the member is killed before the response. Such a record was
delivered. If the acknowledgement was persisted, the record is done; otherwise its lock ends, and it comes again. So at
the end, with members that go on, no record may be left: the brokers have an acknowledgement of each.

HEADRACE_CHAOS_SECONDS is the duration, HEADRACE_CHAOS_SEED selects the faults.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headrace import Producer
from headrace.broker import EmbeddedCluster
from headrace.client.admin import AdminClient
from headrace.client.admin.configs import ConfigResource, ResourceKind
from headrace.errors import Code
from headrace.wire.api.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tests.support.peers.connection import Connection

SECONDS = float(os.environ.get("HEADRACE_CHAOS_SECONDS", "30"))
SEED = int(os.environ.get("HEADRACE_CHAOS_SEED", "932"))
PARTITIONS = 4
CLIENTS = ("confluent", "headrace", "headrace")
SEND_SECONDS = 0.01
FAULT_SECONDS = 3.0
DOWN_SECONDS = 2.0
END_SECONDS_MAX = 120
TOPIC, GROUP = "jobs", "workers"
DELIVERIES_MAX = 10
LAG_VERSION = 1  # of DescribeShareGroupOffsets
OPTIONS = {
    "group.share.record.lock.duration.ms": 5_000,
    "group.share.min.record.lock.duration.ms": 5_000,
    "group.share.delivery.count.limit": DELIVERIES_MAX,  # a record must not be archived because its members were killed
    "group.share.session.timeout.ms": 10_000,
    "group.share.min.session.timeout.ms": 10_000,
    "group.share.heartbeat.interval.ms": 1_000,
    "group.share.min.heartbeat.interval.ms": 1_000,
}


@dataclass
class Seen:
    """How often each value was accepted: sent by a member, and persisted by the broker."""

    tried: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)


class Worker:
    """A member in a process of its own."""

    def __init__(self, client: str, bootstrap: str, seen: Seen, errors: Path) -> None:
        self._seen = seen
        with errors.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.share_worker", client, bootstrap, GROUP, TOPIC],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, values = json.loads(line)
            (self._seen.tried if kind == "try" else self._seen.accepted).update(values)

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._wait()

    def _wait(self) -> None:
        self.process.wait(30)
        self._reader.join(10)


class Sender:
    """Sends numbered records until it is stopped, and notes those that were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.sent: list[str] = []
        self._producer = Producer(bootstrap_servers=bootstrap, delivery_timeout_ms=60_000, linger_ms=0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        futures = []
        while not self._stopping.wait(SEND_SECONDS):
            value = str(number)
            futures.append((value, self._producer.send(TOPIC, value.encode(), partition=number % PARTITIONS)))
            number += 1
        self._producer.flush(60)
        self.sent = [value for value, future in futures if future.exception(1) is None]
        self._producer.close()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(90)


def lags_of(cluster: EmbeddedCluster) -> list[int]:
    """Return how many records of each partition are not acknowledged; nothing without a coordinator."""
    topic = DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=range(PARTITIONS))
    group = DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=[topic])
    for broker in cluster.brokers:
        with Connection(broker.bootstrap) as connection:
            (row,) = connection.call(DescribeShareGroupOffsetsRequest(groups=[group]), LAG_VERSION).groups
        if row.error_code == Code.NONE:
            return [partition.lag for topic in row.topics for partition in topic.partitions]
    return []


@pytest.mark.slow
@pytest.mark.behaviour("B19")
@pytest.mark.timeout(SECONDS + END_SECONDS_MAX + 120)
def test_every_record_is_accepted_while_members_and_brokers_are_killed(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    seen = Seen()
    kills: Counter[str] = Counter()
    with EmbeddedCluster(3, config=OPTIONS) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        with AdminClient(cluster.bootstrap_servers) as admin:
            admin.alter_configs({ConfigResource(ResourceKind.GROUP, GROUP): {"share.auto.offset.reset": "earliest"}})

        def worker(number: int) -> Worker:
            return Worker(CLIENTS[number], cluster.bootstrap_servers, seen, tmp_path / f"{number}.log")

        workers = [worker(number) for number in range(len(CLIENTS))]
        sender = Sender(cluster.bootstrap_servers)
        try:
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline:
                time.sleep(FAULT_SECONDS)
                if sum(kills.values()) % 2:
                    number = rng.randrange(len(CLIENTS))
                    workers[number].kill()
                    workers[number] = worker(number)
                    kills["member"] += 1
                else:
                    broker = rng.choice(cluster.brokers)
                    broker.kill()
                    time.sleep(DOWN_SECONDS)
                    broker.start()
                    kills["broker"] += 1
            sender.stop()
            end = time.monotonic() + END_SECONDS_MAX
            while (missing := set(sender.sent) - seen.tried.keys()) and time.monotonic() < end:
                time.sleep(0.5)
            while (lags := lags_of(cluster)) != [0] * PARTITIONS and time.monotonic() < end:
                time.sleep(0.5)
        finally:
            sender.stop()
            for running in workers:
                running.stop()
    again = sum(seen.accepted.values()) - len(seen.accepted)
    unknown = seen.tried.keys() - seen.accepted.keys()
    print(
        f"\n{len(sender.sent)} records sent, {len(seen.accepted)} accepted, {again} of them again, {len(unknown)} with "
        f"an unknown result; killed: {dict(kills)}"
    )
    assert not missing, f"{len(missing)} of {len(sender.sent)} records were not delivered: {sorted(missing)[:20]}"
    assert lags == [0] * PARTITIONS, f"records were not accepted: {lags} are left in the partitions"
    assert all(seen.tried[value] < DELIVERIES_MAX for value in unknown)  # else it may be archived, not accepted
    assert kills["member"], kills
    assert kills["broker"], kills
