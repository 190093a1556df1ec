"""`make bench-cluster`: three brokers of ours side by side with three of Apache Kafka, on the same machine, in one run.

    throughput   acks=all, three copies, batches of 64 KiB, finished bytes (bench.broker_client)
    fail-over    a leader is killed; until a record sent after that is acknowledged, by our producer as it is by default

Both clusters run all the time, and rounds go from one to the other. The broker that is killed is not the controller;
both have their default times for sessions.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.broker import APACHE, OURS, say
from bench.broker_client import VALUE_BYTES

LOAD_SECONDS_MAX = 300
FAIL_OVER_SECONDS_MAX = 60
IN_SYNC_SECONDS_MAX = 90
JVM_OPTIONS = ("-Xmx512m", "-Xms512m")
COPIES = 3
BATCH_BYTES = 65536
RETAINED = {"retention.bytes": str(1 << 29), "segment.bytes": str(128 << 20)}
CONTROLLER = 1
PAUSE_SECONDS = 0.01  # between records while a leader is away
SETTLED_RECORDS = 20  # acknowledged before the leader is killed
ALONE, SPREAD = "alone", "spread"
LOADS = {"one partition": (ALONE, 1), "three partitions, a leader each": (SPREAD, COPIES)}

Samples = defaultdict[str, defaultdict[str, list[float]]]


class Cluster:
    """The settings of both clusters."""

    def __init__(self, bootstrap: str, kill: Callable[[int], object], start: Callable[[int], object]) -> None:
        from confluent_kafka.admin import AdminClient

        self.bootstrap = bootstrap
        self.kill = kill
        self.start = start
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def create_topic(self, name: str, partitions: int) -> None:
        from tests.support.peers.broker import create_topic

        create_topic(self.bootstrap, name, partitions, RETAINED, COPIES)
        self.wait_in_sync(name)

    def wait_in_sync(self, topic: str) -> None:
        """Wait until all replicas are in sync and the preferred leaders lead."""
        from tests.support.waiting import eventually

        eventually(f"all copies of {topic} in sync", lambda: self._is_in_sync(topic), IN_SYNC_SECONDS_MAX)

    def _is_in_sync(self, topic: str) -> bool:
        partitions = self._partitions(topic)
        return bool(partitions) and all(len(one.isrs) == COPIES and one.leader > 0 for one in partitions.values())

    def _partitions(self, topic: str) -> dict[int, Any]:
        partitions: dict[int, Any] = (
            self._admin.list_topics(topic, timeout=IN_SYNC_SECONDS_MAX).topics[topic].partitions
        )
        return partitions

    def leader(self, topic: str, partition: int) -> tuple[int, str]:
        """Return the id and address of the leader."""
        metadata = self._admin.list_topics(topic, timeout=IN_SYNC_SECONDS_MAX)
        number: int = metadata.topics[topic].partitions[partition].leader
        return number, f"{metadata.brokers[number].host}:{metadata.brokers[number].port}"

    def ends(self, topic: str, partitions: int) -> list[int]:
        """Return the end offsets of the partitions."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        futures = self._admin.list_offsets({TopicPartition(topic, number): latest for number in range(partitions)})
        return [future.result(timeout=IN_SYNC_SECONDS_MAX).offset for future in futures.values()]


