"""Transactions: open ones, hanging ones, and aborting them (KIP-664)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.client.blocking import TRY_AGAIN, Coordinator, CoordinatorKind
from headrace.client.offsets import by_topic
from headrace.client.parallel import NodeRequest, request_each
from headrace.config.backoff import exponential_backoff
from headrace.errors import Code, ConnectionFailedError
from headrace.types import TopicPartition
from headrace.wire.api.transaction_admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    ProducerState,
    TopicRequest,
)
from headrace.wire.api.transactions import (
    InitProducerIdRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

TRANSACTION_MS_MAX = 15 * 60 * 1000
"""The default of transaction.max.timeout.ms on brokers."""
FENCE_TIMEOUT_MS = 60_000
FENCE_VERSIONS = (0, 5)
FENCE_ROUNDS = 5
FENCE_PAUSE_MS, FENCE_PAUSE_MS_MAX = 20.0, 500.0
NONE_OPEN = -1
PATTERN_VERSION = 2
"""The version of ListTransactions in which brokers filter by transactional id (KIP-1152)."""
UNDER_WAY = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The states of a transaction that is open or completing."""


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
    """The state of a producer on the leader of a partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int | None
    transaction_start_offset: int | None


@dataclass(slots=True, frozen=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator will end."""

    partition: TopicPartition
    producer: ActiveProducer


