"""headrace consume: print the records of topics, as values, JSON, in full or by a template."""

from __future__ import annotations

import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from headrace.cli.connection import CLIENT_ID, ClusterConnection, connection_options
from headrace.cli.errors import CommandError, InvalidUsageError, command_errors
from headrace.cli.offset_ranges import BoundRange, parse_partitions, parse_range
from headrace.cli.output import count_text, debug_option
from headrace.cli.record_formats import TypedOutput, format_options, serde_options, typed_line
from headrace.cli.record_json import to_line
from headrace.cli.shared_options import parse_flag, unescape
from headrace.cli.signals import deferred_signals
from headrace.client.text_formats import RecordFilter, parse_header, parse_pattern, record_filters
from headrace.wire.layout import NO_TIMESTAMP, Record

if TYPE_CHECKING:
    from headrace.cli.group_reader import GroupReader
    from headrace.cli.record_reader import RecordReader

Formatter = Callable[[str, int, Record, bool], bytes]
"""Topic, partition, record, whether its timestamp is the append time → the bytes to print."""
BatchFormatter = Callable[[str, int, Sequence[Record], bool], bytes]
"""The same for the records of a batch."""
_GROUP_DEFAULTS = {"client.id": CLIENT_ID, "isolation.level": "read_committed", "allow.auto.create.topics": "false"}
_NULL_SIZE = -1
_length = struct.Struct(">i")
_DIRECTIVE = re.compile(rb"%(.?)", re.DOTALL)
_DIRECTIVES: dict[bytes, Callable[[str, int, Record], bytes]] = {
    b"%": lambda topic, partition, record: b"%",
    b"t": lambda topic, partition, record: topic.encode(),
    b"p": lambda topic, partition, record: b"%d" % partition,
    b"o": lambda topic, partition, record: b"%d" % record.offset,
    b"T": lambda topic, partition, record: b"%d" % record.timestamp,
    b"k": lambda topic, partition, record: record.key or b"",
    b"K": lambda topic, partition, record: b"%d" % _size(record.key),
    b"s": lambda topic, partition, record: record.value or b"",
    b"S": lambda topic, partition, record: b"%d" % _size(record.value),
    b"R": lambda topic, partition, record: _length.pack(_size(record.value)),
    b"h": lambda topic, partition, record: _headers(record),
}


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1)
@click.option("-p", "--partitions", metavar="N", multiple=True, help="0, 0,2 or 1-3; repeatable. [default: all]")
@click.option(
    "-o",
    "--offsets",
    metavar="RANGE",
    help="Range in each partition: start, end, 5, -5 (the last 5), +5 (5 after the start), 5:10, :end, @TIME, "
    "@TIME:@TIME. [default: start]",
)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after printing N records.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new records until Ctrl-C. [default: stop at the end]")
@click.option(
    "-g",
    "--group",
    metavar="NAME",
    help="Join the group: read what it assigns, from its offsets on, and commit those of printed records.",
)
@click.option("--pattern", metavar="REGEX", help="With --group, instead of TOPIC: all topics whose whole name matches.")
@click.option(
    "--from",
    "reset_policy",
    metavar="POLICY",
    help="With --group, where to start without a committed offset: earliest, latest, by_duration:PT1H (the last hour), "
    "or none, which is an error. [default: earliest]",
)
@click.option(
    "--protocol",
    type=click.Choice(["classic", "consumer"]),
    help="With --group, its protocol: classic, or consumer (KIP-848). [default: classic]",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    help="Skip or show uncommitted records. [default: read_committed]",
)
@click.option("--key-match", metavar="REGEX", help="Print only records whose key matches.")
@click.option("--value-match", metavar="REGEX", help="Print only records whose value matches.")
@click.option("--header", "headers", metavar="NAME[=VALUE]", multiple=True, help="Print only records with this header.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "full"]),
    default="text",
    show_default=True,
    help="The value on a line; a line of JSON, as accepted by `produce --format json`; all fields.",
)
@click.option("--template", metavar="TEXT", help=r"Like kcat's -f: '%t %p %o %k %s\n', also %T %h %K %S %R %%.")
@format_options
@click.option(
    "--reader-schema",
    metavar="SCHEMA",
    help="Convert values to the latest version of the schema, or a version. [default: as they were written]",
)
@connection_options
@debug_option
@command_errors
def consume(
    *,
    connection: ClusterConnection,
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    offsets: str | None,
    count: int | None,
    follow: bool,
    group: str | None,
    pattern: str | None,
    reset_policy: str | None,
    protocol: str | None,
    isolation: str | None,
    key_match: str | None,
    value_match: str | None,
    headers: tuple[str, ...],
    output_format: str,
    template: str | None,
    value_format: str | None,
    key_format: str | None,
    registry_url: str | None,
    reader_schema: str | None,
    debug: bool,
) -> None:
    """Print the records of a TOPIC, from the start to the current end.

    With --group, the command shares the partitions with the other members of the group, and stops at the end of those
    that it got. It reports its partitions on stderr.

    TIME is milliseconds since 1970 or ISO 8601, such as 2026-11-16T12:00:00Z. Records are ordered within each
    partition. Text prints null and empty values alike; JSON distinguishes them, and prints bytes that are not UTF-8 as
    base64.

    \b
    headrace consume orders -n 5 --format full
    headrace consume orders -o -1 -f
    headrace consume orders payments -g billing -f
    headrace consume orders -o @2026-11-16T12:00:00Z:@2026-11-16T13:00:00Z --value-match 'total'
    headrace consume orders --value-format avro --schema-registry http://localhost:8081
    headrace consume a --format json -o :end | headrace produce b --format json

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no such topic or partition, or no broker; 130 interrupted.
    """
    selection = _Selection(topics, partitions, offsets, group, pattern, reset_policy, protocol)
    selection.check()
    if template is not None and output_format != "text":
        raise InvalidUsageError("--template and --format are mutually exclusive")
    filters = record_filters(
        None if key_match is None else parse_flag("--key-match", parse_pattern, key_match),
        None if value_match is None else parse_flag("--value-match", parse_pattern, value_match),
        [parse_flag("--header", parse_header, text) for text in headers],
    )
    formatter = _formatter(output_format, template)
    typed_options = serde_options(connection, registry_url, {"key": key_format, "value": value_format})
    if reader_schema is not None:
        typed_options["reader.schema"] = reader_schema
    typed = TypedOutput(typed_options) if typed_options else None
    batch_formatter = _joined(formatter) if typed is None else _typed(formatter, typed)
    overrides = {} if isolation is None else {"isolation.level": isolation}
    opened = _group_reader if group is not None else _range_reader
    with opened(connection, selection, filters, overrides, follow=follow) as reader:
        _print_records(reader, batch_formatter, count)
        if not reader.matched_count:
            click.echo(reader.empty_result_text(), err=True)
    if typed is not None and typed.failed_count:
        raise CommandError(f"{count_text(typed.failed_count, 'record')} could not be decoded; see above")


