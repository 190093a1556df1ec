"""Telling the partitions of a transaction how it ended.

The decision is in the log by now, so this has to succeed some time: whatever fails is tried again, with a growing
pause, as long as we are the coordinator. Only two things end it early: a partition that is gone needs no marker, and a
partition that knows a newer coordinator tells us that we are none any more.

In a cluster some of the partitions are led by other brokers: each of those gets one request for all of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.broker.catalog import Catalog
from headrace.broker.clock import Clock
from headrace.broker.transactions.states import State
from headrace.broker.transactions.transaction import Transaction
from headrace.errors import BrokerError, Code, HeadraceError
from headrace.types import TopicPartition
from headrace.wire.records import Marker

if TYPE_CHECKING:
    from headrace.broker.cluster.transaction_links import TransactionLinks
    from headrace.broker.replica_manager import ReplicaManager

log = logging.getLogger("headrace.broker.transactions")

IN_FLIGHT_MAX = 100
"""Markers of one transaction that are being replicated at the same time."""
PAUSE_MS_MIN = 20
PAUSE_MS_MAX = 1_000
ATTEMPTS_A_WARNING = 60
"""The first failure is told, and then one of so many."""


class MarkerWriter:
    """Writes the markers of one transaction after the other, many at the same time."""

    def __init__(self, replicas: ReplicaManager, catalog: Catalog, clock: Clock) -> None:
        self._replicas = replicas
        self._catalog = catalog
        self._clock = clock
        self.elsewhere: TransactionLinks | None = None  # other brokers, in a cluster

    async def write(self, transaction: Transaction, coordinator_epoch: int, is_ours: Callable[[], bool]) -> None:
        """Return when every partition has its marker. Raises when somebody else is the coordinator."""
        marker = Marker(transaction.state == State.PREPARE_COMMIT, coordinator_epoch)
        left = sorted(transaction.partitions)
        attempt = 0
        while left:
            if not is_ours():
                raise BrokerError("the transaction log has moved", code=Code.NOT_COORDINATOR)
            if attempt:
                await pause(self._clock, attempt)
            attempt += 1
            failed: list[TopicPartition] = []
            for start in range(0, len(left), IN_FLIGHT_MAX):
                failed += await self._write_some(transaction, left[start : start + IN_FLIGHT_MAX], marker, attempt)
            left = failed

    async def _write_some(
        self, transaction: Transaction, partitions: Sequence[TopicPartition], marker: Marker, attempt: int
    ) -> list[TopicPartition]:
        """Those that have to be tried again."""
        if self.elsewhere is None and len(partitions) == 1:  # the common case, for which a task would be a waste
            return await self._write_one(transaction, partitions[0], marker, attempt)
        elsewhere: dict[int, list[TopicPartition]] = {}
        work = []
        for partition in partitions:
            leader = None if self.elsewhere is None else self.elsewhere.leader_elsewhere(partition)
            if leader is None:
                work.append(self._write_one(transaction, partition, marker, attempt))
            else:
                elsewhere.setdefault(leader, []).append(partition)
        work += [self._write_there(transaction, node, some, marker, attempt) for node, some in elsewhere.items()]
        return [partition for left in await asyncio.gather(*work) for partition in left]

    async def _write_one(
        self, transaction: Transaction, partition: TopicPartition, marker: Marker, attempt: int
    ) -> list[TopicPartition]:
        """A partition that we lead: empty if it is done."""
        topic, index = partition
        name = f"{transaction.transactional_id}: {topic}-{index}"
        if not self._exists(topic, index):
            log.info("%s is gone and needs no marker", name)
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
            return [] if self._is_over(name, error, attempt) else [partition]
        except Exception as error:  # whatever it is, the decision stands, and readers wait for it
            self._complain(name, error, attempt)
            return [partition]
        return []

    async def _write_there(
        self, transaction: Transaction, node: int, partitions: list[TopicPartition], marker: Marker, attempt: int
    ) -> list[TopicPartition]:
        """Partitions that another broker leads: those that have to be tried again."""
        assert self.elsewhere is not None
        try:
            codes = await self.elsewhere.write_markers(node, transaction, partitions, marker)
        except Exception as error:  # as above
            self._complain(f"{transaction.transactional_id}: {len(partitions)} on broker {node}", error, attempt)
            return partitions
        left = []
        for partition in partitions:
            code = codes.get(partition, Code.UNKNOWN_SERVER_ERROR)
            name = f"{transaction.transactional_id}: {partition[0]}-{partition[1]}"
            if code and not self._is_over(name, BrokerError(f"so says broker {node}", code=code), attempt):
                left.append(partition)
        return left

    def _is_over(self, name: str, error: BrokerError, attempt: int) -> bool:
        """Whether a partition that refuses its marker needs none. Raises if we are not the coordinator any more."""
        if error.code == Code.TRANSACTION_COORDINATOR_FENCED:
            raise error
        if error.code == Code.INVALID_PRODUCER_EPOCH:
            # It has heard of a later epoch, so this transaction is over there. Kafka would leave the id pending.
            log.warning("%s has ended already: %s", name, error)
            return True
        self._complain(name, error, attempt)
        return False

    def _exists(self, topic: str, index: int) -> bool:
        known = self._catalog.topics.by_name.get(topic)
        return known is not None and index < len(known.partitions)

    def _complain(self, name: str, error: Exception, attempt: int) -> None:
        level = logging.WARNING if attempt % ATTEMPTS_A_WARNING == 1 else logging.DEBUG
        unexpected = None if isinstance(error, HeadraceError) else error
        log.log(level, "%s: attempt %d to end it failed, trying again: %s", name, attempt, error, exc_info=unexpected)


async def pause(clock: Clock, attempt: int) -> None:
    """Wait before another attempt: longer each time, up to a bound."""
    done = asyncio.get_running_loop().create_future()
    timer = clock.call_later(min(PAUSE_MS_MIN << min(attempt - 1, 10), PAUSE_MS_MAX), done.set_result, None)
    try:
        await done
    finally:
        timer.cancel()
