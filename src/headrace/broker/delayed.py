"""Delayed operations that wait for replicas: Produce with acks=all, and DeleteRecords."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.partition import Partition
from headrace.errors import BrokerError, Code

Key = tuple[str, int]


class DelayedProduce:
    """A Produce that waits for the in-sync replicas."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._partition = partition
        self._leader_epoch = partition.leader_epoch
        self._offset = offset
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def try_complete(self, key: Key) -> bool:
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

    def try_complete(self, key: Key) -> bool:
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
