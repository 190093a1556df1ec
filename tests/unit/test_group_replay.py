"""For any history: the groups in memory equal the replay of the log."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.groups.group import GroupState, MemberClaim
from headrace.broker.groups.records import KeyValue
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.api.groups import MemberIdentity
from tests.support.examples import examples
from tests.support.group_rig import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, SETTLED, GroupRig, on_loop, subscription

GROUPS = (GROUP, "other")
PRODUCERS = (1, 2, 3)
OPTIONS = {"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 20_000, "group.max.size": 4}
STEPS_MAX = 40


class History:
    """A rig, and a random generator that selects the next operation."""

    def __init__(self, rig: GroupRig, dice: random.Random) -> None:
        self.rig = rig
        self.dice = dice
        self.ids: dict[str, list[str]] = {group_id: [] for group_id in GROUPS}
        self.requests: list[asyncio.Future[Any]] = []

    async def step(self) -> None:
        often = [self.join, self.sync, self.commit]
        seldom = [self.leave, self.commit_in_transaction, self.end_transaction, self.delete, self.heartbeat]
        happening = self.dice.choice([*often, *often, *often, *seldom, self.wait, self.hurry])
        with suppress(BrokerError):  # invalid in this state
            await happening(self.dice.choice(GROUPS))

    async def join(self, group_id: str) -> None:
        member_id = self.dice.choice(["", "", *self.ids[group_id]])
        future = self.rig.join(
            member_id,
            group_id=group_id,
            instance_id=self.dice.choice([None, None, "i", "j"]) if not member_id else None,
            protocols={"range": subscription(self.dice.choice("abc")), "sticky": b"?"},
            version=self.dice.choice([3, 9]),
        )
        future.add_done_callback(lambda done: self.ids[group_id].append(done.result().member_id))
        self.requests.append(future)

    async def sync(self, group_id: str) -> None:
        group = self.rig.groups.describe(group_id)
        if group is None:
            return
        if group.state is GroupState.PREPARING_REBALANCE and self.dice.random() < 0.5:
            await self.rig.clock.run(DELAY_MS)  # otherwise few groups would reach an assignment
        parts = {member_id: self.dice.randbytes(3) for member_id in group.members if self.dice.random() < 0.9}
        for member_id in list(group.members):
            if self.dice.random() < 0.8:
                self.requests.append(self.rig.sync(member_id, group.generation, parts, group_id=group_id))

    async def heartbeat(self, group_id: str) -> None:
        group = self.rig.groups.describe(group_id)
        if group is not None:
            for member_id in list(group.members):
                self.rig.groups.heartbeat(group_id, MemberClaim(member_id, group.generation))

    async def leave(self, group_id: str) -> None:
        who = [MemberIdentity(member_id=member_id) for member_id in self.ids[group_id] if self.dice.random() < 0.3]
        who.append(MemberIdentity(member_id="", group_instance_id=self.dice.choice("ij")))
        self.rig.groups.leave(group_id, who)

    def _claim(self, group_id: str) -> MemberClaim:
        group = self.rig.groups.describe(group_id)
        if group is None or not group.members or self.dice.random() < 0.2:
            return MemberClaim()
        return MemberClaim(self.dice.choice(list(group.members)), group.generation)

    def _offsets(self) -> dict[tuple[str, int], int]:
        count = self.dice.randint(1, 3)
        return {
            TopicPartition(self.dice.choice("abcd"), self.dice.randint(0, 1)): self.dice.randint(0, 99)
            for _ in range(count)
        }

    async def commit(self, group_id: str) -> None:
        await self.rig.commit(self._offsets(), self._claim(group_id), group_id=group_id)

    async def commit_in_transaction(self, group_id: str) -> None:
        producer_id = self.dice.choice(PRODUCERS)
        await self.rig.commit_in_transaction(producer_id, self._offsets(), self._claim(group_id), group_id=group_id)

    async def end_transaction(self, _: str) -> None:
        self.rig.end_transaction(self.dice.choice(PRODUCERS), self.dice.random() < 0.5)

    async def delete(self, group_id: str) -> None:
        choice = self.dice.random()
        if choice < 0.3:
            await self.rig.groups.delete(group_id)
        elif choice < 0.4:
            self.rig.groups.topic_deleted(self.dice.choice("abcd"))
        else:
            await self.rig.groups.delete_offsets(group_id, [TopicPartition(*key) for key in self._offsets()])

    async def hurry(self, _: str) -> None:
        await self.rig.clock.run()

    async def wait(self, _: str) -> None:
        await self.rig.clock.run(self.dice.choice([100, DELAY_MS, DELAY_MS, SESSION_MS, REBALANCE_MS, 70_000]))


def compare(live: dict[str, Any], replayed: dict[str, Any]) -> None:
    """Return all offsets, and the groups without a pending rebalance."""
    assert live["offsets"] == replayed["offsets"]
    assert live["pending"] == replayed["pending"]
    for group_id, group in live["groups"].items():
        if group["state"] in SETTLED:
            assert group == replayed["groups"][group_id]
    assert replayed["groups"].keys() <= live["groups"].keys()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, STEPS_MAX))
def test_replay_of_any_history_gives_the_state_in_memory(seed, steps):
    async def live() -> None:
        async with GroupRig(OPTIONS) as rig:
            history = History(rig, random.Random(seed))
            for _ in range(steps):
                await history.step()
            await rig.clock.run()
            compare(rig.view(), await rig.replayed())
            # And at rest: no members, no timers.
            await rig.clock.run(REBALANCE_MS * 3 + SESSION_MS)
            compare(rig.view(), await rig.replayed())
            assert all(group.state in SETTLED for group in rig.groups.list())

    asyncio.run(live())


@on_loop
async def test_a_stable_group_continues_after_a_restart_without_a_rebalance():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        await rig.commit({("orders", 0): 5}, MemberClaim(leader, 1))
        async with GroupRig(clock=rig.clock, internal=rig.internal) as other:
            assert other.view() == rig.view()
            assert other.heartbeat(leader, 1) is Code.NONE
            assert bytes(other.sync(follower, 1).result().assignment) == b"part of " + follower.encode()
            await other.commit({("orders", 0): 6}, MemberClaim(follower, 1))
            await other.clock.run(SESSION_MS)
            assert other.group.state is GroupState.EMPTY  # sessions start with the load


@on_loop
async def test_a_crash_during_a_rebalance_restores_the_previous_generation():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        await rig.rebalanced(rig.join(leader), rig.join(follower))
        assert rig.group.generation == 2
        async with GroupRig(clock=rig.clock, internal=rig.internal) as other:
            assert (other.group.state, other.group.generation) == (GroupState.STABLE, 1)
            assert other.heartbeat(leader, 2) is Code.ILLEGAL_GENERATION  # so it rejoins with its member id
            joins = [other.join(leader), other.join(follower)]
            await other.rebalanced(*joins)
            assert {response.result().error_code for response in joins} == {Code.NONE}


@on_loop
async def test_a_group_above_the_limit_rebalances_after_a_restart():
    async with GroupRig() as rig:
        await rig.gathered(3)
        async with GroupRig({"group.max.size": 2}, clock=rig.clock, internal=rig.internal) as other:
            assert other.group.state is GroupState.PREPARING_REBALANCE


@on_loop
async def test_undecodable_records_are_skipped():
    async with GroupRig() as rig:
        await rig.commit({("orders", 0): 5})
        for key, value in ((b"\0\1", b"x"), (b"\0\2\0\1g", b"\0\3broken"), (b"\0\7\0\1g", b"")):
            await rig.groups._components[0].shard.write([KeyValue(key, value)], lambda _: None)
        assert rig.view() == await rig.replayed()
