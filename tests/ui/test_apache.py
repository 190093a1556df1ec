"""The live view of an Apache Kafka broker."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from headrace.client.admin import AdminClient, NewTopic
from headrace.producer.producer import Producer
from tests.support.live_view import LiveView, open_tab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_pages_of_an_apache_kafka_broker(kafka, browser):
    with AdminClient(kafka.bootstrap) as admin:
        admin.create_topics([NewTopic("shown-in-the-view", 3, 1, {"retention.ms": "7777777"})])
    with Producer(bootstrap_servers=kafka.bootstrap) as producer:
        producer.send("shown-in-the-view", b"from-apache", key=b"k", partition=2).result(30)
    with LiveView(kafka.bootstrap) as view, open_tab(browser, view.url) as (page, watch):
        page.goto("/")
        expect(page.locator('[data-tile="Brokers"]')).to_contain_text("1")
        expect(page.locator('[data-tile="Bytes out"]')).to_contain_text("headrace brokers only")
        page.goto("/topics")
        page.get_by_label("Search topics").fill("shown-in-the-view")
        expect(page.locator("tbody tr")).to_contain_text("1 record", timeout=15_000)
        page.get_by_role("link", name="shown-in-the-view").click()
        expect(page.locator("tbody tr").nth(2).locator("td").nth(5)).to_have_text("1")
        expect(page.get_by_text("7777777")).to_be_visible()
        page.get_by_role("link", name="Messages").first.click()
        expect(page.locator("tbody tr")).to_contain_text("from-apache")
        page.goto("/topics/shown-in-the-view/produce")
        page.get_by_label("Value", exact=True).fill("typed")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("Sent to partition")).to_be_visible()
        for path in ("/groups", "/transactions", "/faults"):
            page.goto(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
        watch.check()
