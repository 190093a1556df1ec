"""`make bench-producer`: ours side by side with confluent-kafka, Java's, aiokafka and kafka-python on one real Kafka.

Every client runs in a process of its own; a round runs each of them once, in an order of its own (who comes after a
pause, or after much writing, has another broker before him), and medians are over rounds. 100-byte values, acks=all,
idempotence on, linger 5 ms, batches of 64 KiB, 4 partitions.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness import SHORT_LOGS

PARTITIONS = 4
CASE_SECONDS_MAX = 180
JVM_OPTIONS = ("-Xmx1g", "-Xms1g")


@dataclass(slots=True, frozen=True)
class Run:
    label: str
    client: str
    records: int
    kind: str = "send"
    topic: str = "bench"


RUNS = [
    Run("headrace send()", "headrace", 3_000_000),
    Run("confluent-kafka", "confluent", 1_000_000),
    Run("headrace send(), keyed", "headrace", 3_000_000, "keyed"),
    Run("confluent-kafka, keyed", "confluent", 1_000_000, "keyed"),
    Run("headrace send(), on_delivery", "headrace", 2_000_000, "delivery"),
    Run("confluent-kafka, on_delivery", "confluent", 1_000_000, "delivery"),
    Run("headrace send_arrow()", "headrace", 5_000_000, "arrow"),
    Run("finished batches, one socket", "blast", 5_000_000),
    Run("Java ProducerPerformance", "java", 2_000_000),
    Run("aiokafka", "aiokafka", 200_000),
    Run("kafka-python", "kafka-python", 100_000),
]
SCALE_RUNS = [
    Run("10^5 records", "headrace", 100_000),
    Run("10^6 records", "headrace", 1_000_000),
    Run("10^7 records", "headrace", 10_000_000),
    Run("1 partition", "headrace", 2_000_000, topic="bench-1"),
    Run("1000 partitions", "headrace", 2_000_000, topic="bench-1000"),
]


@dataclass(slots=True, frozen=True)
class Target:
    """A figure of one run compared with that of another."""

    text: str
    measure: str
    ours: str
    theirs: str
    ratio: float
    at_least: bool  # else: at most


TARGETS = [
    Target("send() records/s", "records_per_s", "headrace send()", "confluent-kafka", 2.5, True),
    Target("send() CPU", "cpu_us", "headrace send()", "confluent-kafka", 0.25, False),
    Target("send() records/s", "records_per_s", "headrace send()", "Java ProducerPerformance", 3, True),
    Target("send() records/s", "records_per_s", "headrace send()", "aiokafka", 12, True),
    Target("send() records/s", "records_per_s", "headrace send()", "kafka-python", 30, True),
    Target(
        "send_arrow() records/s", "records_per_s", "headrace send_arrow()", "finished batches, one socket", 0.85, True
    ),
    Target("send_arrow() CPU", "cpu_us", "headrace send_arrow()", "confluent-kafka", 0.1, False),
    Target(
        "on_delivery records/s",
        "records_per_s",
        "headrace send(), on_delivery",
        "confluent-kafka, on_delivery",
        1.5,
        True,
    ),
    Target("keyed records/s", "records_per_s", "headrace send(), keyed", "confluent-kafka, keyed", 2.2, True),
    Target("p99 latency, 5,000/s, linger 0", "p99_ms", "latency", "Java latency", 1.0, False),
    Target("CPU, 10^7 to 10^5 records", "cpu_us", "10^7 records", "10^5 records", 1.2, False),
    Target("CPU, 1000 to 1 partitions", "cpu_us", "1000 partitions", "1 partition", 1.2, False),
]


def execute(run: Run, bootstrap: str, jars: Path) -> dict[str, float]:
    if run.client == "java":
        return java_performance(bootstrap, jars, run, rate=-1, linger_ms=5, batch_bytes=65536)
    command = [sys.executable, "-m", "bench.producer_client", run.client, "--kind", run.kind]
    command += ["--bootstrap", bootstrap, "--topic", run.topic, "--records", str(run.records)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CASE_SECONDS_MAX, check=False)
    if done.returncode:
        raise SystemExit(f"{run.label} failed:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def java_performance(
    bootstrap: str, jars: Path, run: Run, rate: int, linger_ms: int, batch_bytes: int
) -> dict[str, float]:
    command = ["java", *JVM_OPTIONS, "-cp", f"{jars}/*", "org.apache.kafka.tools.ProducerPerformance"]
    command += ["--topic", run.topic, "--num-records", str(run.records), "--record-size", "100"]
    command += ["--throughput", str(rate), "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all"]
    command += [f"linger.ms={linger_ms}", f"batch.size={batch_bytes}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CASE_SECONDS_MAX, check=True)
    last = done.stdout.strip().splitlines()[-1]
    match = re.search(r"([\d.]+) records/sec.*?(\d+) ms 50th.*?(\d+) ms 99th", last)
    if match is None:
        raise SystemExit(f"ProducerPerformance said: {last}")
    return {"records_per_s": float(match[1]), "p50_ms": float(match[2]), "p99_ms": float(match[3])}


def measure(bootstrap: str, jars: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Medians by label and measure."""
    steps: list[tuple[str, Callable[[], dict[str, float]]]] = []
    for run in [*RUNS, *SCALE_RUNS]:
        steps.append((run.label, lambda run=run: execute(run, bootstrap, jars)))  # type: ignore[misc]
    steady = Run("latency", "latency", 40_000)
    steps.append(("latency", lambda: execute(steady, bootstrap, jars)))
    steps.append(
        ("Java latency", lambda: java_performance(bootstrap, jars, steady, rate=5000, linger_ms=0, batch_bytes=16384))
    )
    samples: dict[str, list[dict[str, float]]] = {label: [] for label, _ in steps}
    for number in range(rounds):
        for label, step in random.Random(number).sample(steps, len(steps)):
            print(f"\r\033[Kround {number + 1} of {rounds}: {label}", end="", file=sys.stderr, flush=True)
            os.sync()  # what the one before has written is not to be paid for by this one
            samples[label].append(step())
    samples["idle"] = [execute(Run("idle", "idle", 1), bootstrap, jars)]
    print("\r\033[K", end="", file=sys.stderr)
    return {
        label: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for label, rows in samples.items()
    }


