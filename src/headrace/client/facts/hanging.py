"""Transactions that are open in a partition, and of which no coordinator knows any more: finding and ending them.

Such a one never ends by itself: readers of committed records wait in front of it for ever. It is ended partition by
partition, by a marker past the coordinator; which must not be done to one that a coordinator still looks after.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.client.admin import ActiveProducer, AdminClient, HangingTransaction, TopicPartition
from headrace.client.admin.transactions import UNDER_WAY
from headrace.client.facts.transactions import described
from headrace.errors import IllegalStateError, NotFoundError


def facts_of(one: HangingTransaction, now_ms: float) -> dict[str, Any]:
    """As plain values: the names in them are stable, for they are printed as JSON."""
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "start_offset": one.producer.transaction_start_offset,
        "producer_id": one.producer.producer_id,
        "producer_epoch": one.producer.producer_epoch,
        "coordinator_epoch": one.producer.coordinator_epoch,
        "last_timestamp": one.producer.last_timestamp,
        "age_ms": int(now_ms - one.producer.last_timestamp),
    }


def hanging_at(admin: AdminClient, tp: TopicPartition, start_offset: int) -> ActiveProducer:
    """Who has the transaction that begins there. Raises if there is none, or if it does not hang."""
    producer = _open_at(admin, tp, start_offset)
    owner = _looked_after_by(admin, tp, producer)
    if owner is not None:
        raise IllegalStateError(
            f"the transaction in {tp} does not hang: it is that of {owner!r}, which its coordinator looks after. "
            "Abort it by that id"
        )
    return producer


def abort_hanging(admin: AdminClient, tp: TopicPartition, producer: ActiveProducer) -> None:
    """Write the marker that ends it in this partition."""
    admin.abort_transaction(tp, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)


def led_by(admin: AdminClient, partitions: Iterable[TopicPartition], broker_id: int) -> list[TopicPartition]:
    """Those of the partitions that a broker leads."""
    brokers = [broker.node_id for broker in admin.describe_cluster().brokers]
    if broker_id not in brokers:
        raise NotFoundError(f"there is no broker {broker_id}; there are {', '.join(map(str, brokers))}")
    partitions = list(partitions)
    leaders = {
        TopicPartition(name, info.partition): info.leader
        for name, topic in admin.describe_topics({tp.topic for tp in partitions}).items()
        for info in topic.partitions
    }
    return [tp for tp in partitions if leaders.get(tp) == broker_id]


def _open_at(admin: AdminClient, tp: TopicPartition, start_offset: int) -> ActiveProducer:
    opened = [one for one in admin.describe_producers([tp])[tp] if one.transaction_start_offset is not None]
    for producer in opened:
        if producer.transaction_start_offset == start_offset:
            return producer
    starts = ", ".join(str(one.transaction_start_offset) for one in opened)
    what = f"those open there begin at {starts}" if starts else "none is open there"
    raise NotFoundError(f"no transaction that is open in {tp} begins at offset {start_offset}: {what}")


def _looked_after_by(admin: AdminClient, tp: TopicPartition, producer: ActiveProducer) -> str | None:
    """The id whose coordinator still has plans with the transaction: a marker past it would tear that apart."""
    for listing in admin.list_transactions(producer_ids=[producer.producer_id]):
        known = described(admin, listing.transactional_id)
        if known is not None and known.state in UNDER_WAY and tp in known.partitions:
            return listing.transactional_id
    return None
