"""Clients page: clients of other projects that push metrics to the broker."""

from __future__ import annotations

from confluent_kafka import Producer
from playwright.sync_api import Page, expect

from headrace.client.admin import ConfigResource, ResourceKind
from tests.support.topics import unique


def test_clients_that_push_metrics_are_shown_with_their_metrics(page: Page, admin, broker, shot):
    resource, client_id = ConfigResource(ResourceKind.CLIENT_METRICS, unique("all")), unique("pushing")
    match = f"client_id={client_id}"
    admin.alter_configs({resource: {"metrics": "*", "interval.ms": "500", "match": match}})
    page.goto("/clients")
    expect(page.get_by_text("No client has pushed metrics yet.")).to_be_visible()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": client_id})
    try:
        row = page.locator("tbody tr").filter(has_text=client_id)
        expect(row).to_contain_text("confluent-kafka-python")
        expect(row).to_contain_text("live")
        page.get_by_role("link", name=client_id).click()
        page.get_by_label("Search metrics").fill("connection.creation.total")
        expect(page.get_by_text("org.apache.kafka.producer.connection.creation.total")).to_be_visible()
        shot(page, "clients")
    finally:
        assert producer.flush(10) == 0
        admin.alter_configs({resource: dict.fromkeys(("metrics", "interval.ms", "match"))})
