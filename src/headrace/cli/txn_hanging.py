"""headrace txn find-hanging, and aborting what it finds: past the coordinator, partition by partition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.confirming import is_confirmed
from headrace.cli.connection import Connection, connection_options
from headrace.cli.output import (
    CommandError,
    command_errors,
    debug_option,
    emit,
    format_option,
)
from headrace.cli.tables import table
from headrace.cli.times import parse_duration_ms
from headrace.client.facts.times import duration_ms

if TYPE_CHECKING:
    from headrace.client.admin import AdminClient, TopicPartition

HANGING_AGE = "15m"
"""What brokers allow a transaction to take by default (transaction.max.timeout.ms)."""


@click.command(name="find-hanging")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:PARTITIONS]", help="As orders or orders:0,2. [default: all]"
)
@click.option("--broker", "broker_id", type=int, metavar="ID", help="Only in partitions that this broker leads.")
@click.option("--max-age", default=HANGING_AGE, show_default=True, metavar="TIME", help="What is younger may yet end.")
@connection_options
@format_option
@debug_option
@command_errors
def find_hanging(
    connection: Connection,
    topics: tuple[str, ...],
    broker_id: int | None,
    max_age: str,
    output_format: str,
    debug: bool,
) -> None:
    """Find transactions that are open in a partition, and of which no coordinator knows any more.

    Such a one is never ended: readers of committed records wait in front of it for ever. Asked are the leaders of
    all partitions, or of those that are named; what has had a record written later than --max-age ago is left out.

    \b
    Exit codes: 0 done, whether there are any or not; 1 it failed; 2 wrong usage; 3 there is no such topic or broker;
    130 interrupted.
    """
    from headrace.client.facts.hanging import facts_of

    age_ms = parse_duration_ms(max_age, "--max-age")
    with connection.admin() as admin:
        partitions = _partitions(admin, topics, broker_id)
        found = admin.find_hanging_transactions(partitions, older_than_ms=age_ms) if partitions else []
    facts = [facts_of(one, time.time() * 1000) for one in found]
    emit(output_format, {"partitions": len(partitions), "hanging": facts}, _hanging_text(facts, len(partitions)))


def _partitions(admin: AdminClient, topics: tuple[str, ...], broker_id: int | None) -> list[TopicPartition]:
    from headrace.cli.partitions import named_partitions
    from headrace.client.facts.hanging import led_by
    from headrace.client.facts.partitions import existing_partitions

    if topics:
        found = named_partitions(admin, topics)
    else:
        found = sorted(existing_partitions(admin, admin.list_topics(internal=True)))
    return found if broker_id is None else led_by(admin, found, broker_id)


def _hanging_text(facts: list[dict[str, Any]], partitions: int) -> str:
    if not facts:
        return f"no transaction hangs ({partitions:,} partitions were looked at)"
    rows = [
        (
            fact["topic"],
            fact["partition"],
            str(fact["start_offset"]),
            str(fact["producer_id"]),
            duration_ms(fact["age_ms"]),
        )
        for fact in facts
    ]
    first = facts[0]
    return "\n".join(
        [
            table(("topic", "partition", "start offset", "producer", "last written"), rows),
            f"headrace txn abort --topic {first['topic']} --partition {first['partition']} "
            f"--start-offset {first['start_offset']} aborts the first of them",
        ]
    )


def abort_in_partition(
    admin: AdminClient, topic: str, partition: int, start_offset: int, yes: bool, output_format: str
) -> None:
    from headrace.client.admin import TopicPartition
    from headrace.client.facts.hanging import abort_hanging, hanging_at

    tp = TopicPartition(topic, partition)
    producer = hanging_at(admin, tp, start_offset)
    if not is_confirmed(f"Abort the transaction of producer {producer.producer_id} at offset {start_offset}?", yes):
        raise CommandError("nothing was aborted")
    abort_hanging(admin, tp, producer)
    facts = {"topic": topic, "partition": partition, "start_offset": start_offset, "producer_id": producer.producer_id}
    emit(output_format, {"aborted": facts}, f"aborted in {tp}, from offset {start_offset} on")