@dataclass(frozen=True, slots=True)
class _Selection:
    """The flags that select what is read."""

    topics: tuple[str, ...]
    partitions: tuple[str, ...]
    offsets: str | None
    group: str | None
    pattern: str | None
    reset_policy: str | None
    protocol: str | None

    def check(self) -> None:
        """Refuse flags that contradict each other."""
        if self.group is None:
            flags = {"--pattern": self.pattern, "--from": self.reset_policy, "--protocol": self.protocol}
            for flag in (flag for flag, value in flags.items() if value is not None):
                raise InvalidUsageError(f"{flag} needs --group")
            if not self.topics:
                raise InvalidUsageError("no TOPIC was given")
            return
        if (self.pattern is None) == (not self.topics):
            raise InvalidUsageError("--group needs either TOPIC or --pattern")
        if self.offsets is not None:
            raise InvalidUsageError(
                "--group and --offsets are mutually exclusive: the group's offsets set the start; --from sets it for "
                "partitions without one"
            )
        if self.partitions:
            raise InvalidUsageError("--group and --partitions are mutually exclusive: the group assigns the partitions")


@contextmanager
def _range_reader(
    connection: ClusterConnection,
    selection: _Selection,
    filters: Sequence[RecordFilter],
    overrides: Mapping[str, str],
    *,
    follow: bool,
) -> Iterator[RecordReader]:
    """Yield a reader of ranges of partitions."""
    # Imported here and below: pyarrow, which invalid usage and --help should not wait for.
    from headrace.cli.record_reader import RecordReader, resolve_ranges, select_partitions

    bounds = BoundRange() if selection.offsets is None else parse_range(selection.offsets)
    numbers = parse_partitions(selection.partitions) if selection.partitions else set()
    with connection.client() as client:
        fetcher = connection.fetcher(client, overrides)
        selected = select_partitions(client, selection.topics, numbers)
        yield RecordReader(fetcher, resolve_ranges(fetcher, selected, bounds, follow=follow), filters)


