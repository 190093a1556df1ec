"""`make bench-commit`: what the commit of a batch costs, by the number of its task transactions.

    a broker → a few producers leave N transactions open → Committer.commit → check, decide, end, finish, clean

Without Spark: tasks, committer and ledger are those of the sink, the rows are a few bytes for each partition. The cost
is fitted as a + b · N over all sizes: b is what one more task costs. Medians are over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.client.blocking import BlockingClient
from headrace.config.clock import SYSTEM_CLOCK
from headrace.producer.engine import SendEngine
from headrace.producer.settings import resolve
from headrace.spark import worker
from headrace.spark.commit_types import Batch
from headrace.spark.committer import Committer
from headrace.spark.decisions import Fingerprint, Span, TaskTransaction
from headrace.spark.failpoints import Failpoints
from headrace.spark.ledger import Ledger
from headrace.spark.sink_options import SEPARATOR, SinkOptions
from headrace.spark.transactions import Redo, Transactions

SIZES = (10, 100, 500, 1000, 2000)
JUDGED_SIZE = 1000
MS_PER_TRANSACTION_MAX = 1.0
LINEAR_MAX = 1.25
"""How much the cost of a transaction may grow from 1,000 to 2,000 transactions."""
PRODUCERS = 4
PARTITIONS = 4
APACHE, OURS = "Apache Kafka 4.3", "headrace"
JVM_OPTIONS = ("-Xmx1g", "-Xms1g")
PROPERTIES = {"transaction.state.log.num.partitions": "50"}  # Kafka's default
QUERY, RUN, TOPIC = "query", "run", "bench-commit"
PHASES = {"check.done": "check", "decide.done": "decide", "end.done": "end", "finish.done": "finish"}
"""The failpoints at which phases end. `clean`, the search for leftover transactions, is what comes after the last."""


class Laps(Failpoints):
    """Failpoints that take the time."""

    def __init__(self) -> None:
        super().__init__("")
        self.marks: dict[str, float] = {}

    def reach(self, name: str) -> None:
        if name in PHASES:
            self.marks[PHASES[name]] = time.perf_counter()

    def durations_ms(self, started: float, ended: float) -> dict[str, float]:
        durations, last = {}, started
        for phase, mark in {**self.marks, "clean": ended}.items():
            durations[phase], last = (mark - last) * 1000, mark
        self.marks.clear()
        return durations


class TaskProducers:
    """Producers that leave transactions open, as the tasks of a batch do. Ids are used again by the next batch."""

    def __init__(self, options: SinkOptions, sink: str) -> None:
        self._sink = sink
        self._engines = [SendEngine(resolve(options.producer_config()), SYSTEM_CLOCK) for _ in range(PRODUCERS)]
        values = [b"row"] * PARTITIONS
        partitions = pa.array(range(PARTITIONS), pa.int32())
        self._rows = pa.RecordBatch.from_pydict({"value": pa.array(values), "partition": partitions})

    def prepare(self, count: int) -> list[TaskTransaction]:
        with ThreadPoolExecutor(PRODUCERS) as pool:
            parts = pool.map(lambda index: [*self._leave_open(index, count)], range(PRODUCERS))
            return [transaction for part in parts for transaction in part]

    def _leave_open(self, index: int, count: int) -> Iterator[TaskTransaction]:
        engine = self._engines[index]
        for number in range(index, count, PRODUCERS):
            name = SEPARATOR.join((self._sink, RUN, f"worker{index}", str(number)))
            worker.begin(engine, name)
            delivery = engine.send_arrow(TOPIC, self._rows)
            engine.flush(60)
            spans = tuple(
                Span(TOPIC, partition, ranges[0].first, ranges[-1].last, 1)
                for partition, ranges in sorted(delivery.result(60).items())
            )
            yield TaskTransaction(name, *worker.identity(engine), spans)
            worker.leave_open(engine)

    def close(self) -> None:
        for engine in self._engines:
            engine.close(5)


@contextlib.contextmanager
def sink_on(bootstrap: str) -> Iterator[tuple[TaskProducers, Committer, Laps]]:
    sink = f"bench-commit-{time.time_ns()}"
    given = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, "decision.topic": f"{sink}-decisions"}
    options = SinkOptions.parse(given, is_stream=True)
    laps = Laps()
    with (
        BlockingClient(options.client_settings()) as client,
        contextlib.closing(TaskProducers(options, sink)) as tasks,
    ):
        parts = (Ledger(options, sink, client), Transactions(client), Redo(client))
        with contextlib.closing(Committer(sink, RUN, *parts, failpoints=laps)) as committer:
            yield tasks, committer, laps


def measure(bootstrap: str, sizes: list[int], rounds: int) -> dict[int, dict[str, float]]:
    """Return the medians of each phase in milliseconds, by number of transactions."""
    samples: defaultdict[int, list[dict[str, float]]] = defaultdict(list)
    with sink_on(bootstrap) as (tasks, committer, laps):
        number = 0
        for done in range(-1, rounds):  # the first round begins the run, and warms up a JVM
            for size in sizes:
                say(f"{bootstrap}: {'warm-up' if done < 0 else f'round {done + 1} of {rounds}'}, {size} transactions")
                batch = Batch(QUERY, number, tasks.prepare(size), fingerprint=Fingerprint(size, number))
                started = time.perf_counter()
                committer.commit(batch)
                durations = laps.durations_ms(started, time.perf_counter())
                if done >= 0:
                    samples[size].append({**durations, "total": sum(durations.values())})
                number += 1
    say("")
    return {
        size: {phase: statistics.median(row[phase] for row in rows) for phase in rows[0]}
        for size, rows in samples.items()
    }


def fit(medians: dict[int, dict[str, float]], phase: str) -> tuple[float, float]:
    """Return the milliseconds of a commit without transactions, and of one more transaction."""
    slope, intercept = statistics.linear_regression(list(medians), [row[phase] for row in medians.values()])
    return intercept, slope


@contextlib.contextmanager
def brokers(folder: Path) -> Iterator[dict[str, Any]]:
    from headrace.broker import EmbeddedBroker
    from tests.support.peers.maven import kafka_jars
    from tests.support.peers.real_kafka import RealKafka

    apache = RealKafka(kafka_jars("4.3.0"), folder / "apache", PROPERTIES, JVM_OPTIONS)
    ours = EmbeddedBroker(data_dir=folder / "headrace")
    try:
        for broker in (apache, ours):
            broker.start()
            broker.create_topic(TOPIC, PARTITIONS)
        yield {APACHE: apache, OURS: ours}
    finally:
        apache.remove()
        ours.close()


def verdicts(results: dict[str, dict[int, dict[str, float]]]) -> list[dict[str, Any]]:
    rows = []
    for name, medians in results.items():
        if JUDGED_SIZE not in medians:
            continue
        each_ms = medians[JUDGED_SIZE]["total"] / JUDGED_SIZE
        rows.append(("ms per transaction at 1,000", name, each_ms, MS_PER_TRANSACTION_MAX))
        if 2 * JUDGED_SIZE in medians:
            growth = medians[2 * JUDGED_SIZE]["total"] / (2 * JUDGED_SIZE) / each_ms
            rows.append(("the same at 2,000, ratio", name, growth, LINEAR_MAX))
    return [
        {"what": f"{what}, {name}", "value": value, "target": f"≤ {limit:g}", "met": value <= limit}
        for what, name, value, limit in rows
    ]


def show(results: dict[str, dict[int, dict[str, float]]], rows: list[dict[str, Any]]) -> None:
    for name, medians in results.items():
        phases = list(next(iter(medians.values())))
        print(f"{name}: ms of each phase, by number of transactions")
        print(f"{'':12}" + "".join(f"{phase:>10}" for phase in phases) + f"{'each':>10}")
        for size, row in medians.items():
            print(f"{size:12,}" + "".join(f"{row[phase]:10.1f}" for phase in phases) + f"{row['total'] / size:10.3f}")
        if len(medians) > 1:
            for label, index in (("fixed", 0), ("each more", 1)):
                print(f"{label:>12}" + "".join(f"{fit(medians, phase)[index]:10.3f}" for phase in phases))
        print()
    for row in rows:
        print(f"{row['what']:50} {row['value']:10.2f}  {row['target']:>7}  {'met' if row['met'] else 'MISSED'}")


def say(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--bootstrap", help=f"measure a cluster of yours, with a topic {TOPIC!r} of 4 partitions")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.bootstrap:
            bootstraps = {options.bootstrap: options.bootstrap}
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-"))
            running = stack.enter_context(brokers(Path(folder)))
            bootstraps = {name: broker.bootstrap for name, broker in running.items()}
        results = {name: measure(bootstrap, options.sizes, options.rounds) for name, bootstrap in bootstraps.items()}
    rows = verdicts(results)
    if options.json:
        print(json.dumps({"results": results, "targets": rows}, indent=2))
    else:
        show(results, rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
