"""headrace produce: lines, JSON or files into a topic."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from headrace.cli.connection import Connection, connection_options
from headrace.cli.output import NotFoundError, WrongUsageError, command_errors, debug_option, emit
from headrace.cli.settings import key_value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.produce_input import Chunk, Input
    from headrace.producer.producer import Producer

PARTITION_MAX = 2**31 - 1


@click.command()
@click.argument("topic")
@click.argument("files", metavar="[FILE...]", nargs=-1)
@click.option(
    "--format",
    "input_format",
    type=click.Choice(["lines", "json", "raw"]),
    default="lines",
    show_default=True,
    help="A record for each line; for each line of JSON, as `consume --format json` prints it; for each file.",
)
@click.option("-K", "--key-separator", metavar="SEP", help=r"What is before it in a line is the key; \t is a tab.")
@click.option("-k", "--key", help="The key of all records.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Of all records; repeatable.")
@click.option("-p", "--partition", type=click.IntRange(0, PARTITION_MAX), help="[default: by key, else any]")
@click.option("--timestamp", metavar="TIME", help="Milliseconds or ISO 8601. [default: the time of sending]")
@click.option("--null-value", metavar="MARKER", help="A key or value of a line that is just this is null.")
@click.option("-Z", "empty_is_null", is_flag=True, help="A key or value of a line that is empty is null.")
@click.option("--ignore-partition", is_flag=True, help="Of JSON records, let the key choose instead.")
@click.option("--transactional-id", metavar="ID", help="Send in a transaction, which is aborted on any error.")
@click.option(
    "--transaction-size", type=click.IntRange(1), metavar="N", help="Commit after N records. [default: at the end]"
)
@click.option("--report", type=click.Choice(["text", "json"]), default="text", help="json: the summary, on stdout.")
@connection_options
@debug_option
@command_errors
def produce(
    connection: Connection,
    topic: str,
    files: tuple[str, ...],
    input_format: str,
    key_separator: str | None,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    timestamp: str | None,
    null_value: str | None,
    empty_is_null: bool,
    ignore_partition: bool,
    transactional_id: str | None,
    transaction_size: int | None,
    report: str,
    debug: bool,
) -> None:
    """Write records to TOPIC, from files or the standard input (-).

    Every record is acknowledged when the command ends well; else it says how many were. Compression, acks and the like
    are client options: -X compression.type=zstd.

    \b
    seq 100 | headrace produce numbers
    headrace produce orders -K '\\t' -H source=shop orders.tsv
    headrace produce images --format raw -k front front.png
    headrace consume a --format json | headrace produce b --format json
    headrace produce orders --transactional-id load-7 orders.txt

    \b
    Exit codes: 0 all were sent; 1 it failed; 2 wrong usage; 3 there is no such topic, or no broker;
    130 interrupted.
    """
    from headrace.cli.produce_input import Input
    from headrace.cli.produce_progress import ProgressLine, say, summary
    from headrace.cli.sending import Fixed, Sending, partition_count
    from headrace.cli.times import parse_time_ms

    _check_flags(input_format, key_separator, key, null_value, empty_is_null, transactional_id, transaction_size)
    given = Input(files)
    fixed = Fixed(
        key=None if key is None else _encoded(key),
        headers=tuple((name, _encoded(value)) for name, value in (key_value(text, "-H") for text in headers)),
        partition=partition,
        timestamp_ms=None if timestamp is None else parse_time_ms(timestamp, "--timestamp"),
        ignore_partition=ignore_partition,
    )
    if given.is_typed:
        say(f"a record for each line to {topic}; Ctrl-D ends it")
    marker = b"" if empty_is_null else None if null_value is None else _encoded(null_value)
    partitions = partition_count(connection, topic)
    if partition is not None and partition >= partitions:
        raise NotFoundError(f"topic {topic!r} has {partitions} partitions, from 0 on, and none with number {partition}")
    overrides = {} if transactional_id is None else {"transactional.id": transactional_id}
    with (
        connection.producer(overrides) as producer,
        Sending(producer, topic, partitions, fixed, transaction_size) as sending,
        ProgressLine(given.size, is_typed=given.is_typed) as progress,
    ):
        for chunk in _chunks(given, input_format, key_separator, marker, producer):
            sending.send(chunk.records)
            progress.advance(chunk.size, sending.sent, sending.seconds)
            if chunk.error is not None:
                raise chunk.error
        sending.finish()
    facts = sending.facts()
    if report == "json":
        emit("json", facts, "")
    else:
        say(summary(facts))


def _check_flags(
    input_format: str,
    key_separator: str | None,
    key: str | None,
    null_value: str | None,
    empty_is_null: bool,
    transactional_id: str | None,
    transaction_size: int | None,
) -> None:
    """Refuse what contradicts itself."""
    if empty_is_null and null_value is not None:
        raise WrongUsageError("-Z and --null-value exclude each other: -Z stands for --null-value ''")
    if transaction_size is not None and transactional_id is None:
        raise WrongUsageError("--transaction-size needs --transactional-id")
    lines_only = {"-K": key_separator, "--null-value": null_value, "-Z": empty_is_null or None}
    if input_format != "lines" and (wrong := [flag for flag, value in lines_only.items() if value is not None]):
        raise WrongUsageError(f"{wrong[0]} is for --format lines, and this is {input_format}")
    if key is not None and key_separator is not None:
        raise WrongUsageError("-k and -K exclude each other: a key for all, or one for each line")


def _chunks(
    given: Input, input_format: str, key_separator: str | None, marker: bytes | None, producer: Producer
) -> Iterator[Chunk]:
    from headrace.cli.produce_input import LineFormat, unescaped
    from headrace.cli.record_json import from_line

    if input_format == "raw":
        return given.whole(producer.settings.max_request_size)
    if input_format == "json":
        return given.lines(from_line)
    separator = None if key_separator is None else unescaped(key_separator, "-K")
    if separator == b"":
        raise WrongUsageError("-K takes a separator that is not empty")
    return given.lines(LineFormat(separator, marker).parse)


def _encoded(text: str) -> bytes:
    """A command-line argument as the bytes that were typed."""
    return text.encode(sys.getfilesystemencoding(), "surrogateescape")
