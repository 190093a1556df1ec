"""Pages stay up, show the failure and recover while a broker is slow, hanging, dead or restarted."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, TopicPartition
from headrace.producer.producer import Producer
from tests.support.live_view import LiveView, open_tab

SECONDS_MAX = 20
MS_MAX = 30_000
SLOW_MS = 100


@pytest.fixture
def degraded():
    """A broker degraded a degradable network, with a group at the start of a topic."""
    with EmbeddedBroker(degraded=True) as broker:
        broker.create_topic("orders", 2)
        with AdminClient(broker.bootstrap) as admin:
            admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 0})
        yield broker


@pytest.fixture
def view(degraded):
    with LiveView(degraded.bootstrap, data_dir=degraded.data_dir) as view:
        yield view


def test_pages_survive_a_slow_a_dead_and_a_restarted_broker(browser, degraded, view, shot):
    with (
        open_tab(browser, view.url) as (overview, overview_watch),
        open_tab(browser, view.url) as (group, group_watch),
    ):
        overview.goto("/")
        expect(overview.locator('[data-tile="Topics"]')).to_contain_text("1", timeout=MS_MAX)
        degraded.degrader.set(latency_ms=SLOW_MS)
        _send(degraded, 3)
        group.goto("/group?name=billing")
        lag = group.locator('[data-tile="Lag"]')
        expect(lag).to_contain_text("3 records", timeout=MS_MAX)
        expect(overview.locator("#hr-failure")).to_be_hidden()  # slow is not dead
        degraded.degrader.set(latency_ms=0)

        degraded.kill()
        _expect_failure(overview, degraded)
        group.get_by_role("button", name="Preview").click()
        _expect_failure(group, degraded)
        expect(lag).to_contain_text("3 records")  # the last known value
        shot(group, "broker-dead")
        overview.goto("/faults")  # pages still open
        expect(overview.get_by_role("alert").filter(has_text="no broker").first).to_be_visible()
        failed = group.get_by_role("alert").filter(has_text="Preview: timed out waiting for")
        expect(failed).to_be_visible(timeout=MS_MAX)

        degraded.start()
        _expect_recovery(overview)
        _expect_recovery(group)
        _send(degraded, 2)
        expect(lag).to_contain_text("5 records", timeout=MS_MAX)
        overview_watch.check()
        group_watch.check()


@pytest.mark.slow
def test_pages_survive_a_hanging_broker(browser, degraded, view):
    with open_tab(browser, view.url) as (page, overview_watch):
        page.goto("/")
        expect(page.locator('[data-tile="Topics"]')).to_contain_text("1", timeout=MS_MAX)
        degraded.pause()
        try:
            _expect_failure(page, degraded)
            page.get_by_role("link", name="Topics").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
            expect(page.get_by_role("link", name="orders")).to_be_visible()
            _expect_failure(page, degraded)
        finally:
            degraded.resume()
        _expect_recovery(page)
        overview_watch.check()


def _send(broker, count):
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for _ in range(count):
            producer.send("orders", b"x", partition=0).result(SECONDS_MAX)


def _expect_failure(page, broker):
    banner = page.locator("#hr-failure")
    expect(banner).to_contain_text(f"No response from the cluster at {broker.bootstrap} since", timeout=MS_MAX)
    expect(banner).to_contain_text(re.compile(r"Showing data from \d\d:\d\d:\d\d UTC"))


def _expect_recovery(page):
    expect(page.locator("#hr-failure")).to_be_hidden(timeout=MS_MAX)
