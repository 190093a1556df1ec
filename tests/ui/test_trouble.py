"""A slow, a hanging, a dead and a restarted broker while pages are open: they stay up, say it, and recover."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, TopicPartition
from headrace.producer.producer import Producer
from live_view import LiveView, open_tab

SECONDS_MAX = 20
MS_MAX = 30_000
SLOW_MS = 100


@pytest.fixture
def behind():
    """A broker behind a network that can be spoilt, with a group that has read nothing of a topic."""
    with EmbeddedBroker(degraded=True) as broker:
        broker.create_topic("orders", 2)
        with AdminClient(broker.bootstrap) as admin:
            admin.alter_group_offsets("billing", {TopicPartition("orders", 0): 0})
        yield broker


@pytest.fixture
def view(behind):
    with LiveView(behind.bootstrap, data_dir=behind.data_dir) as view:
        yield view


def test_pages_live_through_a_slow_a_dead_and_a_restarted_broker(browser, behind, view, shot):
    with (
        open_tab(browser, view.url) as (overview, watched),
        open_tab(browser, view.url) as (group, also_watched),
    ):
        overview.goto("/")
        expect(overview.locator('[data-tile="Topics"]')).to_contain_text("1", timeout=MS_MAX)
        behind.degrader.set(latency_ms=SLOW_MS)
        _send(behind, 3)
        group.goto("/group?name=billing")
        lag = group.locator('[data-tile="Lag"]')
        expect(lag).to_contain_text("3 records", timeout=MS_MAX)
        expect(overview.locator("#hr-trouble")).to_be_hidden()  # slow is not dead
        behind.degrader.set(latency_ms=0)

        behind.kill()
        _expect_trouble(overview, behind)
        group.get_by_role("button", name="Preview").click()
        _expect_trouble(group, behind)
        expect(lag).to_contain_text("3 records")  # what was known stays
        shot(group, "broker-dead")
        overview.goto("/faults")  # and pages can be opened all the same
        expect(overview.get_by_role("alert").filter(has_text="no broker").first).to_be_visible()
        failed = group.get_by_role("alert").filter(has_text="Preview: timed out waiting for")
        expect(failed).to_be_visible(timeout=MS_MAX)

        behind.start()
        _expect_none(overview)
        _expect_none(group)
        _send(behind, 2)
        expect(lag).to_contain_text("5 records", timeout=MS_MAX)
        watched.check()
        also_watched.check()


@pytest.mark.slow
def test_pages_live_through_a_broker_that_hangs(browser, behind, view):
    with open_tab(browser, view.url) as (page, watched):
        page.goto("/")
        expect(page.locator('[data-tile="Topics"]')).to_contain_text("1", timeout=MS_MAX)
        behind.pause()
        try:
            _expect_trouble(page, behind)
            page.get_by_role("link", name="Topics").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
            expect(page.get_by_role("link", name="orders")).to_be_visible()
            _expect_trouble(page, behind)
        finally:
            behind.resume()
        _expect_none(page)
        watched.check()


def _send(broker, count):
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for _ in range(count):
            producer.send("orders", b"x", partition=0).result(SECONDS_MAX)


def _expect_trouble(page, broker):
    banner = page.locator("#hr-trouble")
    expect(banner).to_contain_text(f"The cluster at {broker.bootstrap} does not answer since", timeout=MS_MAX)
    expect(banner).to_contain_text(re.compile(r"What is shown is of \d\d:\d\d:\d\d UTC"))


def _expect_none(page):
    expect(page.locator("#hr-trouble")).to_be_hidden(timeout=MS_MAX)
