"""headrace bench: producer, broker, spark, wire.

`bench producer` measures headrace's producer against a cluster; the others run benchmarks of the source tree.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import headrace
from headrace.cli import LazyModule
from headrace.cli.connection import ClusterConnection, cluster_command
from headrace.cli.errors import CommandError, command_errors
from headrace.cli.output import debug_option, emit, format_option
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.admin import topics as topic_admin
    from headrace.producer.producer import Producer
else:
    topic_admin = LazyModule("headrace.client.admin.topics")

RECORDS = 1_000_000
VALUE_BYTES = 100
PARTITIONS = 4
LATENCY_SECONDS = 3.0
LATENCY_RATE = 5_000
WARM_UP_RECORDS = 1_000
ACKNOWLEDGE_SECONDS_MAX = 600.0
"""For the acknowledgements of one round."""
PERCENTILES = (50, 95, 99, 99.9)
TICK_SECONDS = 0.001


@click.group()
def bench() -> None:
    """Measure the producer, the broker, Spark, the wire format.

    \b
    Exit codes of all subcommands: 0 success; 1 failure, or a target was missed; 2 invalid usage; 3 no broker;
    130 interrupted.
    """


@dataclass(frozen=True, slots=True)
class BenchmarkLoad:
    """What `bench producer` sends."""

    records: int
    value_bytes: int
    rounds: int
    partitions: int
    latency_rate: int
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """Medians over rounds; latencies in milliseconds, by percentile."""

    bootstrap: str
    records: int
    value_bytes: int
    rounds: int
    records_per_s: float
    mb_per_s: float
    cpu_us_per_record: float
    latency_rate: int
    latency_ms: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        latencies = ", ".join(f"p{name} {value:.2f}" for name, value in self.latency_ms.items())
        return "\n".join(
            [
                f"{self.records_per_s:,.0f} records/s, {self.mb_per_s:,.1f} MB/s of values, "
                f"{self.cpu_us_per_record:.2f} µs of CPU per record",
                f"  ({self.records:,} records of {self.value_bytes} bytes, median of {self.rounds}, {self.bootstrap})",
                f"latency in ms at {self.latency_rate:,} records/s: {latencies}",
            ]
        )


@bench.command()
@click.option("--records", type=click.IntRange(1), default=RECORDS, show_default=True, help="Records per round.")
@click.option("--value-bytes", type=click.IntRange(0), default=VALUE_BYTES, show_default=True, help="Size of a value.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Rounds; medians are shown.")
@click.option("--topic", metavar="NAME", help="Existing topic to write to. [default: a temporary one]")
@click.option(
    "--partitions", type=click.IntRange(1), default=PARTITIONS, show_default=True, help="Of the temporary topic."
)
@click.option(
    "--rate", type=click.IntRange(1), default=LATENCY_RATE, show_default=True, help="Records/s for the latency."
)
@click.option("--compare", is_flag=True, help="Compare with other clients, as `make bench-producer` does.")
@cluster_command
def producer(
    *,
    connection: ClusterConnection,
    records: int,
    value_bytes: int,
    rounds: int,
    topic: str | None,
    partitions: int,
    rate: int,
    compare: bool,
    output_format: str,
) -> None:
    """Measure headrace's producer against a cluster: throughput, CPU per record, latency.

    First it sends as fast as possible, until every record is acknowledged; then at a steady rate, to measure the
    latency from send() to the acknowledgement. Set producer options with -X: acks, linger.ms, compression.type.

    \b
    headrace bench producer -b localhost:9092 -X compression.type=lz4

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    if compare:
        run_in_source_tree("producer", output_format, ("--rounds", str(rounds)))
        return
    load = BenchmarkLoad(records, value_bytes, rounds, partitions, rate, LATENCY_SECONDS)
    result = _measure(connection, topic, load, is_verbose=output_format == "text")
    emit(output_format, result.to_json(), result.text())


def _measure(
    connection: ClusterConnection, topic: str | None, load: BenchmarkLoad, *, is_verbose: bool
) -> BenchmarkResult:
    with _benchmark_topic(connection, topic, load.partitions) as name, connection.producer() as producer:
        value = b"v" * load.value_bytes
        _send(producer, name, value, WARM_UP_RECORDS)
        rates, costs = [], []
        for number in range(load.rounds):
            rate, cost = _run_round(producer, name, value, load.records)
            rates.append(rate)
            costs.append(cost)
            if is_verbose:
                click.echo(f"round {number + 1} of {load.rounds}: {rate:,.0f} records/s", err=True)
        latencies = _measure_latencies(producer, name, value, load)
    rate = statistics.median(rates)
    return BenchmarkResult(
        bootstrap=connection.bootstrap,
        records=load.records,
        value_bytes=load.value_bytes,
        rounds=load.rounds,
        records_per_s=rate,
        mb_per_s=rate * load.value_bytes / 1e6,
        cpu_us_per_record=statistics.median(costs),
        latency_rate=load.latency_rate,
        latency_ms=latencies,
    )