@contextmanager
def _group_reader(
    connection: ClusterConnection,
    selection: _Selection,
    filters: Sequence[RecordFilter],
    overrides: Mapping[str, str],
    *,
    follow: bool,
) -> Iterator[GroupReader]:
    """Yield a member of a group. At the end it commits the offsets of printed records, and leaves the group."""
    from headrace.cli.group_reader import GroupReader
    from headrace.cli.record_reader import select_partitions

    assert selection.group is not None
    if selection.pattern is not None and selection.protocol != "consumer":  # a broker's patterns are those of RE2
        parse_flag("--pattern", parse_pattern, selection.pattern)
    options = {**overrides, "group.id": selection.group, "enable.auto.commit": "false"}
    options["auto.offset.reset"] = selection.reset_policy or "earliest"
    if selection.protocol is not None:
        options["group.protocol"] = selection.protocol
    with connection.client() as client:
        select_partitions(client, selection.topics, set())  # A consumer would wait for topics that do not exist.
    with connection.consumer(options, _GROUP_DEFAULTS) as consumer:
        reader = GroupReader(consumer, filters, follow=follow)
        consumer.subscribe(selection.topics or None, pattern=selection.pattern, listener=reader)
        with deferred_signals(reader.stop):
            try:
                yield reader
            finally:
                reader.commit()


def _print_records(reader: RecordReader | GroupReader, formatter: BatchFormatter, count: int | None) -> None:
    """Print what the reader returns. Records have left this process when the next poll begins."""
    out = sys.stdout.buffer
    for poll in reader.polls(count):
        for (topic, partition), is_append_time, records in poll:
            out.write(formatter(topic, partition, records, is_append_time))
        out.flush()


# -- formats ---------------------------------------------------------------------------------------


def _formatter(output_format: str, template: str | None) -> Formatter:
    if template is not None:
        return _template_formatter(template)
    return {"text": _value, "json": _json, "full": _full}[output_format]


def _joined(formatter: Formatter) -> BatchFormatter:
    def formatted(topic: str, partition: int, records: Sequence[Record], is_append_time: bool) -> bytes:
        return b"".join([formatter(topic, partition, record, is_append_time) for record in records])

    return formatted


def _typed(formatter: Formatter, typed: TypedOutput) -> BatchFormatter:
    """Print decoded records; one that cannot be decoded is an error on stderr, and in JSON also null with the error."""

    def formatted(topic: str, partition: int, records: Sequence[Record], is_append_time: bool) -> bytes:
        lines = []
        for printable in typed.decode(topic, partition, records):
            for text in printable.errors:
                click.echo(f"error: {text}", err=True)
            if formatter is _json:
                lines.append(typed_line(topic, partition, printable, is_append_time=is_append_time))
            elif not printable.errors:
                lines.append(formatter(topic, partition, printable.record, is_append_time))
        return b"".join(lines)

    return formatted


def _value(topic: str, partition: int, record: Record, is_append_time: bool) -> bytes:
    return (record.value or b"") + b"\n"


def _json(topic: str, partition: int, record: Record, is_append_time: bool) -> bytes:
    return to_line(topic, partition, record, is_append_time=is_append_time)


def _full(topic: str, partition: int, record: Record, is_append_time: bool) -> bytes:
    """Format all fields of a record, on several lines."""
    lines = [f"{topic}-{partition} at {record.offset}, {_time(record.timestamp, is_append_time)}".encode()]
    lines += [b"  header %s: %s" % (name.encode(), _printable(value)) for name, value in record.headers]
    lines.append(b"  key: " + _printable(record.key))
    lines.append(b"  value: " + _printable(record.value))
    return b"\n".join(lines) + b"\n"


def _time(timestamp: int, is_append_time: bool) -> str:
    if timestamp == NO_TIMESTAMP:
        return "no timestamp"
    try:
        text = datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):  # a producer may send any number
        text = f"{timestamp} ms"
    return f"{text} ({'append' if is_append_time else 'create'} time)"


def _printable(data: bytes | None) -> bytes:
    """Return UTF-8 unchanged, and other bytes as a Python literal."""
    if data is None:
        return b"null"
    try:
        data.decode()
    except UnicodeDecodeError:
        return f"{len(data):,} bytes {data!r}".encode()
    return data


def _size(data: bytes | None) -> int:
    return _NULL_SIZE if data is None else len(data)


def _headers(record: Record) -> bytes:
    return b",".join(b"%s=%s" % (name.encode(), b"NULL" if value is None else value) for name, value in record.headers)


def _template_formatter(template: str) -> Formatter:
    pattern = unescape(template, "--template")
    pieces: list[bytes | Callable[[str, int, Record], bytes]] = []
    position = 0
    for match in _DIRECTIVE.finditer(pattern):
        if match[1] not in _DIRECTIVES:
            supported = " ".join(f"%{name.decode()}" for name in _DIRECTIVES)
            raise InvalidUsageError(
                f"--template: unknown directive %{match[1].decode('latin-1')}; supported: {supported}"
            )
        pieces += [pattern[position : match.start()], _DIRECTIVES[match[1]]]
        position = match.end()
    pieces.append(pattern[position:])

    def formatted(topic: str, partition: int, record: Record, is_append_time: bool) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(topic, partition, record) for piece in pieces)

    return formatted
