"""headrace consume: records of topics, printed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from headrace.cli.connection import Connection, connection_options
from headrace.cli.output import WrongUsageError, command_errors, debug_option

if TYPE_CHECKING:
    from headrace.cli.consume_output import Printer
    from headrace.cli.reading import GroupOffsets, Reading


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-p", "--partitions", metavar="N", multiple=True, help="As 0, 0,2 or 1-3; repeatable. [default: all]")
@click.option(
    "-o",
    "--offsets",
    metavar="RANGE",
    help="start, end, 5, -5 (the last 5), +5 (5 after the start), 5:10, :end, @TIME, @TIME:@TIME; "
    "of each partition. [default: start]",
)
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="Stop after N records were printed.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C. [default: stop at the end]")
@click.option("-g", "--group", metavar="NAME", help="Begin where the group is, and commit what was printed.")
@click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    help="Leave out what is not committed, or show it. [default: read_committed]",
)
@click.option("--key-match", metavar="REGEX", help="Only records with such a key.")
@click.option("--value-match", metavar="REGEX", help="Only records with such a value.")
@click.option("--header", "headers", metavar="NAME[=VALUE]", multiple=True, help="Only records with it; repeatable.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json", "full"]),
    default="text",
    show_default=True,
    help="A line with the value; a line of JSON, which `produce --format json` takes; all there is, for people.",
)
@click.option("--template", metavar="TEXT", help=r"As kcat's -f: '%t %p %o %k %s\n', also %T %h %K %S %R %%.")
@connection_options
@debug_option
@command_errors
def consume(
    connection: Connection,
    topics: tuple[str, ...],
    partitions: tuple[str, ...],
    offsets: str | None,
    count: int | None,
    follow: bool,
    group: str | None,
    isolation: str | None,
    key_match: str | None,
    value_match: str | None,
    headers: tuple[str, ...],
    output_format: str,
    template: str | None,
    debug: bool,
) -> None:
    """Print the records of a TOPIC, from the start to the end as it is now.

    TIME is milliseconds since 1970 or ISO 8601, as 2026-11-16T12:00:00Z. The order is that of each partition. In text,
    null looks as empty does; JSON tells them apart, and shows bytes that are no text as base64.

    \b
    headrace consume orders -n 5 --format full
    headrace consume orders -o -1 -f
    headrace consume orders -o @2026-11-16T12:00:00Z:@2026-11-16T13:00:00Z --value-match 'total'
    headrace consume a --format json -o :end | headrace produce b --format json

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 there is no such topic or partition, or no broker;
    130 interrupted.
    """
    from headrace.cli.consume_output import printer_for
    from headrace.cli.filters import filters_of
    from headrace.cli.offset_ranges import OffsetRange, parse_partitions, parse_range
    from headrace.cli.reading import GroupOffsets, Reading, partitions_of, spans_of

    if group is not None and offsets is not None:
        raise WrongUsageError("--group and --offsets exclude each other: the group says where to begin")
    if template is not None and output_format != "text":
        raise WrongUsageError("--template and --format exclude each other")
    wanted = OffsetRange() if offsets is None else parse_range(offsets)
    numbers = parse_partitions(partitions) if partitions else set()
    matches = filters_of(key_match, value_match, headers)
    printer = printer_for(output_format, template)
    overrides = {} if isolation is None else {"isolation_level": isolation}
    with connection.client() as client:
        fetcher = connection.fetcher(client, **overrides)
        chosen = partitions_of(client, topics, numbers)
        committing = None if group is None else GroupOffsets(client, group)
        spans = spans_of(fetcher, chosen, wanted, follow=follow)
        if committing is not None:
            committing.begin(spans)
        reading = Reading(fetcher, spans, matches)
        _print_all(reading, printer, count, committing)
    if not reading.matched:
        click.echo(reading.nothing_matched(), err=True)


def _print_all(reading: Reading, printer: Printer, count: int | None, committing: GroupOffsets | None) -> None:
    """Print what is read; committed is what has left this process."""
    out = sys.stdout.buffer
    printed = reading.positions()
    try:
        for poll in reading.polls(count):
            for (topic, partition), is_append_time, records in poll:
                out.write(b"".join([printer(topic, partition, record, is_append_time) for record in records]))
            out.flush()
            printed = reading.positions()
            if committing is not None:
                committing.commit(printed, now=False)
    finally:
        if committing is not None:
            committing.commit(printed, now=True)
