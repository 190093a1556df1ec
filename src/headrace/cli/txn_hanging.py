"""headrace txn find-hanging, and aborting what it finds: past the coordinator, partition by partition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.confirming import is_confirmed
from headrace.cli.connection import Connection, connection_options
from headrace.cli.output import (
    CommandError,
    NotFoundError,
    command_errors,
    debug_option,
    emit,
    format_option,
)
from headrace.cli.tables import duration, table
from headrace.cli.times import parse_duration_ms

if TYPE_CHECKING:
    from headrace.client.admin import ActiveProducer, AdminClient, TopicPartition

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
    age_ms = parse_duration_ms(max_age, "--max-age")
    with connection.admin() as admin:
        partitions = _partitions(admin, topics, broker_id)
        found = admin.find_hanging_transactions(partitions, older_than_ms=age_ms) if partitions else []
    now_ms = time.time() * 1000
    facts = [
        {
            "topic": one.partition.topic,
            "partition": one.partition.partition,
            "start_offset": one.producer.transaction_start_offset,
            "producer_id": one.producer.producer_id,
            "producer_epoch": one.producer.producer_epoch,
            "coordinator_epoch": one.producer.coordinator_epoch,
            "last_timestamp": one.producer.last_timestamp,
            "age_ms": int(now_ms - one.producer.last_timestamp),
        }
        for one in found
    ]
    emit(output_format, {"partitions": len(partitions), "hanging": facts}, _hanging_text(facts, len(partitions)))


def _partitions(admin: AdminClient, topics: tuple[str, ...], broker_id: int | None) -> list[TopicPartition]:
    from headrace.cli.partitions import existing_partitions, named_partitions
    from headrace.client.admin import TopicPartition

    if topics:
        found = named_partitions(admin, topics)
    else:
        found = sorted(existing_partitions(admin, admin.list_topics(internal=True)))
    if broker_id is None:
        return found
    brokers = [broker.node_id for broker in admin.describe_cluster().brokers]
    if broker_id not in brokers:
        raise NotFoundError(f"there is no broker {broker_id}; there are {', '.join(map(str, brokers))}")
    described = admin.describe_topics({tp.topic for tp in found})
    led = {
        TopicPartition(name, info.partition)
        for name, topic in described.items()
        for info in topic.partitions
        if info.leader == broker_id
    }
    return [tp for tp in found if tp in led]


def _hanging_text(facts: list[dict[str, Any]], partitions: int) -> str:
    if not facts:
        return f"no transaction hangs ({partitions:,} partitions were looked at)"
    rows = [
        (
            fact["topic"],
            fact["partition"],
            str(fact["start_offset"]),
            str(fact["producer_id"]),
            duration(fact["age_ms"] / 1000),
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

    tp = TopicPartition(topic, partition)
    producer = _open_at(admin, tp, start_offset)
    _refuse_if_looked_after(admin, tp, producer)
    if not is_confirmed(f"Abort the transaction of producer {producer.producer_id} at offset {start_offset}?", yes):
        raise CommandError("nothing was aborted")
    admin.abort_transaction(tp, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
    facts = {"topic": topic, "partition": partition, "start_offset": start_offset, "producer_id": producer.producer_id}
    emit(output_format, {"aborted": facts}, f"aborted in {tp}, from offset {start_offset} on")


def _open_at(admin: AdminClient, tp: TopicPartition, start_offset: int) -> ActiveProducer:
    opened = [one for one in admin.describe_producers([tp])[tp] if one.transaction_start_offset is not None]
    for producer in opened:
        if producer.transaction_start_offset == start_offset:
            return producer
    starts = ", ".join(str(one.transaction_start_offset) for one in opened)
    what = f"those open there begin at {starts}" if starts else "none is open there"
    raise NotFoundError(f"no transaction that is open in {tp} begins at offset {start_offset}: {what}")


def _refuse_if_looked_after(admin: AdminClient, tp: TopicPartition, producer: ActiveProducer) -> None:
    """A marker past a coordinator that still has plans with the transaction would tear it apart."""
    from headrace.cli.txn_facts import UNDER_WAY, described

    for listing in admin.list_transactions(producer_ids=[producer.producer_id]):
        known = described(admin, listing.transactional_id)
        if known is not None and known.state in UNDER_WAY and tp in known.partitions:
            raise CommandError(
                f"the transaction in {tp} does not hang: it is that of {listing.transactional_id!r}, which its "
                f"coordinator looks after. `headrace txn abort {listing.transactional_id}` aborts it"
            )
