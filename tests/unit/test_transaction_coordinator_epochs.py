"""Epochs and fencing in the transaction coordinator."""

from __future__ import annotations

from dataclasses import replace

from headrace.broker.transactions.transaction import EPOCH_MAX, TransactionState
from headrace.errors import Code
from headrace.types import ProducerIdAndEpoch
from tests.support.transaction_rig import ID, Rig, code_of, refused, run

CONCURRENT, FENCED = Code.CONCURRENT_TRANSACTIONS, Code.PRODUCER_FENCED
INVALID, MAPPING = Code.INVALID_TXN_STATE, Code.INVALID_PRODUCER_ID_MAPPING


def test_a_second_producer_fences_the_first_and_aborts_its_transaction() -> None:
    async def main() -> None:
        for version in (1, 2):
            rig = Rig()
            first = await rig.init()
            await rig.add(first, 0, version=version)
            with refused(CONCURRENT):
                await rig.init()
            await rig.clock.run()
            # Before the second producer retries, the first must not continue: neither with its own epoch, nor with
            # the abort taken for its own.
            for request in (rig.add(first, 1), rig.end(first, True, version), rig.end(first, False, version)):
                assert await code_of(request) == FENCED
            second = await rig.init()
            assert second == ProducerIdAndEpoch(first.producer_id, first.epoch + 2)
            assert [(m.committed, m.epoch) for m in rig.replicas.markers] == [(False, first.epoch + 1)]
            assert await code_of(rig.init(first)) == FENCED
            for request in (rig.add(first, 1), rig.end(first, True, version), rig.end(first, False, version)):
                assert await code_of(request) == FENCED

    run(main)


def test_a_zombie_that_recovers_does_not_abort_its_successor() -> None:
    async def main() -> None:
        rig = Rig()
        zombie = await rig.init()
        owner = await rig.init()
        await rig.add(owner, 0)
        with refused(FENCED):
            await rig.init(zombie)
        assert rig.current.state == TransactionState.ONGOING
        await rig.end(owner, True)

    run(main)


def test_a_recovering_producer_gets_the_next_epoch_and_a_retry_the_same() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        bumped = await rig.init(producer)
        assert bumped == producer._replace(epoch=1)
        assert await rig.init(producer) == bumped  # the response was lost
        assert await rig.init(bumped) == producer._replace(epoch=2)
        with refused(FENCED):
            await rig.init(producer)
        await rig.init()  # a new producer: the previous ones are fenced
        with refused(FENCED):
            await rig.init(bumped)

    run(main)


def exhausted(rig: Rig) -> ProducerIdAndEpoch:
    """Exhaust the epochs of the id."""
    (partition,) = rig.coordinator._store.partitions.values()
    entry = partition.entries[ID]
    entry.current = replace(entry.current, epoch=EPOCH_MAX - 1)
    return entry.current.producer


def test_init_with_exhausted_epochs_assigns_another_id() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.init()
        last = exhausted(rig)
        fresh = await rig.init(last)
        assert fresh.epoch == 0
        assert fresh.producer_id != last.producer_id
        assert await rig.init(last) == fresh  # the response was lost
        with refused(FENCED):
            await rig.init(last._replace(epoch=3))
        assert await rig.init() == fresh._replace(epoch=1)

    run(main)


def test_a_producer_at_its_last_epoch_can_still_be_fenced() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.init()
        last = exhausted(rig)
        await rig.add(last, 0)
        fresh = await rig.init_until_done()
        assert fresh.producer_id != last.producer_id
        assert fresh.epoch == 0
        assert [(m.producer_id, m.epoch) for m in rig.replicas.markers] == [(last.producer_id, EPOCH_MAX)]
        with refused(MAPPING):
            await rig.add(last, 1)

    run(main)


def test_the_fencing_epoch_belongs_to_no_producer() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.init()
        last = exhausted(rig)
        await rig.add(last, 0)
        await code_of(rig.init())
        await rig.clock.run()
        with refused(FENCED):
            await rig.add(last._replace(epoch=EPOCH_MAX), 0)

    run(main)


def test_in_version_2_every_end_bumps_the_epoch() -> None:
    async def main() -> None:
        rig = Rig()
        producer = await rig.init()
        for n in range(4):
            await rig.add(producer, n, version=2)
            after = await rig.end(producer, n % 2 == 0, 2)
            assert after == producer._replace(epoch=producer.epoch + 1)
            await rig.clock.run()
            assert await rig.end(producer, n % 2 == 0, 2) == after  # the response was lost
            producer = after
        assert [m.epoch for m in rig.replicas.markers] == [1, 2, 3, 4]
        assert {m.transaction_version for m in rig.replicas.markers} == {2}
        assert await rig.end(producer, False, 2) == producer._replace(epoch=5)  # an empty transaction
        with refused(INVALID):
            await rig.end(producer._replace(epoch=5), True, 2)

    run(main)


def test_a_late_end_does_not_affect_the_next_transaction() -> None:
    async def main() -> None:
        rig = Rig()
        first = await rig.init()
        await rig.add(first, 0, version=2)
        second = await rig.end(first, True, 2)
        await rig.clock.run()
        await rig.add(second, 1, version=2)
        for committed in (True, False):
            with refused(FENCED):
                await rig.end(first, committed, 2)
        assert rig.current.state == TransactionState.ONGOING
        assert rig.current.partitions == {("t", 1)}

    run(main)


def test_a_v2_end_with_exhausted_epochs_assigns_another_id() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.init()
        last = exhausted(rig)
        await rig.add(last, 0, version=2)
        with rig.replicas.held():
            fresh = await rig.end(last, True, 2)
            assert fresh.epoch == 0
            assert fresh.producer_id != last.producer_id
            # The new id is pending, but its producer may use it already.
            with refused(CONCURRENT):
                await rig.add(fresh, 1, version=2)
            again = rig.restarted()
        await again.clock.run()
        assert again.current.producer == fresh
        assert await again.end(last, True, 2) == fresh  # the response was lost
        with refused(INVALID):
            await again.end(last, False, 2)
        await again.add(fresh, 1, version=2)

    run(main)
