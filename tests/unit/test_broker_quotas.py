"""Quotas on a manual clock: sampled rates, throttle times and matching entities."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.broker_options import resolve
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.configs import Quotas, quota_entity
from headrace.broker.context import Context, Session
from headrace.broker.quotas import RATES_MAX, QuotaManager
from tests.support.fake_internal import HandClock

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
WINDOWS, WINDOW_MS = 11, 1000


class Rig:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.catalog = Quotas()
        self.manager = QuotaManager(self.catalog, self.clock, resolve())

    def set(self, parts, **values) -> None:
        self.catalog.apply(Quotas.change(quota_entity(parts), values))

    def throttle(self, api_key=PRODUCE, *, request=0, response=0, handler_ms=0.0, user="ann", client="app") -> int:
        context = Context(Session("10.0.0.1", "PLAINTEXT", f"User:{user}"), api_key, 0, client, 1)
        return self.manager.throttle_ms(
            context, api_key=api_key, request_bytes=request, response_bytes=response, handler_ms=handler_ms
        )

    def limit(self, user, client):
        result = self.manager._limit(user, client, "producer_byte_rate")
        return None if result is None else result.value


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_without_quotas_no_client_is_tracked(rig) -> None:
    assert not rig.manager.active
    assert rig.throttle(request=10**9) == 0
    rig.set({"client-id": "app"}, producer_byte_rate=1.0)
    assert rig.manager.active
    rig.set({"client-id": "app"}, producer_byte_rate=None)
    assert not rig.manager.active


def test_the_throttle_time_brings_the_rate_below_the_quota(rig) -> None:
    rig.set({"client-id": "app"}, producer_byte_rate=1000.0)
    # All windows but one count from the start: ten seconds. 10,000 bytes are just within the quota.
    assert rig.throttle(request=10_000) == 0
    # 15,000 bytes in ten seconds are 1,500 a second: 50 % above the quota, so half of ten seconds to wait.
    assert rig.throttle(request=5_000) == 5_000
    rig.clock.now_ms += 5_000
    assert rig.throttle(request=0) == 5_000  # all bytes are still within the ten seconds
    rig.clock.now_ms += 6_001
    assert rig.throttle(request=0) == 0  # the window with the bytes has expired


def test_only_clients_above_their_quota_are_throttled(rig) -> None:
    rig.set({"client-id": "app"}, producer_byte_rate=1000.0)
    for _ in range(300):
        assert rig.throttle(request=99) == 0
        rig.clock.now_ms += 100
    sent, start = 0, rig.clock.now_ms
    for _ in range(600):
        sent += 500
        rig.clock.now_ms += 100 + rig.throttle(request=500)
    assert sent / (rig.clock.now_ms - start) * 1000 == pytest.approx(1000, rel=0.1)


def test_produce_counts_request_bytes_and_fetch_response_bytes(rig) -> None:
    rig.set({"client-id": "app"}, producer_byte_rate=1000.0, consumer_byte_rate=100.0)
    assert rig.throttle(PRODUCE, request=20_000, response=10**9) == 10_000
    assert rig.throttle(FETCH, request=10**9, response=2_000) == 10_000
    assert rig.throttle(METADATA, request=10**9, response=10**9) == 0


@pytest.mark.behaviour("B06")
def test_request_percentage_throttles_for_at_most_a_window(rig) -> None:
    rig.set({"client-id": "app"}, request_percentage=10.0)
    assert rig.throttle(METADATA, handler_ms=1_000) == 0  # ten per cent of ten seconds
    assert rig.throttle(METADATA, handler_ms=50) == 500
    assert rig.throttle(METADATA, handler_ms=10_000) == WINDOW_MS
    assert rig.throttle(API_VERSIONS, handler_ms=10_000) == 0


def test_the_most_specific_quota_wins(rig) -> None:
    steps = [
        ({"client-id": None}, 1.0),
        ({"client-id": "app"}, 2.0),
        ({"user": None}, 3.0),
        ({"user": None, "client-id": None}, 4.0),
        ({"user": None, "client-id": "app"}, 5.0),
        ({"user": "ann"}, 6.0),
        ({"user": "ann", "client-id": None}, 7.0),
        ({"user": "ann", "client-id": "app"}, 8.0),
    ]
    assert rig.limit("ann", "app") is None
    for parts, value in steps:
        rig.set(parts, producer_byte_rate=value)
        assert rig.limit("ann", "app") == value
    assert rig.limit("ann", "other") == 7.0
    assert rig.limit("bob", "app") == 5.0
    assert rig.limit("bob", "other") == 4.0


def test_clients_of_one_quota_share_its_rate(rig) -> None:
    rig.set({"user": "ann"}, producer_byte_rate=1000.0)
    assert rig.throttle(request=10_000, client="one") == 0
    assert rig.throttle(request=10_000, client="two") == 10_000


def test_clients_of_a_default_have_a_rate_each(rig) -> None:
    rig.set({"client-id": None}, producer_byte_rate=1000.0)
    assert rig.throttle(request=10_000, client="one") == 0
    assert rig.throttle(request=10_000, client="two") == 0
    assert rig.throttle(request=10_000, client="two", user="bob") == 10_000
    assert rig.throttle(request=10_000, client=None) == 0


def test_a_changed_quota_takes_effect_at_once(rig) -> None:
    rig.set({"client-id": "app"}, producer_byte_rate=1000.0)
    assert rig.throttle(request=20_000) == 10_000
    rig.set({"client-id": "app"}, producer_byte_rate=2000.0)
    assert rig.throttle(request=0) == 0


def test_tracked_rates_are_bounded(rig) -> None:
    rig.set({"client-id": None}, producer_byte_rate=1000.0)
    for number in range(RATES_MAX + 10):
        rig.throttle(request=1, client=f"made-up-{number}")
    assert len(rig.manager._rates) == RATES_MAX
    assert len(rig.manager._limits) <= RATES_MAX


def test_quotas_survive_a_restart(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog")
    both = quota_entity({"user": None, "client-id": "app"})
    assert both == (("client-id", "app"), ("user", None))
    catalog.record(Quotas.change(both, {"producer_byte_rate": 5.0, "request_percentage": 1.5}))
    catalog.record(Quotas.change(both, {"producer_byte_rate": None}))
    catalog.close()
    assert Catalog(tmp_path / "catalog").quotas.by_entity == {both: {"request_percentage": 1.5}}
