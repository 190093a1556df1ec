"""headrace txn: list, describe, abort, find-hanging."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import LazyModule
from headrace.cli.connection import ClusterConnection, cluster_command
from headrace.cli.errors import CommandError, InvalidUsageError, ResourceNotFoundError
from headrace.cli.output import emit, render_table
from headrace.cli.shared_options import confirm, parse_duration_ms, parse_topic_partitions, yes_option
from headrace.client.text_formats import format_duration_ms, format_time
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient, TransactionDescription
    from headrace.client.admin import transactions as transaction_admin
    from headrace.client.queries import topics as topic_queries
    from headrace.client.queries import transactions
else:
    topic_queries = LazyModule("headrace.client.queries.topics")
    transaction_admin = LazyModule("headrace.client.admin.transactions")
    transactions = LazyModule("headrace.client.queries.transactions")

HANGING_AGE = "15m"
"""The default transaction.max.timeout.ms of brokers."""


@click.group()
def txn() -> None:
    """Show transactions, find hanging ones, abort them.

    \b
    Exit codes of all subcommands: 0 success; 1 failure; 2 invalid usage; 3 no such transaction or topic, or no
    broker; 130 interrupted.
    """


@txn.command(name="list")
@click.option("--state", "states", multiple=True, metavar="NAME", help="Only this state: Ongoing, …; repeatable.")
@click.option("--older-than", metavar="TIME", help="Only transactions open for longer than this, such as 30s, 15m, 2h.")
@cluster_command
def list_(
    connection: ClusterConnection,
    states: tuple[str, ...],
    older_than: str | None,
    output_format: str,
) -> None:
    """List all transactional ids: state, producer, and how long a transaction has been open.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no broker; 130 interrupted.
    """
    age_ms_min = None if older_than is None else parse_duration_ms(older_than, "--older-than")
    with connection.admin() as admin:
        listings = admin.list_transactions(states)
        ages_ms = {
            listing.transactional_id: transactions.transaction_age_ms(
                transactions.describe_transaction(admin, listing.transactional_id)
            )
            for listing in listings
            if listing.state in transaction_admin.UNDER_WAY
        }
    facts: list[dict[str, Any]] = [
        {
            "transactional_id": listing.transactional_id,
            "state": listing.state,
            "producer_id": listing.producer_id,
            "age_ms": ages_ms.get(listing.transactional_id),
        }
        for listing in listings
    ]
    if age_ms_min is not None:
        facts = [fact for fact in facts if fact["age_ms"] is not None and fact["age_ms"] >= age_ms_min]
    rows = [
        (fact["transactional_id"], fact["state"], str(fact["producer_id"]), format_duration_ms(fact["age_ms"]))
        for fact in facts
    ]
    text = render_table(("id", "state", "producer", "open for"), rows) if rows else "no transactions"
    emit(output_format, {"transactions": facts}, text)


@txn.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@cluster_command
def describe(connection: ClusterConnection, ids: tuple[str, ...], output_format: str) -> None:
    """Show the state, producer, timeout and partitions of a transactional ID.

    With several ids, JSON has a line for each.

    \b
    Exit codes: 0 success; 1 failure; 2 invalid usage; 3 no such id, or no broker; 130 interrupted.
    """
    with connection.admin() as admin:
        for transactional_id in ids:
            transaction = _existing_transaction(admin, transactional_id)
            emit(
                output_format, transactions.transaction_to_json(transaction), "\n".join(_description_lines(transaction))
            )


def _existing_transaction(admin: AdminClient, transactional_id: str) -> TransactionDescription:
    transaction = transactions.describe_transaction(admin, transactional_id)
    if transaction is None:
        raise ResourceNotFoundError(
            f"transactional id {transactional_id!r} does not exist; `headrace txn list` shows the existing ones"
        )
    return transaction


def _description_lines(transaction: TransactionDescription) -> Iterable[str]:
    age_ms, timeout_ms = transactions.transaction_age_ms(transaction), transaction.timeout_ms
    yield f"{transaction.transactional_id}: {transaction.state}"
    yield (f"  producer {transaction.producer_id}, epoch {transaction.producer_epoch}, timeout {timeout_ms / 1000:g} s")
    if age_ms is not None:
        remaining = f"{format_duration_ms(timeout_ms - age_ms)} left" if age_ms < timeout_ms else "timeout exceeded"
        yield f"  open since {format_time(transaction.start_ms)}, for {format_duration_ms(age_ms)}; {remaining}"
    if transaction.partitions:
        yield "  partitions: " + ", ".join(map(str, sorted(transaction.partitions)))


# -- abort -----------------------------------------------------------------------------------------


@txn.command()
@click.argument("transactional_id", metavar="[ID]", required=False)
@click.option("--topic", metavar="NAME", help="Instead of ID: the topic of a hanging transaction.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Its partition.")
@click.option("--start-offset", type=click.IntRange(0), metavar="N", help="Its first offset in the partition.")
@yes_option
@cluster_command
def abort(
    *,
    connection: ClusterConnection,
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
    output_format: str,
) -> None:
    """Abort the open transaction of an ID, or a hanging transaction in a partition.

    By ID: the producer that uses the id is fenced, and the coordinator aborts its transaction. By topic, partition and
    start offset, as reported by `txn find-hanging`: an abort marker is written to that partition, bypassing the
    coordinator; a transaction that a coordinator still manages is refused. Asks for confirmation at a terminal;
    elsewhere --yes is required.

    \b
    headrace txn abort orders-writer --yes
    headrace txn abort --topic orders --partition 0 --start-offset 1234 --yes

    \b
    Exit codes: 0 aborted; 1 failure, or not confirmed; 2 invalid usage; 3 no such open transaction, or no broker;
    130 interrupted.
    """
    location = (topic, partition, start_offset)
    if (transactional_id is None) == (location == (None, None, None)):
        raise InvalidUsageError("pass either ID, or --topic, --partition and --start-offset")
    with connection.admin() as admin:
        if transactional_id is not None:
            _abort_by_id(admin, transactional_id, yes, output_format)
        elif topic is None or partition is None or start_offset is None:
            raise InvalidUsageError("--topic, --partition and --start-offset must be given together")
        else:
            _abort_in_partition(admin, TopicPartition(topic, partition), start_offset, yes, output_format)


def _abort_by_id(admin: AdminClient, transactional_id: str, yes: bool, output_format: str) -> None:
    transaction = _existing_transaction(admin, transactional_id)
    if transaction.state not in transaction_admin.UNDER_WAY:
        raise ResourceNotFoundError(
            f"transactional id {transactional_id!r} has no open transaction: its state is {transaction.state}"
        )
    age = format_duration_ms(transactions.transaction_age_ms(transaction))
    question = (
        f"Abort the transaction of {transactional_id!r}, open for {age} "
        f"in {len(transaction.partitions)} partitions, and fence its producer?"
    )
    if not confirm(question, yes):
        raise CommandError("nothing was aborted")
    producer_id, epoch = admin.fence_producers([transactional_id])[transactional_id]
    facts = {"aborted": transactional_id, "producer_id": producer_id, "producer_epoch": epoch}
    emit(output_format, facts, f"aborted; the previous producer of {transactional_id!r} is fenced")


def _abort_in_partition(
    admin: AdminClient, tp: TopicPartition, start_offset: int, yes: bool, output_format: str
) -> None:
    producer = transactions.find_hanging(admin, tp, start_offset)
    if not confirm(f"Abort the transaction of producer {producer.producer_id} at offset {start_offset}?", yes):
        raise CommandError("nothing was aborted")
    transactions.abort_hanging(admin, tp, producer)
    facts = {
        "topic": tp.topic,
        "partition": tp.partition,
        "start_offset": start_offset,
        "producer_id": producer.producer_id,
    }
    emit(output_format, {"aborted": facts}, f"aborted in {tp}, from offset {start_offset}")


# -- find-hanging ----------------------------------------------------------------------------------


@txn.command(name="find-hanging")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITIONS]",
    help="Such as orders or orders:0,2. [default: all]",
)
@click.option("--broker", "broker_id", type=int, metavar="ID", help="Only partitions that this broker leads.")
@click.option("--max-age", default=HANGING_AGE, show_default=True, metavar="TIME", help="Ignore younger transactions.")
@cluster_command
def find_hanging(
    *,
    connection: ClusterConnection,
    topics: tuple[str, ...],
    broker_id: int | None,
    max_age: str,
    output_format: str,
) -> None:
    """Find transactions that are open in a partition but unknown to every coordinator.

    A hanging transaction never ends: read_committed consumers wait at its first offset forever. The leaders of all
    partitions are queried, or of those given; transactions with a record written within --max-age are ignored.

    \b
    Exit codes: 0 success, also if there are none; 1 failure; 2 invalid usage; 3 no such topic, or no broker;
    130 interrupted.
    """
    age_ms = parse_duration_ms(max_age, "--max-age")
    with connection.admin() as admin:
        if topics:
            searched = parse_topic_partitions(admin, topics)
        else:
            searched = sorted(topic_queries.existing_partitions(admin, admin.list_topics(internal=True)))
        if broker_id is not None:
            searched = transactions.led_by(admin, searched, broker_id)
        results = admin.find_hanging_transactions(searched, older_than_ms=age_ms) if searched else []
    facts = [transactions.hanging_transaction_to_json(transaction, time.time() * 1000) for transaction in results]
    emit(output_format, {"partitions": len(searched), "hanging": facts}, _hanging_text(facts, len(searched)))


def _hanging_text(facts: list[dict[str, Any]], partition_count: int) -> str:
    if not facts:
        return f"no hanging transactions in {partition_count:,} partitions"
    rows = [
        (
            fact["topic"],
            fact["partition"],
            str(fact["start_offset"]),
            str(fact["producer_id"]),
            format_duration_ms(fact["age_ms"]),
        )
        for fact in facts
    ]
    first = facts[0]
    return "\n".join(
        [
            render_table(("topic", "partition", "start offset", "producer", "last written"), rows),
            f"to abort the first one: headrace txn abort --topic {first['topic']} --partition {first['partition']} "
            f"--start-offset {first['start_offset']}",
        ]
    )
