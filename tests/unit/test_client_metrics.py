"""Metrics that clients push: OTLP, subscriptions, and the text for Prometheus."""

from __future__ import annotations

import random

import pytest

from headrace.broker.catalog.configs import CLIENT_METRICS, Configs
from headrace.broker.client_metrics import instances as limits
from headrace.broker.client_metrics.exposition import client_lines
from headrace.broker.client_metrics.instances import ClientInstances
from headrace.broker.client_metrics.options import ClientFacts, Subscription
from headrace.broker.client_metrics.otlp import ATTRIBUTES_MAX, NAME_BYTES_MAX, POINTS_MAX, Point, decode
from headrace.errors import BrokerError, Code, ConfigError, MalformedError
from tests.support.fake_network import FakeClock
from tests.support.otlp_messages import CUMULATIVE, DELTA, SUM, message, metric, metrics_data, number_point

ANN = ClientFacts("6c1dc70c-0000-0000-0000-000000000000", "ann-1", "librdkafka", "2.15.1", "10.0.0.1", "4711")
ID, OTHER_ID = bytes(15) + b"\7", bytes(15) + b"\x08"


# -- OTLP ----------------------------------------------------------------------------------------


def test_gauges_and_sums_are_decoded_with_their_attributes():
    data = metrics_data(
        metric("queue.size", [number_point(2.5, topic="orders", partition="0"), number_point(-7)]),
        metric("sent", [number_point(12)], SUM, CUMULATIVE),
        metric("sent.delta", [number_point(3)], SUM, DELTA),
        message(2, message(1, b"histogram"), message(9, message(1, b""))),
    )
    assert decode(data) == [
        Point("queue.size", (("partition", "0"), ("topic", "orders")), 2.5, False, False),
        Point("queue.size", (), -7.0, False, False),
        Point("sent", (), 12.0, True, False),
        Point("sent.delta", (), 3.0, True, True),
    ]
    assert decode(b"") == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0a\x05\x00",
        b"\x0b",
        b"\xff" * 12,
        b"\x00\x00",
        metrics_data(metric("x" * (NAME_BYTES_MAX + 1), [number_point(1)])),
        metrics_data(message(2, message(1, b"\xff"), message(5, number_point(1)))),
        metrics_data(metric("x", [number_point(1)] * (POINTS_MAX + 1))),
        metrics_data(metric("x", [message(1)] * (POINTS_MAX + 1))),
        metrics_data(metric("x", [number_point(1, **{f"a{n}": "" for n in range(ATTRIBUTES_MAX + 1)})])),
    ],
)
def test_invalid_and_excessive_metrics_are_refused(data):
    with pytest.raises(MalformedError):
        decode(data)


def test_damaged_metrics_are_decoded_or_refused():
    chance = random.Random(7)
    valid = metrics_data(
        metric("a", [number_point(1.5, k="v"), number_point(2)], SUM, DELTA), metric("b", [number_point(3)])
    )
    refused = 0
    for _ in range(2000):
        data = bytearray(valid)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decode(bytes(data[: chance.randint(1, len(data))]))
        except MalformedError:
            refused += 1
    assert refused > 500


# -- subscriptions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "is_match"),
    [
        ("", True),
        ("client_id=ann-.*", True),
        ("client_id=ann", False),
        ("client_software_name=librdkafka,client_source_address=10\\..*", True),
        ("client_software_name=librdkafka,client_id=bob", False),
        ("client_instance_id=6c1dc70c.*,client_software_version=2.*,client_source_port=4711", True),
    ],
)
def test_a_subscription_matches_clients_by_regular_expressions(match, is_match):
    assert Subscription.of({"match": match}).matches(ANN) is is_match


@pytest.mark.parametrize(
    "values", [{"match": "bogus=1"}, {"match": "client_id"}, {"match": "client_id=("}, {"interval.ms": "99"}]
)
def test_an_invalid_subscription_is_refused(values):
    with pytest.raises(ConfigError):
        Subscription.of(values)


class Rig:
    def __init__(self, **subscriptions: dict[str, str]) -> None:
        self.clock = FakeClock()
        self.configs = Configs()
        self.instances = ClientInstances(self.configs, self.clock)
        for name, values in subscriptions.items():
            self.subscribe(name, **values)

    def subscribe(self, name: str, **values: str | None) -> None:
        options = {key.replace("_", "."): value for key, value in values.items()}
        self.configs.apply(Configs.change(CLIENT_METRICS, name, options))

    def push(self, subscription_id: int, *points: Point, is_last: bool = False) -> None:
        self.instances.check_push(ID, ANN, subscription_id, is_last=is_last)
        self.instances.store(ID, points)

    def code(self, call) -> int:
        with pytest.raises(BrokerError) as caught:
            call()
        return caught.value.code


