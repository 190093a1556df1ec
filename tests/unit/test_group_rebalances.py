"""Rebalances: members join, leave, time out and return; no member is lost."""

from __future__ import annotations

import pytest

from headrace.broker.groups.group import GroupState, MemberClaim
from headrace.broker.groups.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from headrace.errors import Code
from headrace.wire.api.groups import MemberIdentity
from tests.support.group_rig import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Consumer,
    GroupRig,
    code_of,
    on_loop,
    subscription,
)

NONE = Code.NONE


@on_loop
async def test_members_that_start_together_share_one_rebalance():
    async with GroupRig() as rig:
        first = rig.join(await rig.new_id())
        await rig.clock.run(DELAY_MS - 1)
        second = rig.join(await rig.new_id())
        await rig.clock.run(2)
        assert not first.done()  # the second member has extended the delay
        await rig.clock.run(DELAY_MS)
        responses = [first.result(), second.result()]
        assert [response.generation_id for response in responses] == [1, 1]
        assert responses[0].leader == responses[1].leader == responses[0].member_id
        assert [len(response.members) for response in responses] == [2, 0]
        assert (responses[0].protocol_type, responses[0].protocol_name) == ("consumer", "range")


@on_loop
async def test_the_initial_delay_is_bounded_by_the_rebalance_timeout():
    async with GroupRig() as rig:
        first = rig.join(await rig.new_id(), rebalance_ms=7_000)
        for _ in range(4):
            rig.join(await rig.new_id(), rebalance_ms=7_000)
            await rig.clock.run(2_000)
        assert first.done()


@on_loop
async def test_every_member_gets_its_assignment_from_the_leader():
    async with GroupRig() as rig:
        ids = await rig.gathered(3)
        group = rig.group
        assert group.state is GroupState.STABLE
        assert {member_id: group.members[member_id].assignment for member_id in ids} == {
            member_id: b"part of " + member_id.encode() for member_id in ids
        }


@on_loop
async def test_a_member_without_assignment_gets_an_empty_one():
    async with GroupRig() as rig:
        leader, *others = await rig.gathered(3)
        joins = {member_id: rig.join(member_id) for member_id in (leader, *others)}
        await rig.rebalanced(*joins.values())
        generation = rig.group.generation
        waiting = [rig.sync(member_id, generation) for member_id in others]
        await rig.clock.run(1_000)
        assert not any(response.done() for response in waiting)
        rig.sync(leader, generation, {leader: b"mine", others[0]: b"yours"})
        await rig.clock.run()
        assert [bytes(response.result().assignment) for response in waiting] == [b"yours", b""]


@on_loop
async def test_a_joining_member_starts_a_rebalance():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        new_id = await rig.new_id()
        joins = {new_id: rig.join(new_id)}
        assert rig.heartbeat(leader, 1) is Code.REBALANCE_IN_PROGRESS
        assert code_of(lambda: rig.sync(follower, 1)) is Code.REBALANCE_IN_PROGRESS
        await rig.commit(
            {("orders", 0): 5}, MemberClaim(follower, 1)
        )  # offsets of the old generation may still be committed
        joins |= {member_id: rig.join(member_id) for member_id in (leader, follower)}
        await rig.clock.run()
        assert all(response.done() for response in joins.values())  # all have joined
        parts = await rig.stabilise({member_id: response.result() for member_id, response in joins.items()})
        assert all(parts.values())
        assert rig.group.generation == 2


@on_loop
async def test_a_session_timeout_starts_a_rebalance():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        for _ in range(3):
            await rig.clock.run(SESSION_MS / 4)
            assert rig.heartbeat(leader, 1) is NONE
        await rig.clock.run(SESSION_MS / 4 - 1)
        assert follower in rig.group.members
        await rig.clock.run(1)
        assert follower not in rig.group.members
        assert rig.heartbeat(leader, 1) is Code.REBALANCE_IN_PROGRESS
        response = rig.join(leader)
        assert (await response).generation_id == 2
        assert [row.member_id for row in response.result().members] == [leader]


@on_loop
async def test_every_request_extends_the_session():
    async with GroupRig() as rig:
        (member_id,) = await rig.gathered(1)
        for _ in range(3):
            await rig.clock.run(SESSION_MS - 1)
            assert rig.heartbeat(member_id, 1) is NONE
            await rig.clock.run(SESSION_MS - 1)
            await rig.commit({("orders", 0): 1}, MemberClaim(member_id, 1))
        await rig.clock.run(SESSION_MS + 1)
        assert rig.group.state is GroupState.EMPTY


