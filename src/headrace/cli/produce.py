"""headrace produce: write lines, JSON or files to a topic, with a progress bar on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from headrace.cli.connection import ClusterConnection, connection_options
from headrace.cli.errors import InvalidUsageError, ResourceNotFoundError, command_errors
from headrace.cli.output import count_text, debug_option, emit
from headrace.cli.produce_input import Chunk, Input, LineFormat
from headrace.cli.record_formats import TypedInput, format_options, read_schema_file, serde_options
from headrace.cli.record_json import from_line
from headrace.cli.shared_options import parse_key_value, parse_time_ms, unescape

if TYPE_CHECKING:
    from rich.progress import Progress

    from headrace.producer.producer import Producer

PARTITION_MAX = 2**31 - 1
SCHEMA_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_REFRESH_SECONDS = 0.1


@click.command()
@click.argument("topic")
@click.argument("files", metavar="[FILE...]", nargs=-1)
@click.option(
    "--format",
    "input_format",
    type=click.Choice(["lines", "json", "raw"]),
    default="lines",
    show_default=True,
    help="One record per line; per line of JSON, as printed by `consume --format json`; per file.",
)
@click.option("-K", "--key-separator", metavar="SEP", help=r"Separates key and value in a line; \t is a tab.")
@click.option("-k", "--key", help="Key of all records.")
@click.option(
    "-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Header of all records; repeatable."
)
@click.option(
    "-p", "--partition", type=click.IntRange(0, PARTITION_MAX), help="Partition of all records. [default: by key]"
)
@click.option("--timestamp", metavar="TIME", help="Milliseconds or ISO 8601. [default: the time of sending]")
@click.option("--null-value", metavar="MARKER", help="Send null for a key or value of a line equal to MARKER.")
@click.option("-Z", "empty_is_null", is_flag=True, help="Send null for an empty key or value of a line.")
@click.option("--ignore-partition", is_flag=True, help="Partition JSON records by key, not by their partition field.")
@click.option("--transactional-id", metavar="ID", help="Send in a transaction, which any error aborts.")
@click.option(
    "--transaction-size", type=click.IntRange(1), metavar="N", help="Commit after N records. [default: at the end]"
)
@click.option(
    "--report", type=click.Choice(["text", "json"]), default="text", help="json: print the summary to stdout."
)
@format_options
@click.option(
    "--schema-file", type=SCHEMA_FILE, metavar="FILE", help="Schema of values. [default: the latest of the topic]"
)
@click.option(
    "--key-schema-file", type=SCHEMA_FILE, metavar="FILE", help="Schema of keys. [default: the latest of the topic]"
)
@click.option("--register-schema", is_flag=True, help="Register the schema files, if the registry lacks them.")
@connection_options
@debug_option
@command_errors
def produce(
    *,
    connection: ClusterConnection,
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
    value_format: str | None,
    key_format: str | None,
    registry_url: str | None,
    schema_file: Path | None,
    key_schema_file: Path | None,
    register_schema: bool,
    debug: bool,
) -> None:
    """Write records to TOPIC, from files or stdin (-).

    When the command succeeds, every record is acknowledged; when it fails, it says how many are. Compression, acks and
    the like are client options: -X compression.type=zstd.

    \b
    seq 100 | headrace produce numbers
    headrace produce orders -K '\\t' -H source=shop orders.tsv
    headrace produce orders --value-format avro --schema-registry http://localhost:8081 orders.jsonl
    headrace produce images --format raw -k front front.png
    headrace consume a --format json | headrace produce b --format json
    headrace produce orders --transactional-id load-7 orders.txt

    \b
    Exit codes: 0 all records sent; 1 failure; 2 invalid usage; 3 no such topic, or no broker; 130 interrupted.
    """
    # Imported here: it imports pyarrow, which invalid usage and --help should not wait for.
    from headrace.cli.record_sender import RecordOverrides, RecordSender, ensure_topic

    if empty_is_null and null_value is not None:
        raise InvalidUsageError("-Z and --null-value are mutually exclusive: -Z is short for --null-value ''")
    if transaction_size is not None and transactional_id is None:
        raise InvalidUsageError("--transaction-size requires --transactional-id")
    line_flags = {"-K": key_separator, "--null-value": null_value, "-Z": empty_is_null or None}
    if input_format != "lines" and (given := [flag for flag, value in line_flags.items() if value is not None]):
        raise InvalidUsageError(f"{given[0]} requires --format lines, got --format {input_format}")
    if key is not None and key_separator is not None:
        raise InvalidUsageError("-k and -K are mutually exclusive: one key for all records, or one in each line")
    typed_options = serde_options(connection, registry_url, {"key": key_format, "value": value_format})
    schema_files = {"writer.schema": schema_file, "key.writer.schema": key_schema_file}
    typed_options |= {name: read_schema_file(file) for name, file in schema_files.items() if file is not None}
    if register_schema:
        typed_options["schema.auto.register"] = True
    if input_format == "raw" and typed_options:
        raise InvalidUsageError("--value-format and --key-format require --format lines or json, got --format raw")
    typed = TypedInput(topic, typed_options) if typed_options else None
    input_ = Input(files)
    overrides = RecordOverrides(
        key=None if key is None else _encoded_key(key, typed),
        headers=tuple((name, _encoded(value)) for name, value in (parse_key_value(text, "-H") for text in headers)),
        partition=partition,
        timestamp_ms=None if timestamp is None else parse_time_ms(timestamp, "--timestamp"),
        ignore_partition=ignore_partition,
    )
    if input_.is_interactive:
        click.echo(f"each line is sent to {topic} as a record; Ctrl-D ends the input", err=True)
    null_marker = b"" if empty_is_null else None if null_value is None else _encoded(null_value)
    partition_count = ensure_topic(connection, topic)
    if partition is not None and partition >= partition_count:
        raise ResourceNotFoundError(
            f"topic {topic!r} has no partition {partition}; its partitions are 0 to {partition_count - 1}"
        )
    options = {} if transactional_id is None else {"transactional.id": transactional_id}
    with (
        connection.producer(options) as producer,
        RecordSender(
            producer, topic, partition_count, overrides=overrides, transaction_size=transaction_size
        ) as sender,
        ProduceProgress(input_.size, is_interactive=input_.is_interactive) as progress,
    ):
        for chunk in _chunks(input_, input_format, (key_separator, null_marker), typed, producer):
            records, error = (chunk.records, None) if typed is None else typed.encode(chunk.records)
            sender.send(records)
            progress.advance(chunk.size, sender.sent_count, sender.seconds)
            if (error := error or chunk.error) is not None:
                raise error
        sender.finish()
    facts = sender.facts()
    if report == "json":
        emit("json", facts, "")
    else:
        click.echo(_summary(facts), err=True)


def _chunks(
    input_: Input,
    input_format: str,
    line_options: tuple[str | None, bytes | None],
    typed: TypedInput | None,
    producer: Producer,
) -> Iterator[Chunk]:
    key_separator, null_marker = line_options
    if input_format == "raw":
        return input_.whole(producer.settings.max_request_size)
    if input_format == "json":
        return input_.lines(from_line if typed is None else partial(from_line, typed=typed.fields))
    separator = None if key_separator is None else unescape(key_separator, "-K")
    if separator == b"":
        raise InvalidUsageError("-K requires a non-empty separator")
    return input_.lines(LineFormat(separator, null_marker).parse)


def _encoded_key(key: str, typed: TypedInput | None) -> bytes:
    """Return the key of all records; JSON, if keys have a format."""
    if typed is None or "key" not in typed.fields:
        return _encoded(key)
    encoded, problem = typed.encode_texts("key", [key.encode()])
    if problem is not None or encoded[0] is None:
        raise InvalidUsageError(f"-k: {problem or 'expected JSON, got null'}")
    return encoded[0]


def _encoded(text: str) -> bytes:
    """Return a command-line argument as the bytes that were typed."""
    return text.encode(sys.getfilesystemencoding(), "surrogateescape")


class ProduceProgress:
    """Shows a bar if the size of the input is known, else a counter; nothing without a terminal, or for typed input."""

    def __init__(self, total_bytes: int | None, *, is_interactive: bool) -> None:
        self._total_bytes = total_bytes
        self._progress: Progress | None = None
        self._refreshed_at = 0.0
        self._read_bytes = 0
        self._is_shown = sys.stderr.isatty() and not is_interactive

    def __enter__(self) -> Self:
        if self._is_shown:
            # Imported here: only a terminal needs rich.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

            bar = () if self._total_bytes is None else (BarColumn(bar_width=30), TaskProgressColumn())
            self._progress = Progress(
                SpinnerColumn(), *bar, TextColumn("{task.description}"), console=Console(stderr=True), transient=True
            )
            self._progress.add_task("", total=self._total_bytes)
            self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def advance(self, read_bytes: int, records: int, seconds: float) -> None:
        """Add `read_bytes` to the progress; `records` were sent in total."""
        self._read_bytes += read_bytes
        if self._progress is None or time.monotonic() - self._refreshed_at < _REFRESH_SECONDS:
            return
        self._refreshed_at = time.monotonic()
        rate = records / seconds if seconds else 0.0
        self._progress.update(
            self._progress.task_ids[0],
            completed=self._read_bytes,
            description=f"{records:,} records, {_bytes_text(self._read_bytes)}, {rate:,.0f}/s",
        )


def _summary(facts: dict[str, Any]) -> str:
    seconds = facts["seconds"]
    text = f"sent {count_text(facts['records'], 'record')} ({_bytes_text(facts['bytes'])}) to {facts['topic']}"
    if facts["transactions"] is not None:
        text += f" in {count_text(facts['transactions'], 'transaction')}"
    return f"{text}, {seconds:,.2f} s ({facts['records'] / max(seconds, 1e-9):,.0f} records/s)"


def _bytes_text(size: int) -> str:
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= unit_bytes:
            return f"{size / unit_bytes:,.1f} {unit}"
    return f"{size} B"
