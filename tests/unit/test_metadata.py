"""Cluster metadata and the times of its updates, on a manual clock."""

from __future__ import annotations

import threading

import pytest

from headrace.client.metadata import Cluster, Metadata
from headrace.errors import AuthenticationError, BrokerError
from headrace.wire.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class HandClock:
    def __init__(self):
        self.now = 1_000_000.0

    def monotonic_ms(self):
        return self.now

    def time_ms(self):
        return int(self.now)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def metadata(clock):
    return Metadata(clock, max_age_ms=60_000, max_idle_ms=100_000)


def response_of(*topics, brokers=(1, 2)):
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host="b", port=n) for n in brokers], controller_id=1, topics=topics
    )


def topic(name="t", leaders=(1,), epoch=5, error=0, topic_id=b"i" * 16):
    partitions = [
        MetadataResponsePartition(partition_index=i, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2])
        for i, leader in enumerate(leaders)
    ]
    return MetadataResponseTopic(name=name, topic_id=topic_id, partitions=partitions, error_code=error)


def give(metadata, clock, *topics, **options):
    metadata.attempt(clock.now)
    metadata.update(response_of(*topics, **options), clock.now)


@pytest.mark.behaviour("P10")
def test_an_update_is_due_at_first_and_then_by_age(metadata, clock):
    assert metadata.time_to_update_ms(clock.now) == 0
    give(metadata, clock)
    assert metadata.time_to_update_ms(clock.now) == 60_000
    clock.now += 60_000
    assert metadata.time_to_update_ms(clock.now) == 0


@pytest.mark.behaviour("P10")
def test_an_update_waits_for_the_back_off_a_new_topic_does_not(metadata, clock):
    give(metadata, clock)
    metadata.request_update()
    assert 80 <= metadata.time_to_update_ms(clock.now) <= 120
    assert metadata.add_topic("t")
    assert metadata.time_to_update_ms(clock.now) == 0
    assert not metadata.add_topic("t")


def test_an_update_requested_during_a_request_needs_another_one(metadata, clock):
    metadata.attempt(clock.now)
    update_seq = metadata.request_update()
    metadata.update(response_of(), clock.now)
    assert metadata.time_to_update_ms(clock.now) < 1000
    assert not metadata.wait_for_update(update_seq, 0)
    clock.now += 1000
    give(metadata, clock)
    assert metadata.time_to_update_ms(clock.now) == 60_000
    assert metadata.wait_for_update(update_seq, 0)


def test_an_urgent_update_waits_for_the_back_off_of_failures_only(metadata, clock):
    give(metadata, clock)
    metadata.request_update(is_urgent=True)
    assert metadata.time_to_update_ms(clock.now) == 0
    metadata.attempt(clock.now)
    metadata.fail()
    metadata.request_update(is_urgent=True)
    assert metadata.time_to_update_ms(clock.now) >= 80


@pytest.mark.behaviour("P10")
def test_pauses_grow_while_a_topic_has_no_leader(metadata, clock):
    metadata.add_topic("t")
    pauses = []
    for _ in range(5):
        give(metadata, clock, topic(leaders=[-1]))
        pauses.append(metadata.time_to_update_ms(clock.now))
        clock.now += 10_000
    assert pauses[0] < 130
    assert pauses[-1] > 800
    assert metadata.cluster.leader("t", 0) == -1
    assert metadata.cluster.available_partitions_for("t") == []
    give(metadata, clock, topic(leaders=[2]))
    assert metadata.time_to_update_ms(clock.now) == 60_000


def test_an_older_leader_epoch_is_ignored_unless_the_topic_is_new(metadata, clock):
    metadata.add_topic("t")
    give(metadata, clock, topic(leaders=[1], epoch=5))
    give(metadata, clock, topic(leaders=[2], epoch=4))
    assert metadata.cluster.leader("t", 0) == 1
    give(metadata, clock, topic(leaders=[2], epoch=6))
    assert metadata.cluster.leader("t", 0) == 2
    give(metadata, clock, topic(leaders=[1], epoch=0, topic_id=b"j" * 16))
    assert metadata.cluster.leader("t", 0) == 1