@on_loop
async def test_another_member_becomes_leader_when_the_leader_leaves():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        assert rig.leave(leader) == [NONE]
        response = await rig.join(follower)
        assert response.leader == follower
        await rig.stabilise({follower: response})
        assert rig.group.state is GroupState.STABLE


@on_loop
async def test_a_leader_that_does_not_rejoin_is_removed_after_the_timeout():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        joining = rig.join(follower, protocols={"range": subscription("other")})
        for _ in range(REBALANCE_MS // 5_000):
            assert rig.heartbeat(leader, 1) is Code.REBALANCE_IN_PROGRESS  # alive, but busy for too long
            await rig.clock.run(5_000)
        assert joining.result().leader == follower
        assert rig.heartbeat(leader, 1) is Code.UNKNOWN_MEMBER_ID


@on_loop
async def test_a_member_that_waits_for_a_rebalance_keeps_its_session():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        joining = rig.join(follower, protocols={"range": subscription("other")}, session_ms=6_000)
        for _ in range(5):
            await rig.clock.run(5_000)
            rig.heartbeat(leader, 1)
        assert not joining.done()
        assert follower in rig.group.members
        rig.join(leader)
        assert (await joining).generation_id == 2
        await rig.clock.run(6_001)  # its session is active again
        assert follower not in rig.group.members


@on_loop
async def test_a_member_that_does_not_sync_in_time_is_removed():
    async with GroupRig() as rig:
        leader, lazy = await rig.gathered(2)
        await rig.rebalanced(rig.join(leader), rig.join(lazy))
        await rig.stabilise({leader: await rig.join(leader)})
        for _ in range(REBALANCE_MS // 5_000):
            await rig.clock.run(5_000)
            rig.heartbeat(leader, 2)
            rig.heartbeat(lazy, 2)
        assert lazy not in rig.group.members
        assert rig.heartbeat(leader, 2) is Code.REBALANCE_IN_PROGRESS


@on_loop
async def test_a_pending_member_that_never_joins_does_not_block_others():
    async with GroupRig() as rig:
        (leader,) = await rig.gathered(1)
        ghost = await rig.new_id()
        joining = rig.join(leader)
        await rig.clock.run(SESSION_MS - 1)
        assert not joining.done()
        await rig.clock.run(1)
        assert joining.result().generation_id == 2
        assert rig.join(ghost).result().error_code == Code.UNKNOWN_MEMBER_ID


@on_loop
async def test_a_new_member_that_never_syncs_is_removed():
    async with GroupRig() as rig:
        rig.join(version=3, rebalance_ms=NEW_MEMBER_JOIN_TIMEOUT_MS * 3, session_ms=1_800_000)
        static = rig.join(instance_id="i", rebalance_ms=NEW_MEMBER_JOIN_TIMEOUT_MS * 3, session_ms=1_800_000)
        await rig.clock.run(DELAY_MS * 2)
        (dynamic_id,) = set(rig.group.members) - {static.result().member_id}
        rig.group.members[dynamic_id].assignment = b""
        lost = rig.join(version=3, rebalance_ms=NEW_MEMBER_JOIN_TIMEOUT_MS * 3, session_ms=1_800_000)
        await rig.clock.run(NEW_MEMBER_JOIN_TIMEOUT_MS)
        assert lost.result().error_code == Code.UNKNOWN_MEMBER_ID


@on_loop
async def test_a_group_without_members_is_empty_in_the_next_generation():
    async with GroupRig() as rig:
        ids = await rig.gathered(2)
        await rig.commit({("orders", 0): 5}, MemberClaim(ids[0], 1))
        assert rig.leave(*ids) == [NONE, NONE]
        await rig.clock.run()
        assert (rig.group.state, rig.group.generation, rig.group.leader_id) == (GroupState.EMPTY, 2, None)
        assert rig.offset() == 5
        assert rig.view() == await rig.replayed()


@on_loop
async def test_joining_while_the_assignment_is_written_starts_a_rebalance():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        joins = [rig.join(leader), rig.join(follower)]
        await rig.rebalanced(*joins)
        with rig.internal.held():
            syncing = rig.sync(leader, 2, {leader: b"a", follower: b"b"})
            await rig.clock.run()
            late = rig.join(version=3)
            await rig.clock.run()
            assert syncing.result().error_code == Code.REBALANCE_IN_PROGRESS
        await rig.clock.run()
        assert rig.group.state is GroupState.PREPARING_REBALANCE  # the assignment is in the log, and outdated
        joins = [rig.join(leader), rig.join(follower), late]
        await rig.rebalanced(*joins)
        parts = await rig.stabilise({response.result().member_id: response.result() for response in joins})
        assert all(parts.values())
        assert rig.view() == await rig.replayed()


@on_loop
async def test_the_first_assignment_of_a_repeated_sync_counts():
    async with GroupRig() as rig:
        (leader,) = await rig.gathered(1)
        await rig.join(leader)
        with rig.internal.held():
            first = rig.sync(leader, 2, {leader: b"first"})
            await rig.clock.run()
            second = rig.sync(leader, 2, {leader: b"second"})
            await rig.clock.run()
        await rig.clock.run()
        assert first.result().error_code == Code.REBALANCE_IN_PROGRESS  # its connection is closed anyway
        assert bytes(second.result().assignment) == b"first"
        assert rig.view() == await rig.replayed()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Code.NOT_ENOUGH_REPLICAS, Code.COORDINATOR_NOT_AVAILABLE),
        (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_COORDINATOR),
        (Code.RECORD_LIST_TOO_LARGE, Code.UNKNOWN_SERVER_ERROR),
    ],
)
@on_loop
async def test_an_assignment_that_cannot_be_written_is_not_distributed(failure, code):
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        await rig.rebalanced(rig.join(leader), rig.join(follower))
        rig.internal.fail(failure)
        responses = [rig.sync(follower, 2), rig.sync(leader, 2, {leader: b"a", follower: b"b"})]
        await rig.clock.run()
        assert {response.result().error_code for response in responses} == {code}
        assert rig.group.state is GroupState.PREPARING_REBALANCE


