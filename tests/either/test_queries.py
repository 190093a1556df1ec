"""Queries that combine several responses (client/queries), on both brokers."""

from __future__ import annotations

import time

import pytest

from headrace import Producer
from headrace.client.admin import AdminClient, TopicPartition
from headrace.client.queries.groups import LagTimes, find_group
from headrace.client.queries.transactions import (
    blocked_partitions,
    describe_transaction,
    open_partitions,
    transaction_history,
)
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

SECONDS_MAX = 30
AGE_MS = 90_000


@pytest.fixture
def admin(either):
    with AdminClient(either.bootstrap) as admin:
        yield admin


@pytest.fixture
def writer(either):
    """Yield a producer in an open transaction."""
    with Producer(bootstrap_servers=either.bootstrap, transactional_id=unique("facts")) as producer:
        producer.init_transactions()
        yield producer


def existing(value):
    """What must be there."""
    assert value is not None
    return value


def transactional_id(producer):
    return producer.config["transactional.id"]


def test_an_open_transaction_hides_all_records_after_its_first(either, admin, writer):
    topic = new_topic(either, "facts-held", partitions=2)
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap_servers=either.bootstrap) as other:
        other.send(topic, b"before", partition=0).result(SECONDS_MAX)
        assert blocked_partitions(admin, [tp]) == {}
        writer.begin_transaction()
        writer.send(topic, b"open", partition=0).result(SECONDS_MAX)
        for _ in range(3):
            other.send(topic, b"waits", partition=0).result(SECONDS_MAX)
    name = transactional_id(writer)
    (part,) = open_partitions(admin, [existing(describe_transaction(admin, name))])[name]
    assert (part.tp, part.start, part.stable, part.end, part.blocked_count) == (tp, 1, 1, 5, 4)

    with Producer(bootstrap_servers=either.bootstrap, transactional_id=unique("second")) as second:
        second.init_transactions()
        second.begin_transaction()
        second.send(topic, b"open as well", partition=0).result(SECONDS_MAX)
        other = existing(describe_transaction(admin, transactional_id(second)))
        (later,) = open_partitions(admin, [other])[transactional_id(second)]
        assert (later.start, later.stable, later.blocked_count) == (
            5,
            1,
            0,
        )  # behind the first transaction
        second.abort_transaction()
    writer.commit_transaction()
    partitions = [tp, TopicPartition(topic, 1)]
    eventually("the markers", lambda: blocked_partitions(admin, partitions) == {})  # written after the response


def test_the_history_of_a_transactional_id_has_all_logged_states(either, admin, writer):
    topic = new_topic(either, "facts-history")
    began_ms = time.time() * 1000 - 1
    for end in (writer.commit_transaction, writer.abort_transaction):
        writer.begin_transaction()
        writer.send(topic, b"x").result(SECONDS_MAX)
        end()
    writer.begin_transaction()
    writer.send(topic, b"open").result(SECONDS_MAX)
    history = transaction_history(admin, transactional_id(writer))
    states = [step.state for step in history.steps]
    assert states == [
        "Empty",
        *("Ongoing", "PrepareCommit", "CompleteCommit"),
        *("Ongoing", "PrepareAbort", "CompleteAbort"),
        "Ongoing",
    ]
    assert history.is_whole
    assert all(began_ms - SECONDS_MAX * 1000 <= step.at_ms <= time.time() * 1000 + 1 for step in history.steps)
    assert [step.partitions for step in history.steps if step.state == "Ongoing"] == [1, 1, 1]
    assert transaction_history(admin, unique("nobody")).steps == ()
    writer.abort_transaction()


def test_record_times_are_fetched_again_only_after_a_commit(either, admin):
    topic, group = new_topic(either, "facts-lag"), unique("late")
    now_ms = int(time.time() * 1000)
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        for age_ms in (2 * AGE_MS, AGE_MS):
            producer.send(topic, b"x", timestamp_ms=now_ms - age_ms).result(SECONDS_MAX)
    tp = TopicPartition(topic, 0)
    times = LagTimes()

    def late_ms(committed, remembering=times):
        admin.alter_group_offsets(group, {tp: committed})
        facts = existing(find_group(admin, group))
        remembering.fill(facts.partitions, admin)
        return facts.partitions[0].lag_ms

    assert 2 * AGE_MS <= late_ms(0) <= 2 * AGE_MS + SECONDS_MAX * 1000
    admin.delete_records({tp: 1})  # it is deleted, and is not needed
    before = existing(find_group(admin, group)).partitions[0]
    before.start = 0
    times.fill([before], admin)
    assert (before.lag_ms or 0) >= 2 * AGE_MS
    assert AGE_MS <= late_ms(1) <= AGE_MS + SECONDS_MAX * 1000
    assert late_ms(2) == 0


def test_groups_at_different_offsets_have_different_lags(either, admin):
    topic = new_topic(either, "facts-lags")
    now_ms = int(time.time() * 1000)
    with Producer(bootstrap_servers=either.bootstrap) as producer:
        for age_ms in (3 * AGE_MS, 2 * AGE_MS, AGE_MS):
            producer.send(topic, b"x", timestamp_ms=now_ms - age_ms).result(SECONDS_MAX)
    groups = {unique("late"): committed for committed in range(4)}
    for group, committed in groups.items():
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): committed})
    partitions = [existing(find_group(admin, group)).partitions[0] for group in groups]
    LagTimes().fill(partitions, admin)
    assert [round((partition.lag_ms or 0) / AGE_MS, 1) for partition in partitions] == [3, 2, 1, 0]
