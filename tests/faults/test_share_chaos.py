"""Share groups while members and brokers are killed: every record is accepted by some member, and none twice.

The history is checked by headrace.verify. The result of an acknowledgement is unknown if the broker or the member is
killed before the response. Such a record was delivered. If the acknowledgement was persisted, the record is done;
otherwise its lock ends, and it comes again. So at the end, with members that go on, no record may be left: the brokers
have an acknowledgement of each.

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

from headrace import Producer, RecordMetadata
from headrace.broker import EmbeddedCluster
from headrace.client.admin import AdminClient
from headrace.client.admin.configs import ConfigResource, ResourceKind
from headrace.errors import Code
from headrace.verify import AcknowledgeOp, HistoryWriter, Phase, SendOp, check, load_history
from headrace.wire.api.share_groups import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tests.support.chaos_readers import read_finally
from tests.support.chaos_writers import Setting
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
    """What members got: how often they tried to accept each value, and the values that a broker has persisted."""

    tried: Counter[str] = field(default_factory=Counter)
    accepted: set[str] = field(default_factory=set)


class Worker:
    """A member in a process of its own."""

    def __init__(self, client: str, name: str, setting: Setting, seen: Seen) -> None:
        self._name = name
        self._setting = setting
        self._seen = seen
        errors = setting.history.path.with_name(f"{name}.log")
        with errors.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.share_worker", client, setting.bootstrap, GROUP, TOPIC],
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
            if not line.endswith("\n"):
                break  # the member was killed while it printed
            kind, values = json.loads(line)
            phase = Phase.INVOKE if kind == "try" else Phase.OK
            self._setting.history.add(AcknowledgeOp(phase, self._name, GROUP, tuple(values)))
            if phase is Phase.INVOKE:
                self._seen.tried.update(values)
            else:
                self._seen.accepted.update(values)

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
    """Sends numbered records until it is stopped."""

    def __init__(self, setting: Setting) -> None:
        self.acknowledged: set[str] = set()
        self._setting = setting
        self._producer = Producer(bootstrap_servers=setting.bootstrap, delivery_timeout_ms=60_000, linger_ms=0)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(SEND_SECONDS):
            self._send(str(number), number % PARTITIONS)
            number += 1
        self._producer.flush(60)
        self._producer.close()

    def _send(self, value: str, partition: int) -> None:
        send = SendOp(Phase.INVOKE, "sender", value, TOPIC, partition)
        self._setting.history.add(send)

        def delivered(metadata: RecordMetadata | None, error: Exception | None) -> None:
            if error is not None or metadata is None:
                self._setting.history.add(send._replace(phase=Phase.INFO))
                return
            self.acknowledged.add(value)
            offset = metadata.offset if metadata.offset is not None and metadata.offset >= 0 else None
            self._setting.history.add(send._replace(phase=Phase.OK, offset=offset))

        self._producer.send(TOPIC, value.encode(), partition=partition, on_delivery=delivered)

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


@pytest.mark.behaviour("B19")
@pytest.mark.timeout(SECONDS + END_SECONDS_MAX + 120)
def test_every_record_is_accepted_while_members_and_brokers_are_killed(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    seen = Seen()
    kills: Counter[str] = Counter()
    path = tmp_path / "history.jsonl"
    with EmbeddedCluster(3, config=OPTIONS) as cluster, HistoryWriter(path) as history:
        cluster.create_topic(TOPIC, PARTITIONS)
        setting = Setting(cluster.bootstrap_servers, TOPIC, PARTITIONS, history)
        with AdminClient(cluster.bootstrap_servers) as admin:
            admin.alter_configs({ConfigResource(ResourceKind.GROUP, GROUP): {"share.auto.offset.reset": "earliest"}})

        def worker(number: int) -> Worker:
            return Worker(CLIENTS[number], f"member-{number}", setting, seen)

        workers = [worker(number) for number in range(len(CLIENTS))]
        sender = Sender(setting)
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
            while sender.acknowledged - seen.tried.keys() and time.monotonic() < end:
                time.sleep(0.5)
            while (lags := lags_of(cluster)) != [0] * PARTITIONS and time.monotonic() < end:
                time.sleep(0.5)
        finally:
            sender.stop()
            for running in workers:
                running.stop()
        read_finally(setting)
    verdict = check(load_history(path))
    unknown = seen.tried.keys() - seen.accepted
    print(f"\n{verdict}\n{len(unknown)} acknowledgements with an unknown result; killed: {dict(kills)}")
    assert verdict.is_valid, verdict
    assert sender.acknowledged, verdict
    assert lags == [0] * PARTITIONS, f"records were not accepted: {lags} are left in the partitions"
    assert all(seen.tried[value] < DELIVERIES_MAX for value in unknown)  # else it may be archived, not accepted
    assert kills["member"], kills
    assert kills["broker"], kills
