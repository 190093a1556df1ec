"""Transactions: those under way, those that hang, and ending them (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.client.blocking import Coordinator, CoordinatorKind
from headrace.client.offsets import by_topic
from headrace.types import TopicPartition
from headrace.wire.api.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.wire.api.describe_transactions import DescribeTransactionsRequest
from headrace.wire.api.init_producer_id import InitProducerIdRequest
from headrace.wire.api.list_transactions import ListTransactionsRequest
from headrace.wire.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.wire.schema import Message

TRANSACTION_MS_MAX = 15 * 60 * 1000
"""What brokers allow a transaction to take by default (transaction.max.timeout.ms)."""
FENCE_TIMEOUT_MS = 60_000
NONE_OPEN = -1
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States of a transaction that is open, or on its way to its end."""


@dataclass(slots=True, frozen=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str


@dataclass(slots=True, frozen=True)
class TransactionDescription:
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    partitions: frozenset[TopicPartition]


@dataclass(slots=True, frozen=True)
class ActiveProducer:
    """A producer as the leader of a partition knows it."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


@dataclass(slots=True, frozen=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator will ever end."""

    partition: TopicPartition
    producer: ActiveProducer


class TransactionAdmin(Admin):
    """Transactions."""

    def list_transactions(
        self, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[TransactionListing]:
        """The transactional ids of all coordinators, by name."""
        message = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
        answers = self.ask_every_broker(message, codes=lambda answer: [answer.error_code])
        raise_failures(Failure("the transactions of a broker", answer.error_code) for answer in answers)
        found = (
            TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
            for answer in answers
            for t in answer.transaction_states
        )
        return sorted(found, key=lambda transaction: transaction.transactional_id)

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """State, producer and partitions of transactional ids."""
        found = {}
        for transactional_id in transactional_ids:
            answer = self.client.ask(
                DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                _of_transaction(transactional_id),
                codes=lambda answer: [t.error_code for t in answer.transaction_states],
            )
            (t,) = answer.transaction_states
            raise_failures([Failure(f"transactional id {transactional_id!r}", t.error_code)])
            partitions = frozenset(TopicPartition(topic.topic, n) for topic in t.topics for n in topic.partitions)
            start_ms = t.transaction_start_time_ms if t.transaction_start_time_ms >= 0 else None
            found[transactional_id] = TransactionDescription(
                transactional_id,
                t.transaction_state,
                t.producer_id,
                t.producer_epoch,
                t.transaction_timeout_ms,
                start_ms,
                partitions,
            )
        return found

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer]]:
        """Who has written to partitions of late, and which transactions are open in them."""
        return self.client.ask_leaders((TopicPartition(*tp) for tp in partitions), _ask_producers, _read_producers)

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Shut out whoever uses these ids now, which aborts what they have open; the new producer ids and epochs."""
        found = {}
        for transactional_id in transactional_ids:
            # A request for a new epoch is answered once the open transaction is aborted.
            answer = self.client.ask(
                InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS),
                _of_transaction(transactional_id),
                versions=(0, 5),
                codes=lambda answer: [answer.error_code],
            )
            raise_failures([Failure(f"transactional id {transactional_id!r}", answer.error_code)])
            found[transactional_id] = (answer.producer_id, answer.producer_epoch)
        return found

    def abort_transaction(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int | None = None
    ) -> None:
        """Write an abort marker to one partition, past the coordinator: for transactions that hang, and only those."""
        partition = TopicPartition(*partition)

        def build(partitions: list[TopicPartition]) -> Message:
            topics = [
                WritableTxnMarkerTopic(name=topic, partition_indexes=numbers)
                for topic, numbers in by_topic(partitions).items()
            ]
            marker = WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                transaction_result=False,
                topics=topics,
                coordinator_epoch=coordinator_epoch or 0,
            )
            return WriteTxnMarkersRequest(markers=[marker])

        def read(answer: Any) -> Iterator[tuple[TopicPartition, int, None]]:
            for marker in answer.markers:
                for topic in marker.topics:
                    for p in topic.partitions:
                        yield TopicPartition(topic.name, p.partition_index), p.error_code, None

        self.client.ask_leaders([partition], build, read)

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int = TRANSACTION_MS_MAX
    ) -> list[HangingTransaction]:
        """Transactions that are open in these partitions, and of which no coordinator knows."""
        now = self.client.clock.time_ms()
        old = [
            HangingTransaction(tp, producer)
            for tp, producers in self.describe_producers(partitions).items()
            for producer in producers
            if producer.transaction_start_offset is not None and now - producer.last_timestamp >= older_than_ms
        ]
        if not old:
            return []
        listed = self.list_transactions(producer_ids={one.producer.producer_id for one in old})
        ids = {listing.producer_id: listing.transactional_id for listing in listed}
        known = self.describe_transactions(ids.values())
        return [one for one in old if not _is_looked_after(one, known.get(ids.get(one.producer.producer_id, "")))]


def _is_looked_after(transaction: HangingTransaction, known: TransactionDescription | None) -> bool:
    return known is not None and known.state in UNDER_WAY and transaction.partition in known.partitions


def _of_transaction(transactional_id: str) -> Coordinator:
    return Coordinator(CoordinatorKind.TRANSACTION, transactional_id)


def _ask_producers(partitions: list[TopicPartition]) -> Message:
    topics = [TopicRequest(name=name, partition_indexes=numbers) for name, numbers in by_topic(partitions).items()]
    return DescribeProducersRequest(topics=topics)


def _read_producers(answer: Any) -> Iterator[tuple[TopicPartition, int, list[ActiveProducer]]]:
    for topic in answer.topics:
        for p in topic.partitions:
            yield (
                TopicPartition(topic.name, p.partition_index),
                p.error_code,
                [_producer(s) for s in p.active_producers],
            )


def _producer(state: Any) -> ActiveProducer:
    return ActiveProducer(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch if state.coordinator_epoch >= 0 else None,
        state.current_txn_start_offset if state.current_txn_start_offset != NONE_OPEN else None,
    )
