"""headrace txn: list, describe, abort, find-hanging."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.confirming import is_confirmed, yes_option
from headrace.cli.connection import Connection, connection_options
from headrace.cli.output import (
    CommandError,
    NotFoundError,
    WrongUsageError,
    command_errors,
    debug_option,
    emit,
    format_option,
)
from headrace.cli.tables import table
from headrace.cli.times import parse_duration_ms
from headrace.cli.txn_facts import known, lines_of
from headrace.cli.txn_hanging import abort_in_partition, find_hanging
from headrace.client.facts.times import duration_ms

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient


@click.group()
def txn() -> None:
    """Look at transactions, find those that hang, and end them.

    \b
    Exit codes of all of them: 0 done; 1 it failed; 2 wrong usage; 3 there is no such transaction, topic or broker;
    130 interrupted.
    """


@txn.command(name="list")
@click.option("--state", "states", multiple=True, metavar="NAME", help="Only these: Ongoing, …; repeatable.")
@click.option("--older-than", metavar="TIME", help="Only those that have been open for longer, as 30s, 15m, 2h.")
@connection_options
@format_option
@debug_option
@command_errors
def list_(
    connection: Connection, states: tuple[str, ...], older_than: str | None, output_format: str, debug: bool
) -> None:
    """Show all transactional ids: state, producer, and how long what is open has been open.

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 no broker; 130 interrupted.
    """
    from headrace.client.admin.transactions import UNDER_WAY
    from headrace.client.facts.transactions import age_ms_of, described

    age_ms_min = None if older_than is None else parse_duration_ms(older_than, "--older-than")
    with connection.admin() as admin:
        listed = admin.list_transactions(states)
        ages = {
            one.transactional_id: age_ms_of(described(admin, one.transactional_id))
            for one in listed
            if one.state in UNDER_WAY
        }
    shown = [(one, ages.get(one.transactional_id)) for one in listed]
    if age_ms_min is not None:
        shown = [(one, age_ms) for one, age_ms in shown if age_ms is not None and age_ms >= age_ms_min]
    facts = [
        {
            "transactional_id": one.transactional_id,
            "state": one.state,
            "producer_id": one.producer_id,
            "age_ms": age_ms,
        }
        for one, age_ms in shown
    ]
    rows = [(one.transactional_id, one.state, str(one.producer_id), duration_ms(age_ms)) for one, age_ms in shown]
    text = table(("id", "state", "producer", "open for"), rows) if rows else "no transactions"
    emit(output_format, {"transactions": facts}, text)


@txn.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@connection_options
@format_option
@debug_option
@command_errors
def describe(connection: Connection, ids: tuple[str, ...], output_format: str, debug: bool) -> None:
    """Show state, producer, time-out and partitions of a transactional ID.

    With several ids, JSON has a line for each of them.

    \b
    Exit codes: 0 done; 1 it failed; 2 wrong usage; 3 there is no such id, or no broker; 130 interrupted.
    """
    from headrace.client.facts.transactions import facts_of

    with connection.admin() as admin:
        for transactional_id in ids:
            found = known(admin, transactional_id)
            emit(output_format, facts_of(found), "\n".join(lines_of(found)))


@txn.command()
@click.argument("transactional_id", metavar="[ID]", required=False)
@click.option("--topic", metavar="NAME", help="Instead of ID: the topic in which a transaction hangs.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Its partition.")
@click.option("--start-offset", type=click.IntRange(0), metavar="N", help="Where the transaction begins in it.")
@yes_option
@connection_options
@format_option
@debug_option
@command_errors
def abort(
    connection: Connection,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
    output_format: str,
    debug: bool,
) -> None:
    """Abort the open transaction of an ID, or one that hangs in a partition.

    By ID: whoever uses the id is shut out, and its coordinator aborts what it had open. By topic, partition and
    start offset, for what `txn find-hanging` has found: an abort marker is written into that partition, past the
    coordinator. A transaction that a coordinator still looks after is refused there. At a terminal it asks first;
    elsewhere --yes is needed.

    \b
    headrace txn abort orders-writer --yes
    headrace txn abort --topic orders --partition 0 --start-offset 1234 --yes

    \b
    Exit codes: 0 it is aborted; 1 it failed, or the answer was no; 2 wrong usage;
    3 no such transaction is open, or no broker; 130 interrupted.
    """
    place = (topic, partition, start_offset)
    if (transactional_id is None) == (place == (None, None, None)):
        raise WrongUsageError("either an ID or --topic, --partition and --start-offset are needed, and not both")
    with connection.admin() as admin:
        if transactional_id is not None:
            _abort_by_id(admin, transactional_id, yes, output_format)
        elif topic is None or partition is None or start_offset is None:
            raise WrongUsageError("--topic, --partition and --start-offset belong together: all three are needed")
        else:
            abort_in_partition(admin, topic, partition, start_offset, yes, output_format)


def _abort_by_id(admin: AdminClient, transactional_id: str, yes: bool, output_format: str) -> None:
    from headrace.client.admin.transactions import UNDER_WAY
    from headrace.client.facts.transactions import age_ms_of

    found = known(admin, transactional_id)
    if found.state not in UNDER_WAY:
        raise NotFoundError(f"transactional id {transactional_id!r} has nothing open: its state is {found.state}")
    question = (
        f"Abort the transaction of {transactional_id!r}, open for {duration_ms(age_ms_of(found))} in "
        f"{len(found.partitions)} partitions, and shut its producer out?"
    )
    if not is_confirmed(question, yes):
        raise CommandError("nothing was aborted")
    producer_id, epoch = admin.fence_producers([transactional_id])[transactional_id]
    facts = {"aborted": transactional_id, "producer_id": producer_id, "producer_epoch": epoch}
    emit(output_format, facts, f"aborted; who used {transactional_id!r} before is shut out")


txn.add_command(find_hanging)
