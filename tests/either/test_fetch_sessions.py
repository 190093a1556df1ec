"""Fetch sessions of other projects' clients, and of ours, on the headrace broker."""

from __future__ import annotations

import time

import pytest

from headrace import Consumer, Producer, TopicPartition
from headrace.broker.fetch_sessions import ClientSessions
from tests.support.own_broker import OpenBroker

RECORDS = 3000
"""Of a kilobyte each: several fetches of max.partition.fetch.bytes."""


@pytest.fixture
def fetches(monkeypatch):
    """The epochs of incremental fetches, as the broker sees them."""
    epochs = []
    continued = ClientSessions.continued

    def spy(self, session_id, epoch, *, by_id):
        epochs.append(epoch)
        return continued(self, session_id, epoch, by_id=by_id)

    monkeypatch.setattr(ClientSessions, "continued", spy)
    return epochs


def open_sessions(broker):
    return broker.do(lambda inner: len(inner.replicas.client_sessions))


def create(broker, partitions):
    return broker.do(lambda inner: inner.topic_manager.create("fetched", partitions).name)


@pytest.mark.behaviour("C05")
def test_other_clients_read_in_sessions(client, request, tmp_path, fetches):
    values = [b"%d" % number + bytes(1000) for number in range(RECORDS)]
    with OpenBroker(tmp_path) as broker:
        topic = create(broker, 1)
        with Producer(bootstrap_servers=broker.bootstrap) as producer:
            for value in values:
                producer.send(topic, value, partition=0)
        assert [record.value for record in client.consume(broker.bootstrap, topic, RECORDS)] == values
    if request.node.callspec.params["client"] in ("java", "franz-go"):  # the others have none
        assert fetches[:2] == [1, 2]


@pytest.mark.behaviour("C05")
def test_our_consumer_reads_in_a_session_and_closes_it(tmp_path, fetches):
    with OpenBroker(tmp_path) as broker:
        topic = create(broker, 100)
        with (
            Producer(bootstrap_servers=broker.bootstrap) as producer,
            Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([TopicPartition(topic, index) for index in range(100)])
            deadline = time.monotonic() + 20
            for index in range(10):
                producer.send(topic, b"%d" % index, partition=index).result(10)
                values: list[object] = []
                while not values:
                    assert time.monotonic() < deadline
                    values = [record.value for record in consumer.poll(1)]
                assert values == [b"%d" % index]
            assert open_sessions(broker) == 1
            assert fetches == [*range(1, len(fetches) + 1)]
        deadline = time.monotonic() + 10
        while open_sessions(broker):
            assert time.monotonic() < deadline
            time.sleep(0.01)
