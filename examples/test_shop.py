"""Tests of code that sends to Kafka, with the fixtures of headrace and with injected faults.

pytest test_shop.py
"""

import pytest

from headrace import MockProducer, Producer
from headrace.broker import EmbeddedBroker
from headrace.client.fetcher import Fetcher


class Shop:
    """The code under test."""

    def __init__(self, producer: Producer | MockProducer, topic: str) -> None:
        self._producer = producer
        self._topic = topic

    def order(self, customer: str, amount: int) -> None:
        """Send an order; return when it is acknowledged, or raise."""
        if amount <= 0:
            raise ValueError(f"amount is {amount}")
        self._producer.send(self._topic, b"%d" % amount, key=customer.encode()).result(timeout=30)


def values_in(bootstrap: str, topic: str) -> list[bytes | None]:
    with Fetcher(bootstrap) as fetcher:
        partitions = [(topic, 0)]
        fetcher.assign(partitions, until=fetcher.end_offsets(partitions))
        values = []
        while not fetcher.is_finished():
            values += [record.value for record in fetcher.poll(timeout_ms=1000)]
        return values


def test_an_invalid_order_sends_nothing():
    producer = MockProducer()  # without a broker
    with pytest.raises(ValueError, match="amount is 0"):
        Shop(producer, "orders").order("ann", 0)
    assert producer.history == []


def test_an_order_is_in_the_topic(kafka_broker, kafka_topic):
    with Producer(bootstrap_servers=kafka_broker.bootstrap) as producer:
        Shop(producer, kafka_topic).order("ann", 5)
    assert values_in(kafka_broker.bootstrap, kafka_topic) == [b"5"]


def test_a_lost_response_does_not_duplicate_the_order(kafka_broker, kafka_topic):
    fault = kafka_broker.faults.inject(api="Produce", topic=kafka_topic, when="after", close=True, count=1)
    with fault, Producer(bootstrap_servers=kafka_broker.bootstrap) as producer:
        Shop(producer, kafka_topic).order("ann", 5)
        assert fault.hits == 1
    assert values_in(kafka_broker.bootstrap, kafka_topic) == [b"5"]


def test_orders_survive_a_broker_crash():
    with EmbeddedBroker() as broker, Producer(bootstrap_servers=broker.bootstrap) as producer:
        shop = Shop(producer, "orders")
        shop.order("ann", 5)
        broker.kill()
        broker.restart()
        shop.order("bob", 7)
        assert values_in(broker.bootstrap, "orders") == [b"5", b"7"]