class TransactionAdmin(Admin):
    """Transactions."""

    def list_transactions(
        self, states: Iterable[str] = (), producer_ids: Iterable[int] = (), id_prefix: str = ""
    ) -> list[TransactionListing]:
        """Return the transactional ids of all coordinators that have this prefix, sorted.

        Brokers before 4.1 cannot filter by id (KIP-1152): they return all ids.
        """
        state_filters, producer_id_filters = list(states), list(producer_ids)

        def build(version: int) -> ListTransactionsRequest:
            has_pattern = bool(id_prefix) and version >= PATTERN_VERSION
            return ListTransactionsRequest(
                state_filters=state_filters,
                producer_id_filters=producer_id_filters,
                transactional_id_pattern=re.escape(id_prefix) + ".*" if has_pattern else None,
            )

        responses = self.request_all_brokers(
            build,
            versions=(0, PATTERN_VERSION),
            codes=lambda response: [response.error_code],
            api_key=ListTransactionsRequest.api_key,
        )
        raise_failures(Failure("the transactions of a broker", response.error_code) for response in responses)
        listings = (
            TransactionListing(t.transactional_id, t.producer_id, t.transaction_state)
            for response in responses
            for t in response.transaction_states
            if t.transactional_id.startswith(id_prefix)
        )
        return sorted(listings, key=lambda transaction: transaction.transactional_id)

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Return state, producer and partitions of transactional ids."""
        descriptions = {}
        for transactional_id in transactional_ids:
            response = self.client.request(
                DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                _of_transaction(transactional_id),
                codes=lambda response: [t.error_code for t in response.transaction_states],
            )
            (t,) = response.transaction_states
            raise_failures([Failure(f"transactional id {transactional_id!r}", t.error_code)])
            partitions = frozenset(TopicPartition(topic.topic, n) for topic in t.topics for n in topic.partitions)
            start_ms = t.transaction_start_time_ms if t.transaction_start_time_ms >= 0 else None
            descriptions[transactional_id] = TransactionDescription(
                transactional_id,
                t.transaction_state,
                t.producer_id,
                t.producer_epoch,
                t.transaction_timeout_ms,
                start_ms,
                partitions,
            )
        return descriptions

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer]]:
        """Return the producers that wrote to partitions recently, with their open transactions."""
        return self.client.request_leaders(
            (TopicPartition(*tp) for tp in partitions), _build_producers, _read_producers
        )

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Fence the producers of these ids and abort their transactions; returns the new producer ids and epochs.

        Apache Kafka responds with an error while it aborts an open transaction, so the request is repeated. With many
        ids all of them are sent at once, a few times, before each is waited for.
        """
        ids = list(transactional_ids)
        fenced: dict[str, tuple[int, int]] = {}
        with self.client.lock:
            for number in range(1, FENCE_ROUNDS + 1 if len(ids) > 1 else 1):
                fenced |= self._fence_together([name for name in ids if name not in fenced])
                if len(fenced) == len(ids):
                    break
                self.client.pause(exponential_backoff(FENCE_PAUSE_MS, FENCE_PAUSE_MS_MAX, number))
        for transactional_id in ids:
            if transactional_id not in fenced:
                response = self.client.request(
                    _fence_request(transactional_id),
                    _of_transaction(transactional_id),
                    versions=FENCE_VERSIONS,
                    codes=lambda response: [response.error_code],
                )
                raise_failures([Failure(f"transactional id {transactional_id!r}", response.error_code)])
                fenced[transactional_id] = (response.producer_id, response.producer_epoch)
        return fenced

    def _fence_together(self, transactional_ids: list[str]) -> dict[str, tuple[int, int]]:
        """Send all requests once; return the new producer ids and epochs of those that succeeded."""
        nodes = self.client.find_coordinators(CoordinatorKind.TRANSACTION, transactional_ids)
        requests = [NodeRequest(node_id, _fence_request(name), FENCE_VERSIONS) for name, node_id in nodes.items()]
        fenced = {}
        for transactional_id, pending in zip(nodes, request_each(self.client, requests), strict=True):
            try:
                response = pending.result()
            except ConnectionFailedError:
                self.client.forget_coordinators(CoordinatorKind.TRANSACTION, [transactional_id])
                continue
            if not response.error_code:
                fenced[transactional_id] = (response.producer_id, response.producer_epoch)
            elif response.error_code not in TRY_AGAIN:
                raise_failures([Failure(f"transactional id {transactional_id!r}", response.error_code)])
            elif response.error_code != Code.CONCURRENT_TRANSACTIONS:
                self.client.forget_coordinators(CoordinatorKind.TRANSACTION, [transactional_id])
        return fenced

    def abort_transaction(
        self, partition: TopicPartition, producer_id: int, producer_epoch: int, coordinator_epoch: int | None = None
    ) -> None:
        """Write an abort marker to one partition, bypassing the coordinator. For hanging transactions only."""
        partition = TopicPartition(*partition)

        def build(partitions: list[TopicPartition]) -> WriteTxnMarkersRequest:
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

        def read(response: WriteTxnMarkersResponse) -> Iterator[tuple[TopicPartition, int, None]]:
            for marker in response.markers:
                for topic in marker.topics:
                    for p in topic.partitions:
                        yield TopicPartition(topic.name, p.partition_index), p.error_code, None

        self.client.request_leaders([partition], build, read)

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int = TRANSACTION_MS_MAX
    ) -> list[HangingTransaction]:
        """Return transactions that are open in these partitions but unknown to their coordinators."""
        now = self.client.clock.time_ms()
        old = [
            HangingTransaction(tp, producer)
            for tp, producers in self.describe_producers(partitions).items()
            for producer in producers
            if producer.transaction_start_offset is not None and now - producer.last_timestamp >= older_than_ms
        ]
        if not old:
            return []
        listed = self.list_transactions(producer_ids={candidate.producer.producer_id for candidate in old})
        ids = {listing.producer_id: listing.transactional_id for listing in listed}
        known = self.describe_transactions(ids.values())
        return [
            hanging for hanging in old if not _is_managed(hanging, known.get(ids.get(hanging.producer.producer_id, "")))
        ]


def _is_managed(transaction: HangingTransaction, known: TransactionDescription | None) -> bool:
    return known is not None and known.state in UNDER_WAY and transaction.partition in known.partitions


def _fence_request(transactional_id: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=FENCE_TIMEOUT_MS)


def _of_transaction(transactional_id: str) -> Coordinator:
    return Coordinator(CoordinatorKind.TRANSACTION, transactional_id)


def _build_producers(partitions: list[TopicPartition]) -> DescribeProducersRequest:
    topics = [TopicRequest(name=name, partition_indexes=numbers) for name, numbers in by_topic(partitions).items()]
    return DescribeProducersRequest(topics=topics)


def _read_producers(response: DescribeProducersResponse) -> Iterator[tuple[TopicPartition, int, list[ActiveProducer]]]:
    for topic in response.topics:
        for p in topic.partitions:
            yield (
                TopicPartition(topic.name, p.partition_index),
                p.error_code,
                [_producer(s) for s in p.active_producers],
            )


def _producer(state: ProducerState) -> ActiveProducer:
    return ActiveProducer(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch if state.coordinator_epoch >= 0 else None,
        state.current_txn_start_offset if state.current_txn_start_offset != NONE_OPEN else None,
    )
