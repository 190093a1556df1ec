"""The log of share-group states: what snapshots replace is deleted, and a restart finds the same states."""

from __future__ import annotations

import asyncio
import time

from headrace.broker.catalog.topics import SHARE_GROUP_STATE
from headrace.broker.share import coordinator
from headrace.broker.share.state import SharePartitionKey, StateUpdate
from headrace.wire.api.share_state import StateBatch
from tests.support.broker_in_loop import broker_in_loop

GROUPS = 3
UPDATES = 40
SECONDS_MAX = 20
ACKNOWLEDGED = 2  # a delivery state
OPTIONS = {
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.snapshot.update.records.per.snapshot": 10,
}


async def until(condition):
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {SECONDS_MAX} s"
        await asyncio.sleep(0.01)


def keys_of(broker):
    topic_id = broker.catalog.topics.by_name["jobs"].id
    return [SharePartitionKey(f"group-{n}", topic_id, 0) for n in range(GROUPS)]


async def update(states, key, offset):
    done = StateBatch(first_offset=offset, last_offset=offset, delivery_state=ACKNOWLEDGED, delivery_count=1)
    await states.write(key, StateUpdate(1, 0, offset, 1, [done]))


def test_records_before_all_snapshots_are_deleted_while_a_group_is_idle(tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator, "PRUNE_INTERVAL_MS", 100)

    async def run():
        async with broker_in_loop(tmp_path / "data", **OPTIONS) as broker:
            broker.topic_manager.create("jobs", 1, 1, {})
            states, keys = broker.share.coordinator, keys_of(broker)
            for key in keys:
                await states.initialize(key, 1, 0)
            for offset in range(UPDATES):
                await update(states, keys[0], offset)
            await update(states, keys[1], 7)  # once; the third group is idle from the start
            log = broker.replicas.partition(SHARE_GROUP_STATE, 0).log
            # Of the idle groups, snapshots are written again: none of their first ones keeps old records.
            await until(lambda: log.start_offset > UPDATES)
            expected = [states.summary(key) for key in keys]
            assert [state.start_offset for state in expected] == [UPDATES - 1, 7, 0]
        async with broker_in_loop(tmp_path / "data", **OPTIONS) as broker:
            states = broker.share.coordinator
            await until(lambda: broker.replicas.partition(SHARE_GROUP_STATE, 0).log.start_offset > UPDATES)
            after = [states.summary(key) for key in keys_of(broker)]
        facts = [(state.state_epoch, state.leader_epoch, state.start_offset, state.batches) for state in expected]
        assert [(state.state_epoch, state.leader_epoch, state.start_offset, state.batches) for state in after] == facts

    asyncio.run(run())
