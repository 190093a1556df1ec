"""`make bench-revisions BEFORE=<checkout>`: producer, broker and Spark of this tree against another revision.

    git worktree add ../before <revision> && make -C ../before setup
    make bench-revisions BEFORE=../before

Both trees do the same work in turns, on one Apache Kafka (producer, Spark) and with one client (brokers). Medians are
over rounds; a case fails if this tree has less than 97 % of the rate of the other one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.broker import FILL, LOADS, RETAINED, run_load
from bench.harness import SHORT_LOGS
from bench.producer import JVM_OPTIONS, PARTITIONS

HERE = Path(__file__).parent.parent
BEFORE, NOW = "before", "now"
RATIO_MIN = 0.97
CASE_SECONDS_MAX = 600
PARTS = ("producer", "broker", "spark")
PRODUCER_KINDS = {"send": 3_000_000, "keyed": 3_000_000, "delivery": 2_000_000, "arrow": 5_000_000}
BROKER_LOADS = [load for load in LOADS if load.label != "connections"]
EMBEDDED = """
import sys
from headrace.broker import EmbeddedBroker
broker = EmbeddedBroker(data_dir=sys.argv[1])
broker.start()
print(broker.bootstrap, flush=True)
sys.stdin.read()
broker.close()
"""
Samples = defaultdict[str, dict[str, list[float]]]


def run_in(tree: Path, *arguments: str, variables: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run the Python of a checkout, and return what it prints."""
    command = [str(tree / ".venv" / "bin" / "python"), *arguments]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(
        command, cwd=cwd or tree, env=environment, capture_output=True, text=True, timeout=CASE_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def measure_producer(trees: dict[str, Path], bootstrap: str, samples: Samples) -> None:
    for kind, records in PRODUCER_KINDS.items():
        for name, tree in trees.items():
            os.sync()
            arguments = ["headrace", "--kind", kind, "--bootstrap", bootstrap, "--topic", "bench"]
            printed = run_in(tree, "-m", "bench.producer_client", *arguments, "--records", str(records))
            figures = json.loads(printed.splitlines()[-1])
            samples[f"producer {kind}, records/s"][name].append(figures["records_per_s"])
            samples[f"producer {kind}, records/s of CPU"][name].append(1e6 / figures["cpu_us"])


@contextmanager
def embedded_brokers(trees: dict[str, Path], folder: Path) -> Iterator[dict[str, str]]:
    """Start the broker of each tree in a process, and yield the addresses."""
    processes = []
    try:
        addresses = {}
        for name, tree in trees.items():
            command = [str(tree / ".venv" / "bin" / "python"), "-c", EMBEDDED, str(folder / f"broker-{name}")]
            process = subprocess.Popen(command, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(process)
            assert process.stdout is not None
            addresses[name] = process.stdout.readline().strip()
        yield addresses
    finally:
        for process in processes:
            process.communicate("", timeout=CASE_SECONDS_MAX)


def prepare_broker(bootstrap: str) -> None:
    from headrace.client.admin import AdminClient, NewTopic

    with AdminClient(bootstrap) as admin:
        admin.create_topics(
            [NewTopic("bench", 1, configs=RETAINED), NewTopic("transactions", 1), NewTopic("cached", 1)]
        )
    run_load(FILL, bootstrap)


def measure_brokers(trees: dict[str, Path], number: int, samples: Samples) -> None:
    """Measure new brokers with empty folders, for the reason of SHORT_LOGS."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        embedded_brokers(trees, Path(folder)) as addresses,
    ):
        for bootstrap in addresses.values():
            prepare_broker(bootstrap)
        for load in BROKER_LOADS:
            for name, bootstrap in in_turn(addresses, number):
                os.sync()
                figures = run_load(load, bootstrap)
                for measure in load.measures:
                    samples[f"broker {load.label}, {measure}"][name].append(figures[measure])


def measure_spark(trees: dict[str, Path], folder: Path, samples: Samples) -> None:
    """Each tree gets a new broker, which keeps the topics that the jobs read."""
    from bench.spark import spark_environment
    from tests.support.peers.maven import kafka_jars
    from tests.support.peers.real_kafka import RealKafka

    variables, jars = spark_environment()
    for name, tree in trees.items():
        output = folder / f"spark-{name}.json"
        environment = {**variables, "PYTHONPATH": variables["PYTHONPATH"].replace(str(HERE), str(tree))}
        kafka = RealKafka(kafka_jars("4.3.0"), folder / f"kafka-{name}", jvm_options=JVM_OPTIONS)
        try:
            kafka.start()
            addresses = ["--kafka", kafka.bootstrap, "--embedded", kafka.bootstrap]
            run_in(
                tree,
                *("-m", "bench.spark_client", *addresses, "--jars", jars, "--output", str(output)),
                *("--rounds", "2", "--only", "sink,source"),
                variables=environment,
                cwd=folder,
            )
        finally:
            kafka.remove()
        for part, by_label in json.loads(output.read_text())["seconds"].items():
            for label, seconds in by_label.items():
                if label.startswith("headrace"):
                    samples[f"spark {part} {label}, jobs/s"][name] += [1 / value for value in seconds]


def measure(trees: dict[str, Path], parts: list[str], rounds: int) -> Samples:
    from tests.support.peers.maven import kafka_jars
    from tests.support.peers.real_kafka import RealKafka

    samples: Samples = defaultdict(lambda: {BEFORE: [], NOW: []})
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        kafka = RealKafka(kafka_jars("4.3.0"), folder / "kafka", SHORT_LOGS, jvm_options=JVM_OPTIONS)
        try:
            if "broker" in parts:
                for number in range(rounds):
                    show_progress(f"broker: round {number + 1} of {rounds}")
                    measure_brokers(trees, number, samples)
            if "producer" in parts:
                kafka.start()
                kafka.create_topic("bench", PARTITIONS)
                measure_producer(trees, kafka.bootstrap, defaultdict(lambda: {BEFORE: [], NOW: []}))  # a warm-up
            for number in range(rounds):
                show_progress(f"producer and Spark: round {number + 1} of {rounds}")
                order = dict(in_turn(trees, number))
                if "producer" in parts:
                    measure_producer(order, kafka.bootstrap, samples)
                if "spark" in parts:
                    measure_spark(order, folder, samples)
        finally:
            kafka.remove()
    return samples


def in_turn(by_name: dict[str, Any], number: int) -> list[tuple[str, Any]]:
    items = list(by_name.items())
    return items if number % 2 else items[::-1]


def show_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of the other revision, after `make setup`")
    parser.add_argument("--only", default=",".join(PARTS), help="some of: %(default)s")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    trees = {BEFORE: options.before.resolve(), NOW: HERE}
    samples = measure(trees, options.only.split(","), options.rounds)
    is_met = True
    print(f"{'':62} {BEFORE:>14} {NOW:>14} {'ratio':>7}")
    for label, by_name in samples.items():
        before, now = (statistics.median(by_name[name]) for name in (BEFORE, NOW))
        is_case_met = now >= RATIO_MIN * before
        is_met &= is_case_met
        print(f"{label:62} {before:14,.2f} {now:14,.2f} {now / before:7.2f} {'' if is_case_met else 'BELOW'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
