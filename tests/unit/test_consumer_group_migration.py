"""Groups that change between the classic and the consumer protocol, and groups with members of both."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.groups.consumer_group import ConsumerGroupState
from headrace.broker.groups.group import GroupState
from headrace.errors import BrokerError, Code
from headrace.wire.api.groups import JoinGroupResponse, MemberIdentity
from headrace.wire.consumer_protocol import ConsumerProtocolSubscription, ProtocolTopicPartition, decode_assignment
from tests.support.consumer_rig import ConsumerRig
from tests.support.group_rig import GROUP, REBALANCE_MS, SESSION_MS, code_of, on_loop

ROUNDS_MAX = 20


class ClassicClient:
    """A classic consumer with cooperative rebalances: joins, syncs, sends heartbeats."""

    def __init__(self, rig: ConsumerRig, topic: str = "orders", instance_id: str | None = None) -> None:
        self.id = ""
        self.generation = -1
        self.owned: set[tuple[str, int]] = set()
        self._rig, self._topic, self._instance_id = rig, topic, instance_id

    async def beat(self) -> None:
        """Send a heartbeat; join and sync if that is required."""
        if self.generation < 0:
            await self.join()
            return
        code = self._rig.heartbeat(self.id, self.generation, self._instance_id)
        if code is Code.UNKNOWN_MEMBER_ID:
            self.id, self.generation, self.owned = "", -1, set()
        elif code in (Code.REBALANCE_IN_PROGRESS, Code.ILLEGAL_GENERATION):
            await self.join()

    async def join(self) -> None:
        await self.apply(await self.send_join())

    def send_join(self) -> asyncio.Future[JoinGroupResponse]:
        rows = [ProtocolTopicPartition(topic=name, partitions=[index]) for name, index in sorted(self.owned)]
        metadata = b"\0\1" + ConsumerProtocolSubscription(topics=[self._topic], owned_partitions=rows).encode(1)
        return self._rig.join(self.id, protocols={"range": metadata}, instance_id=self._instance_id)

    async def apply(self, response: JoinGroupResponse) -> None:
        """Apply the response to a join, and sync; join again if there is something to revoke first."""
        if response.error_code == Code.MEMBER_ID_REQUIRED:
            self.id = response.member_id
            await self.join()
            return
        if response.error_code:
            return
        self.id, self.generation = response.member_id, response.generation_id
        parts = {row.member_id: b"\0\1\0\0\0\0\xff\xff\xff\xff" for row in response.members}
        synced = code_of(lambda: self._rig.sync(self.id, self.generation, parts, instance_id=self._instance_id))
        if isinstance(synced, Code):
            return
        await self._rig.clock.run()
        result = synced.result()
        if not result.error_code:
            self.owned = set(decode_assignment(result.assignment))


async def classic_group(rig: ConsumerRig, count: int) -> list[ClassicClient]:
    """Create a stable classic group in which the first member has all partitions."""
    members = [ClassicClient(rig) for _ in range(count)]
    joins = []
    for member in members:
        member.id = await rig.new_id()
        joins.append(member.send_join())
    await rig.rebalanced(*joins)
    parts = {}
    for member, join in zip(members, joins, strict=True):
        member.generation = join.result().generation_id
        data = b"\0\1" + b"\0\0\0\1\0\6orders\0\0\0\2\0\0\0\0\0\0\0\1" + b"\xff\xff\xff\xff"
        parts[member.id] = data if member is members[0] else b"\0\1\0\0\0\0\xff\xff\xff\xff"
    syncs = [rig.sync(member.id, member.generation, parts) for member in members]
    await rig.clock.run()
    for member, sync in zip(members, syncs, strict=True):
        member.owned = set(decode_assignment(sync.result().assignment))
    return members


async def settle(rig: ConsumerRig, *members) -> None:
    for _ in range(ROUNDS_MAX):
        before = [set(member.owned) for member in members]
        for member in members:
            await member.beat()
        is_stable = rig.consumer_group.state is ConsumerGroupState.STABLE
        if is_stable and before == [member.owned for member in members]:
            return
    raise AssertionError(f"the group is {rig.consumer_group.state.value}: {[member.owned for member in members]}")


def check_split(rig: ConsumerRig, *members) -> None:
    assert sum(len(member.owned) for member in members) == len(rig.partitions("orders"))
    assert set().union(*(member.owned for member in members)) == rig.partitions("orders")


@on_loop
async def test_a_classic_group_is_upgraded_and_its_members_keep_their_assignment_until_they_rejoin():
    async with ConsumerRig({"orders": 2}) as rig:
        (classic,) = await classic_group(rig, 1)
        modern = rig.member("new")
        await modern.beat()
        group = rig.consumer_group
        assert group.members[classic.id].epoch == classic.generation
        assert modern.owned == set()
        assert rig.view() == await rig.replayed()
        assert rig.heartbeat(classic.id, classic.generation) is Code.REBALANCE_IN_PROGRESS
        await settle(rig, classic, modern)
        check_split(rig, classic, modern)
        assert len(classic.owned) == 1
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_group_is_downgraded_when_its_last_member_with_the_consumer_protocol_leaves():
    async with ConsumerRig({"orders": 2}) as rig:
        (classic,) = await classic_group(rig, 1)
        modern = rig.member("new")
        await settle(rig, classic, modern)
        await modern.leave()
        assert rig.group.state is GroupState.PREPARING_REBALANCE
        assert rig.heartbeat(classic.id, rig.group.generation) is Code.REBALANCE_IN_PROGRESS
        join = classic.send_join()
        await rig.rebalanced(join)
        assert join.result().leader == classic.id
        await classic.apply(join.result())
        assert rig.group.state.value == "Stable"
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_group_is_downgraded_when_the_session_of_that_member_times_out():
    async with ConsumerRig({"orders": 2}) as rig:
        (classic,) = await classic_group(rig, 1)
        modern = rig.member("new")
        await settle(rig, classic, modern)
        for _ in range(10):
            await rig.clock.run(SESSION_MS / 2)
            if GROUP in {group.id for group in rig.groups.list() if not hasattr(group, "target_epoch")}:
                break
            await classic.beat()
        assert rig.group.state is GroupState.PREPARING_REBALANCE


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
@on_loop
async def test_a_policy_without_upgrade_refuses_new_members(policy):
    async with ConsumerRig({"orders": 2}, {"group.consumer.migration.policy": policy}) as rig:
        await classic_group(rig, 1)
        assert await rig.join_code("new") is Code.GROUP_ID_NOT_FOUND
        assert rig.group.state is GroupState.STABLE


@pytest.mark.parametrize("policy", ["upgrade", "UPGRADE"])
@on_loop
async def test_a_policy_without_downgrade_keeps_the_consumer_group(policy):
    async with ConsumerRig({"orders": 2}, {"group.consumer.migration.policy": policy}) as rig:
        (classic,) = await classic_group(rig, 1)
        modern = rig.member("new")
        await settle(rig, classic, modern)
        await modern.leave()
        await settle(rig, classic)
        assert classic.owned == rig.partitions("orders")


@on_loop
async def test_another_protocol_type_cannot_be_upgraded():
    async with ConsumerRig({"orders": 2}) as rig:
        await rig.rebalanced(rig.join(protocols={"x": b"y"}, protocol_type="connect", version=3))
        assert await rig.join_code("new") is Code.GROUP_ID_NOT_FOUND


@on_loop
async def test_malformed_metadata_cannot_be_upgraded():
    async with ConsumerRig({"orders": 2}) as rig:
        await rig.rebalanced(rig.join(protocols={"range": b"\0\1\x7f\xff\xff\xff"}, version=3))
        assert await rig.join_code("new") is Code.GROUP_ID_NOT_FOUND
        assert rig.group.members


@on_loop
async def test_a_failed_upgrade_leaves_the_classic_group_as_it_was():
    async with ConsumerRig({"orders": 2}) as rig:
        (classic,) = await classic_group(rig, 1)
        before = rig.view()
        rig.internal.fail(Code.NOT_ENOUGH_REPLICAS)
        assert await rig.join_code("new") is Code.COORDINATOR_NOT_AVAILABLE
        assert rig.view() == before
        assert rig.heartbeat(classic.id, classic.generation) is Code.NONE
        await rig.clock.run(SESSION_MS)
        assert rig.group.members == {}


@on_loop
async def test_members_that_wait_for_a_classic_rebalance_join_the_upgraded_group():
    async with ConsumerRig({"orders": 2}) as rig:
        (first,) = await classic_group(rig, 1)
        second = ClassicClient(rig)
        second.id = await rig.new_id()
        waiting = second.send_join()
        modern = rig.member("new")
        await modern.beat()
        assert (await waiting).error_code == Code.REBALANCE_IN_PROGRESS
        await settle(rig, first, second, modern)
        check_split(rig, first, second, modern)


@on_loop
async def test_classic_requests_wait_while_an_upgrade_is_written():
    async with ConsumerRig({"orders": 2}) as rig:
        (classic,) = await classic_group(rig, 1)
        modern = rig.member("new")
        with rig.internal.held():
            upgrade = asyncio.ensure_future(modern.beat())
            await rig.clock.run()
            join = classic.send_join()
            await rig.clock.run()
            assert not join.done()
        assert await upgrade is Code.NONE
        assert (await join).error_code == Code.NONE
        assert classic.id in rig.consumer_group.members
        await settle(rig, classic, modern)
        check_split(rig, classic, modern)
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_group_without_members_takes_the_protocol_of_the_next_member():
    async with ConsumerRig({"orders": 1}) as rig:
        await rig.commit({("orders", 0): 7})
        a = rig.member("a")
        await rig.settle(a)
        assert rig.offset() == 7
        assert rig.view() == await rig.replayed()
        await a.leave()
        classic = ClassicClient(rig)
        classic.id = (await rig.join()).member_id
        join = classic.send_join()
        await rig.rebalanced(join)
        assert rig.group.state is GroupState.COMPLETING_REBALANCE
        assert rig.offset() == 7


@on_loop
async def test_classic_members_that_do_not_rejoin_or_sync_are_removed():
    async with ConsumerRig({"orders": 2}) as rig:
        (classic,) = await classic_group(rig, 1)
        modern = rig.member("new")
        await modern.beat()
        for _ in range(int(REBALANCE_MS / SESSION_MS * 2) + 1):
            rig.heartbeat(classic.id, classic.generation)  # REBALANCE_IN_PROGRESS, ignored
            await modern.beat()
            await rig.clock.run(SESSION_MS / 2)
        assert classic.id not in rig.consumer_group.members
        await settle(rig, modern)
        assert modern.owned == rig.partitions("orders")


@on_loop
async def test_a_static_classic_member_replaces_one_with_the_consumer_protocol_and_downgrades():
    async with ConsumerRig({"orders": 2}) as rig:
        modern = rig.member("new", instance_id="one")
        await rig.settle(modern)
        response = await ClassicClient(rig, instance_id="one").send_join()
        assert response.error_code == Code.NONE
        assert list(rig.group.members) == [response.member_id]
        assert rig.view() == await rig.replayed()


@on_loop
async def test_an_administrator_removes_members_of_either_protocol():
    async with ConsumerRig({"orders": 2}) as rig:
        a, b = rig.member("a"), rig.member("b", instance_id="two")
        await rig.settle(a, b)
        identities = [
            MemberIdentity(member_id="a"),
            MemberIdentity(member_id="", group_instance_id="two"),
            MemberIdentity(member_id="x"),
        ]
        codes = await rig.groups.leave_consumer_group(GROUP, identities)
        assert codes == [Code.NONE, Code.NONE, Code.UNKNOWN_MEMBER_ID]
        assert rig.consumer_group.members == {}


@on_loop
async def test_incompatible_classic_consumers_are_refused():
    async with ConsumerRig({"orders": 2}) as rig:
        (classic,) = await classic_group(rig, 1)
        await rig.join_member("new")
        for protocols, protocol_type in (({"sticky": b""}, "consumer"), ({"range": b""}, "connect")):
            response = await rig.join("x", protocols=protocols, protocol_type=protocol_type)
            assert response.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        malformed = await rig.join("x", protocols={"range": b"\0\1\x7f\xff\xff\xff"})
        assert malformed.error_code == Code.INCONSISTENT_GROUP_PROTOCOL
        assert rig.heartbeat("new", 2) is Code.UNKNOWN_MEMBER_ID
        with pytest.raises(BrokerError) as raised:
            rig.sync(classic.id, classic.generation, protocol_name="sticky")
        assert raised.value.code == Code.INCONSISTENT_GROUP_PROTOCOL
