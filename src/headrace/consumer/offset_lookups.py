"""Offsets by time and by epoch, from the leaders: ListOffsets and OffsetForLeaderEpoch.

    OffsetLookup(partition, time) ┐                                            ┌ on_offset(offset or error)
                                  ├→ by leader → request → response, retries → ┤
    EpochLookup(partition, epoch) ┘                                            └ on_offset(end of the epoch, or error)

I/O thread only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from headrace.client.blocking import TRY_AGAIN
from headrace.client.connection import Request, Response
from headrace.client.metadata import FATAL_TOPIC_ERRORS, NO_LEADER, MetadataUpdater
from headrace.client.network import NetworkClient
from headrace.client.offsets import Isolation, PartitionOffset, by_topic, list_offsets_request, read_offsets
from headrace.config.clock import Clock
from headrace.errors import BrokerError, Code, HeadraceError, TimedOutError, UnsupportedVersionError, error_name
from headrace.types import TopicPartition
from headrace.wire.api.offsets import (
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

OnOffset: TypeAlias = Callable[[PartitionOffset | HeadraceError], None]
RETRIED = TRY_AGAIN | {Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID}
CONSUMER_REPLICA_ID = -1
EPOCH_VERSIONS = (0, 4)
IDLE_MS = 60_000.0


@dataclass(slots=True, eq=False)
class OffsetLookup:
    """A lookup of the first offset at a time, or of EARLIEST or LATEST."""

    partition: TopicPartition
    time: int
    on_offset: OnOffset
    deadline_ms: float
    retry_at_ms: float = 0.0
    last_code: int = Code.NONE


@dataclass(slots=True, eq=False)
class EpochLookup:
    """A lookup of the offset at which a leader epoch ends."""

    partition: TopicPartition
    epoch: int
    on_offset: OnOffset
    deadline_ms: float
    retry_at_ms: float = 0.0
    last_code: int = Code.NONE


Lookup: TypeAlias = OffsetLookup | EpochLookup


class OffsetLookups:
    """Sends lookups to the leaders, and retries them until their deadlines."""

    def __init__(
        self,
        client: NetworkClient,
        updater: MetadataUpdater,
        clock: Clock,
        isolation: Isolation,
        *,
        request_timeout_ms: float,
        retry_backoff_ms: float,
    ) -> None:
        self._client = client
        self._updater = updater
        self._clock = clock
        self._isolation = isolation
        self._request_timeout_ms = request_timeout_ms
        self._retry_backoff_ms = retry_backoff_ms
        self._waiting: list[Lookup] = []

    def add(self, lookup: Lookup) -> None:
        self._waiting.append(lookup)

    def topics(self) -> set[str]:
        """Return the topics of lookups that wait, whose metadata is needed."""
        return {lookup.partition.topic for lookup in self._waiting}

    def fail_all(self, error: HeadraceError) -> None:
        waiting, self._waiting = self._waiting, []
        for lookup in waiting:
            lookup.on_offset(error)

    def run(self, now: float) -> float:
        """Send the lookups that are due; returns the time until the next check."""
        if not self._waiting:
            return IDLE_MS
        cluster = self._updater.metadata.cluster
        waiting, self._waiting = self._waiting, []
        by_node: defaultdict[tuple[int, type[Lookup]], list[Lookup]] = defaultdict(list)
        for lookup in waiting:
            if now >= lookup.deadline_ms:
                self._expire(lookup)
            elif now < lookup.retry_at_ms:
                self._waiting.append(lookup)
            elif (leader := cluster.leader(*lookup.partition)) == NO_LEADER:
                self._retry(lookup, now, self._missing(lookup))
            else:
                by_node[leader, type(lookup)].append(lookup)
        wait_ms = min((min(each.retry_at_ms, each.deadline_ms) - now for each in self._waiting), default=IDLE_MS)
        for (node_id, kind), lookups in by_node.items():
            if self._client.is_ready(node_id, now):
                self._send(node_id, kind, lookups, now)
            else:
                self._waiting += lookups
                if self._client.is_backing_off(node_id, now):
                    self._updater.metadata.request_update()
                wait_ms = min(wait_ms, max(1.0, self._client.delay_ms(node_id, now)))
        return max(0.0, wait_ms)

    def _missing(self, lookup: Lookup) -> int:
        """Return why a partition has no leader."""
        topic, cluster = lookup.partition.topic, self._updater.metadata.cluster
        self._updater.metadata.add_topic(topic)
        known = cluster.partition_count(topic)
        if known is not None and lookup.partition.partition < known:
            return Code.LEADER_NOT_AVAILABLE
        return cluster.errors.get(topic, Code.UNKNOWN_TOPIC_OR_PARTITION)

    def _send(self, node_id: int, kind: type[Lookup], lookups: list[Lookup], now: float) -> None:
        # A partition may be looked up for two times at once, which need two requests.
        named: dict[TopicPartition, Lookup] = {}
        for lookup in lookups:
            if lookup.partition in named:
                self._waiting.append(lookup)
            else:
                named[lookup.partition] = lookup
        request = self._list_offsets(named) if kind is OffsetLookup else self._leader_epochs(named)
        self._client.send(node_id, request, now)

    def _list_offsets(self, named: dict[TopicPartition, Lookup]) -> Request[ListOffsetsResponse]:
        times = {tp: lookup.time for tp, lookup in named.items() if isinstance(lookup, OffsetLookup)}

        def on_response(response: Response[ListOffsetsResponse]) -> None:
            rows = None if response.message is None else read_offsets(response.message)
            self._on_rows(rows, response.error, named)

        low = 2 if self._isolation is Isolation.READ_COMMITTED else 1
        request = list_offsets_request(times, self._isolation)
        return Request.of(request, on_response, self._request_timeout_ms, (low, 10))

    def _leader_epochs(self, named: dict[TopicPartition, Lookup]) -> Request[OffsetForLeaderEpochResponse]:
        epochs = {tp: lookup.epoch for tp, lookup in named.items() if isinstance(lookup, EpochLookup)}

        def on_response(response: Response[OffsetForLeaderEpochResponse]) -> None:
            rows = None if response.message is None else _read_epochs(response.message)
            self._on_rows(rows, response.error, named)

        request = OffsetForLeaderEpochRequest(
            replica_id=CONSUMER_REPLICA_ID,
            topics=[
                OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        OffsetForLeaderPartition(partition=number, leader_epoch=epochs[TopicPartition(topic, number)])
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(epochs).items()
            ],
        )
        return Request.of(request, on_response, self._request_timeout_ms, EPOCH_VERSIONS)

    def _on_rows(
        self,
        rows: Iterable[tuple[TopicPartition, int, PartitionOffset]] | None,
        error: HeadraceError | None,
        named: dict[TopicPartition, Lookup],
    ) -> None:
        now = self._clock.monotonic_ms()
        for tp, code, offset in rows or ():
            lookup = named.pop(tp, None)
            if lookup is None:
                continue
            if code == Code.NONE:
                lookup.on_offset(offset)
            elif code in RETRIED:
                self._retry(lookup, now, code)
            else:
                lookup.on_offset(BrokerError(f"offset of {tp}", code=code))
        for lookup in named.values():  # without a response
            if isinstance(error, UnsupportedVersionError):
                lookup.on_offset(error)
            else:
                self._retry(lookup, now, Code.NETWORK_EXCEPTION)

    def _retry(self, lookup: Lookup, now: float, code: int) -> None:
        if code in FATAL_TOPIC_ERRORS:
            lookup.on_offset(BrokerError(f"topic {lookup.partition.topic!r}", code=code))
            return
        lookup.last_code = code
        lookup.retry_at_ms = now + self._retry_backoff_ms
        self._waiting.append(lookup)
        self._updater.metadata.request_update()

    @staticmethod
    def _expire(lookup: Lookup) -> None:
        name, code = lookup.partition, lookup.last_code
        if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            lookup.on_offset(BrokerError(f"{name} does not exist (waited for default.api.timeout.ms)", code=code))
            return
        reason = f"; last error: {error_name(code)}" if code else ""
        lookup.on_offset(TimedOutError(f"no offset of {name} within default.api.timeout.ms{reason}"))


def _read_epochs(response: OffsetForLeaderEpochResponse) -> Iterator[tuple[TopicPartition, int, PartitionOffset]]:
    for topic in response.topics:
        for row in topic.partitions:
            offset = PartitionOffset(row.end_offset, -1, row.leader_epoch)
            yield TopicPartition(topic.topic, row.partition), row.error_code, offset
