"""Requests page: what the broker has served, by type of request and by topic."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Producer
from playwright.sync_api import Page, expect

from tests.support.topics import unique


@pytest.mark.behaviour("B16")
def test_requests_and_failures_are_shown_by_type_and_by_topic(page: Page, broker, shot):
    topic = broker.create_topic(unique("served"), 1, {"max.message.bytes": "2000"})
    errors = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for size in (10, 20, 5_000):
        producer.produce(topic, bytes(size), on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(20) == 0
    assert [error is None for error in errors] == [True, True, False], [KafkaException(error) for error in errors]
    page.goto("/requests")
    page.get_by_label("Search types of requests").fill("produce")
    row = page.locator("tbody tr").filter(has_text="MESSAGE_TOO_LARGE")
    expect(row).to_contain_text("Produce")
    page.get_by_label("Search topics").fill(topic)
    cells = page.locator("tbody tr").filter(has_text=topic).locator("td")
    expect(cells.nth(1)).to_have_text("2")
    expect(cells.nth(5)).to_have_text("1")
    shot(page, "requests")
