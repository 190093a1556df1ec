"""ShareGroupHeartbeat: joining, assignments, leaving, sessions, and the replay of all of it."""

from __future__ import annotations

import pytest

from headrace.broker.groups.consumer_heartbeats import HeartbeatClient
from headrace.broker.groups.share_offsets import NewOffset
from headrace.errors import BrokerError, Code
from headrace.wire.api.share_groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.support.consumer_rig import ConsumerRig
from tests.support.group_rig import GROUP, on_loop

SESSION_TIMEOUT_MS = 45_000
INTERVAL_MS = 1_000


async def beat(rig: ConsumerRig, member: str, epoch: int, *topics: str) -> ShareGroupHeartbeatResponse:
    """Send a heartbeat; with topics, the member's subscription."""
    request = ShareGroupHeartbeatRequest(
        group_id=GROUP, member_id=member, member_epoch=epoch, subscribed_topic_names=topics or None
    )
    return await rig.groups.share_heartbeat(request, HeartbeatClient("client", "/host", 1, lambda topic: True))


def partitions(response: ShareGroupHeartbeatResponse) -> list[int]:
    assert response.assignment is not None
    return sorted(index for row in response.assignment.topic_partitions for index in row.partitions)


@on_loop
async def test_the_first_member_gets_all_partitions_with_its_first_response():
    async with ConsumerRig({"orders": 3}) as rig:
        response = await beat(rig, "a", 0, "orders")
        assert partitions(response) == [0, 1, 2]
        assert response.heartbeat_interval_ms == 5_000
        assert {key.partition for key in rig.share_states.states} == {0, 1, 2}
        assert rig.view() == await rig.replayed()


@on_loop
async def test_more_members_than_partitions_share_them():
    async with ConsumerRig({"orders": 1}) as rig:
        for name in "abc":
            await rig.clock.run(INTERVAL_MS)
            assert partitions(await beat(rig, name, 0, "orders")) == [0]
        assert rig.groups.describe_share_group(GROUP).state.value == "Stable"
        assert rig.view() == await rig.replayed()


@on_loop
async def test_partitions_of_a_member_that_leaves_go_to_the_others():
    async with ConsumerRig({"orders": 4}) as rig:
        first = await beat(rig, "a", 0, "orders")
        await rig.clock.run(INTERVAL_MS)
        second = await beat(rig, "b", 0, "orders")
        kept = await beat(rig, "a", first.member_epoch)
        assert sorted([*partitions(kept), *partitions(second)]) == [0, 1, 2, 3]
        await beat(rig, "b", -1)
        await rig.clock.run(INTERVAL_MS)
        assert partitions(await beat(rig, "a", kept.member_epoch)) == [0, 1, 2, 3]
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_member_without_heartbeats_is_removed():
    async with ConsumerRig({"orders": 1}) as rig:
        response = await beat(rig, "a", 0, "orders")
        await rig.clock.run(SESSION_TIMEOUT_MS - 1)
        assert "a" in rig.groups.describe_share_group(GROUP).members
        await rig.clock.run(2)
        assert not rig.groups.describe_share_group(GROUP).members
        with pytest.raises(BrokerError) as failure:
            await beat(rig, "a", response.member_epoch)
        assert failure.value.code == Code.UNKNOWN_MEMBER_ID
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_new_topic_is_assigned_to_members_that_wait_for_it():
    async with ConsumerRig({}) as rig:
        response = await beat(rig, "a", 0, "later")
        assert partitions(response) == []
        rig.create_topic("later", 2)
        await rig.clock.run(INTERVAL_MS)
        assert partitions(await beat(rig, "a", response.member_epoch)) == [0, 1]


@on_loop
async def test_offsets_are_altered_and_deleted_without_members_only():
    async with ConsumerRig({"orders": 1}) as rig:
        await beat(rig, "a", 0, "orders")
        offsets = rig.groups.share_offsets(GROUP)
        row = NewOffset(rig.topic_id("orders"), "orders", 0, 7)
        for operation in (offsets.alter(GROUP, [row]), offsets.delete(GROUP, [row.topic_id])):
            with pytest.raises(BrokerError) as failure:
                await operation
            assert failure.value.code == Code.NON_EMPTY_GROUP
        await beat(rig, "a", -1)
        await offsets.alter(GROUP, [row])
        (state,) = rig.share_states.states.values()
        assert state.start_offset == 7
        await offsets.delete(GROUP, [row.topic_id])
        assert not rig.share_states.states
        await rig.groups.delete(GROUP)
        assert rig.groups.list() == []
        assert rig.view() == await rig.replayed()
