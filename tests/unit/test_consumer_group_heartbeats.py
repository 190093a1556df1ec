"""ConsumerGroupHeartbeat: joining, leaving, fencing, static members, timeouts, assignors, regular expressions."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from headrace.broker.broker_options import BROKER_OPTIONS
from headrace.broker.catalog.configs import GROUP as GROUP_SECTION
from headrace.broker.catalog.configs import Configs
from headrace.broker.groups.commits import Commit
from headrace.broker.groups.consumer_group import ConsumerGroupState
from headrace.broker.groups.group import MemberClaim
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from tests.support.consumer_rig import REBALANCE_TIMEOUT_MS, SESSION_TIMEOUT_MS, ConsumerClient, ConsumerRig
from tests.support.group_rig import GROUP, on_loop

THREAD_SECONDS_MAX = 10


def split(members: list[ConsumerClient]) -> list[int]:
    """Return how many partitions each member has, and check that each partition has one owner."""
    assert sum(len(member.owned) for member in members) == len(set().union(*(member.owned for member in members)))
    return sorted(len(member.owned) for member in members)


@on_loop
async def test_the_first_member_gets_all_partitions_with_its_first_response():
    async with ConsumerRig({"orders": 3}) as rig:
        response = await rig.join_member("a")
        assert (response.member_id, response.member_epoch, response.heartbeat_interval_ms) == ("a", 2, 5_000)
        assert response.assignment is not None
        assert [(row.topic_id, row.partitions) for row in response.assignment.topic_partitions] == [
            (rig.topic_id("orders"), (0, 1, 2))
        ]
        assert rig.consumer_group.state is ConsumerGroupState.STABLE
        assert rig.view() == await rig.replayed()


@on_loop
async def test_members_share_partitions_and_take_over_those_that_leave():
    async with ConsumerRig({"orders": 7}) as rig:
        members = [rig.member(name) for name in "abc"]
        for count in (1, 2, 3):
            await rig.settle(*members[:count])
        assert split(members) == [2, 2, 3]
        await members[0].leave()
        await rig.settle(*members[1:])
        assert split(members[1:]) == [3, 4]
        assert rig.consumer_group.state is ConsumerGroupState.STABLE
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_partition_is_assigned_only_after_its_owner_has_revoked_it():
    async with ConsumerRig({"orders": 2}) as rig:
        a, b = rig.member("a"), rig.member("b")
        await rig.settle(a)
        await b.beat()
        assert b.owned == set()
        await a.beat()  # the response revokes partitions
        await b.beat()
        assert b.owned == set()
        assert rig.consumer_group.state is ConsumerGroupState.RECONCILING
        await a.beat()  # reports that it has
        await b.beat()
        assert split([a, b]) == [1, 1]


@on_loop
async def test_a_repeated_heartbeat_gets_no_assignment_but_a_full_one_does():
    async with ConsumerRig({"orders": 1}) as rig:
        await rig.join_member("a")
        assert (await rig.beat("a", 2)).assignment is None
        full = await rig.beat(
            "a", 2, rebalance_timeout_ms=1_000, subscribed_topic_names=["orders"], topic_partitions=[]
        )
        assert full.assignment is not None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"group_id": ""}, Code.INVALID_REQUEST),
        ({"member_id": ""}, Code.INVALID_REQUEST),
        ({"instance_id": ""}, Code.INVALID_REQUEST),
        ({"rack_id": ""}, Code.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, Code.INVALID_REQUEST),
        ({"topic_partitions": None}, Code.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, Code.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, Code.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": -3}, Code.INVALID_REQUEST),
        ({"member_epoch": -2}, Code.INVALID_REQUEST),
        ({"member_epoch": -1}, Code.GROUP_ID_NOT_FOUND),
        ({"member_epoch": 5}, Code.GROUP_ID_NOT_FOUND),
        ({"subscribed_topic_regex": "("}, Code.INVALID_REGULAR_EXPRESSION),
    ],
)
@on_loop
async def test_an_invalid_request_is_refused_and_changes_nothing(fields, expected):
    async with ConsumerRig({"orders": 1}) as rig:
        assert await rig.join_code("a", **fields) is expected
        assert rig.groups.list() == []
        assert rig.internal.appends == []


@on_loop
async def test_version_0_gets_a_member_id_from_the_coordinator():
    async with ConsumerRig({"orders": 1}) as rig:
        response = await rig.join_member("", version=0)
        assert len(response.member_id or "") == 36
        assert response.member_id in rig.consumer_group.members


@on_loop
async def test_wrong_epochs_and_unknown_members_are_fenced():
    async with ConsumerRig({"orders": 1}) as rig:
        await rig.join_member("a")
        assert await rig.beat_code("a", 3) is Code.FENCED_MEMBER_EPOCH
        assert await rig.beat_code("b", 2) is Code.UNKNOWN_MEMBER_ID
        assert await rig.beat_code("a", 2) is Code.NONE


@on_loop
async def test_a_full_group_refuses_new_members_only():
    async with ConsumerRig({"orders": 1}, {"group.consumer.max.size": 1}) as rig:
        await rig.join_member("a")
        assert await rig.join_code("b") is Code.GROUP_MAX_SIZE_REACHED
        assert await rig.beat_code("a", 2) is Code.NONE


@on_loop
async def test_a_silent_member_is_removed_after_its_session_timeout():
    async with ConsumerRig({"orders": 4}) as rig:
        a, b = rig.member("a"), rig.member("b")
        await rig.settle(a, b)
        for _ in range(10):
            await rig.clock.run(SESSION_TIMEOUT_MS / 9)
            await b.beat()
        await rig.settle(b)
        assert b.owned == rig.partitions("orders")
        assert await a.beat() is Code.UNKNOWN_MEMBER_ID
        await rig.settle(a, b)
        assert split([a, b]) == [2, 2]
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_member_that_does_not_revoke_is_removed_after_its_rebalance_timeout():
    async with ConsumerRig({"orders": 2}) as rig:
        await rig.join_member("a")
        await rig.join_member("b")
        for _ in range(4):
            assert await rig.beat_code("a", 2) is Code.NONE  # does not report its partitions
            await rig.clock.run(REBALANCE_TIMEOUT_MS / 4)
        assert await rig.beat_code("a", 2) is Code.UNKNOWN_MEMBER_ID
        assert "a" not in rig.consumer_group.members


@on_loop
async def test_a_failed_removal_is_retried():
    async with ConsumerRig({"orders": 1}) as rig:
        await rig.join_member("a")
        rig.internal.fail(Code.NOT_ENOUGH_REPLICAS, times=2)
        await rig.clock.run(SESSION_TIMEOUT_MS)
        assert "a" in rig.consumer_group.members
        await rig.clock.run(1_000)
        assert rig.consumer_group.members == {}


@on_loop
async def test_a_failed_write_changes_nothing():
    async with ConsumerRig({"orders": 1}) as rig:
        rig.internal.fail(Code.NOT_ENOUGH_REPLICAS)
        assert await rig.join_code("a") is Code.COORDINATOR_NOT_AVAILABLE
        assert rig.groups.list() == []
        await rig.join_member("a")
        before = rig.view()
        rig.internal.fail(Code.NOT_ENOUGH_REPLICAS)
        assert await rig.join_code("b") is Code.COORDINATOR_NOT_AVAILABLE
        assert rig.view() == before == await rig.replayed()


@on_loop
async def test_concurrent_joins_wait_for_each_other():
    async with ConsumerRig({"orders": 6}) as rig:
        members = [rig.member(name) for name in "abcdef"]
        with rig.internal.held():
            joining = [asyncio.ensure_future(member.beat()) for member in members]
            await rig.clock.run()
        await asyncio.gather(*joining)
        assert rig.consumer_group.epoch == 7
        await rig.settle(*members)
        assert split(members) == [1] * 6
        assert rig.view() == await rig.replayed()


@on_loop
async def test_members_that_join_within_the_interval_get_one_assignment():
    async with ConsumerRig({"orders": 3}, {"group.consumer.assignment.interval.ms": 1_000}) as rig:
        members = [rig.member(name) for name in "abc"]
        for member in members:
            await member.beat()
        assert (rig.consumer_group.epoch, rig.consumer_group.target_epoch) == (4, 2)
        assert rig.consumer_group.state is ConsumerGroupState.ASSIGNING
        await rig.clock.run(1_000)
        await rig.settle(*members)
        assert rig.consumer_group.target_epoch == 4
        assert split(members) == [1, 1, 1]


# -- static members ------------------------------------------------------------------------------


@on_loop
async def test_a_static_member_that_returns_keeps_its_partitions_without_a_new_epoch():
    async with ConsumerRig({"orders": 4}) as rig:
        a, b = rig.member("a", instance_id="one"), rig.member("b")
        await rig.settle(a, b)
        kept, epoch = set(a.owned), rig.consumer_group.epoch
        await a.leave(-2)
        assert "a" in rig.consumer_group.members
        again = rig.member("a2", instance_id="one")
        await rig.settle(again, b)
        assert (again.owned, rig.consumer_group.epoch) == (kept, epoch)
        assert await rig.beat_code("a", again.epoch, instance_id="one") is Code.FENCED_INSTANCE_ID
        assert rig.view() == await rig.replayed()


@on_loop
async def test_an_instance_id_in_use_is_not_released():
    async with ConsumerRig({"orders": 4}) as rig:
        await rig.join_member("a", instance_id="one")
        assert await rig.join_code("b", instance_id="one") is Code.UNRELEASED_INSTANCE_ID
        assert await rig.beat_code("a", 1, instance_id="two") is Code.UNKNOWN_MEMBER_ID


@on_loop
async def test_a_static_member_that_does_not_return_is_removed_after_its_session_timeout():
    async with ConsumerRig({"orders": 4}) as rig:
        a = rig.member("a", instance_id="one")
        await rig.settle(a)
        await a.leave(-2)
        await rig.clock.run(SESSION_TIMEOUT_MS)
        assert rig.consumer_group.members == {}


# -- subscriptions -------------------------------------------------------------------------------


@on_loop
async def test_new_topics_and_changed_subscriptions_start_a_new_epoch():
    async with ConsumerRig({"orders": 1}) as rig:
        a = rig.member("a", "later")
        await rig.settle(a)
        assert a.owned == set()
        rig.create_topic("later", 2)
        await rig.settle(a)
        assert a.owned == rig.partitions("later")
        a.subscribe("orders")
        await rig.settle(a)
        assert a.owned == rig.partitions("orders")
        assert rig.view() == await rig.replayed()


@on_loop
async def test_unrelated_topics_do_not_start_an_epoch():
    async with ConsumerRig({"orders": 1}) as rig:
        a = rig.member("a")
        await rig.settle(a)
        rig.create_topic("other", 2)
        await rig.settle(a)
        assert rig.consumer_group.epoch == 2


@on_loop
async def test_the_range_assignor_is_used_if_most_members_prefer_it():
    async with ConsumerRig({"orders": 4}) as rig:
        members = [rig.member(name, server_assignor="range") for name in "ab"]
        await rig.settle(*members)
        assert [sorted(index for _, index in member.owned) for member in members] == [[0, 1], [2, 3]]


async def resolved(rig: ConsumerRig, count: int) -> None:
    """Wait until regular expressions are matched, on their thread."""
    async with asyncio.timeout(THREAD_SECONDS_MAX):
        while len(rig.consumer_group.regexes) != count:
            await asyncio.sleep(0.001)


@on_loop
async def test_a_regular_expression_matches_whole_names_that_the_client_may_describe():
    async with ConsumerRig({"orders": 1, "orders-2": 1, "my-orders": 1, "secret-orders": 1}) as rig:
        response = await rig.join_member(
            "a",
            subscribed_topic_names=None,
            subscribed_topic_regex="(secret-)?orders(-2)?",
            may_describe=lambda topic: "secret" not in topic,
        )
        assert response.assignment is not None
        assert response.assignment.topic_partitions == ()
        await resolved(rig, 1)
        assert rig.consumer_group.subscribed_topics() == {"orders", "orders-2"}
        response = await rig.beat("a", response.member_epoch)
        assert response.assignment is not None
        assert {row.topic_id for row in response.assignment.topic_partitions} == {
            rig.topic_id("orders"),
            rig.topic_id("orders-2"),
        }
        assert rig.view() == await rig.replayed()
        await rig.beat("a", -1)
        assert rig.consumer_group.regexes == {}
        assert rig.view() == await rig.replayed()


@on_loop
async def test_topics_that_are_created_later_are_matched_after_the_refresh_interval():
    async with ConsumerRig({"orders": 1}) as rig:
        a = rig.member("a", subscribed_topic_names=[], subscribed_topic_regex="orders.*")
        await a.beat()
        await resolved(rig, 1)
        rig.create_topic("orders-2", 1)
        await rig.settle(a)
        assert a.owned == rig.partitions("orders")
        await rig.clock.run(10_001)
        await a.beat()
        async with asyncio.timeout(THREAD_SECONDS_MAX):
            while "orders-2" not in rig.consumer_group.subscribed_topics():
                await asyncio.sleep(0.001)
        await rig.settle(a)
        assert a.owned == rig.partitions("orders", "orders-2")


@on_loop
async def test_a_pattern_that_backtracks_elsewhere_takes_no_time():
    async with ConsumerRig({"a" * 200 + "b": 1}) as rig:
        await rig.join_member("a", subscribed_topic_names=None, subscribed_topic_regex="(a+)+(a+)+(a|aa)+$")
        await resolved(rig, 1)
        assert rig.consumer_group.subscribed_topics() == set()


# -- options and offsets -------------------------------------------------------------------------


@on_loop
async def test_options_of_the_group_set_its_times_within_the_limits_of_the_broker():
    async with ConsumerRig({"orders": 1}) as rig:
        values = {"consumer.heartbeat.interval.ms": "7000", "consumer.session.timeout.ms": "99000"}
        rig.catalog.record(Configs.change(GROUP_SECTION, GROUP, values))
        assert (await rig.join_member("a")).heartbeat_interval_ms == 7_000
        await rig.clock.run(59_999)
        assert "a" in rig.consumer_group.members
        await rig.clock.run(1)  # group.consumer.max.session.timeout.ms
        assert rig.consumer_group.members == {}


@on_loop
async def test_changed_options_of_the_broker_apply_to_groups_that_set_none():
    async with ConsumerRig({"orders": 1}) as rig:
        settings = rig.groups.consumer_settings
        settings.reconfigure(BROKER_OPTIONS.resolve(("argument", {"group.consumer.assignment.interval.ms": "77"})))
        assert settings.times_of(GROUP).assignment_interval_ms == 77
        rig.catalog.record(Configs.change(GROUP_SECTION, GROUP, {"consumer.assignment.interval.ms": "55"}))
        assert settings.times_of(GROUP).assignment_interval_ms == 55


@on_loop
async def test_a_disabled_protocol_is_unsupported():
    async with ConsumerRig({"orders": 1}, {"group.coordinator.rebalance.protocols": "classic"}) as rig:
        assert await rig.join_code("a") is Code.UNSUPPORTED_VERSION


async def commit_code(rig: ConsumerRig, member_id: str, epoch: int, index: int = 0, version: int = 9) -> Code:
    partition = TopicPartition("orders", index)
    commits = {partition: Commit(5, topic_id=rig.topic_id("orders"))}
    try:
        codes = await rig.groups.commit(GROUP, MemberClaim(member_id, epoch), commits, version=version)
    except BrokerError as error:
        return Code(error.code)
    return codes[partition]


@on_loop
async def test_offsets_are_committed_with_the_epoch_in_which_a_partition_was_assigned_or_a_later_one():
    async with ConsumerRig({"orders": 2}) as rig:
        a, b = rig.member("a"), rig.member("b")
        await rig.settle(a)
        await rig.settle(a, b)
        (mine,), (other,) = ({index for _, index in member.owned} for member in (a, b))
        assert await commit_code(rig, "a", a.epoch, mine) is Code.NONE
        assert await commit_code(rig, "a", a.epoch - 1, mine) is Code.NONE  # its assignment is older (KIP-1251)
        assert await commit_code(rig, "a", a.epoch - 1, other) is Code.STALE_MEMBER_EPOCH
        assert await commit_code(rig, "b", b.epoch - 1, other) is Code.STALE_MEMBER_EPOCH
        assert await commit_code(rig, "a", a.epoch + 1, mine) is Code.STALE_MEMBER_EPOCH
        assert await commit_code(rig, "x", 1, mine) is Code.UNKNOWN_MEMBER_ID
        assert await commit_code(rig, "", -1, mine) is Code.UNKNOWN_MEMBER_ID
        assert await commit_code(rig, "a", a.epoch, mine, version=8) is Code.UNSUPPORTED_VERSION
        for member_id, epoch, expected in (
            ("a", a.epoch, None),
            (None, -1, None),
            ("a", a.epoch - 1, Code.STALE_MEMBER_EPOCH),
            ("x", a.epoch, Code.UNKNOWN_MEMBER_ID),
        ):
            if expected is None:
                rig.groups.check_fetch(GROUP, member_id, epoch)
            else:
                with pytest.raises(BrokerError) as raised:
                    rig.groups.check_fetch(GROUP, member_id, epoch)
                assert raised.value.code == expected


@on_loop
async def test_a_transaction_of_a_stale_member_is_refused_as_an_illegal_generation():
    async with ConsumerRig({"orders": 1}) as rig:
        a = rig.member("a")
        await rig.settle(a)
        await rig.commit_in_transaction(1, {("orders", 0): 4}, MemberClaim("a", a.epoch))
        with pytest.raises(BrokerError) as raised:
            await rig.commit_in_transaction(1, {("orders", 0): 4}, MemberClaim("a", a.epoch + 1))
        assert raised.value.code == Code.ILLEGAL_GENERATION


@on_loop
async def test_a_group_is_deleted_with_all_its_records_when_it_has_no_members():
    async with ConsumerRig({"orders": 1}) as rig:
        a = rig.member("a")
        await rig.settle(a)
        assert await commit_code(rig, "a", a.epoch) is Code.NONE
        with pytest.raises(BrokerError) as raised:
            await rig.groups.delete(GROUP)
        assert raised.value.code == Code.NON_EMPTY_GROUP
        await a.leave()
        await rig.groups.delete(GROUP)
        assert rig.groups.list() == []
        assert rig.view() == await rig.replayed()


@pytest.mark.parametrize("seed", range(8))
@on_loop
async def test_each_partition_has_one_owner_whatever_members_and_topics_do(seed):
    chance = random.Random(seed)
    async with ConsumerRig({"orders": 5, "events": 3}) as rig:
        members = [rig.member(f"m{n}", chance.choice(("orders", "events"))) for n in range(4)]
        for step in range(120):
            member = chance.choice(members)
            action = chance.choices(("beat", "leave", "subscribe", "pause", "topic", "fail"), (80, 5, 5, 4, 1, 5))[0]
            if action == "leave" and member.epoch > 0 and member.id in rig.consumer_group.members:
                with suppress(BrokerError):  # the failure of an earlier step
                    await member.leave()
            elif action == "subscribe":
                member.subscribe(chance.choice(("orders", "events")))
            elif action == "pause":
                await rig.clock.run(chance.choice((1_000, SESSION_TIMEOUT_MS / 2)))
            elif action == "topic":
                rig.create_topic(f"t{step}", 1)
            else:
                if action == "fail":
                    rig.internal.fail(Code.NOT_ENOUGH_REPLICAS)
                await member.beat()
            known = [m for m in members if rig.groups.list() and m.id in rig.consumer_group.members and m.epoch > 0]
            split(known)
            assert rig.view() == await rig.replayed()
        await rig.clock.run()
        await rig.settle(*members)
        topics = {topic for member in members for topic in rig.consumer_group.members[member.id].topics}
        assert set().union(*(member.owned for member in members)) == rig.partitions(*topics)
