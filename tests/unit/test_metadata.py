"""What is known of the cluster, and when to ask again, on a clock turned by hand."""

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


def answer(*topics, brokers=(1, 2)):
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
    metadata.update(answer(*topics, **options), clock.now)


@pytest.mark.behaviour("P10")
def test_it_is_due_at_first_then_by_age(metadata, clock):
    assert metadata.time_to_update_ms(clock.now) == 0
    give(metadata, clock)
    assert metadata.time_to_update_ms(clock.now) == 60_000
    clock.now += 60_000
    assert metadata.time_to_update_ms(clock.now) == 0


@pytest.mark.behaviour("P10")
def test_a_wish_waits_for_the_pause_and_a_new_topic_does_not(metadata, clock):
    give(metadata, clock)
    metadata.request_update()
    assert 80 <= metadata.time_to_update_ms(clock.now) <= 120
    assert metadata.add_topic("t")
    assert metadata.time_to_update_ms(clock.now) == 0
    assert not metadata.add_topic("t")


def test_a_wish_made_while_an_answer_was_on_its_way_is_not_met_by_it(metadata, clock):
    metadata.attempt(clock.now)
    wish = metadata.request_update()
    metadata.update(answer(), clock.now)
    assert metadata.time_to_update_ms(clock.now) < 1000
    assert not metadata.wait_for_wish(wish, 0)
    clock.now += 1000
    give(metadata, clock)
    assert metadata.time_to_update_ms(clock.now) == 60_000
    assert metadata.wait_for_wish(wish, 0)


def test_an_urgent_wish_waits_for_nothing_but_failures(metadata, clock):
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


def test_an_older_leader_epoch_is_not_believed_unless_the_topic_is_a_new_one(metadata, clock):
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
    metadata.update_leader("t", 1, 99, 6)  # nobody knows where that is
    assert metadata.cluster.leader("t", 1) == 1
    metadata.update_leader("t", 1, 2, 6)
    assert (metadata.cluster.leader("t", 0), metadata.cluster.leader("t", 1)) == (1, 2)
    metadata.update_leader("t", 7, 2, 6)
    metadata.update_leader("unknown", 0, 2, 6)


@pytest.mark.parametrize(("code", "fatal"), [(17, True), (29, True), (3, False), (5, False)])
def test_only_what_cannot_work_is_an_error_at_once(metadata, clock, code, fatal):
    metadata.add_topic("t")
    give(metadata, clock, topic(leaders=[], error=code))
    if fatal:
        with pytest.raises(BrokerError, match="topic 't'"):
            metadata.raise_topic_error("t")
        assert metadata.time_to_update_ms(clock.now) == 60_000
    else:
        metadata.raise_topic_error("t")
        assert metadata.time_to_update_ms(clock.now) < 1000


def test_topics_that_nobody_uses_are_let_go(metadata, clock):
    metadata.add_topic("old")
    clock.now += 90_000
    metadata.add_topic("new")
    clock.now += 20_000
    assert metadata.topics_wanted(clock.now) == ["new"]
    metadata.touch(["old"])
    assert set(metadata.topics_wanted(clock.now)) == {"old", "new"}


def test_partitions_that_do_not_count_from_0_are_not_used(metadata, clock):
    metadata.add_topic("t")
    gap = topic().replace(partitions=[MetadataResponsePartition(partition_index=1, leader_id=1)])
    give(metadata, clock, gap)
    assert metadata.cluster.partition_count("t") is None


def test_a_waiter_wakes_with_the_update_or_when_its_time_is_up(metadata, clock):
    version, wish = metadata.version, metadata.request_update()
    assert not metadata.wait_for_update(version, 1)
    assert not metadata.wait_for_wish(wish, 1)
    give(metadata, clock)
    assert metadata.wait_for_update(version, 0)
    assert metadata.wait_for_wish(wish, 0)


def test_a_fatal_error_reaches_everybody_who_waits_and_nobody_later(metadata):
    errors = []
    started = threading.Barrier(4)

    def wait():
        started.wait(10)
        try:
            metadata.wait_for_update(0, 10_000)
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
    assert not metadata.wait_for_update(0, 1)


def test_a_fatal_error_that_nobody_waited_for_is_not_raised_to_who_waits_later(metadata):
    """It may be hours old, about a broker that has the right password by now."""
    wish = metadata.request_update()
    metadata.fail(AuthenticationError("wrong password"), fatal=True)
    assert not metadata.wait_for_update(0, 1)
    with pytest.raises(AuthenticationError):
        metadata.wait_for_wish(wish, 0)  # by one that polls in between, in the same thread
    assert not metadata.wait_for_wish(metadata.request_update(), 0)


def test_listeners_hear_of_every_update(clock):
    heard: list[Cluster] = []
    metadata = Metadata(clock, on_update=heard.append)
    metadata.add_topic("t")
    give(metadata, clock, topic(leaders=[1, 2]))
    assert [list(cluster.partitions_for("t")) for cluster in heard] == [[0, 1]]
    assert heard[0].topic_id("t") == b"i" * 16