@on_loop
async def test_a_closed_connection_cancels_its_request_but_keeps_the_member():
    async with GroupRig() as rig:
        leader, follower = await rig.gathered(2)
        rig.join(follower, protocols={"range": subscription("x")}).cancel()
        again = rig.join(follower, protocols={"range": subscription("x")})
        rig.join(leader)
        assert (await again).generation_id == 2


@on_loop
async def test_overlapping_rebalances_lose_no_member():
    async with GroupRig() as rig:
        consumers = [Consumer(rig, "a") for _ in range(3)]
        await rig.clock.run(2 * DELAY_MS)
        for turn in range(30):
            for partition, consumer in enumerate(consumers):
                if (turn * 7 + partition * 5) % 3 == 0:
                    consumer.subscribe(f"t{turn % 4}")
            if turn in (9, 12):
                consumers.append(Consumer(rig, "b"))
            await rig.clock.run(137 * (turn % 5))
        dead = consumers.pop()
        await dead.die()
        await rig.clock.run(REBALANCE_MS + SESSION_MS)
        assert rig.group.state is GroupState.STABLE
        assert set(rig.group.members) == {consumer.member_id for consumer in consumers}
        assert all(consumer.assignment == consumer.member_id.encode() for consumer in consumers)
        said = {code for consumer in consumers for code in consumer.codes}
        assert said <= {NONE, Code.REBALANCE_IN_PROGRESS}
        assert rig.view() == await rig.replayed()
        for consumer in consumers:
            await consumer.die()


# Static members.


@on_loop
async def test_a_restarted_static_member_keeps_its_assignment():
    async with GroupRig() as rig:
        joins = [rig.join(instance_id=name) for name in ("i", "j")]
        await rig.rebalanced(*joins)
        old = {response.result().member_id: response.result() for response in joins}
        parts = await rig.stabilise(old)
        follower = next(response.result() for response in joins if not response.result().members)
        instance_id = "i" if rig.group.static_members["i"] == follower.member_id else "j"

        back = await rig.join(instance_id=instance_id)
        assert (back.error_code, back.generation_id, back.skip_assignment) == (NONE, 1, False)
        assert back.member_id != follower.member_id
        assert bytes((await rig.sync(back.member_id, 1)).assignment) == parts[follower.member_id]
        assert rig.group.state is GroupState.STABLE
        fenced = Code.FENCED_INSTANCE_ID
        assert rig.heartbeat(follower.member_id, 1, instance_id) is fenced
        assert rig.join(follower.member_id, instance_id=instance_id).result().error_code == fenced
        assert code_of(lambda: rig.sync(follower.member_id, 1, instance_id=instance_id)) is fenced
        assert rig.view() == await rig.replayed()


