"""The Apache Kafka fixture behaves as other tests expect."""

import os
import socket

import pytest

from tests.support import samples
from tests.support.peers import librdkafka
from tests.support.peers.real_kafka import RealKafka, responds_to_api_versions
from tests.support.waiting import eventually


@pytest.fixture
def own_kafka(kafka_jars, tmp_path):
    """A broker that the test may end as it likes."""
    broker = RealKafka(kafka_jars("4.3.0"), tmp_path / "kafka", {"num.partitions": "3"})
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()


def has_ended(pid):
    """Whether nothing is left of the group that a process led."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_restarted_broker_keeps_address_and_data_until_it_is_removed(own_kafka):
    bootstrap, pids = own_kafka.bootstrap, [own_kafka.pid]
    topic = own_kafka.create_topic("kept", 2, {"cleanup.policy": "compact"})
    librdkafka.produce(bootstrap, topic, samples.small()[:1], partition=1)
    for end in (own_kafka.kill, own_kafka.stop):
        end()
        assert own_kafka.pid is None
        assert not responds_to_api_versions(own_kafka.port)
        own_kafka.restart()
        pids.append(own_kafka.pid)
        assert own_kafka.bootstrap == bootstrap
        assert librdkafka.consume(bootstrap, topic, 1, partition=1) == samples.small()[:1]

    own_kafka.remove()

    eventually("the end of all processes", lambda: all(has_ended(pid) for pid in pids))
    assert not own_kafka.data_dir.exists()
    with socket.create_server(("127.0.0.1", own_kafka.port)):
        pass  # the port is free again


def test_a_broker_that_cannot_start_reports_the_cause_and_exits(kafka_jars, tmp_path):
    broker = RealKafka(kafka_jars("4.3.0"), tmp_path / "kafka", {"num.network.threads": "0"})
    with pytest.raises(RuntimeError, match=r"num\.network\.threads"):
        broker.start()
    assert broker.pid is None
    broker.remove()
