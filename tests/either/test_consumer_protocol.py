"""The consumer in groups of the consumer protocol (KIP-848), on Apache Kafka and on the headrace broker."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from headrace import (
    AbortableError,
    AsyncConsumer,
    CommitFailedError,
    Consumer,
    ConsumerRecord,
    GroupMaxSizeReachedError,
    InvalidRegularExpressionError,
    NoOffsetError,
    OffsetAndMetadata,
    OffsetOutOfRangeError,
    Producer,
    TopicPartition,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)
from headrace.client.admin import AdminClient
from headrace.types import GroupMetadata
from headrace.wire.api.groups import ConsumerGroupHeartbeatRequest
from tests.support.peers.connection import Connection
from tests.support.polling import SECONDS_MAX, Log, fill, poll_until, produce
from tests.support.topics import unique

SESSION_SECONDS = 4.0
MEMBERS_MAX = 12


def open_member(broker, group: str, **options) -> Consumer:
    defaults = {"group_protocol": "consumer", "auto_offset_reset": "earliest", "allow_auto_create_topics": False}
    return Consumer(bootstrap_servers=broker.bootstrap, group_id=group, **{**defaults, **options})


def remove_member(broker, member: GroupMetadata) -> None:
    """Let a member leave the group, without its knowledge."""
    request = ConsumerGroupHeartbeatRequest(group_id=member.group_id, member_id=member.member_id, member_epoch=-1)
    with Connection(broker.bootstrap) as connection:
        assert not connection.call(request, 1).error_code


@pytest.mark.behaviour("C03")
@pytest.mark.parametrize("assignor", [None, "uniform", "range"])
def test_members_share_partitions_and_only_those_that_move_are_revoked(quick, assignor):
    topic, group = fill(quick, 600, 6), unique("group")
    log = Log()
    with open_member(quick, group, group_remote_assignor=assignor) as first:
        first.subscribe([topic], listener=log)
        records: list[ConsumerRecord] = poll_until(lambda: len(first.assignment()) == 6, first)
        with open_member(quick, group, group_remote_assignor=assignor) as second:
            second.subscribe([topic])
            records += poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 3, first, second)
            assert not first.assignment() & second.assignment()
            deadline = time.monotonic() + SECONDS_MAX
            while len(records) < 600:
                assert time.monotonic() < deadline
                records += first.poll(0.05) + second.poll(0.05)
        records += poll_until(lambda: len(first.assignment()) == 6, first)
    assert max(Counter((record.partition, record.offset) for record in records).values()) == 1
    assert len(records) == 600
    assert [len(partitions) for call, partitions in log.calls if call == "revoked"] == [3, 6]
    assert [len(partitions) for call, partitions in log.calls if call == "assigned"] == [6, 0, 3]


@pytest.mark.behaviour("C03")
@pytest.mark.every_run("headrace")
def test_the_broker_matches_a_pattern_and_follows_new_topics(quick):
    prefix, group = unique("matched"), unique("group")
    quick.create_topic(f"{prefix}-a", 1)
    quick.create_topic(unique("other"), 1)
    with open_member(quick, group) as consumer:
        consumer.subscribe(pattern=f"{prefix}-[a-z]")
        poll_until(lambda: consumer.assignment() == {(f"{prefix}-a", 0)}, consumer)
        quick.create_topic(f"{prefix}-b", 2)
        poll_until(lambda: len(consumer.assignment()) == 3, consumer)  # matched again after 10 s, as in Kafka
        assert consumer.subscription() == {f"{prefix}-a", f"{prefix}-b"}
        consumer.subscribe([f"{prefix}-b"])
        poll_until(lambda: consumer.assignment() == {(f"{prefix}-b", 0), (f"{prefix}-b", 1)}, consumer)


@pytest.mark.behaviour("C03")
def test_a_pattern_that_re2_refuses_is_an_error_with_a_remedy(quick):
    with open_member(quick, unique("group")) as consumer:
        consumer.subscribe(pattern="(?=a)b")
        with pytest.raises(InvalidRegularExpressionError, match="brokers use RE2"):
            poll_until(lambda: False, consumer)


@pytest.mark.behaviour("C03")
def test_a_static_member_restarts_without_a_rebalance(quick):
    topic, group = fill(quick, 10, 2), unique("group")
    with open_member(quick, group) as other:
        other.subscribe([topic])
        restarted = open_member(quick, group, group_instance_id="instance-1")
        restarted.subscribe([topic])
        poll_until(lambda: len(restarted.assignment()) == len(other.assignment()) == 1, other, restarted)
        epoch, assigned = other.group_metadata().generation_id, restarted.assignment()
        restarted.close()
        with open_member(quick, group, group_instance_id="instance-1") as again:
            again.subscribe([topic])
            poll_until(lambda: again.assignment() == assigned, other, again)
            assert other.group_metadata().generation_id == epoch
            assert len(other.assignment()) == 1


@pytest.mark.behaviour("C03")
def test_a_second_member_with_the_same_instance_id_is_refused(quick):
    topic, group = fill(quick, 2, 1), unique("group")
    with (
        open_member(quick, group, group_instance_id="instance-1") as first,
        open_member(quick, group, group_instance_id="instance-1") as second,
    ):
        first.subscribe([topic])
        poll_until(first.assignment, first)
        second.subscribe([topic])
        with pytest.raises(UnreleasedInstanceIdError, match="close it"):
            poll_until(lambda: False, first, second)
        assert first.poll(0.1) is not None
        assert first.assignment()


@pytest.mark.behaviour("C03")
def test_an_assignor_that_the_broker_does_not_have_is_an_error(quick):
    with open_member(quick, unique("group"), group_remote_assignor="best") as consumer:
        consumer.subscribe([fill(quick, 0, 1)])
        with pytest.raises(UnsupportedAssignorError, match=r"group\.remote\.assignor"):
            poll_until(lambda: False, consumer)


@pytest.mark.behaviour("C03")
def test_a_member_too_many_is_refused_and_may_join_later(quick):
    topic, group = fill(quick, 0, MEMBERS_MAX), unique("group")
    with ExitStack() as stack:
        members = [stack.enter_context(open_member(quick, group)) for _ in range(MEMBERS_MAX)]
        for member in members:
            member.subscribe([topic])
        poll_until(lambda: all(len(member.assignment()) == 1 for member in members), *members)
        late = stack.enter_context(open_member(quick, group))
        late.subscribe([topic])
        with pytest.raises(GroupMaxSizeReachedError, match=r"group\.consumer\.max\.size"):
            poll_until(lambda: False, late)
        members.pop().close()
        late.subscribe([topic])
        poll_until(late.assignment, late, *members)


@pytest.mark.behaviour("C03")
def test_a_removed_member_loses_its_partitions_and_joins_again(quick):
    topic, group = fill(quick, 10, 2), unique("group")
    log = Log()
    with open_member(quick, group, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic], listener=log)
        poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        consumer.commit()
        remove_member(quick, consumer.group_metadata())
        with pytest.raises(CommitFailedError, match="has removed this member"):
            consumer.commit({TopicPartition(topic, 0): 1})
        poll_until(lambda: log.calls == [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])], consumer)
        poll_until(lambda: len(consumer.positions()) == 2, consumer)
        consumer.commit()


@pytest.mark.behaviour("C03")
def test_commits_of_a_lost_member_do_not_undo_those_of_the_next_owner(quick):
    topic, group = fill(quick, 10, 1), unique("group")
    name = TopicPartition(topic, 0)
    with open_member(quick, group, enable_auto_commit=False) as lost:
        lost.subscribe([topic])
        poll_until(lost.assignment, lost)
        remove_member(quick, lost.group_metadata())
        with open_member(quick, group, enable_auto_commit=False) as owner:
            owner.subscribe([topic])
            poll_until(owner.assignment, owner)
            owner.commit({name: 8})
        with pytest.raises(CommitFailedError):  # the group has no members, and would accept a commit without one
            lost.commit({name: 3})
        assert lost.committed([name])[name].offset == 8


@pytest.mark.behaviour("C03")
def test_a_member_that_does_not_poll_leaves_and_joins_again(quick):
    topic, group = fill(quick, 10, 1), unique("group")
    log = Log()
    with (
        open_member(quick, group, max_poll_interval_ms=1000, enable_auto_commit=False) as stuck,
        open_member(quick, group) as other,
    ):
        stuck.subscribe([topic], listener=log)
        poll_until(stuck.assignment, stuck)
        other.subscribe([topic])
        poll_until(other.assignment, other)  # only `other` is polled
        with pytest.raises(CommitFailedError):
            stuck.commit({TopicPartition(topic, 0): 1})
        other.close()
        poll_until(lambda: log.calls == [("assigned", [0]), ("lost", [0]), ("assigned", [0])], stuck)


@pytest.mark.behaviour("C03")
def test_a_member_that_leaves_is_replaced_before_its_session_ends(quick):
    topic, group = fill(quick, 10, 1), unique("group")
    with open_member(quick, group) as first, open_member(quick, group) as second:
        first.subscribe([topic])
        poll_until(first.assignment, first)
        second.subscribe([topic])
        poll_until(lambda: second.group_metadata().generation_id > 0, first, second)
        first.unsubscribe()
        left_at = time.monotonic()
        poll_until(second.assignment, second)
        assert time.monotonic() - left_at < SESSION_SECONDS
        assert first.group_metadata() == GroupMetadata(group)


@pytest.mark.behaviour("C03")
def test_a_member_that_revokes_slowly_does_not_stop_the_others(quick):
    topic, group = fill(quick, 0, 6), unique("group")
    with open_member(quick, group) as reading, open_member(quick, group) as busy, open_member(quick, group) as new:
        reading.subscribe([topic])
        busy.subscribe([topic])
        poll_until(lambda: len(reading.assignment()) == len(busy.assignment()) == 3, reading, busy)
        before = reading.assignment()
        new.subscribe([topic])
        poll_until(lambda: len(new.assignment()) == 1, reading, new)  # `busy` does not poll: it has three
        assert reading.assignment() | new.assignment() == before
        produce(quick, topic, 60, 6)
        poll_until(lambda: sum((reading.positions() | new.positions()).values()) == 30, reading, new)
        poll_until(lambda: all(len(member.assignment()) == 2 for member in (reading, busy, new)), reading, busy, new)


@pytest.mark.behaviour("C03")
def test_a_topic_that_is_created_later_is_assigned_then(quick):
    topic, group = unique("later"), unique("group")
    with open_member(quick, group, metadata_max_age_ms=500) as consumer:
        consumer.subscribe([topic])
        poll_until(lambda: consumer.group_metadata().generation_id > 0, consumer)
        assert not consumer.assignment()
        quick.create_topic(topic, 2)
        produce(quick, topic, 10, 2)
        poll_until(lambda: sum(consumer.positions().values()) == 10, consumer)
        assert consumer.assignment() == {(topic, 0), (topic, 1)}


@pytest.mark.behaviour("C03")
@pytest.mark.parametrize("auto_commit", [False, True])
def test_a_deleted_topic_is_given_up_and_a_new_one_of_that_name_read_from_its_start(quick, auto_commit):
    kept, deleted, group = fill(quick, 10, 1), fill(quick, 10, 1), unique("group")
    with AdminClient(quick.bootstrap) as admin, open_member(quick, group, enable_auto_commit=auto_commit) as consumer:
        consumer.subscribe([kept, deleted])
        poll_until(lambda: consumer.positions() == {(kept, 0): 10, (deleted, 0): 10}, consumer)
        admin.delete_topics([deleted])
        deleted_at = time.monotonic()
        poll_until(lambda: consumer.assignment() == {(kept, 0)}, consumer)
        assert time.monotonic() - deleted_at < SESSION_SECONDS  # no commit waits for the topic
        quick.create_topic(deleted, 1)
        produce(quick, deleted, 3, 1)
        records = poll_until(lambda: consumer.positions() == {(kept, 0): 10, (deleted, 0): 3}, consumer)
        assert [(record.topic, record.offset) for record in records] == [(deleted, i) for i in range(3)]


@pytest.mark.behaviour("C03")
@pytest.mark.parametrize(
    ("policy", "position"), [("earliest", 4), ("latest", 10), ("by_duration:PT1H", 4), ("none", None)]
)
def test_a_committed_offset_out_of_range_is_reset_by_policy(quick, policy, position):
    topic, group = fill(quick, 10, 1), unique("group")
    name = TopicPartition(topic, 0)
    with open_member(quick, group) as consumer:
        consumer.assign([name])
        consumer.commit({name: OffsetAndMetadata(1)})
    with AdminClient(quick.bootstrap) as admin:
        admin.delete_records({name: 4})
    with open_member(quick, group, auto_offset_reset=policy, enable_auto_commit=False) as consumer:
        consumer.subscribe([topic])
        if position is None:
            with pytest.raises(OffsetOutOfRangeError):
                poll_until(lambda: False, consumer)
            return
        records = poll_until(lambda: consumer.positions() == {name: 10}, consumer)
        assert [record.offset for record in records] == list(range(position, 10))


@pytest.mark.behaviour("C03")
def test_no_committed_offset_without_a_policy_is_an_error(quick):
    with open_member(quick, unique("group"), auto_offset_reset="none") as consumer:
        consumer.subscribe([fill(quick, 1, 1)])
        with pytest.raises(NoOffsetError):
            poll_until(lambda: False, consumer)


@pytest.mark.behaviour("C03")
def test_offsets_are_committed_async_and_automatically(quick):
    topic, group = fill(quick, 20, 2), unique("group")
    names = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    with open_member(quick, group) as consumer:
        consumer.subscribe([topic])
        poll_until(lambda: consumer.positions() == dict.fromkeys(names, 10), consumer)
        done: list[object] = []
        consumer.commit_async({names[0]: 3}, lambda offsets, error: done.append(error))
        poll_until(lambda: done, consumer)
        assert done == [None]
        assert consumer.committed(names)[names[0]].offset == 3
    with open_member(quick, group) as consumer:
        assert {tp: row.offset for tp, row in consumer.committed(names).items()} == dict.fromkeys(names, 10)


@pytest.mark.behaviour("C03")
def test_offsets_of_a_member_are_part_of_a_transaction_until_it_is_removed(quick):
    topic, group = fill(quick, 10, 1), unique("group")
    name = TopicPartition(topic, 0)
    with (
        open_member(quick, group, enable_auto_commit=False, isolation_level="read_committed") as consumer,
        Producer(bootstrap_servers=quick.bootstrap, transactional_id=unique("txn")) as producer,
    ):
        consumer.subscribe([topic])
        poll_until(lambda: consumer.positions() == {name: 10}, consumer)
        producer.init_transactions()
        with producer.transaction():
            producer.send_offsets_to_transaction({name: 5}, consumer)
        assert consumer.committed([name])[name].offset == 5
        remove_member(quick, consumer.group_metadata())
        with pytest.raises(AbortableError), producer.transaction():
            producer.send_offsets_to_transaction({name: 7}, consumer)
        poll_until(lambda: consumer.positions() == {name: 10}, consumer)
        assert consumer.committed([name])[name].offset == 5


@pytest.mark.behaviour("C03")
def test_an_async_consumer_joins_and_commits(quick):
    topic, group = fill(quick, 10, 2), unique("group")

    async def read() -> list[int]:
        offsets: list[int] = []
        async with AsyncConsumer(
            bootstrap_servers=quick.bootstrap, group_id=group, group_protocol="consumer", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe([topic])
            async with asyncio.timeout(SECONDS_MAX):
                while len(offsets) < 10:
                    offsets += [record.offset for record in await consumer.poll(0.5)]
            await consumer.commit()
        return offsets

    assert sorted(asyncio.run(read())) == sorted([*range(5), *range(5)])
