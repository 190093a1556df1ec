"""Messages with schemas are shown decoded, and a topic's schemas with their versions."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from headrace.producer.producer import Producer
from headrace.schema import framing
from tests.support.avro_types import fastavro_bytes
from tests.support.live_view import LiveView, open_tab
from tests.support.scripted_registry import SmallRegistry

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
V2 = {"type": "record", "name": "Order", "fields": [*V1["fields"], {"name": "note", "type": "string", "default": ""}]}
TOPIC = "typed-orders"


@pytest.fixture(scope="module")
def registry():
    server = SmallRegistry()
    yield server
    server.close()


@pytest.fixture(scope="module")
def typed_view(broker, registry):
    first, second = (registry.add(f"{TOPIC}-value", json.dumps(schema)) for schema in (V1, V2))
    values = [
        framing.encode_id(first) + fastavro_bytes(V1, {"id": 7}),
        framing.encode_id(second) + fastavro_bytes(V2, {"id": 8, "note": "new"}),
        framing.encode_id(second) + b"\x10",
        b"plain text",
    ]
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number, value in enumerate(values):
            producer.send(TOPIC, value, partition=0, timestamp_ms=1_760_000_000_000 + number)
    with LiveView(broker.bootstrap, "--schema-registry", registry.url, data_dir=broker.data_dir) as view:
        yield view


@pytest.fixture
def typed_page(browser, typed_view):
    with open_tab(browser, typed_view.url) as (page, watch):
        yield page
        watch.check()


def test_messages_are_shown_decoded_or_with_the_reason(typed_page: Page):
    typed_page.goto(f"/topics/{TOPIC}/messages?begin=oldest")
    rows = typed_page.locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text('{"id": 7}')
    expect(rows.nth(1)).to_contain_text('{"id": 8, "note": "new"}')
    expect(rows.nth(2)).to_contain_text("00 00 00 00 02 10")
    expect(rows.nth(3)).to_contain_text("plain text")
    rows.nth(1).get_by_role("button", name="Show").click()
    dialog = typed_page.get_by_role("dialog")
    expect(dialog).to_contain_text("Avro, schema id 2")
    expect(dialog).to_contain_text('"note": "new"')
    dialog.get_by_label("Format").select_option("hex")
    expect(dialog).to_contain_text("00000000  00 00 00 00 02 10")
    dialog.get_by_role("button", name="Close").click()
    rows.nth(2).get_by_role("button", name="Show").click()
    expect(dialog).to_contain_text("Not decoded: schema id 2: field note at byte 6: the value ends too early")


def test_the_schema_page_has_all_versions(typed_page: Page):
    typed_page.goto(f"/topics/{TOPIC}/schema")
    expect(typed_page.get_by_text(f"Subject {TOPIC}-value, 2 versions")).to_be_visible()
    expect(typed_page.get_by_text(f"The registry has no subject {TOPIC}-key.")).to_be_visible()
    expect(typed_page.locator("pre")).to_contain_text('"name": "note"')
    typed_page.get_by_label("Version of the schema of values").select_option("1: id 1, Avro")
    expect(typed_page.locator("pre")).not_to_contain_text('"name": "note"')


def test_messages_are_shown_while_the_registry_is_down(typed_page: Page, registry):
    registry.is_down = True
    try:
        typed_page.goto(f"/topics/{TOPIC}/schema")
        expect(typed_page.get_by_role("alert").filter(has_text="down").first).to_be_visible()
        typed_page.goto(f"/topics/{TOPIC}/messages?begin=oldest")
        expect(typed_page.locator("tbody tr")).to_have_count(4)
    finally:
        registry.is_down = False


def test_a_view_without_a_registry_says_how_to_set_one(page: Page):
    page.goto(f"/topics/{TOPIC}/schema")
    expect(page.get_by_text("Start the view with --schema-registry URL")).to_be_visible()