def test_a_client_gets_the_union_of_metrics_and_the_lowest_interval():
    rig = Rig(
        a={"metrics": "producer.,consumer.", "interval_ms": "20000"},
        b={"metrics": "broker.", "interval_ms": "10000", "match": "client_id=ann.*"},
        c={"metrics": "*", "interval_ms": "1000", "match": "client_id=bob.*"},
    )
    assignment = rig.instances.get(ID, ANN)
    assert (assignment.metrics, assignment.interval_ms) == (("broker.", "consumer.", "producer."), 10_000)
    bob = rig.instances.get(OTHER_ID, ANN._replace(client_id="bob-1"))
    assert (bob.metrics, bob.interval_ms) == (("",), 1000)
    assert bob.subscription_id != assignment.subscription_id


def test_without_a_subscription_a_client_asks_again_after_five_minutes():
    assignment = Rig().instances.get(ID, ANN)
    assert (assignment.metrics, assignment.interval_ms) == ((), 300_000)


def test_requests_before_their_time_are_throttled():
    rig = Rig(a={"metrics": "*", "interval_ms": "10000"})
    assignment = rig.instances.get(ID, ANN)
    assert rig.code(lambda: rig.instances.get(ID, ANN)) == Code.THROTTLING_QUOTA_EXCEEDED
    rig.push(assignment.subscription_id)
    assert rig.code(lambda: rig.push(assignment.subscription_id)) == Code.THROTTLING_QUOTA_EXCEEDED
    rig.clock.advance(10_000)
    rig.push(assignment.subscription_id)
    rig.push(assignment.subscription_id, is_last=True)  # a client that closes does not wait
    assert rig.code(lambda: rig.push(assignment.subscription_id)) == Code.INVALID_REQUEST


def test_after_a_change_a_client_asks_for_its_subscription_at_once():
    rig = Rig(a={"metrics": "*", "interval_ms": "10000"})
    assignment = rig.instances.get(ID, ANN)
    rig.subscribe("a", metrics="producer.")
    assert rig.code(lambda: rig.push(assignment.subscription_id)) == Code.UNKNOWN_SUBSCRIPTION_ID
    rig.clock.advance(1)
    changed = rig.instances.get(ID, ANN)
    assert changed.metrics == ("producer.",)
    rig.push(changed.subscription_id)


def test_deltas_are_added_and_other_values_replaced():
    rig = Rig(a={"metrics": "*", "interval_ms": "10000"})
    assignment = rig.instances.get(ID, ANN)
    for value in (3.0, 4.0):
        rig.push(assignment.subscription_id, Point("d", (), value, True, True), Point("t", (), value, True, False))
        rig.clock.advance(10_000)
    (instance,) = rig.instances.all()
    assert [point.value for point in instance.points.values()] == [7.0, 4.0]


def test_clients_and_points_are_limited_and_expire(monkeypatch):
    monkeypatch.setattr(limits, "INSTANCES_MAX", 3)
    monkeypatch.setattr(limits, "POINTS_MAX", 4)
    rig = Rig(a={"metrics": "*", "interval_ms": "10000"})
    points = [Point(f"p{n}", (), 1.0, False, False) for n in range(3)]
    for number in range(5):
        instance_id = bytes([number]) * 16
        assignment = rig.instances.get(instance_id, ANN)
        rig.instances.check_push(instance_id, ANN, assignment.subscription_id, is_last=False)
        rig.instances.store(instance_id, points)
    assert [len(instance.points) for instance in rig.instances.all()] == [0, 0, 3]
    rig.clock.advance(60_001)
    assert rig.instances.all() == []


def test_metrics_are_grouped_by_name_and_labelled_with_the_client():
    rig = Rig(a={"metrics": "*", "interval_ms": "10000"})
    for client, instance_id in (("ann-1", ID), ('b"o\\b\n', OTHER_ID)):
        facts = ANN._replace(client_id=client)
        assignment = rig.instances.get(instance_id, facts)
        rig.instances.check_push(instance_id, facts, assignment.subscription_id, is_last=False)
        rig.instances.store(
            instance_id,
            [Point("1.sent-total", (("node.id", "3"),), 2.0, True, False), Point("queue.size", (), 0.5, False, False)],
        )
    lines = list(client_lines(rig.instances.all()))
    assert [line for line in lines if line.startswith("#")] == [
        "# TYPE _1_sent_total counter",
        "# TYPE queue_size gauge",
    ]
    assert lines[1].startswith('_1_sent_total{node_id="3",client_instance_id="6c1dc70c-')
    assert lines[1].endswith('client_software_name="librdkafka",client_software_version="2.15.1"} 2.0')
    assert r'client_id="b\"o\\b\n"' in lines[2]