@contextlib.contextmanager
def _benchmark_topic(connection: ClusterConnection, name: str | None, partitions: int) -> Iterator[str]:
    """Yield the user's topic, or a temporary one that is deleted afterwards."""
    if name is not None:
        yield name
        return
    temporary = f"headrace-bench-{uuid.uuid4().hex[:12]}"
    with connection.admin() as admin:
        admin.create_topics([topic_admin.NewTopic(temporary, partitions)])
    try:
        yield temporary
    finally:
        with contextlib.suppress(HeadraceError), connection.admin() as admin:
            admin.delete_topics([temporary])


def _send(producer: Producer, topic: str, value: bytes, count: int) -> None:
    send = producer.send
    last = None
    for _ in range(count):
        last = send(topic, value)
    producer.flush(ACKNOWLEDGE_SECONDS_MAX)
    if last is not None:
        last.result(ACKNOWLEDGE_SECONDS_MAX)  # raises if sending failed


def _run_round(producer: Producer, topic: str, value: bytes, count: int) -> tuple[float, float]:
    """Return records per second, and microseconds of CPU per record."""
    cpu, started_at = _cpu_seconds(), time.perf_counter()
    _send(producer, topic, value, count)
    seconds = time.perf_counter() - started_at
    return count / seconds, (_cpu_seconds() - cpu) / count * 1e6


def _measure_latencies(producer: Producer, topic: str, value: bytes, load: BenchmarkLoad) -> dict[str, float]:
    """Return percentiles of the latency from send() to the acknowledgement, at a steady rate."""
    latencies: list[float] = []
    failures: list[Exception] = []

    def record_latency(sent_at: float) -> Callable[[object, Exception | None], None]:
        def on_delivery(_: object, error: Exception | None) -> None:
            if error is not None:
                failures.append(error)
            latencies.append(time.perf_counter() - sent_at)

        return on_delivery

    started_at = time.perf_counter()
    count, sent = int(load.latency_rate * load.latency_seconds), 0
    while sent < count:
        due = min(count, int((time.perf_counter() - started_at) * load.latency_rate) + 1)
        while sent < due:
            producer.send(topic, value, on_delivery=record_latency(time.perf_counter()))
            sent += 1
        time.sleep(TICK_SECONDS)
    producer.flush(ACKNOWLEDGE_SECONDS_MAX)
    if failures:
        raise failures[0]
    latencies.sort()
    return {f"{p:g}": latencies[min(len(latencies) - 1, int(len(latencies) * p / 100))] * 1000 for p in PERCENTILES}


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# -- benchmarks of the source tree -----------------------------------------------------------------


def _add_source_tree_command(name: str, help_text: str) -> None:
    """Add a command for a benchmark that needs other clients and tools from the source tree."""

    @bench.command(
        name=name,
        help=f"{help_text} Requires the source tree; ARGUMENTS are passed on (--rounds 3)."
        "\n\n\b\nExit codes: 0 success, every target met; 1 failure, or a target was missed; 2 invalid usage;"
        "\n130 interrupted.",
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @format_option
    @debug_option
    @command_errors
    def run(arguments: tuple[str, ...], output_format: str, debug: bool) -> None:
        run_in_source_tree(name, output_format, arguments)


_add_source_tree_command("broker", "Measure the broker: throughput, fetches, transactions, connections.")
_add_source_tree_command("spark", "Measure sink and source on Spark, compared with Spark's own connector.")
_add_source_tree_command("wire", "Measure the cost of encoding records and messages.")


def run_in_source_tree(name: str, output_format: str, arguments: tuple[str, ...]) -> None:
    """Run `python -m bench.NAME`, which prints its own results; exit with its exit code."""
    root = Path(headrace.__file__).parents[2]
    if not (root / "bench" / f"{name}.py").exists():
        raise CommandError(
            f"this benchmark needs the source tree of headrace, which {root} is not; clone the repository and run "
            f"`make setup` and `make bench-{name}` there, or use `headrace bench producer`, which does not need it"
        )
    command = [sys.executable, "-m", f"bench.{name}", *(("--json",) if output_format == "json" else ()), *arguments]
    done = subprocess.run(command, cwd=root)
    if done.returncode:
        raise click.exceptions.Exit(1 if done.returncode < 0 else done.returncode)
