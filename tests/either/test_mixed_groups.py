"""One group of several clients, on Apache Kafka and on the headrace broker: members are killed and paused.

Every record is in the committed span of exactly one member, and no partition stays without an owner.
"""

from __future__ import annotations

import pytest

from tests.support.span_group import SpanGroup

PARTITIONS = 8
KAFKA_VERSION = "4.3.0"

CLIENTS = {
    "consumer": ["headrace", "librdkafka", "franz-go", "java"],
    "cooperative-sticky": ["headrace", "librdkafka", "franz-go", "java"],
    "range": ["headrace", "librdkafka", "franz-go", "aiokafka"],
}


@pytest.mark.behaviour("C02", "C03")
@pytest.mark.timeout(240)
@pytest.mark.every_run("apache-range", "headrace-consumer", "headrace-cooperative-sticky")
@pytest.mark.parametrize("protocol", CLIENTS)
def test_members_are_killed_and_paused_and_each_record_has_one_owner(quick, kafka_jars, protocol):
    with SpanGroup(quick, protocol, PARTITIONS, kafka_jars(KAFKA_VERSION)) as group:
        killed = group.add("headrace")
        group.wait_for_owners()
        ours, *others = [group.add(client) for client in CLIENTS[protocol]]
        group.wait_for_work(killed, ours, *others)
        killed.kill()
        group.wait_for_owners()
        ours.pause()
        group.wait_for_owners()  # after the session timeout
        ours.resume()
        group.wait_for_work(ours, *others)
        others[0].pause()
        others[-1].kill()
        group.wait_for_owners()
        others[0].resume()
        group.wait_for_work(ours, *others[:-1])
        group.finish()
