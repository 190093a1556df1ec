"""headrace bench: producer, broker, spark, wire."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

import headrace
from headrace.cli.connection import Connection, connection_options
from headrace.cli.output import CommandError, command_errors, debug_option, emit, format_option

RECORDS = 1_000_000
VALUE_BYTES = 100
PARTITIONS = 4
LATENCY_SECONDS = 3.0
LATENCY_RATE = 5_000


@click.group()
def bench() -> None:
    """Measure the producer, the broker, Spark, the wire format.

    \b
    Exit codes of all of them: 0 done; 1 it failed, or a target was missed; 2 wrong usage; 3 no broker;
    130 interrupted.
    """


@bench.command()
@click.option("--records", type=click.IntRange(1), default=RECORDS, show_default=True, help="To send in each round.")
@click.option("--value-bytes", type=click.IntRange(0), default=VALUE_BYTES, show_default=True, help="Of each record.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="The medians are over them.")
@click.option("--topic", metavar="NAME", help="A topic of yours, which is filled. [default: one is made and deleted]")
@click.option("--partitions", type=click.IntRange(1), default=PARTITIONS, show_default=True, help="Of a topic made.")
@click.option("--rate", type=click.IntRange(1), default=LATENCY_RATE, show_default=True, help="Of the latency, in 1/s.")
@click.option("--compare", is_flag=True, help="Side by side with other clients: `make bench-producer`.")
@connection_options
@format_option
@debug_option
@command_errors
def producer(
    connection: Connection,
    records: int,
    value_bytes: int,
    rounds: int,
    topic: str | None,
    partitions: int,
    rate: int,
    compare: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Measure headrace's own producer against a cluster: rate, CPU of a record, latency.

    First as many records as it can, every one acknowledged before the clock stops; then a steady rate, and how long
    each took from send() to its acknowledgement. Options of the producer by -X: acks, linger.ms, compression.type.

    \b
    headrace bench producer -b localhost:9092 -X compression.type=lz4

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 no broker; 130 interrupted.
    """
    if compare:
        run_in_source_tree("producer", output_format, ("--rounds", str(rounds)))
        return
    from headrace.cli.bench_producer import Load, measure

    load = Load(records, value_bytes, rounds, partitions, rate, LATENCY_SECONDS)
    said = (lambda line: click.echo(line, err=True)) if output_format == "text" else (lambda line: None)
    result = measure(connection, topic, load, said)
    emit(output_format, result.to_json(), result.text())


def _of_source_tree(name: str, about: str) -> click.Command:
    """A benchmark that needs peers and tools of the source tree."""

    @bench.command(name=name, help=about, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    @format_option
    @debug_option
    @command_errors
    def run(arguments: tuple[str, ...], output_format: str, debug: bool) -> None:
        run_in_source_tree(name, output_format, arguments)

    return run


_CODES = (
    "\n\n\b\nExit codes: 0 done, and every target is met; 1 it failed, or a target is missed; 2 wrong usage;"
    "\n130 interrupted."
)
_FROM_SOURCE = " Needs the source tree; ARGUMENTS go to it (--rounds 3)."
_of_source_tree("broker", f"Measure the broker: rates, fetches, transactions, connections.{_FROM_SOURCE}{_CODES}")
_of_source_tree("spark", f"Measure sink and source on Spark, beside Spark's own connector.{_FROM_SOURCE}{_CODES}")
_of_source_tree("wire", f"Measure what a record and a message cost to encode.{_FROM_SOURCE}{_CODES}")


def run_in_source_tree(name: str, output_format: str, arguments: tuple[str, ...]) -> None:
    """`python -m bench.NAME`, which writes for itself; its exit code is ours."""
    root = Path(headrace.__file__).parents[2]
    if not (root / "bench" / f"{name}.py").exists():
        raise CommandError(
            f"this benchmark needs the source tree of headrace, and {root} is none: an installed package does not have "
            f"the other clients and brokers it measures. Clone the repository, `make setup`, and `make bench-{name}` "
            "there; or `headrace bench producer`, which measures ours alone"
        )
    command = [sys.executable, "-m", f"bench.{name}", *(("--json",) if output_format == "json" else ()), *arguments]
    done = subprocess.run(command, cwd=root)
    if done.returncode:
        raise click.exceptions.Exit(1 if done.returncode < 0 else done.returncode)