def test_a_hint_with_a_newer_epoch_moves_a_leader(metadata, clock):
    metadata.add_topic("t")
    give(metadata, clock, topic(leaders=[1, 1], epoch=5))
    metadata.update_leader("t", 1, 2, 5)
    assert metadata.cluster.leader("t", 1) == 1
    metadata.update_leader("t", 1, 99, 6)  # an unknown broker
    assert metadata.cluster.leader("t", 1) == 1
    metadata.update_leader("t", 1, 2, 6)
    assert (metadata.cluster.leader("t", 0), metadata.cluster.leader("t", 1)) == (1, 2)
    metadata.update_leader("t", 7, 2, 6)
    metadata.update_leader("unknown", 0, 2, 6)


@pytest.mark.parametrize(("code", "fatal"), [(17, True), (29, True), (3, False), (5, False)])
def test_only_permanent_topic_errors_are_raised_at_once(metadata, clock, code, fatal):
    metadata.add_topic("t")
    give(metadata, clock, topic(leaders=[], error=code))
    if fatal:
        with pytest.raises(BrokerError, match="topic 't'"):
            metadata.raise_topic_error("t")
        assert metadata.time_to_update_ms(clock.now) == 60_000
    else:
        metadata.raise_topic_error("t")
        assert metadata.time_to_update_ms(clock.now) < 1000


def test_unused_topics_are_dropped(metadata, clock):
    metadata.add_topic("old")
    clock.now += 90_000
    metadata.add_topic("new")
    clock.now += 20_000
    assert metadata.tracked_topics(clock.now) == ["new"]
    metadata.touch(["old"])
    assert set(metadata.tracked_topics(clock.now)) == {"old", "new"}


def test_topics_are_requested_by_id_once_and_then_by_name(metadata, clock):
    give(metadata, clock, topic("t"))
    metadata.add_topic("t")
    give(metadata, clock, topic("t"))
    metadata.add_topic_ids([b"u" * 16])
    assert metadata.time_to_update_ms(clock.now) == 0
    metadata.attempt(clock.now)
    assert metadata.take_topic_ids() == [b"u" * 16]
    metadata.update(response_of(topic("u", topic_id=b"u" * 16)), clock.now)
    assert metadata.cluster.topic_id("u") == b"u" * 16
    assert metadata.cluster.leader("t", 0) == 1  # kept, although the response did not have it
    assert metadata.take_topic_ids() == []
    assert metadata.time_to_update_ms(clock.now + 1000) == 0  # names are due


def test_partitions_that_do_not_count_from_0_are_not_used(metadata, clock):
    metadata.add_topic("t")
    gap = topic().replace(partitions=[MetadataResponsePartition(partition_index=1, leader_id=1)])
    give(metadata, clock, gap)
    assert metadata.cluster.partition_count("t") is None


def test_a_waiter_wakes_with_the_update_or_when_its_time_is_up(metadata, clock):
    version, update_seq = metadata.version, metadata.request_update()
    assert not metadata.wait_for_version(version, 1)
    assert not metadata.wait_for_update(update_seq, 1)
    give(metadata, clock)
    assert metadata.wait_for_version(version, 0)
    assert metadata.wait_for_update(update_seq, 0)


def test_a_fatal_error_is_raised_in_current_waits_only(metadata):
    errors = []
    started = threading.Barrier(4)

    def wait():
        started.wait(10)
        try:
            metadata.wait_for_version(0, 10_000)
        except AuthenticationError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait(10)
    while len(metadata._waiting) < 3:
        assert any(thread.is_alive() for thread in threads)
    metadata.fail(AuthenticationError("wrong password"), fatal=True)
    for thread in threads:
        thread.join(10)
    assert len(errors) == 3
    assert not metadata.wait_for_version(0, 1)


def test_a_fatal_error_without_a_wait_is_not_raised_later(metadata):
    """It may be hours old, and the broker may accept the password now."""
    update_seq = metadata.request_update()
    metadata.fail(AuthenticationError("wrong password"), fatal=True)
    assert not metadata.wait_for_version(0, 1)
    with pytest.raises(AuthenticationError):
        metadata.wait_for_update(update_seq, 0)  # as a client does that polls in the same thread
    assert not metadata.wait_for_update(metadata.request_update(), 0)


def test_listeners_get_every_update(clock):
    updates: list[Cluster] = []
    metadata = Metadata(clock, on_update=updates.append)
    metadata.add_topic("t")
    give(metadata, clock, topic(leaders=[1, 2]))
    assert [list(cluster.partitions_for("t")) for cluster in updates] == [[0, 1]]
    assert updates[0].topic_id("t") == b"i" * 16
