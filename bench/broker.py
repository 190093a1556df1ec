"""`make bench-broker`: our broker side by side with Apache Kafka, on the same machine, in one run.

A round does every load once on each broker, one broker after the other; medians are over rounds. The client is the same
for both (bench.broker_client), a process of its own, and sends finished bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOAD_SECONDS_MAX = 300
JVM_OPTIONS = ("-Xmx1g", "-Xms1g")
RETAINED = {"retention.bytes": str(1 << 30), "segment.bytes": str(256 << 20)}
CONNECTIONS = 1000
PARTITIONS = 2000
RECOVERY_BYTES = 2_000_000_000
APACHE, OURS = "Apache Kafka", "headrace"


@dataclass(slots=True, frozen=True)
class Load:
    """A measurement on both brokers, and the target ratio."""

    label: str
    arguments: tuple[str, ...]
    measures: tuple[str, ...]
    ratio: float


LOADS = [
    Load(
        "produce, 16 KiB batches",
        ("produce", "--batch-bytes=16384", "--total-bytes=300000000"),
        ("requests_per_s", "mb_per_s"),
        3,
    ),
    Load("produce, 64 KiB batches", ("produce", "--batch-bytes=65536", "--total-bytes=600000000"), ("mb_per_s",), 2),
    Load("produce, 900 KiB batches", ("produce", "--batch-bytes=921600", "--total-bytes=900000000"), ("mb_per_s",), 1),
    Load(
        "produce, 8 connections",
        ("produce", "--batch-bytes=16384", "--total-bytes=300000000", "--connections=8"),
        ("requests_per_s",),
        1,
    ),
    Load("fetch, cached", ("fetch", "--topic=cached", "--total-bytes=3000000000"), ("mb_per_s",), 1),
    Load("transactions", ("transactions", "--count=500", "--topic=transactions"), ("transactions_per_s",), 1),
    Load("connections", ("connections", f"--count={CONNECTIONS}"), ("requests_per_s",), 0),
]


FILL = Load("fill", ("produce", "--topic=cached", "--batch-bytes=65536", "--total-bytes=20000000"), (), 0)


def run_load(load: Load, bootstrap: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.broker_client", *load.arguments, "--bootstrap", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS_MAX, check=False)
    if done.returncode:
        raise SystemExit(f"{load.label} failed on {bootstrap}:\n{done.stderr}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def say(text: str) -> None:
    print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def measure(folder: Path, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Medians: label → broker → measure."""
    from headrace.broker import EmbeddedBroker
    from tests.support.peers.maven import kafka_jars
    from tests.support.peers.real_kafka import RealKafka

    samples: defaultdict[str, defaultdict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    apache = RealKafka(kafka_jars("4.3.0"), folder / "apache", jvm_options=JVM_OPTIONS)
    ours = EmbeddedBroker(data_dir=folder / "headrace")
    brokers: dict[str, Any] = {APACHE: apache, OURS: ours}
    try:
        for name, broker in brokers.items():
            say(f"starting {name}")
            broker.start()
            broker.stop()
            for _ in range(rounds):  # with its folders made, as after any first start
                started = time.perf_counter()
                broker.start()
                samples["ready"][name].append({"seconds": time.perf_counter() - started})
                time.sleep(1)
                samples["idle memory"][name].append({"mb": resident_mb(broker.pid)})
                broker.stop()
            broker.start()
            broker.create_topic("bench", 1, RETAINED)
            broker.create_topic("transactions", 1)
            broker.create_topic("cached", 1)
            run_load(FILL, broker.bootstrap)
            for load in LOADS[:5]:  # Java's compiler learns what it will have to do
                run_load(load, broker.bootstrap)
        for number in range(rounds):
            for load in LOADS:
                for name, broker in brokers.items():
                    say(f"round {number + 1} of {rounds}: {load.label} on {name}")
                    os.sync()  # what the one before has written is not to be paid for by this one
                    samples[load.label][name].append(run_load(load, broker.bootstrap))
        apache.stop()
        samples[f"{PARTITIONS} partitions"][OURS].append(hold_partitions(ours))
        samples["recovery"][OURS].append(recovery(ours))
    finally:
        say("")
        apache.remove()
        ours.close()
    return {
        label: {
            name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            for name, rows in by_broker.items()
        }
        for label, by_broker in samples.items()
    }


def hold_partitions(broker: Any) -> dict[str, float]:
    """Measure the creation of a topic with many partitions, and a write to each."""
    from headrace import Producer

    say(f"{PARTITIONS} partitions")
    started = time.perf_counter()
    broker.create_topic("many", PARTITIONS)
    created = time.perf_counter()
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        futures = [producer.send("many", b"x" * 100, partition=index) for index in range(PARTITIONS)]
        producer.flush()
        for future in futures:
            future.result()
    written = time.perf_counter()
    broker.kill()
    broker.start()
    return {
        "create_s": created - started,
        "write_s": written - created,
        "restart_s": time.perf_counter() - written,
        "mb": resident_mb(broker.pid),
    }


def recovery(broker: Any) -> dict[str, float]:
    """Fill a log, kill the broker, and time the start after that."""
    say("recovery of 2 GB")
    broker.create_topic("recovery", 1, {"segment.bytes": str(1 << 30)})
    fill = ("produce", "--topic=recovery", "--batch-bytes=16384", f"--total-bytes={RECOVERY_BYTES}")
    run_load(Load("fill", fill, (), 0), broker.bootstrap)
    broker.kill()
    started = time.perf_counter()
    broker.start()
    return {"seconds": time.perf_counter() - started}


def verdicts(results: dict[str, dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def judge(what: str, value: float, sign: str, target: float) -> None:
        met = value >= target if sign == "≥" else value <= target
        rows.append({"what": what, "value": value, "target": f"{sign} {target:g}", "met": met})

    for load in LOADS:
        for name in load.measures:
            if load.ratio:
                ratio = results[load.label][OURS][name] / results[load.label][APACHE][name]
                judge(f"{load.label}, {name}, ratio", ratio, "≥", load.ratio)
    judge("ready, seconds", results["ready"][OURS]["seconds"], "≤", 0.15)
    judge("idle memory, MB", results["idle memory"][OURS]["mb"], "≤", 40)
    judge("recovery of 2 GB, seconds", results["recovery"][OURS]["seconds"], "≤", 5)
    return rows


def show(results: dict[str, dict[str, dict[str, float]]], rows: list[dict[str, Any]]) -> None:
    print(f"{'':26} {'':20} {APACHE:>14} {OURS:>14}")
    for label, by_broker in results.items():
        for name in by_broker[OURS]:
            cells = [f"{by_broker[who][name]:14,.2f}" if who in by_broker else " " * 14 for who in (APACHE, OURS)]
            print(f"{label:26} {name:20} {cells[0]} {cells[1]}")
    print()
    for row in rows:
        print(f"{row['what']:50} {row['value']:10.2f}  {row['target']:>7}  {'met' if row['met'] else 'MISSED'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or every start of ours would compile it anew
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        results = measure(Path(folder), options.rounds)
    rows = verdicts(results)
    if options.json:
        print(json.dumps({"results": results, "targets": rows}, indent=2))
    else:
        show(results, rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
