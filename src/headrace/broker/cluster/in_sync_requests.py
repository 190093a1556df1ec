"""What leaders ask of the controller, collected: a broker that leads a thousand partitions asks once for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.broker.cluster.link import Peer
from headrace.broker.tasks import start_task
from headrace.errors import BrokerError, ClosedError, Code, HeadraceError
from headrace.wire.api.inter_broker import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    PartitionResult,
    TopicData,
)

VERSION = 3
PARTITIONS_A_REQUEST_MAX = 1_000


class _Wish(NamedTuple):
    topic_id: bytes
    row: PartitionData
    answer: asyncio.Future[PartitionResult]


class InSyncRequests:
    """Sends AlterPartition, one at a time, with all that has come together meanwhile. Event loop only."""

    def __init__(self, peer: Peer, node_id: int, broker_epoch: Callable[[], int], timeout_ms: int) -> None:
        self._peer = peer
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._timeout_ms = timeout_ms
        self._wishes: list[_Wish] = []  # at most one a partition: its leader asks for the next when it has an answer
        self._task: asyncio.Task[None] | None = None

    async def ask(
        self, topic_id: bytes, index: int, leader_epoch: int, partition_epoch: int, new_isr: Mapping[int, int]
    ) -> PartitionResult:
        """The controller's answer for one partition. Raises what went wrong."""
        row = PartitionData(
            partition_index=index,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=node, broker_epoch=epoch) for node, epoch in new_isr.items()],
        )
        wish = _Wish(topic_id, row, asyncio.get_running_loop().create_future())
        self._wishes.append(wish)
        if self._task is None:
            self._task = start_task(self._send_all(), "AlterPartition")
        return await wish.answer

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        _fail(self._wishes, ClosedError("the broker stops"))

    async def _send_all(self) -> None:
        try:
            while self._wishes:
                now, self._wishes = (
                    self._wishes[:PARTITIONS_A_REQUEST_MAX],
                    self._wishes[PARTITIONS_A_REQUEST_MAX:],
                )
                try:
                    await self._send(now)
                except HeadraceError as error:
                    _fail(now, error)
                except Exception as error:  # who asked tries again
                    _fail(now, BrokerError(f"AlterPartition failed: {error!r}", code=Code.UNKNOWN_SERVER_ERROR))
                    raise
                finally:
                    _fail(now, ClosedError("the broker stops"))  # those that have no answer because we were cancelled
        finally:
            self._task = None

    async def _send(self, wishes: list[_Wish]) -> None:
        topics: dict[bytes, list[PartitionData]] = {}
        for wish in wishes:
            topics.setdefault(wish.topic_id, []).append(wish.row)
        request = AlterPartitionRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            topics=[TopicData(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()],
        )
        response = await self._peer.ask(request, VERSION, self._timeout_ms)
        assert isinstance(response, AlterPartitionResponse)
        if response.error_code:
            raise BrokerError("the controller refuses AlterPartition", code=response.error_code)
        rows = {(topic.topic_id, row.partition_index): row for topic in response.topics for row in topic.partitions}
        for wish in wishes:
            row = rows[wish.topic_id, wish.row.partition_index]
            if wish.answer.done():
                continue
            if row.error_code:
                text = f"another in-sync set of partition {row.partition_index} is refused"
                wish.answer.set_exception(BrokerError(text, code=row.error_code))
            else:
                wish.answer.set_result(row)


def _fail(wishes: list[_Wish], error: HeadraceError) -> None:
    for wish in wishes:
        if not wish.answer.done():
            wish.answer.set_exception(error)