def throughput(cluster: Cluster, topic: str, partitions: int, total_bytes: int) -> float:
    """MB/s of all partitions together, each over a separate connection to its leader."""
    before = cluster.ends(topic, partitions)
    command = [sys.executable, "-m", "bench.broker_client", "produce", f"--batch-bytes={BATCH_BYTES}"]
    clients = []
    for number in range(partitions):
        _, address = cluster.leader(topic, number)
        own = [f"--topic={topic}", f"--partition={number}", f"--bootstrap={address}"]
        own.append(f"--total-bytes={total_bytes // partitions}")
        clients.append(subprocess.Popen([*command, *own], stdout=subprocess.PIPE, text=True))
    try:
        printed = [client.communicate(timeout=LOAD_SECONDS_MAX)[0] for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.wait()
    if any(client.returncode for client in clients):
        raise SystemExit(f"producing to {topic} failed on {cluster.bootstrap}")
    written = sum(cluster.ends(topic, partitions)) - sum(before)
    if written * (VALUE_BYTES + 20) < total_bytes:  # responses are not checked, and errors are fast
        raise SystemExit(f"{topic} has {written} more records on {cluster.bootstrap}: not all were taken")
    return sum(float(json.loads(text.splitlines()[-1])["mb_per_s"]) for text in printed)


def fail_over(cluster: Cluster, topic: str) -> float:
    """Seconds from the kill of a leader to the acknowledgement of a record that was sent after it."""
    from headrace import Producer

    partition = next(number for number in range(COPIES) if cluster.leader(topic, number)[0] != CONTROLLER)
    victim, _ = cluster.leader(topic, partition)
    acknowledged: list[float] = []
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:

        def send(begun: float) -> None:
            def on_delivery(_: object, error: Exception | None) -> None:
                if error is None and begun >= killed:
                    acknowledged.append(time.monotonic())

            producer.send(topic, b"x" * VALUE_BYTES, partition=partition, on_delivery=on_delivery)

        for _ in range(SETTLED_RECORDS):
            producer.send(topic, b"x" * VALUE_BYTES, partition=partition).result(FAIL_OVER_SECONDS_MAX)
        killed = time.monotonic()
        cluster.kill(victim)
        while not acknowledged:
            if time.monotonic() - killed > FAIL_OVER_SECONDS_MAX:
                raise SystemExit(f"no acknowledgement {FAIL_OVER_SECONDS_MAX} s after broker {victim} was killed")
            send(time.monotonic())
            time.sleep(PAUSE_SECONDS)
    cluster.start(victim)
    cluster.wait_in_sync(topic)
    return acknowledged[0] - killed


def measure(folder: Path, rounds: int, total_bytes: int) -> Samples:
    from headrace.broker import EmbeddedCluster
    from tests.support.peers.kafka_cluster import KafkaCluster
    from tests.support.peers.maven import kafka_jars

    samples: Samples = defaultdict(lambda: defaultdict(list))
    apache = KafkaCluster(kafka_jars("4.3.0"), folder / "apache", JVM_OPTIONS)
    ours = EmbeddedCluster(COPIES, data_dir=folder / "headrace")
    try:
        say("starting both")
        apache.start()
        ours.start()
        clusters = {
            APACHE: Cluster(
                apache.bootstrap_servers,
                lambda number: apache.nodes[number].kill(),
                lambda number: apache.nodes[number].start(),
            ),
            OURS: Cluster(
                ours.bootstrap_servers,
                lambda number: ours.broker(number).kill(),
                lambda number: ours.broker(number).start(),
            ),
        }
        for cluster in clusters.values():
            for topic, partitions in LOADS.values():
                cluster.create_topic(topic, partitions)
                throughput(cluster, topic, partitions, total_bytes // 2)  # Java's compiler learns
        for number in range(rounds):
            for label, (topic, partitions) in LOADS.items():
                for name, cluster in clusters.items():
                    say(f"round {number + 1} of {rounds}: {label} on {name}")
                    os.sync()  # what the one before has written is not to be paid for by this one
                    samples[f"{label}, MB/s"][name].append(throughput(cluster, topic, partitions, total_bytes))
        for number in range(rounds):
            for name, cluster in clusters.items():
                say(f"round {number + 1} of {rounds}: fail-over on {name}")
                samples["fail-over, s"][name].append(fail_over(cluster, SPREAD))
    finally:
        say("")
        apache.close()
        ours.close()
    return samples


def verdicts(medians: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for label in LOADS:
        ratio = medians[f"{label}, MB/s"][OURS] / medians[f"{label}, MB/s"][APACHE]
        rows.append({"what": f"{label}, MB/s, ratio", "value": ratio, "target": "≥ 1", "met": ratio >= 1})
    seconds = medians["fail-over, s"][OURS]
    rows.append({"what": "fail-over, s", "value": seconds, "target": "≤ 3", "met": seconds <= 3})
    return rows


def show(medians: dict[str, dict[str, float]], samples: Samples, rows: list[dict[str, Any]]) -> None:
    print(f"{'':40} {APACHE:>14} {OURS:>14}   (lowest to highest of ours)")
    for label, by_name in medians.items():
        own = samples[label][OURS]
        print(f"{label:40} {by_name[APACHE]:14,.2f} {by_name[OURS]:14,.2f}   ({min(own):.2f} to {max(own):.2f})")
    print()
    for row in rows:
        print(f"{row['what']:50} {row['value']:10.2f}  {row['target']:>5}  {'met' if row['met'] else 'MISSED'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--total-bytes", type=int, default=200_000_000, help="of a load")
    options = parser.parse_args()
    logging.getLogger("headrace").setLevel(logging.ERROR)  # a killed broker does not respond
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every start of ours would compile it anew
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        samples = measure(Path(folder), options.rounds, options.total_bytes)
    medians = {
        label: {name: statistics.median(values) for name, values in by_name.items()}
        for label, by_name in samples.items()
    }
    rows = verdicts(medians)
    if options.json:
        print(json.dumps({"results": samples, "medians": medians, "targets": rows}, indent=2))
    else:
        show(medians, samples, rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
