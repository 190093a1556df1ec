"""Locks and acknowledgements of a share partition that meet in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter

from headrace.broker.group_options import DeliverySettings
from headrace.broker.share.in_flight import AcknowledgeType, AcquireLimits, OffsetRange, RecordState
from headrace.broker.share.partition import Acknowledgement, SharePartition, SharePartitionEnv
from headrace.broker.share.state import SharePartitionKey, ShareState
from tests.support.fake_internal import HandClock, settle

LOCK_MS = 30_000
LIMITS = AcquireLimits(500, 500, is_strict=False, in_flight_max=2_000, delivery_count_max=5)


class Store:
    """Keeps what is written."""

    def __init__(self):
        self.updates = []

    async def read(self, key, leader_epoch):
        return ShareState(start_offset=0)

    async def write(self, key, update):
        await asyncio.sleep(0)
        self.updates += [(each.first_offset, each.last_offset, each.delivery_state) for each in update.batches]


class Rig:
    def __init__(self):
        self.clock = HandClock()
        self.store = Store()
        self.counters: Counter[str] = Counter()
        settings = DeliverySettings(LOCK_MS, 5, 2_000, "earliest", committed_only=False, may_renew=True)
        env = SharePartitionEnv(self.clock, self.store, lambda: settings, lambda: None, lambda: None, self.counters)
        self.partition = SharePartition(SharePartitionKey("g", bytes(16), 0), 0, env)

    async def acquire(self):
        await self.partition.load(lambda policy: 0)
        return self.partition.acquire("a", 0, [OffsetRange(0, 9)], LIMITS)

    async def acknowledge(self):
        await self.partition.acknowledge("a", [Acknowledgement(OffsetRange(0, 9), [AcknowledgeType.ACCEPT])])


def test_an_acknowledgement_wins_against_the_lock_timer_of_the_same_turn():
    async def main():
        rig = Rig()
        assert await rig.acquire()
        rig.clock.now_ms = LOCK_MS - 1
        acknowledging = asyncio.create_task(rig.acknowledge())
        rig.clock.fire_next()
        await settle()
        await acknowledging
        assert rig.store.updates == [(0, 9, RecordState.ACKNOWLEDGED)]
        assert rig.partition.acquire("b", 0, [OffsetRange(0, 9)], LIMITS) == []
        assert rig.counters == {"acquired": 10, "accepted": 10}

    asyncio.run(main())


def test_a_lock_that_ends_makes_its_records_available_again():
    async def main():
        rig = Rig()
        await rig.acquire()
        await rig.clock.run(LOCK_MS)
        (run,) = rig.partition.acquire("b", 0, [OffsetRange(0, 9)], LIMITS)
        assert (run.first, run.last, run.delivery_count) == (0, 9, 2)
        assert rig.counters == {"acquired": 20, "expired": 10}

    asyncio.run(main())
