"""What waits for replicas: a produce that all in-sync ones are to have, a deletion that all are to have carried out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.broker.partition import Partition
from headrace.errors import BrokerError, Code

Key = tuple[str, int]


class Replication:
    """A produce that waits for the in-sync replicas."""

    def __init__(self, partition: Partition, offset: int) -> None:
        self._partition = partition
        self._leader_epoch = partition.leader_epoch
        self._offset = offset
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def try_complete(self, key: Key) -> bool:
        partition = self._partition
        if not partition.is_leader or partition.leader_epoch != self._leader_epoch:
            self._fail(
                f"{partition.topic}-{partition.index}: offset {self._offset} was written, but broker "
                f"{partition.leader} leads now, and may not have it",
                Code.NOT_LEADER_OR_FOLLOWER,
            )
            return True
        if partition.log.high_watermark > self._offset:
            if not self.future.done():
                self.future.set_result(None)
            return True
        if len(partition.isr) < partition.min_isr:
            if not self.future.done():
                self.future.set_exception(not_enough(partition, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
            return True
        return False

    def expire(self) -> None:
        self._fail(
            f"{self._partition.topic}-{self._partition.index}: offset {self._offset} was written, but not all "
            "in-sync replicas have it in time",
            Code.REQUEST_TIMED_OUT,
        )

    def _fail(self, why: str, code: Code) -> None:
        if not self.future.done():
            self.future.set_exception(BrokerError(why, code=code))


class Deletion:
    """A request to delete records that waits for all replicas that live."""

    def __init__(self, partition: Partition, before: int, low_watermark: Callable[[Partition], int]) -> None:
        self._partition = partition
        self._before = before
        self._low_watermark = low_watermark
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def try_complete(self, key: Key) -> bool:
        partition = self._partition
        if not partition.is_leader:
            self._fail(f"broker {partition.leader} leads now, and sees to the rest", Code.NOT_LEADER_OR_FOLLOWER)
            return True
        if self._low_watermark(partition) < self._before:
            return False
        if not self.future.done():
            self.future.set_result(None)
        return True

    def expire(self) -> None:
        self._fail("not all replicas have done the same in time", Code.REQUEST_TIMED_OUT)

    def _fail(self, why: str, code: Code) -> None:
        if not self.future.done():
            name = f"{self._partition.topic}-{self._partition.index}"
            self.future.set_exception(
                BrokerError(f"{name}: records below {self._before} are deleted here, but {why}", code=code)
            )


def not_enough(partition: Partition, code: Code) -> BrokerError:
    return BrokerError(
        f"{partition.topic}-{partition.index} has {len(partition.isr)} in-sync replicas of the "
        f"{partition.min_isr} that min.insync.replicas wants",
        code=code,
    )