def verdicts(results: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    rows = []
    for target in TARGETS:
        ratio = results[target.ours][target.measure] / results[target.theirs][target.measure]
        met = ratio >= target.ratio if target.at_least else ratio <= target.ratio
        sign = "≥" if target.at_least else "≤"
        rows.append(
            {
                "what": f"{target.text} vs {target.theirs}",
                "ratio": ratio,
                "target": f"{sign} {target.ratio}",
                "met": met,
            }
        )
    idle = results["idle"]["idle_percent"]
    rows.append({"what": "idle CPU, % of a core", "ratio": idle, "target": "< 0.5", "met": idle < 0.5})
    return rows


def show(results: dict[str, dict[str, float]], rows: list[dict[str, Any]]) -> None:
    width = max(map(len, results))
    print(f"{'':{width}}  {'records/s':>12}  {'CPU µs/record':>13}  {'p50 ms':>7}  {'p99 ms':>7}")
    for label, figures in results.items():
        cells = [
            f"{figures['records_per_s']:>12,.0f}" if "records_per_s" in figures else " " * 12,
            f"{figures['cpu_us']:>13.3f}" if "cpu_us" in figures else " " * 13,
            f"{figures['p50_ms']:>7.2f}" if "p50_ms" in figures else " " * 7,
            f"{figures['p99_ms']:>7.2f}" if "p99_ms" in figures else " " * 7,
        ]
        print(f"{label:{width}}  " + "  ".join(cells))
    print()
    for row in rows:
        print(f"{row['what']:60}  {row['ratio']:8.2f}  {row['target']:>8}  {'met' if row['met'] else 'MISSED'}")


def plot(results: dict[str, dict[str, float]], path: Path) -> None:
    """Records a second and CPU of every client, as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [run.label for run in RUNS][::-1]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), sharey=True)
    colours = ["#0072b2" if label.startswith("headrace") else "#999999" for label in labels]
    left.barh(labels, [results[label]["records_per_s"] / 1e6 for label in labels], color=colours)
    left.set_xlabel("million records/s")
    right.barh(labels, [results[label].get("cpu_us", 0) for label in labels], color=colours)
    right.set_xlabel("µs of CPU a record (log)")
    right.set_xscale("log")
    figure.suptitle("Producing 100-byte records to Apache Kafka on the same machine")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    from tests.support.peers.maven import kafka_jars
    from tests.support.peers.real_kafka import RealKafka

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plot", type=Path, default=Path("build/bench-producer.png"))
    options = parser.parse_args()
    jars = kafka_jars("4.3.0")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        broker = RealKafka(jars, Path(folder) / "kafka", SHORT_LOGS, jvm_options=JVM_OPTIONS)
        broker.start()
        try:
            for topic, partitions in (("bench", PARTITIONS), ("bench-1", 1), ("bench-1000", 1000)):
                broker.create_topic(topic, partitions)
            for warm_up in (RUNS[7], RUNS[0], RUNS[1]):  # the broker's compiler learns what it will have to do
                execute(warm_up, broker.bootstrap, jars)
            results = measure(broker.bootstrap, jars, options.rounds)
        finally:
            broker.remove()
    rows = verdicts(results)
    if options.json:
        print(json.dumps({"results": results, "targets": rows}, indent=2))
    else:
        show(results, rows)
    options.plot.parent.mkdir(parents=True, exist_ok=True)
    plot(results, options.plot)
    print(f"plot: {options.plot}", file=sys.stderr)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
