"""`make bench-consumer`: ours side by side with confluent-kafka, aiokafka and kafka-python on one real Kafka.

Every client runs in a process of its own and reads the same records; a round runs each of them once, in an order of its
own, and medians are over rounds. 100-byte values, 4 partitions, batches of 64 KiB; confluent-kafka is tuned for
throughput.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.producer import JVM_OPTIONS, Target

RECORDS = 3_000_000
CASE_SECONDS_MAX = 60


@dataclass(slots=True, frozen=True)
class Run:
    label: str
    client: str
    records: int = RECORDS
    kind: str = "records"
    topic: str = "bench"
    partitions: int = 4


RUNS = [
    Run("headrace poll_arrow()", "headrace", kind="arrow"),
    Run("headrace poll()", "headrace"),
    Run("confluent-kafka consume()", "confluent"),
    Run("aiokafka getmany()", "aiokafka", 1_000_000),
    Run("kafka-python poll()", "kafka-python", 300_000),
    Run("poll_arrow(), 1 partition", "headrace", kind="arrow", topic="bench-1", partitions=1),
    Run("poll_arrow(), 1000 partitions", "headrace", kind="arrow", topic="bench-1000", partitions=1000),
]
_OURS, _RECORDS, _CONFLUENT = RUNS[0].label, RUNS[1].label, RUNS[2].label
TARGETS = [
    Target("poll_arrow() records/s", "records_per_s", _OURS, _CONFLUENT, 4, True),
    Target("poll_arrow() CPU", "cpu_us", _OURS, _CONFLUENT, 0.2, False),
    Target("poll() records/s", "records_per_s", _RECORDS, _CONFLUENT, 1.3, True),
    Target("poll() records/s", "records_per_s", _RECORDS, RUNS[3].label, 2, True),
    Target("CPU, 1000 to 1 partitions", "cpu_us", RUNS[6].label, RUNS[5].label, 1.2, False),
]


def execute(run: Run, bootstrap: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.consumer_client", run.client, "--kind", run.kind, "--bootstrap", bootstrap]
    command += ["--topic", run.topic, "--records", str(run.records), "--partitions", str(run.partitions)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CASE_SECONDS_MAX, check=False)
    if done.returncode:
        raise SystemExit(f"{run.label} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def fill(bootstrap: str, topic: str) -> None:
    """Write the records that all clients read."""
    import pyarrow as pa

    from headrace import Producer

    rows = 100_000
    batch = pa.record_batch({"value": pa.array([b"v" * 100] * rows, pa.binary())})
    with Producer(bootstrap_servers=bootstrap, batch_size=64 * 1024, linger_ms=5) as producer:
        for _ in range(RECORDS // rows):
            producer.send_arrow(topic, batch).result(120)


def measure(bootstrap: str, rounds: int, only: str) -> dict[str, dict[str, float]]:
    """Medians by label and measure."""
    runs = [run for run in RUNS if only in run.label]
    samples: dict[str, list[dict[str, float]]] = {run.label: [] for run in runs}
    for number in range(rounds):
        for run in random.Random(number).sample(runs, len(runs)):
            print(f"\r\033[Kround {number + 1} of {rounds}: {run.label}", end="", file=sys.stderr, flush=True)
            samples[run.label].append(execute(run, bootstrap))
    print("\r\033[K", end="", file=sys.stderr)
    return {
        label: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for label, rows in samples.items()
    }


def verdicts(results: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    rows = []
    for target in TARGETS:
        if target.ours in results and target.theirs in results:
            ratio = results[target.ours][target.measure] / results[target.theirs][target.measure]
            met = ratio >= target.ratio if target.at_least else ratio <= target.ratio
            sign = "≥" if target.at_least else "≤"
            what = f"{target.text} vs {target.theirs}"
            rows.append({"what": what, "ratio": ratio, "target": f"{sign} {target.ratio}", "met": met})
    return rows


def main() -> int:
    from tests.support.peers.maven import kafka_jars
    from tests.support.peers.real_kafka import RealKafka

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="only runs with this in their label")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        broker = RealKafka(kafka_jars("4.3.0"), Path(folder) / "kafka", jvm_options=JVM_OPTIONS)
        broker.start()
        try:
            for topic, partitions in (("bench", 4), ("bench-1", 1), ("bench-1000", 1000)):
                broker.create_topic(topic, partitions)
                fill(broker.bootstrap, topic)
            execute(RUNS[0], broker.bootstrap)  # the broker's compiler learns what it will have to do
            results = measure(broker.bootstrap, options.rounds, options.only)
        finally:
            broker.remove()
    rows = verdicts(results)
    if options.json:
        print(json.dumps({"results": results, "targets": rows}, indent=2))
    else:
        width = max(map(len, results))
        for label, figures in results.items():
            print(f"{label:{width}}  {figures['records_per_s']:>12,.0f}/s  {figures['cpu_us']:>7.3f} µs CPU")
        for row in rows:
            print(f"{row['what']:60}  {row['ratio']:8.2f}  {row['target']:>8}  {'met' if row['met'] else 'MISSED'}")
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
