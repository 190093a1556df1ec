"""Groups of the consumer protocol (KIP-848) on brokers that do not have it, or its first version only."""

from __future__ import annotations

import time

import pytest

from headrace import Consumer, ShareConsumer, UnsupportedVersionError
from headrace.broker import EmbeddedBroker
from tests.support.peers.real_kafka import RealKafka
from tests.support.polling import SECONDS_MAX, fill, poll_until, produce
from tests.support.topics import unique

PREVIEW = {
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
}


def open_member(broker, group: str) -> Consumer:
    return Consumer(
        bootstrap_servers=broker.bootstrap, group_id=group, group_protocol="consumer", auto_offset_reset="earliest"
    )


def check_refused(broker) -> None:
    with open_member(broker, unique("group")) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0 or newer.*Set group\.protocol=classic"):
            poll_until(lambda: False, consumer)


@pytest.mark.behaviour("C03")
def test_kafka_39_without_the_consumer_protocol_is_an_error_with_a_remedy(kafka39):
    check_refused(kafka39)


@pytest.mark.behaviour("C10")
def test_kafka_39_without_share_groups_is_an_error(kafka39):
    with ShareConsumer(bootstrap_servers=kafka39.bootstrap, group_id=unique("group")) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(UnsupportedVersionError, match=r"share groups.*Kafka 4\.2 or newer"):
            poll_share_until_error(consumer)


def poll_share_until_error(consumer: ShareConsumer) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        consumer.poll(0.1)


@pytest.mark.behaviour("C03")
def test_a_broker_that_has_disabled_the_consumer_protocol_is_an_error():
    with EmbeddedBroker({"group.coordinator.rebalance.protocols": "classic"}) as broker:
        check_refused(broker)


@pytest.mark.behaviour("C03")
def test_members_use_the_first_version_of_kafka_39(kafka_jars, tmp_path):
    broker = RealKafka(kafka_jars("3.9.1"), tmp_path / "preview", PREVIEW)
    try:
        broker.start()
        topic, group = fill(broker, 10, 2), unique("group")
        with open_member(broker, group) as first, open_member(broker, group) as second:
            first.subscribe([topic])
            poll_until(lambda: sum(first.positions().values()) == 10, first)
            assert first.group_metadata().member_id
            second.subscribe([topic])
            poll_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, first, second)
            produce(broker, topic, 10, 2)
            poll_until(lambda: sum((first.positions() | second.positions()).values()) == 20, first, second)
            first.commit()
            second.subscribe(pattern=".*")
            with pytest.raises(UnsupportedVersionError, match="Subscribe to names"):
                poll_until(lambda: False, second)
    finally:
        broker.remove()
