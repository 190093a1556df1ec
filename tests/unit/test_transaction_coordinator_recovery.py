"""Recovery of the transaction coordinator: decided transactions are completed, others are not."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.catalog.topics import TRANSACTION_STATE
from headrace.broker.transactions import log_records, store
from headrace.broker.transactions.transaction import Transaction, TransactionState
from headrace.errors import Code
from headrace.types import ProducerIdAndEpoch, TopicPartition
from headrace.wire.layout import Record
from tests.support.fake_internal import Fuse
from tests.support.transaction_rig import TIMEOUT_MS, Rig, code_of, refused, run

WRITES_MAX = 60

transactions = st.builds(
    Transaction,
    transactional_id=st.text(min_size=1, max_size=20),
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**15 - 1),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(
        [
            s
            for s in TransactionState
            if s not in (TransactionState.DEAD, TransactionState.EMPTY, TransactionState.PREPARE_EPOCH_FENCE)
        ]
    ),
    updated_ms=st.integers(0, 2**60),
    started_ms=st.integers(0, 2**60),
    partitions=st.frozensets(st.tuples(st.sampled_from(["t", "u", "ü"]), st.integers(0, 9))),
    version=st.sampled_from([1, 2]),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
)


@given(transactions)
def test_a_transaction_record_round_trips(transaction: Transaction) -> None:
    assert log_records.decode(log_records.encode(transaction, 1)) == (transaction.transactional_id, transaction)
    empty = replace(transaction, state=TransactionState.EMPTY, partitions=frozenset(), started_ms=-1)
    assert log_records.decode(log_records.encode(empty, 1)) == (empty.transactional_id, empty)
    assert log_records.decode(log_records.tombstone(empty.transactional_id, 1)) == (empty.transactional_id, None)


def test_the_record_format_is_kafkas() -> None:
    """Key version 0, value version 1 with previous and next producer id and client version as tagged fields."""
    transaction = Transaction(
        "tx",
        7,
        3,
        60_000,
        TransactionState.PREPARE_COMMIT,
        9,
        8,
        frozenset({TopicPartition("t", 1)}),
        2,
        previous_producer_id=6,
    )
    record = log_records.encode(transaction, 1)
    assert record.key == bytes.fromhex("0000 0002 7478")
    assert record.value == bytes.fromhex(
        "0001 0000000000000007 0003 0000ea60 02"  # producer id, epoch, timeout, state
        "02 02 74 02 00000001 00"  # topic "t" with partition 1
        "0000000000000009 0000000000000008"
        "02 00 08 0000000000000006 02 02 0002"  # two tagged fields
    )


def test_values_of_version_0_are_decoded() -> None:
    value = bytes.fromhex("0000 0000000000000007 0003 0000ea60 04 ffffffff 0000000000000009 0000000000000008")
    row = log_records.decode(Record(0, 0, bytes.fromhex("0000 0002 7478"), value, ()))
    assert row == ("tx", Transaction("tx", 7, 3, 60_000, TransactionState.COMPLETE_COMMIT, 9, 8, version=0))


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_a_decided_transaction_is_completed_after_a_restart(committed: bool, version: int) -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0, 1, version=version)
        with rig.replicas.held():
            after = await rig.end(producer, committed, version)
            again = rig.restarted()
            assert await code_of(again.end(producer, committed, version)) == Code.CONCURRENT_TRANSACTIONS
        await again.clock.run()
        assert again.current.state == (
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        )
        assert {m.committed for m in again.replicas.markers} == {committed}
        assert await again.end(producer, committed, version) == after
        assert await code_of(again.end(producer, not committed, version)) == Code.INVALID_TXN_STATE

    run(main)


def test_an_open_transaction_keeps_its_timeout_across_a_restart() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        await rig.add(producer, 0)
        await rig.clock.run(TIMEOUT_MS - 15_000)
        again = rig.restarted()
        again.coordinator.start()
        await again.add(producer, 1)
        await again.clock.run(10_000)
        assert again.state() == TransactionState.ONGOING
        await again.clock.run(10_000)
        assert again.state() == TransactionState.COMPLETE_ABORT

    run(main)


def test_a_loading_coordinator_fails_with_load_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(store, "LOAD_SLICE_BATCHES", 2)
        rig = Rig()
        producer = await rig.init()
        for n in range(6):
            await rig.add(producer, n)
        again = rig.restarted()
        with refused(Code.COORDINATOR_LOAD_IN_PROGRESS):
            await again.add(producer, 0)
        with refused(Code.COORDINATOR_LOAD_IN_PROGRESS):
            list(again.coordinator.transactions())
        await again.clock.run()
        assert again.current == rig.current

    run(main)


def test_an_unreadable_log_is_not_treated_as_empty(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        rig = Rig()
        await rig.init()
        rig.internal.logs[TRANSACTION_STATE, 0].append(b"\0" * 70)
        with caplog.at_level(logging.ERROR):
            again = rig.restarted()
        assert "failed to load __transaction_state-0" in caplog.text
        with refused(Code.COORDINATOR_NOT_AVAILABLE):
            await again.init()

    run(main)


def test_records_of_unknown_type_are_skipped() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.init()
        await rig.internal.append(TRANSACTION_STATE, 0, [Record(0, 0, b"\0\x09abc", b"?", ())])
        assert rig.restarted().current == rig.current

    run(main)


def test_a_partition_is_reloaded_when_leadership_returns() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        with rig.internal.held():
            adding = asyncio.ensure_future(rig.add(producer, 0))
            await rig.clock.run()
            rig.coordinator.unload(0)
            rig.coordinator.load(0)
        with refused(Code.NOT_COORDINATOR):  # written, but the coordinator has changed
            await adding
        assert rig.current.state == TransactionState.EMPTY

    run(main)


class Writer:
    """A producer that runs planned transactions and records the responses."""

    def __init__(self, rig: Rig, version: int, plan: list[tuple[int, bool]]) -> None:
        self._rig = rig
        self._version = version
        self._plan = plan
        self.begun = 0
        self.acknowledged: dict[int, bool] = {}
        self.producer = ProducerIdAndEpoch(-1, -1)

    async def run(self) -> None:
        """Return the partitions of transaction n: 10n, 10n+1, …"""
        self.producer = await self._rig.init()
        for n, (partitions, committed) in enumerate(self._plan):
            self.begun = n + 1
            for index in range(partitions):
                await self._add_patiently(10 * n + index)
            self.producer = await self._rig.end(self.producer, committed, self._version)
            self.acknowledged[n] = committed

    async def _add_patiently(self, index: int) -> None:
        while await code_of(self._rig.add(self.producer, index, version=self._version)):
            await self._rig.clock.run()  # the previous transaction is being completed


@settings(deadline=None, max_examples=15)
@given(
    version=st.sampled_from([1, 2]),
    plan=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1, max_size=3),
    crashes=st.lists(st.integers(1, 8), max_size=2),
    responds_to_last=st.booleans(),
)
def test_a_crash_after_any_write_leaves_one_outcome_per_transaction(
    version: int, plan: list[tuple[int, bool]], crashes: list[int], responds_to_last: bool
) -> None:
    """A write is a transition in the log or a marker in a partition. The process crashes after the write, with or
    without a response, perhaps crashes again during recovery, and finally a new producer initializes the id."""

    async def main() -> None:
        for writes in range(1, WRITES_MAX):
            if await is_harmless(
                [Fuse(n, responds_to_last=responds_to_last) for n in (writes, *crashes)], version, plan
            ):
                return
        raise AssertionError("the plan takes more writes than expected")

    run(main)


async def is_harmless(fuses: list[Fuse], version: int, plan: list[tuple[int, bool]]) -> bool:
    """Run a plan with crashes and check the result. Return True if the first crash would be after its end."""
    rig = Rig()
    rig.internal.fuse = rig.replicas.fuse = fuses[0]
    writer = Writer(rig, version, plan)
    writing = asyncio.ensure_future(writer.run())
    await rig.clock.run(500)
    writing.cancel()
    for fuse in fuses[1:]:
        rig.internal.fuse = rig.replicas.fuse = fuse
        rig = rig.restarted()
        await rig.clock.run(500)
    rig.internal.fuse = rig.replicas.fuse = None
    rig = rig.restarted()
    successor = await rig.init_until_done()

    assert rig.state() == TransactionState.EMPTY
    assert rig.restarted().current == replace(rig.current, last_epoch=-1)
    for n, (partitions, _) in enumerate(plan[: writer.begun]):
        ends = [(m.partition, m.committed) for m in rig.replicas.markers if m.partition // 10 == n]
        outcomes = {committed for _, committed in ends}
        assert len(outcomes) <= 1
        if n in writer.acknowledged:
            assert {index for index, _ in ends} == {10 * n + index for index in range(partitions)}
            assert outcomes == {writer.acknowledged[n]}
    old = writer.producer
    if old.producer_id >= 0:
        assert old != successor
        for request in (rig.add(old, 0), rig.end(old, True, version), rig.end(old, False, version)):
            assert await code_of(request) in (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_ID_MAPPING)
    return fuses[0].left > 0
