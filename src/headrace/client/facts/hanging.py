"""Hanging transactions: open in a partition, but unknown to their coordinator.

A hanging transaction never ends, and read_committed consumers stop before it for ever. It is aborted partition by
partition, with a marker that bypasses the coordinator; that must not be done while a coordinator manages it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.client.admin import ActiveProducer, AdminClient, HangingTransaction, TopicPartition
from headrace.client.admin.transactions import UNDER_WAY
from headrace.client.facts.transactions import described
from headrace.errors import IllegalStateError, NotFoundError


def facts_of(transaction: HangingTransaction, now_ms: float) -> dict[str, Any]:
    """Return a hanging transaction as plain values, with the stable names of the JSON output."""
    return {
        "topic": transaction.partition.topic,
        "partition": transaction.partition.partition,
        "start_offset": transaction.producer.transaction_start_offset,
        "producer_id": transaction.producer.producer_id,
        "producer_epoch": transaction.producer.producer_epoch,
        "coordinator_epoch": transaction.producer.coordinator_epoch,
        "last_timestamp": transaction.producer.last_timestamp,
        "age_ms": int(now_ms - transaction.producer.last_timestamp),
    }


def hanging_at(admin: AdminClient, tp: TopicPartition, start_offset: int) -> ActiveProducer:
    """Return the producer of the hanging transaction at an offset; raises if there is none, or if it is not hanging."""
    producer = _open_at(admin, tp, start_offset)
    owner = _managing_id(admin, tp, producer)
    if owner is not None:
        raise IllegalStateError(
            f"the transaction in {tp} is not hanging: its coordinator manages it for {owner!r}. Abort it by that id"
        )
    return producer


def abort_hanging(admin: AdminClient, tp: TopicPartition, producer: ActiveProducer) -> None:
    """Write an abort marker to this partition."""
    admin.abort_transaction(tp, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)


def led_by(admin: AdminClient, partitions: Iterable[TopicPartition], broker_id: int) -> list[TopicPartition]:
    """Return the partitions that a broker leads."""
    brokers = [broker.node_id for broker in admin.describe_cluster().brokers]
    if broker_id not in brokers:
        raise NotFoundError(f"broker {broker_id} does not exist; the brokers are {', '.join(map(str, brokers))}")
    partitions = list(partitions)
    leaders = {
        TopicPartition(name, info.partition): info.leader
        for name, topic in admin.describe_topics({tp.topic for tp in partitions}).items()
        for info in topic.partitions
    }
    return [tp for tp in partitions if leaders.get(tp) == broker_id]


def _open_at(admin: AdminClient, tp: TopicPartition, start_offset: int) -> ActiveProducer:
    producers = admin.describe_producers([tp])[tp]
    opened = [producer for producer in producers if producer.transaction_start_offset is not None]
    for producer in opened:
        if producer.transaction_start_offset == start_offset:
            return producer
    starts = ", ".join(str(producer.transaction_start_offset) for producer in opened)
    fact = f"open transactions start at {starts}" if starts else "no transaction is open"
    raise NotFoundError(f"no open transaction in {tp} starts at offset {start_offset}: {fact}")


def _managing_id(admin: AdminClient, tp: TopicPartition, producer: ActiveProducer) -> str | None:
    """Return the transactional id whose coordinator manages the transaction; None if it is hanging."""
    for listing in admin.list_transactions(producer_ids=[producer.producer_id]):
        known = described(admin, listing.transactional_id)
        if known is not None and known.state in UNDER_WAY and tp in known.partitions:
            return listing.transactional_id
    return None
