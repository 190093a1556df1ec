"""Committed offsets: commit, fetch, delete, transactions and expiry."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.catalog.topics import CONSUMER_OFFSETS
from headrace.broker.groups.commits import NOTHING_COMMITTED, Commit, Fetched
from headrace.broker.groups.group import MemberClaim
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition
from headrace.wire.records import read_batches
from tests.support.fake_internal import START_MS
from tests.support.group_rig import EPOCH, GROUP, GroupRig, code_of, on_loop, subscription

ORDERS_0 = TopicPartition("orders", 0)
UNSTABLE = Code.UNSTABLE_OFFSET_COMMIT
DAY_MS = 24 * 60 * 60 * 1000
RETENTION_MS = 7 * DAY_MS
CHECK_MS = 600_000


async def code_of_commit(rig: GroupRig, version: int) -> Code:
    try:
        await rig.commit_in_transaction(1, {ORDERS_0: 5}, version=version)
    except BrokerError as error:
        return Code(error.code)
    return Code.NONE


# Plain commits.


@on_loop
async def test_a_fetched_offset_has_its_epoch_and_metadata():
    async with GroupRig() as rig:
        await rig.groups.commit(
            GROUP, MemberClaim(), {ORDERS_0: Commit(42, 3, "where I was"), TopicPartition("orders", 1): Commit(7)}
        )
        assert rig.groups.fetch_all(GROUP, False) == {
            ORDERS_0: Fetched(42, 3, "where I was"),
            ("orders", 1): Fetched(7, -1, ""),
        }
        assert rig.groups.fetch(GROUP, [(TopicPartition("other", 0), bytes(16))], False) == {
            TopicPartition("other", 0): NOTHING_COMMITTED
        }
        assert rig.groups.fetch_all("nobody", False) == {}


@on_loop
async def test_an_offset_is_invisible_until_it_is_in_the_log():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1})
        with rig.internal.held():
            writing = asyncio.ensure_future(rig.commit({ORDERS_0: 2}))
            await rig.clock.run()
            assert rig.offset() == 1
            assert rig.offset(stable=True) is UNSTABLE
        await writing
        assert rig.offset(stable=True) == 2


@on_loop
async def test_a_commit_completes_after_its_client_disconnects():
    async with GroupRig() as rig:
        with rig.internal.held():
            writing = asyncio.ensure_future(rig.commit({ORDERS_0: 2}))
            await rig.clock.run()
            writing.cancel()
            await rig.clock.run()
        await rig.clock.run()
        assert rig.offset() == 2
        assert rig.view() == await rig.replayed()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Code.NOT_ENOUGH_REPLICAS, Code.COORDINATOR_NOT_AVAILABLE),
        (Code.REQUEST_TIMED_OUT, Code.COORDINATOR_NOT_AVAILABLE),
        (Code.NOT_LEADER_OR_FOLLOWER, Code.NOT_COORDINATOR),
    ],
)
@on_loop
async def test_a_failed_commit_changes_nothing(failure, code):
    async with GroupRig() as rig:
        rig.internal.fail(failure)
        with pytest.raises(BrokerError) as raised:
            await rig.commit({ORDERS_0: 2})
        assert raised.value.code == code
        assert rig.offset(stable=True) == -1
        assert rig.groups.describe(GROUP) is None


@on_loop
async def test_an_offset_of_a_recreated_topic_is_not_returned_by_topic_id():
    async with GroupRig() as rig:
        old, new = b"o" * 16, b"n" * 16
        await rig.groups.commit(GROUP, MemberClaim(), {ORDERS_0: Commit(9, topic_id=old)})
        assert rig.groups.fetch(GROUP, [(ORDERS_0, old)], False)[ORDERS_0].offset == 9
        assert rig.groups.fetch(GROUP, [(ORDERS_0, new)], False)[ORDERS_0] == NOTHING_COMMITTED
        assert rig.offset() == 9  # unchanged by name


@on_loop
async def test_deleting_a_topic_removes_committed_and_pending_offsets():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1, ("kept", 0): 1})
        await rig.commit_in_transaction(4, {("orders", 1): 2})
        rig.groups.topic_deleted("orders")
        await rig.clock.run()
        rig.end_transaction(4, True)
        assert set(rig.groups.fetch_all(GROUP, False)) == {("kept", 0)}
        assert rig.view() == await rig.replayed()


# Transactions.


@on_loop
async def test_offsets_of_a_transaction_become_visible_with_the_commit():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1})
        await rig.commit_in_transaction(4, {ORDERS_0: 2})
        assert (rig.offset(), rig.offset(stable=True)) == (1, UNSTABLE)
        rig.end_transaction(4, True)
        assert rig.offset(stable=True) == 2


@on_loop
async def test_offsets_of_an_aborted_transaction_are_dropped():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1})
        await rig.commit_in_transaction(4, {ORDERS_0: 2})
        rig.end_transaction(4, False)
        assert rig.offset(stable=True) == 1


@on_loop
async def test_pending_offsets_are_per_producer_and_the_later_record_wins():
    async with GroupRig() as rig:
        await rig.commit_in_transaction(4, {ORDERS_0: 40, ("orders", 1): 41})
        await rig.commit_in_transaction(5, {ORDERS_0: 50})
        rig.end_transaction(5, True)
        assert (rig.offset(), rig.offset(stable=True)) == (50, UNSTABLE)
        rig.end_transaction(4, True)
        assert (rig.offset(stable=True), rig.offset(index=1)) == (50, 41)
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_marker_before_the_acknowledgement_of_offsets_does_not_lose_them():
    async with GroupRig() as rig:
        shard = rig.groups._components[0].shard
        append = rig.internal.append
        replicated = asyncio.Event()

        async def slow(*arguments, **keywords):
            first = await append(*arguments, **keywords)
            await replicated.wait()
            return first

        rig.internal.append = slow  # type: ignore[method-assign]
        writing = asyncio.ensure_future(rig.commit_in_transaction(4, {ORDERS_0: 2}))
        await rig.clock.run()
        rig.end_transaction(4, True)
        assert shard.offsets.is_unstable(GROUP, ORDERS_0)
        replicated.set()
        await writing
        await rig.clock.run()
        assert rig.offset(stable=True) == 2
        assert rig.view() == await rig.replayed()


@on_loop
async def test_writes_are_applied_in_log_order():
    async with GroupRig() as rig:
        append = rig.internal.append
        replicated = [asyncio.Event() for _ in range(3)]
        waiting = iter(replicated)

        async def slow(*arguments, **keywords):
            mine = next(waiting)
            first = await append(*arguments, **keywords)
            await mine.wait()
            return first

        await rig.commit({ORDERS_0: 0})
        rig.internal.append = slow  # type: ignore[method-assign]
        first = asyncio.ensure_future(rig.commit({ORDERS_0: 1}))
        second = asyncio.ensure_future(rig.groups.delete_offsets(GROUP, [ORDERS_0]))
        third = asyncio.ensure_future(rig.commit({ORDERS_0: 3}))
        for event in reversed(replicated):
            await rig.clock.run()
            assert rig.offset() == 0
            event.set()
        await asyncio.gather(first, second, third)
        assert rig.offset() == 3
        assert rig.view() == await rig.replayed()


@on_loop
async def test_transactional_offsets_are_written_as_a_batch_of_the_producer():
    async with GroupRig() as rig:
        await rig.commit_in_transaction(4, {ORDERS_0: 2})
        (data,) = rig.internal.logs[CONSUMER_OFFSETS, 0]
        (batch,) = read_batches(data)
        header = batch.header
        assert (header.producer_id, header.producer_epoch, header.is_transactional) == (4, EPOCH, True)


@pytest.mark.parametrize(("version", "add"), [(0, False), (3, False), (4, False), (5, True)])
@on_loop
async def test_txn_offset_commit_v5_adds_the_group_to_the_transaction(version, add):
    async with GroupRig() as rig:
        await rig.commit_in_transaction(4, {ORDERS_0: 2}, version=version)
        assert rig.transactions.requests == [("t", 4, EPOCH, ((CONSUMER_OFFSETS, 0),), add)]


@pytest.mark.parametrize(
    ("response", "version", "code"),
    [
        (Code.TRANSACTION_ABORTABLE, 4, Code.TRANSACTION_ABORTABLE),
        (Code.TRANSACTION_ABORTABLE, 3, Code.INVALID_TXN_STATE),
        (Code.CONCURRENT_TRANSACTIONS, 5, Code.CONCURRENT_TRANSACTIONS),
        (Code.CONCURRENT_TRANSACTIONS, 4, Code.COORDINATOR_NOT_AVAILABLE),
        (Code.INVALID_PRODUCER_EPOCH, 3, Code.INVALID_PRODUCER_EPOCH),
        (Code.INVALID_PRODUCER_ID_MAPPING, 5, Code.INVALID_PRODUCER_ID_MAPPING),
    ],
)
@on_loop
async def test_offsets_outside_a_transaction_fail_with_the_code_of_the_version(response, version, code):
    async with GroupRig() as rig:
        rig.transactions.code = response
        assert await code_of_commit(rig, version) is code
        assert not rig.internal.appends


@on_loop
async def test_a_fenced_instance_cannot_commit_in_a_transaction():
    async with GroupRig() as rig:
        joining = rig.join(instance_id="i")
        await rig.rebalanced(joining)
        old = joining.result()
        await rig.stabilise({old.member_id: old})
        await rig.join(instance_id="i")
        with pytest.raises(BrokerError) as raised:
            await rig.commit_in_transaction(4, {ORDERS_0: 2}, MemberClaim(old.member_id, 1, "i"))
        assert raised.value.code == Code.FENCED_INSTANCE_ID


@on_loop
async def test_deleting_a_group_removes_committed_and_pending_offsets():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1})
        await rig.commit_in_transaction(4, {ORDERS_0: 2, ("orders", 1): 2})
        await rig.groups.delete(GROUP)
        rig.end_transaction(4, True)
        assert rig.groups.fetch_all(GROUP, False) == {}
        assert rig.groups.describe(GROUP) is None
        assert rig.view() == await rig.replayed()


@on_loop
async def test_a_member_that_joins_during_deletion_keeps_the_group():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1})
        with rig.internal.held():
            deleting = asyncio.ensure_future(rig.groups.delete(GROUP))
            await rig.clock.run()
            joining = rig.join(version=3)
        await deleting
        await rig.rebalanced(joining)
        await rig.stabilise({joining.result().member_id: joining.result()})
        assert rig.offset() == -1
        assert rig.view() == await rig.replayed()


# Expiry.


async def pass_days(rig: GroupRig, days: float) -> None:
    await rig.clock.run(days * DAY_MS)


@on_loop
async def test_offsets_expire_when_the_group_has_been_empty_for_the_retention():
    async with GroupRig() as rig:
        (member_id,) = await rig.gathered(1)
        await rig.commit({ORDERS_0: 1}, MemberClaim(member_id, 1))
        for _ in range(30):  # however old the commit is: the member is active
            await rig.clock.run(5_000)
            rig.heartbeat(member_id, 1)
        rig.leave(member_id)
        await pass_days(rig, 6.9)
        assert rig.offset() == 1
        await pass_days(rig, 0.2)
        assert rig.offset() == -1
        assert rig.groups.describe(GROUP) is None
        assert rig.view() == await rig.replayed()


@on_loop
async def test_offsets_without_membership_expire_after_the_commit():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1})
        await pass_days(rig, 3.5)
        await rig.commit({("orders", 1): 1})
        await pass_days(rig, 3.6)
        assert set(rig.groups.fetch_all(GROUP, False)) == {("orders", 1)}
        await pass_days(rig, 3.5)
        assert rig.groups.describe(GROUP) is None
        assert rig.view() == await rig.replayed()


@on_loop
async def test_an_active_group_loses_offsets_of_unsubscribed_topics():
    async with GroupRig({"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1_000}) as rig:
        joining = rig.join(await rig.new_id(), protocols={"range": subscription("read")})
        await rig.rebalanced(joining)
        member_id = joining.result().member_id
        await rig.stabilise({member_id: joining.result()})
        await rig.commit({("read", 0): 1, ("no longer", 0): 1}, MemberClaim(member_id, 1))
        for _ in range(13):
            await rig.clock.run(5_000)
            assert rig.heartbeat(member_id, 1) is Code.NONE
        assert set(rig.groups.fetch_all(GROUP, False)) == {("read", 0)}


@on_loop
async def test_offsets_of_an_unknown_protocol_do_not_expire_with_members():
    async with GroupRig({"offsets.retention.minutes": 1, "offsets.retention.check.interval.ms": 1_000}) as rig:
        joining = rig.join(version=3, protocol_type="connect", protocols={"v1": b"?"})
        await rig.rebalanced(joining)
        member_id = joining.result().member_id
        await rig.stabilise({member_id: joining.result()})
        await rig.commit({ORDERS_0: 1}, MemberClaim(member_id, 1))
        for _ in range(13):
            await rig.clock.run(5_000)
            rig.heartbeat(member_id, 1)
        assert rig.offset() == 1
        with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
            await rig.groups.delete_offsets(GROUP, [ORDERS_0])


@on_loop
async def test_the_retention_in_an_old_commit_request_applies():
    async with GroupRig() as rig:
        await rig.groups.commit(GROUP, MemberClaim(), {ORDERS_0: Commit(1)}, retention_ms=DAY_MS)
        assert rig.view() == await rig.replayed()
        await pass_days(rig, 0.9)
        assert rig.offset() == 1
        await pass_days(rig, 0.2)
        assert rig.offset() == -1


@on_loop
async def test_the_timestamp_in_an_old_commit_request_applies():
    async with GroupRig() as rig:
        await rig.groups.commit(GROUP, MemberClaim(), {ORDERS_0: Commit(1, commit_time_ms=START_MS - RETENTION_MS)})
        await rig.clock.run(CHECK_MS)
        assert rig.offset() == -1


@on_loop
async def test_pending_offsets_and_their_group_do_not_expire():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1})
        await rig.commit_in_transaction(4, {ORDERS_0: 2})
        await pass_days(rig, 8)
        assert rig.offset() == 1
        rig.end_transaction(4, False)
        await rig.clock.run(CHECK_MS)
        assert rig.groups.describe(GROUP) is None


@on_loop
async def test_a_pending_member_keeps_an_empty_group():
    async with GroupRig({"offsets.retention.check.interval.ms": 100}) as rig:
        member_id = await rig.new_id()
        await rig.clock.run(5_000)
        joining = rig.join(member_id)
        await rig.rebalanced(joining)
        assert joining.result().error_code == Code.NONE


@on_loop
async def test_a_failed_expiry_is_retried():
    async with GroupRig() as rig:
        await rig.commit({ORDERS_0: 1})
        await pass_days(rig, 6.99)
        rig.internal.fail(Code.NOT_ENOUGH_REPLICAS, times=3)
        await pass_days(rig, 0.02)
        assert rig.offset() == 1
        await pass_days(rig, 0.1)
        assert rig.offset() == -1
        assert code_of(lambda: rig.groups.list()) == []
