"""Timeouts, expiry and retries in the transaction coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.broker.catalog.topics import Topics
from headrace.broker.transactions.transaction import TransactionState
from headrace.errors import Code
from headrace.types import TopicPartition
from tests.support.transaction_rig import ID, TIMEOUT_MS, Rig, code_of, refused, run

DAY_MS = 24 * 3_600_000


HOURLY = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 3_600_000}  # for tests that take days


def started(options: Mapping[str, object] | None = None) -> Rig:
    rig = Rig(options=options)
    rig.coordinator.start()
    return rig


def test_a_timed_out_transaction_is_aborted_and_its_producer_fenced() -> None:
    async def main() -> None:
        rig = started()
        producer = await rig.init()
        await rig.add(producer, 0)
        await rig.clock.run(TIMEOUT_MS)
        assert rig.state() == TransactionState.ONGOING
        await rig.clock.run(11_000)
        assert rig.state() == TransactionState.COMPLETE_ABORT
        assert [(m.committed, m.epoch) for m in rig.replicas.markers] == [(False, producer.epoch + 1)]
        for request in (rig.add(producer, 0), rig.end(producer, True), rig.end(producer, False), rig.init(producer)):
            assert await code_of(request) == Code.PRODUCER_FENCED
        assert (await rig.init()).epoch == producer.epoch + 2

    run(main)


def test_a_v2_producer_can_abort_a_timed_out_transaction_and_continue() -> None:
    async def main() -> None:
        rig = started()
        producer = await rig.init()
        await rig.add(producer, 0, version=2)
        await rig.clock.run(TIMEOUT_MS + 11_000)
        with refused(Code.INVALID_TXN_STATE):
            await rig.end(producer, True, 2)
        after = await rig.end(producer, False, 2)
        assert after == producer._replace(epoch=producer.epoch + 1)
        await rig.add(after, 1, version=2)
        await rig.end(after, True, 2)

    run(main)


def test_only_open_transactions_time_out() -> None:
    async def main() -> None:
        rig = started()
        producer = await rig.init()
        await rig.clock.run(5 * TIMEOUT_MS)
        assert rig.state() == TransactionState.EMPTY
        await rig.add(producer, 0)
        with rig.replicas.held():
            await rig.end(producer, True)
            await rig.clock.run(5 * TIMEOUT_MS)
            assert rig.state() == TransactionState.PREPARE_COMMIT

    run(main)


def test_a_failed_abort_of_a_timed_out_transaction_is_retried() -> None:
    async def main() -> None:
        rig = started()
        producer = await rig.init()
        await rig.add(producer, 0)
        rig.internal.fail(Code.NOT_ENOUGH_REPLICAS, times=2)
        await rig.clock.run(TIMEOUT_MS + 21_000)
        assert rig.state() == TransactionState.ONGOING
        await rig.clock.run(10_000)
        assert rig.state() == TransactionState.COMPLETE_ABORT
        assert rig.current.epoch == producer.epoch + 1  # fenced once, not three times

    run(main)


def test_an_unused_transactional_id_is_removed() -> None:
    async def main() -> None:
        rig = started(HOURLY)
        producer = await rig.init()
        await rig.clock.run(6 * DAY_MS)
        assert rig.state() == TransactionState.EMPTY
        await rig.clock.run(2 * DAY_MS)
        with refused(Code.TRANSACTIONAL_ID_NOT_FOUND):
            rig.coordinator.describe(ID)
        assert rig.logged()[-1] is None
        with refused(Code.TRANSACTIONAL_ID_NOT_FOUND):
            rig.restarted().coordinator.describe(ID)
        with refused(Code.INVALID_PRODUCER_ID_MAPPING):
            await rig.add(producer, 0)
        fresh = await rig.init(producer)  # it returns after the expiry
        assert fresh.epoch == 0
        assert fresh.producer_id != producer.producer_id

    run(main)


def test_expired_ids_are_removed_in_batches_and_stay_if_that_fails() -> None:
    async def main() -> None:
        rig = started(HOURLY)
        for n in range(1_500):
            await rig.init(name=f"id-{n}")
        writes = len(rig.internal.appends)
        rig.internal.fail(Code.REQUEST_TIMED_OUT)
        await rig.clock.run(7 * DAY_MS)
        assert len(list(rig.coordinator.transactions())) == 1_000
        assert len(rig.internal.appends) == writes + 1
        await rig.init(name="id-0")  # no entry is left pending
        await rig.clock.run(3_600_000)
        assert [t.transactional_id for t in rig.coordinator.transactions()] == ["id-0"]

    run(main)


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.REQUEST_TIMED_OUT, Code.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_failed_marker_is_retried_with_backoff(code: Code) -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0, 1, 2)
        rig.replicas.fail("t", 1, code, times=8)
        await rig.end(producer, True)
        await rig.clock.run(2_000)
        assert rig.state() == TransactionState.PREPARE_COMMIT
        assert sorted(m.partition for m in rig.replicas.markers) == [0, 2]
        await rig.clock.run(2_000)
        assert rig.state() == TransactionState.COMPLETE_COMMIT
        assert sorted(m.partition for m in rig.replicas.markers) == [0, 1, 2]

    run(main)


def test_an_unexpected_exception_does_not_stop_the_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0, 1)
        write, failures = rig.replicas.write_marker, [ZeroDivisionError(), OSError("disk full")]

        async def failing(*arguments: Any, **options: Any) -> None:
            if failures:
                raise failures.pop()
            await write(*arguments, **options)

        monkeypatch.setattr(rig.replicas, "write_marker", failing)
        await rig.end(producer, True)
        await rig.clock.run(100)
        assert rig.state() == TransactionState.COMPLETE_COMMIT
        assert sorted(m.partition for m in rig.replicas.markers) == [0, 1]

    run(main)


def test_partitions_of_a_deleted_topic_need_no_marker() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.coordinator.add_partitions(ID, producer, [TopicPartition("t", 0), TopicPartition("u", 0)])
        rig.replicas.fail("u", 0, Code.UNKNOWN_TOPIC_OR_PARTITION, times=3)
        await rig.end(producer, True)
        await rig.clock.run(30)
        assert rig.state() == TransactionState.PREPARE_COMMIT
        rig.catalog.record(Topics.deletion(rig.catalog.topics.by_name["u"]))
        await rig.clock.run(100)
        assert rig.state() == TransactionState.COMPLETE_COMMIT
        assert [m.topic for m in rig.replicas.markers] == ["t"]

    run(main)


def test_a_fenced_coordinator_stops_writing_markers() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0)
        rig.replicas.fail("t", 0, Code.TRANSACTION_COORDINATOR_FENCED)
        await rig.end(producer, True)
        await rig.clock.run(60_000)
        assert rig.state() == TransactionState.PREPARE_COMMIT
        assert rig.replicas.markers == []

    run(main)


def test_a_partition_with_a_later_epoch_does_not_block_the_markers() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0, 1)
        rig.replicas.fail("t", 0, Code.INVALID_PRODUCER_EPOCH)
        await rig.end(producer, False)
        await rig.clock.run()
        assert rig.state() == TransactionState.COMPLETE_ABORT

    run(main)


def test_a_coordinator_that_loses_its_partition_stops_writing_markers() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0)
        rig.replicas.fail("t", 0, Code.NOT_LEADER_OR_FOLLOWER, times=100)
        await rig.end(producer, True)
        await rig.clock.run(100)
        rig.coordinator.unload(0)
        await rig.clock.run(5_000)
        assert rig.coordinator._tasks == set()

    run(main)


def test_a_failed_completion_is_retried() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0)
        with rig.replicas.held():
            await rig.end(producer, True)
            rig.internal.fail(Code.NOT_ENOUGH_REPLICAS, times=3)
        await rig.clock.run(10)
        assert rig.state() == TransactionState.PREPARE_COMMIT
        await rig.clock.run(1_000)
        assert rig.state() == TransactionState.COMPLETE_COMMIT
        assert len(rig.replicas.markers) == 1

    run(main)


def test_stop_does_not_wait_for_pending_markers() -> None:
    async def main() -> None:
        rig = started()
        producer = await rig.init()
        await rig.add(producer, 0)
        rig.replicas.fail("t", 0, Code.NOT_LEADER_OR_FOLLOWER, times=100)
        await rig.end(producer, True)
        await asyncio.wait_for(rig.coordinator.stop(), 10)
        await rig.clock.run(DAY_MS)
        assert rig.state() == TransactionState.PREPARE_COMMIT

    run(main)
