"""The response to each request in each state of a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.broker.groups.commits import Commit
from headrace.broker.groups.group import VALID_TRANSITIONS, Group, GroupState, MemberClaim
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from tests.support.group_rig import GROUP, GroupRig, code_of, on_loop

ABSENT = "absent"
NONE, UNKNOWN, REBALANCE = Code.NONE, Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS
ILLEGAL = Code.ILLEGAL_GENERATION
WAITS = "waits"
ORDERS_0 = TopicPartition("orders", 0)


@asynccontextmanager
async def in_state(state: GroupState | str) -> AsyncIterator[tuple[GroupRig, str, int]]:
    """Yield a group in a state, with its only (or former) member and the generation."""
    async with GroupRig() as rig:
        if state == ABSENT:
            yield rig, "nobody", 0
            return
        (member_id,) = await rig.gathered(1)
        if state is GroupState.EMPTY:
            rig.leave(member_id)
            await rig.clock.run()
        elif state is GroupState.PREPARING_REBALANCE:
            other = rig.join(await rig.new_id())
            assert not other.done()
        elif state is GroupState.COMPLETING_REBALANCE:
            assert (await rig.join(member_id)).error_code == NONE
        assert rig.group.state is state
        yield rig, member_id, rig.group.generation


STATES: list[GroupState | str] = [
    ABSENT,
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
]


async def outcome(response: asyncio.Future[Any]) -> Code | str:
    """Return the code of a response, or that it is pending."""
    await asyncio.sleep(0)
    return Code(response.result().error_code) if response.done() else WAITS


def table(*columns: Code | str) -> pytest.MarkDecorator:
    """Return a parametrization with an outcome for each state."""
    rows = list(zip(STATES, columns, strict=True))
    return pytest.mark.parametrize(
        ("state", "expected"), rows, ids=[str(getattr(state, "value", state)) for state in STATES]
    )


@table(UNKNOWN, UNKNOWN, REBALANCE, NONE, NONE)
@on_loop
async def test_a_heartbeat(state, expected):
    async with in_state(state) as (rig, member_id, generation):
        assert rig.heartbeat(member_id, generation) is expected


@table(UNKNOWN, UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL)
@on_loop
async def test_a_heartbeat_of_another_generation(state, expected):
    async with in_state(state) as (rig, member_id, generation):
        assert rig.heartbeat(member_id, generation - 1) is expected


@table(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
@on_loop
async def test_an_unknown_member_is_rejected_in_every_state(state, expected):
    async with in_state(state) as (rig, _, generation):
        assert rig.heartbeat("stranger", generation) is expected
        assert code_of(lambda: rig.sync("stranger", generation).result()) is expected
        assert (await rig.join("stranger")).error_code == expected
        assert rig.leave("stranger") == [expected]


@table(UNKNOWN, UNKNOWN, REBALANCE, NONE, NONE)
@on_loop
async def test_the_sync_of_a_leader(state, expected):
    async with in_state(state) as (rig, member_id, generation):
        response = code_of(lambda: rig.sync(member_id, generation, {member_id: b"all"}))
        await rig.clock.run()
        assert (response if isinstance(response, Code) else response.result().error_code) == expected
        if expected is NONE:
            assert rig.group.state is GroupState.STABLE


@table(UNKNOWN, UNKNOWN, WAITS, NONE, NONE)
@on_loop
async def test_rejoining_without_changes(state, expected):
    """With a pending member; alone, a rejoining leader would get a new generation at once."""
    async with in_state(state) as (rig, member_id, generation):
        if state is GroupState.PREPARING_REBALANCE:
            await rig.new_id()  # a pending member
        response = rig.join(member_id)
        assert await outcome(response) == expected
        if expected is NONE:
            assert response.result().generation_id == generation + (state is GroupState.STABLE)


@table(Code.MEMBER_ID_REQUIRED, *[Code.MEMBER_ID_REQUIRED] * 4)
@on_loop
async def test_a_new_dynamic_member_gets_a_member_id_first(state, expected):
    async with in_state(state) as (rig, _, _):
        assert await outcome(rig.join()) == expected
        assert await outcome(rig.join(version=4)) == expected


@table(WAITS, WAITS, WAITS, WAITS, WAITS)
@on_loop
async def test_a_new_member_of_an_old_client_waits(state, expected):
    async with in_state(state) as (rig, _, _):
        assert await outcome(rig.join(version=3)) == expected
        assert rig.group.state is GroupState.PREPARING_REBALANCE


@table(UNKNOWN, UNKNOWN, NONE, NONE, NONE)
@on_loop
async def test_leaving(state, expected):
    async with in_state(state) as (rig, member_id, _):
        assert rig.leave(member_id) == [expected]
        if expected is NONE:
            assert member_id not in rig.group.members


async def commit_code(commit: Awaitable[Any]) -> Code:
    try:
        await commit
    except BrokerError as error:
        return Code(error.code)
    return NONE


@table(Code.GROUP_ID_NOT_FOUND, UNKNOWN, NONE, REBALANCE, NONE)
@on_loop
async def test_a_commit_of_a_member(state, expected):
    async with in_state(state) as (rig, member_id, generation):
        assert await commit_code(rig.commit({ORDERS_0: 5}, MemberClaim(member_id, generation))) is expected
        assert rig.offset() == (5 if expected is NONE else -1)


@table(NONE, NONE, UNKNOWN, UNKNOWN, UNKNOWN)
@on_loop
async def test_a_commit_without_a_generation(state, expected):
    async with in_state(state) as (rig, _, _):
        assert await commit_code(rig.commit({ORDERS_0: 5})) is expected


@table(ILLEGAL, UNKNOWN, NONE, NONE, NONE)
@on_loop
async def test_a_transactional_commit_of_a_member(state, expected):
    async with in_state(state) as (rig, member_id, generation):
        assert (
            await commit_code(rig.commit_in_transaction(1, {ORDERS_0: 5}, MemberClaim(member_id, generation)))
            is expected
        )


@table(NONE, NONE, NONE, NONE, NONE)
@on_loop
async def test_a_transactional_commit_without_a_generation_is_accepted(state, expected):
    async with in_state(state) as (rig, _, _):
        assert await commit_code(rig.commit_in_transaction(1, {ORDERS_0: 5}, version=2)) is expected


@table(ILLEGAL, UNKNOWN, ILLEGAL, ILLEGAL, ILLEGAL)
@on_loop
async def test_a_transactional_commit_of_a_zombie(state, expected):
    async with in_state(state) as (rig, member_id, generation):
        zombie = MemberClaim(member_id, max(generation - 1, 0))
        assert await commit_code(rig.commit_in_transaction(1, {ORDERS_0: 5}, zombie)) is expected


@table(Code.GROUP_ID_NOT_FOUND, NONE, Code.NON_EMPTY_GROUP, Code.NON_EMPTY_GROUP, Code.NON_EMPTY_GROUP)
@on_loop
async def test_deleting_the_group(state, expected):
    async with in_state(state) as (rig, _, _):
        assert await commit_code(rig.groups.delete(GROUP)) is expected
        assert (rig.groups.describe(GROUP) is None) == (state == ABSENT or expected is NONE)


@table(Code.GROUP_ID_NOT_FOUND, NONE, NONE, NONE, NONE)
@on_loop
async def test_deleting_offsets(state, expected):
    """Unsubscribed topics can always be deleted, subscribed ones only in an empty group."""
    async with in_state(state) as (rig, _, _):
        codes: dict[TopicPartition, Code] = {}

        async def delete() -> None:
            codes.update(await rig.groups.delete_offsets(GROUP, [ORDERS_0, TopicPartition("other", 0)]))

        assert await commit_code(delete()) is expected
        if expected is NONE:
            is_read = state is not GroupState.EMPTY
            assert codes == {ORDERS_0: Code.GROUP_SUBSCRIBED_TO_TOPIC if is_read else NONE, ("other", 0): NONE}


# Checks that do not depend on the state.


@pytest.mark.parametrize(
    ("session_ms", "expected"),
    [
        (5_999, Code.INVALID_SESSION_TIMEOUT),
        (6_000, Code.MEMBER_ID_REQUIRED),
        (1_800_000, Code.MEMBER_ID_REQUIRED),
        (1_800_001, Code.INVALID_SESSION_TIMEOUT),
    ],
)
@on_loop
async def test_the_session_timeout_has_bounds(session_ms, expected):
    async with GroupRig() as rig:
        assert code_of(lambda: Code(rig.join(session_ms=session_ms).result().error_code)) is expected


@on_loop
async def test_an_empty_group_id_is_rejected():
    async with GroupRig() as rig:
        assert code_of(lambda: rig.join(group_id="").result()) is Code.INVALID_GROUP_ID
        assert code_of(lambda: rig.sync("m", 1, group_id="").result()) is Code.INVALID_GROUP_ID
        await rig.commit({ORDERS_0: 3}, group_id="")  # offsets may be committed without one
        assert rig.offset(group_id="") == 3


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", {"range": b""}), ("consumer", {"sticky": b""}), ("consumer", {}), ("", {"range": b""})],
)
@on_loop
async def test_a_member_without_a_common_protocol_is_rejected(protocol_type, protocols):
    async with GroupRig() as rig:
        await rig.gathered(1)
        response = rig.join(protocol_type=protocol_type, protocols=protocols)
        assert response.result().error_code == Code.INCONSISTENT_GROUP_PROTOCOL


@on_loop
async def test_a_sync_with_another_protocol_is_rejected():
    async with GroupRig() as rig:
        (member_id,) = await rig.gathered(1)
        wrong = Code.INCONSISTENT_GROUP_PROTOCOL
        assert code_of(lambda: rig.sync(member_id, 1, protocol_name="sticky").result()) is wrong
        assert code_of(lambda: rig.sync(member_id, 1, protocol_type="connect").result()) is wrong
        assert rig.sync(member_id, 1, protocol_type="consumer", protocol_name="range").result().error_code == NONE


@on_loop
async def test_the_common_protocol_with_most_votes_is_selected():
    async with GroupRig() as rig:
        wishes = [{"a": b"1", "b": b"2"}, {"b": b"3", "a": b"4"}, {"c": b"5", "b": b"6", "a": b"7"}]
        joins = [rig.join(protocols=protocols, version=3) for protocols in wishes]
        await rig.rebalanced(*joins)
        assert {response.result().protocol_name for response in joins} == {"b"}
        leader = next(response.result() for response in joins if response.result().members)
        assert sorted(bytes(row.metadata) for row in leader.members) == [b"2", b"3", b"6"]


@on_loop
async def test_group_max_size_is_enforced():
    async with GroupRig({"group.max.size": 2}) as rig:
        ids = await rig.gathered(2)
        assert rig.join().result().error_code == Code.GROUP_MAX_SIZE_REACHED
        response = rig.join(ids[0])  # members stay
        assert await outcome(response) == WAITS


@on_loop
async def test_pending_members_are_bounded(monkeypatch):
    monkeypatch.setattr("headrace.broker.groups.joining.PENDING_JOINS_MAX", 2)
    async with GroupRig() as rig:
        codes = [rig.join().result().error_code for _ in range(3)]
        assert codes == [Code.MEMBER_ID_REQUIRED, Code.MEMBER_ID_REQUIRED, Code.GROUP_MAX_SIZE_REACHED]


@on_loop
async def test_offset_metadata_max_bytes_is_enforced():
    async with GroupRig({"offset.metadata.max.bytes": 4}) as rig:
        commits = {
            TopicPartition("t", 0): Commit(1, metadata="four"),
            TopicPartition("t", 1): Commit(1, metadata="fives"),
        }
        codes = await rig.groups.commit(GROUP, MemberClaim(), commits)
        assert codes == {("t", 0): NONE, ("t", 1): Code.OFFSET_METADATA_TOO_LARGE}


def test_only_the_dead_state_has_no_transitions():
    assert set(VALID_TRANSITIONS) == set(GroupState)
    for state, nexts in VALID_TRANSITIONS.items():
        assert state is GroupState.DEAD or GroupState.DEAD in nexts
    group = Group("g")
    with pytest.raises(AssertionError, match="Empty → Stable"):
        group.transition(GroupState.STABLE, 0)


@on_loop
async def test_an_unloaded_partition_fails_and_a_reloaded_one_has_its_groups():
    async with GroupRig() as rig:
        (member_id,) = await rig.gathered(1)
        waiting = rig.join(await rig.new_id())
        rig.internal.partitions_led = lambda topic: []  # type: ignore[method-assign]
        rig.groups.unload(0)
        assert waiting.result().error_code == Code.NOT_COORDINATOR
        assert rig.heartbeat(member_id, 1) is Code.NOT_COORDINATOR
        del rig.internal.partitions_led
        assert rig.heartbeat(member_id, 1) is NONE


@on_loop
async def test_during_loading_heartbeats_succeed_and_other_requests_fail(monkeypatch):
    monkeypatch.setattr("headrace.broker.groups.shard.LOAD_SLICE_BATCHES", 2)
    async with GroupRig() as rig:
        (member_id,) = await rig.gathered(1)
        await rig.commit_in_transaction(3, {ORDERS_0: 8})
        for offset in range(5):
            await rig.commit({TopicPartition("other", 0): offset}, MemberClaim(member_id, 1))
        rig.groups.unload(0)
        rig.groups.load(0)
        loading = Code.COORDINATOR_LOAD_IN_PROGRESS
        assert code_of(lambda: rig.join().result()) is loading
        assert code_of(lambda: rig.offset()) is loading
        assert code_of(lambda: rig.groups.list()) is loading
        assert rig.heartbeat("anybody", 99) is NONE
        rig.groups.complete_transaction(0, 3, True)  # a marker during the load is not lost
        await rig.clock.run()
        assert rig.heartbeat("anybody", 99) is UNKNOWN
        assert rig.heartbeat(member_id, 1) is NONE
        assert (rig.offset(), rig.offset("other")) == (8, 4)
