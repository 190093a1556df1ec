"""The purgatory: delayed operations that wait for an event of a key, or for their timeout.

    watch(operation, keys, timeout_ms)           the operation is not complete yet
    wake(key) ─► operation.try_complete(key)     true: it is complete and removed from all its keys
    timeout   ─► operation.expire()

Waking a key without watchers costs one dictionary look-up. `forget` removes an operation that is no longer needed, for
example because its connection is closed. The operations that wait for replicas are here: Produce with acks=all, and
DeleteRecords; fetching.py has the delayed Fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from typing import Generic, Protocol, TypeVar

from headrace.broker.clock import Timer, TimerClock
from headrace.broker.partition import Partition
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class DelayedOperation(Protocol[K_contra]):
    """An operation that waits."""

    def try_complete(self, key: K_contra) -> bool:
        """Return whether the operation is complete after an event of a key. Not called again after that."""
        ...

    def expire(self) -> None:
        """Complete with a timeout. Not called again."""
        ...


class Purgatory(Generic[K]):
    """Delayed operations by the keys they watch. Event loop only."""

    def __init__(self, clock: TimerClock) -> None:
        self._clock = clock
        self._watchers: dict[K, dict[int, DelayedOperation[K]]] = {}
        self._waiting: dict[int, tuple[DelayedOperation[K], Collection[K], Timer]] = {}  # by identity

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, operation: DelayedOperation[K], keys: Collection[K], timeout_ms: float) -> None:
        """Add an operation that is not complete yet."""
        timer = self._clock.call_later(timeout_ms, self._expire, operation)
        self._waiting[id(operation)] = (operation, keys, timer)
        for key in keys:
            self._watchers.setdefault(key, {})[id(operation)] = operation

    def wake(self, key: K) -> None:
        """Try to complete the operations that watch a key."""
        watchers = self._watchers.get(key)
        if watchers is None:
            return
        for operation in [*watchers.values()]:
            if id(operation) in self._waiting and operation.try_complete(key):
                self.forget(operation)

    def forget(self, operation: DelayedOperation[K]) -> None:
        """Remove an operation. Idempotent."""
        entry = self._waiting.pop(id(operation), None)
        if entry is None:
            return
        _, keys, timer = entry
        timer.cancel()
        for key in keys:
            watchers = self._watchers[key]
            del watchers[id(operation)]
            if not watchers:
                del self._watchers[key]

    def _expire(self, operation: DelayedOperation[K]) -> None:
        if id(operation) in self._waiting:
            self.forget(operation)
            operation.expire()


class DelayedProduce:
    """A Produce that waits for the in-sync replicas."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._partition = partition
        self._leader_epoch = partition.leader_epoch
        self._offset = offset
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def try_complete(self, key: TopicPartition) -> bool:
        partition = self._partition
        if not partition.is_leader or partition.leader_epoch != self._leader_epoch:
            self._fail(
                f"{partition.topic}-{partition.index}: offset {self._offset} was written, but the new leader, broker "
                f"{partition.leader}, may not have it",
                Code.NOT_LEADER_OR_FOLLOWER,
            )
            return True
        if partition.log.high_watermark > self._offset:
            if not self.future.done():
                self.future.set_result(None)
            return True
        if len(partition.isr) < partition.min_isr:
            if not self.future.done():
                self.future.set_exception(not_enough_replicas_error(partition, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
            return True
        return False

    def expire(self) -> None:
        self._fail(
            f"{self._partition.topic}-{self._partition.index}: offset {self._offset} was written, but timed out "
            "waiting for the in-sync replicas",
            Code.REQUEST_TIMED_OUT,
        )

    def _fail(self, reason: str, code: Code) -> None:
        if not self.future.done():
            self.future.set_exception(BrokerError(reason, code=code))


class DelayedDeleteRecords:
    """A DeleteRecords that waits for all live replicas."""

    def __init__(self, partition: Partition, before: int, low_watermark: Callable[[Partition], int]) -> None:
        self._partition = partition
        self._before = before
        self._low_watermark = low_watermark
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def try_complete(self, key: TopicPartition) -> bool:
        partition = self._partition
        if not partition.is_leader:
            self._fail(f"broker {partition.leader} is the new leader", Code.NOT_LEADER_OR_FOLLOWER)
            return True
        if self._low_watermark(partition) < self._before:
            return False
        if not self.future.done():
            self.future.set_result(None)
        return True

    def expire(self) -> None:
        self._fail("timed out waiting for the other replicas", Code.REQUEST_TIMED_OUT)

    def _fail(self, reason: str, code: Code) -> None:
        if not self.future.done():
            name = f"{self._partition.topic}-{self._partition.index}"
            self.future.set_exception(
                BrokerError(f"{name}: records below {self._before} are deleted on the leader, but {reason}", code=code)
            )


def not_enough_replicas_error(partition: Partition, code: Code) -> BrokerError:
    return BrokerError(
        f"{partition.topic}-{partition.index} has {len(partition.isr)} in-sync replicas, below "
        f"min.insync.replicas={partition.min_isr}",
        code=code,
    )