@pytest.mark.parametrize("version", [5, 8, 9])
@on_loop
async def test_a_restarted_static_leader_does_not_assign_again(version):
    async with GroupRig() as rig:
        joining = rig.join(instance_id="i")
        await rig.rebalanced(joining)
        old = joining.result()
        await rig.stabilise({old.member_id: old})
        back = await rig.join(instance_id="i", version=version)
        if version >= 9:  # KIP-814: the leader gets all members but need not assign
            assert (back.leader, back.skip_assignment, len(back.members)) == (back.member_id, True, 1)
        else:  # the response names its predecessor as leader
            assert (back.leader, back.skip_assignment, len(back.members)) == (old.member_id, False, 0)
        assert rig.group.leader_id == back.member_id


@on_loop
async def test_a_static_member_with_another_protocol_starts_a_rebalance():
    async with GroupRig() as rig:
        both = {"range": b"1", "sticky": b"2"}
        joins = [rig.join(instance_id=name, protocols=both) for name in ("i", "j")]
        await rig.rebalanced(*joins)
        await rig.stabilise({response.result().member_id: response.result() for response in joins})
        back = rig.join(instance_id="i", protocols={"sticky": b"2"})
        await rig.clock.run()
        assert not back.done()
        assert rig.group.state is GroupState.PREPARING_REBALANCE


@on_loop
async def test_a_static_member_is_removed_after_its_session_timeout():
    async with GroupRig() as rig:
        joins = [rig.join(instance_id=name, session_ms=20_000) for name in ("i", "j")]
        await rig.rebalanced(*joins)
        ids = [response.result().member_id for response in joins]
        await rig.stabilise({response.result().member_id: response.result() for response in joins})
        await rig.clock.run(19_000)
        assert rig.heartbeat(ids[0], 1, "i") is NONE
        await rig.clock.run(1_000)
        assert set(rig.group.static_members) == {"i"}


@on_loop
async def test_the_previous_instance_of_a_static_member_is_fenced_while_it_waits():
    async with GroupRig() as rig:
        waiting = rig.join(instance_id="i")
        back = rig.join(instance_id="i")
        await rig.clock.run()
        assert waiting.result().error_code == Code.FENCED_INSTANCE_ID
        await rig.rebalanced(back)
        assert [row.member_id for row in back.result().members] == [back.result().member_id]


@on_loop
async def test_a_failed_static_replacement_restores_the_predecessor():
    async with GroupRig() as rig:
        joining = rig.join(instance_id="i")
        await rig.rebalanced(joining)
        old = joining.result()
        await rig.stabilise({old.member_id: old})
        rig.internal.fail(Code.NOT_ENOUGH_REPLICAS)
        back = await rig.join(instance_id="i")
        assert back.error_code == Code.COORDINATOR_NOT_AVAILABLE
        assert rig.heartbeat(old.member_id, 1, "i") is NONE
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_static_member_is_removed_by_instance_id():
    async with GroupRig() as rig:
        joining = rig.join(instance_id="i")
        await rig.rebalanced(joining)
        await rig.stabilise({joining.result().member_id: joining.result()})
        codes = rig.groups.leave(
            GROUP,
            [
                MemberIdentity(member_id="", group_instance_id="nobody"),
                MemberIdentity(member_id="stranger", group_instance_id="i"),
                MemberIdentity(member_id="", group_instance_id="i"),
            ],
        )
        assert codes == [Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID, NONE]
        await rig.clock.run()
        assert rig.group.state is GroupState.EMPTY


@on_loop
async def test_silent_static_members_stay_until_their_sessions_time_out():
    async with GroupRig() as rig:
        static = rig.join(instance_id="i", session_ms=60_000)
        dynamic = rig.join(await rig.new_id())
        await rig.rebalanced(static, dynamic)
        member_id = dynamic.result().member_id
        await rig.stabilise({response.result().member_id: response.result() for response in (static, dynamic)})
        joining = rig.join(member_id, protocols={"range": subscription("x")})
        await rig.clock.run(REBALANCE_MS)
        assert joining.result().generation_id == 2  # the static member is included without having joined
        assert set(rig.group.static_members) == {"i"}
