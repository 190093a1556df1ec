"""The message browser: start positions, filters, formats, following."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, expect

from headrace.client.admin import NewTopic
from headrace.producer.producer import Producer

RECORDS = 1000
BASE_MS = 1_760_000_000_000


@pytest.fixture(scope="module")
def topic(broker) -> str:
    """A topic of two partitions: even numbers in one, odd ones in the other, a millisecond apart."""
    from headrace.client.admin import AdminClient

    with AdminClient(broker.bootstrap) as admin:
        admin.create_topics([NewTopic("browsed", 2, 1)])
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for n in range(RECORDS):
            value = b"\x00\xff" if n == 998 else b'{"n": %d}' % n
            headers = [("odd", b"yes")] if n % 2 else []
            key = b"k%d" % (n % 10)
            producer.send("browsed", value, key=key, partition=n % 2, headers=headers, timestamp_ms=BASE_MS + n)
        producer.flush()
    return "browsed"


def rows(page: Page):
    return page.locator("tbody tr")


def test_newest_messages_come_first_and_load_more_goes_back(page: Page, topic, shot):
    page.goto(f"/topics/{topic}/messages")
    expect(rows(page).first).to_contain_text('{"n": 999}')
    expect(rows(page).first).to_contain_text("UTC")
    expect(rows(page).nth(1)).to_contain_text("00 ff")
    expect(page.get_by_role("status")).to_contain_text("There are more")
    expect(page.get_by_text("1-25 of 50")).to_be_visible()
    page.get_by_role("button", name="Next page").click()
    expect(rows(page).first).to_contain_text('{"n": 974}')
    page.get_by_role("button", name="Previous page").click()
    expect(rows(page).first).to_contain_text('{"n": 999}')
    shot(page, "messages")
    page.get_by_role("button", name="Load more").click()
    expect(page.get_by_text("1-25 of 100")).to_be_visible()


def test_messages_start_from_offset_timestamp_or_oldest(page: Page, topic):
    page.goto(f"/topics/{topic}/messages?begin=offset&at=490&partition=1")
    expect(rows(page)).to_have_count(10)
    expect(rows(page).first).to_contain_text('{"n": 981}')
    expect(page.get_by_role("status")).to_contain_text("End of the topic")
    page.get_by_label("Start from").select_option("timestamp")
    page.get_by_role("textbox", name="Timestamp").fill(str(BASE_MS + 995))
    page.get_by_label("Partition (empty for all)").fill("")
    page.get_by_role("button", name="Read").click()
    expect(rows(page)).to_have_count(5)
    page.get_by_label("Start from").select_option("oldest")
    page.get_by_label("Partition (empty for all)").fill("0")
    page.get_by_role("button", name="Read").click()
    expect(rows(page).first).to_contain_text('{"n": 0}')


def test_filters_by_key_value_and_header(page: Page, topic):
    page.goto(f"/topics/{topic}/messages")
    expect(rows(page).first).to_be_visible()
    page.get_by_label("Key", exact=True).fill("k3")
    page.get_by_label("Value", exact=True).fill("77")
    page.get_by_role("button", name="Read").click()
    expect(rows(page)).to_have_count(1)
    expect(rows(page).first).to_contain_text('{"n": 773}')
    expect(page.get_by_role("status")).to_contain_text("Beginning of the topic")
    page.get_by_label("Filter by").select_option("regex")
    page.get_by_label("Key", exact=True).fill("")
    page.get_by_label("Value", exact=True).fill(r": 99\d\}")
    page.get_by_label("Header", exact=True).fill("odd=yes")
    page.get_by_role("button", name="Read").click()
    expect(rows(page)).to_have_count(5)
    page.get_by_label("Header", exact=True).fill("even")
    page.get_by_role("button", name="Read").click()
    expect(page.get_by_role("status")).to_contain_text("Scanned 1,000 records")
    expect(page.get_by_text("No messages. Change the filters")).to_be_visible()
    page.get_by_label("Value", exact=True).fill("(")
    page.get_by_role("button", name="Read").click()
    expect(page.get_by_role("alert").filter(has_text="no regular expression")).to_be_visible()


def test_input_is_kept_while_the_page_refreshes(page: Page, broker, topic):
    page.goto(f"/topics/{topic}/messages?partition=0")
    expect(rows(page).first).to_be_visible()
    page.get_by_role("button", name="Follow").click()
    page.get_by_label("Key", exact=True).fill("typed")
    page.get_by_label("Format").select_option("hex")
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, b"changes", partition=0, key=b"typed").result(20)
    expect(rows(page).first).to_contain_text("63 68 61")
    expect(page.get_by_label("Key", exact=True)).to_have_value("typed")
    expect(page.get_by_label("Format")).to_have_value("hex")


def test_message_details_as_json_or_hex(page: Page, topic):
    page.goto(f"/topics/{topic}/messages?begin=offset&at=499&partition=1")
    page.get_by_role("button", name="Show").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text('{\n  "n": 999\n}')
    expect(dialog).to_contain_text("odd = yes")
    dialog.get_by_label("Format").select_option("hex")
    expect(dialog).to_contain_text("00000000  7b 22 6e 22")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


def test_follow_shows_new_messages_only(page: Page, broker, topic):
    page.goto(f"/topics/{topic}/messages?partition=0")
    expect(rows(page).first).to_be_visible()
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("status")).to_contain_text("Following")
    expect(rows(page)).to_have_count(0)
    began = time.monotonic()
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send(topic, b"new-message", partition=0).result(20)
    expect(rows(page).first).to_contain_text("new-message")
    assert time.monotonic() - began < 5
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_role("button", name="Follow")).to_have_attribute("aria-pressed", re.compile("false"))


def test_empty_topic_shows_what_to_do(page: Page, admin):
    admin.create_topics([NewTopic("browsed-empty", 1, 1)])
    page.goto("/topics/browsed-empty/messages")
    expect(page.get_by_text("send a message on the “Produce” tab")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("Beginning of the topic")
