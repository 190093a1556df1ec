"""Requests to the controller: AlterPartition in batches, and producer ids in advance."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.broker.catalog import Catalog
from headrace.broker.cluster.isr import AlterPartitionManager
from headrace.broker.cluster.peer import Peer
from headrace.broker.cluster.role import IsrChange
from headrace.broker.transactions.producer_ids import REFILL_THRESHOLD, ProducerIds
from headrace.errors import BrokerError, ClosedError, Code, ConnectionFailedError, HeadraceError
from headrace.wire.api.inter_broker import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionResult,
    TopicResult,
)
from tests.support.group_rig import on_loop

ONE, TWO = b"1" * 16, b"2" * 16


class FakeController:
    """Accepts every change except those of partition 9."""

    def __init__(self) -> None:
        self.requests: list[AlterPartitionRequest] = []
        self.error: HeadraceError | None = None
        self.held = asyncio.Event()
        self.held.set()

    async def request(self, message: AlterPartitionRequest, version: int, timeout_ms: float) -> AlterPartitionResponse:
        self.requests.append(message)
        await self.held.wait()
        if self.error is not None:
            raise self.error
        return AlterPartitionResponse(
            topics=[
                TopicResult(
                    topic_id=topic.topic_id,
                    partitions=[
                        PartitionResult(
                            partition_index=row.partition_index,
                            error_code=Code.FENCED_LEADER_EPOCH if row.partition_index == 9 else 0,
                            isr=[state.broker_id for state in row.new_isr_with_epochs],
                            partition_epoch=row.partition_epoch + 1,
                        )
                        for row in reversed(topic.partitions)
                    ],
                )
                for topic in reversed(message.topics)
            ]
        )


async def run_ready_tasks() -> None:
    """Run the event loop until all tasks wait: none of them waits for time or the network here."""
    for _ in range(20):
        await asyncio.sleep(0)


def made(controller: FakeController) -> AlterPartitionManager:
    return AlterPartitionManager(cast("Peer", controller), 1, lambda: 5, 1_000)


@on_loop
async def test_concurrent_changes_share_a_request_and_get_separate_results() -> None:
    controller = FakeController()
    requests = made(controller)
    results = await asyncio.gather(
        requests.alter(IsrChange(ONE, 0, 3, 7, {1: 5})),
        requests.alter(IsrChange(TWO, 0, 3, 8, {1: 5, 2: 6})),
        requests.alter(IsrChange(ONE, 1, 3, 9, {1: 5, 3: -1})),
        requests.alter(IsrChange(ONE, 9, 3, 9, {1: 5})),
        return_exceptions=True,
    )
    assert len(controller.requests) == 1
    assert (controller.requests[0].broker_id, controller.requests[0].broker_epoch) == (1, 5)
    rows: list[Any] = list(results[:3])
    assert [(row.isr, row.partition_epoch) for row in rows] == [((1,), 8), ((1, 2), 9), ((1, 3), 10)]
    assert isinstance(results[3], BrokerError)
    assert results[3].code == Code.FENCED_LEADER_EPOCH


@on_loop
async def test_changes_during_a_request_wait_for_the_next_request() -> None:
    controller = FakeController()
    controller.held.clear()
    requests = made(controller)
    first = asyncio.create_task(requests.alter(IsrChange(ONE, 0, 0, 0, {1: 5})))
    await run_ready_tasks()
    others = [asyncio.create_task(requests.alter(IsrChange(ONE, index, 0, 0, {1: 5}))) for index in (1, 2)]
    await run_ready_tasks()
    assert len(controller.requests) == 1
    controller.held.set()
    await asyncio.gather(first, *others)
    assert [len(request.topics[0].partitions) for request in controller.requests] == [1, 2]


@on_loop
async def test_an_unreachable_controller_fails_all_pending_changes() -> None:
    controller = FakeController()
    controller.error = ConnectionFailedError("away")
    requests = made(controller)
    results = await asyncio.gather(
        *(requests.alter(IsrChange(ONE, n, 0, 0, {1: 5})) for n in (0, 1)), return_exceptions=True
    )
    assert [type(error) for error in results] == [ConnectionFailedError] * 2
    controller.error = None
    assert (await requests.alter(IsrChange(ONE, 0, 0, 0, {1: 5}))).partition_epoch == 1


@on_loop
async def test_closing_fails_pending_changes() -> None:
    controller = FakeController()
    controller.held.clear()
    requests = made(controller)
    pending = [asyncio.create_task(requests.alter(IsrChange(ONE, 0, 0, 0, {1: 5})))]
    await run_ready_tasks()
    pending.append(asyncio.create_task(requests.alter(IsrChange(ONE, 1, 0, 0, {1: 5}))))
    await run_ready_tasks()
    await requests.close()
    assert [type(error) for error in await asyncio.gather(*pending, return_exceptions=True)] == [ClosedError] * 2


@on_loop
async def test_producer_ids_are_prefetched_from_the_controller(tmp_path: Path) -> None:
    blocks = [(0, 1000), (5000, 6000), (9000, 10_000)]
    request_count = 0
    error: HeadraceError | None = ConnectionFailedError("away")

    async def source() -> tuple[int, int]:
        nonlocal request_count
        request_count += 1
        if error is not None:
            raise error
        return blocks.pop(0)

    ids = ProducerIds(Catalog(tmp_path / "copy", follows=True))
    ids.follow(source)
    for _ in range(2):
        with pytest.raises(BrokerError) as refused:
            ids.take()
        assert refused.value.code == Code.COORDINATOR_LOAD_IN_PROGRESS
        await run_ready_tasks()
    assert request_count == 2
    error = None
    ids.prefetch()
    await run_ready_tasks()
    assert [ids.take() for _ in range(1001 - REFILL_THRESHOLD)] == list(range(1001 - REFILL_THRESHOLD))
    await run_ready_tasks()
    assert request_count == 4  # the next block is fetched before this one is exhausted
    assert [ids.take() for _ in range(REFILL_THRESHOLD)] == [*range(1001 - REFILL_THRESHOLD, 1000), 5000]
    await ids.close()
