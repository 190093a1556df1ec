"""Writing transaction markers.

The decision is in the log, so the markers must be written eventually: failures are retried with back-off as long as
this broker is the coordinator. Two cases end it early: a deleted partition needs no marker, and a partition that knows
a newer coordinator epoch fences this one.

Partitions led by other brokers are grouped to one request for each of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.catalog import Catalog
from headrace.broker.clock import TimerClock
from headrace.broker.transactions.transaction import Transaction, TransactionState
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.types import TopicPartition
from headrace.wire.records import Marker

if TYPE_CHECKING:
    from headrace.broker.cluster.transaction_links import TransactionLinks
    from headrace.broker.replica_manager import ReplicaManager

log = logging.getLogger("headrace.broker.transactions")

IN_FLIGHT_MAX = 100
"""How many markers of a transaction are written concurrently."""
BACKOFF_MS_MIN = 20
BACKOFF_MS_MAX = 1_000
ATTEMPTS_PER_WARNING = 60
"""The first failure is logged as a warning, then every 60th."""


class MarkerWriter:
    """Writes the markers of transactions."""

    def __init__(self, replicas: ReplicaManager, catalog: Catalog, clock: TimerClock) -> None:
        self._replicas = replicas
        self._catalog = catalog
        self._clock = clock
        self.remote: TransactionLinks | None = None  # other brokers, in a cluster

    async def write(self, transaction: Transaction, coordinator_epoch: int, is_coordinator: Callable[[], bool]) -> None:
        """Return when every partition has its marker. Raise if another broker has become the coordinator."""
        marker = Marker(transaction.state == TransactionState.PREPARE_COMMIT, coordinator_epoch)
        remaining = sorted(transaction.partitions)
        attempt = 0
        while remaining:
            if not is_coordinator():
                raise BrokerError("another broker coordinates the transaction now", code=Code.NOT_COORDINATOR)
            if attempt:
                await back_off(self._clock, attempt)
            attempt += 1
            failed: list[TopicPartition] = []
            for start in range(0, len(remaining), IN_FLIGHT_MAX):
                failed += await self._write_some(transaction, remaining[start : start + IN_FLIGHT_MAX], marker, attempt)
            remaining = failed

    async def _write_some(
        self, transaction: Transaction, partitions: Sequence[TopicPartition], marker: Marker, attempt: int
    ) -> list[TopicPartition]:
        """Write markers; return the partitions to retry."""
        if self.remote is None and len(partitions) == 1:  # the common case, without the cost of a task
            return await self._write_one(transaction, partitions[0], marker, attempt)
        by_leader: dict[int, list[TopicPartition]] = {}
        work = []
        for partition in partitions:
            leader = None if self.remote is None else self.remote.remote_leader(partition)
            if leader is None:
                work.append(self._write_one(transaction, partition, marker, attempt))
            else:
                by_leader.setdefault(leader, []).append(partition)
        work += [self._write_remote(transaction, node, chunk, marker, attempt) for node, chunk in by_leader.items()]
        return [partition for remaining in await asyncio.gather(*work) for partition in remaining]

    async def _write_one(
        self, transaction: Transaction, partition: TopicPartition, marker: Marker, attempt: int
    ) -> list[TopicPartition]:
        """Write the marker of a partition led by this broker; return it if it has to be retried."""
        topic, index = partition
        name = f"{transaction.transactional_id}: {topic}-{index}"
        if not self._exists(topic, index):
            log.info("%s was deleted and needs no marker", name)
            return []
        try:
            await self._replicas.write_marker(
                topic,
                index,
                transaction.producer_id,
                transaction.epoch,
                marker,
                transaction_version=transaction.version,
            )
        except BrokerError as error:
            return [] if self._needs_no_marker(name, error, attempt) else [partition]
        except Exception as error:  # the decision stands, and consumers wait for the marker
            self._log_failure(name, error, attempt)
            return [partition]
        return []

    async def _write_remote(
        self, transaction: Transaction, node: int, partitions: list[TopicPartition], marker: Marker, attempt: int
    ) -> list[TopicPartition]:
        """Write the markers of partitions led by another broker; return those to retry."""
        assert self.remote is not None
        try:
            codes = await self.remote.write_markers(node, transaction, partitions, marker)
        except Exception as error:  # as above
            self._log_failure(f"{transaction.transactional_id}: {len(partitions)} on broker {node}", error, attempt)
            return partitions
        remaining = []
        for partition in partitions:
            code = codes.get(partition, Code.UNKNOWN_SERVER_ERROR)
            name = f"{transaction.transactional_id}: {partition[0]}-{partition[1]}"
            if code and not self._needs_no_marker(name, BrokerError(f"returned by broker {node}", code=code), attempt):
                remaining.append(partition)
        return remaining

    def _needs_no_marker(self, name: str, error: BrokerError, attempt: int) -> bool:
        """Return whether a partition that rejects its marker needs none. Raise if this coordinator is fenced."""
        if error.code == Code.TRANSACTION_COORDINATOR_FENCED:
            raise error
        if error.code == Code.INVALID_PRODUCER_EPOCH:
            # It knows a later epoch, so this transaction has ended there. Kafka would leave the id pending.
            log.warning("%s: the transaction has already ended: %s", name, error)
            return True
        self._log_failure(name, error, attempt)
        return False

    def _exists(self, topic: str, index: int) -> bool:
        known = self._catalog.topics.by_name.get(topic)
        return known is not None and index < len(known.partitions)

    def _log_failure(self, name: str, error: Exception, attempt: int) -> None:
        level = logging.WARNING if attempt % ATTEMPTS_PER_WARNING == 1 else logging.DEBUG
        unexpected = None if isinstance(error, HeadraceError) else error
        log.log(
            level,
            "%s: failed to write the marker (attempt %d), retrying: %s",
            name,
            attempt,
            error,
            exc_info=unexpected,
        )


async def back_off(clock: TimerClock, attempt: int) -> None:
    """Wait before a retry, with exponential back-off."""
    done = asyncio.get_running_loop().create_future()
    timer = clock.call_later(min(BACKOFF_MS_MIN << min(attempt - 1, 10), BACKOFF_MS_MAX), done.set_result, None)
    try:
        await done
    finally:
        timer.cancel()
