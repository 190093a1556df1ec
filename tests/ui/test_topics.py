"""Topic pages: list, search, create, change, delete, produce. Effects are checked with an admin client."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from headrace.client.admin import ConfigResource, NewTopic, ResourceKind, TopicPartition
from headrace.client.offsets import EARLIEST, LATEST
from headrace.producer.producer import Producer
from tests.support.waiting import eventually


def confirm(page: Page, label: str) -> None:
    page.get_by_role("alertdialog").get_by_role("button", name=label).click()


def test_topic_list_is_searched_sorted_and_paged_on_the_server(page: Page, admin, shot):
    admin.create_topics([NewTopic(f"listed-{number:02}", 1 + number % 3, 1) for number in range(30)])
    page.goto("/topics")
    page.get_by_label("Search topics").fill("listed-")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(25)
    expect(page.get_by_text("1-25 of 30")).to_be_visible()
    page.get_by_label("Next page").click()
    expect(rows).to_have_count(5)
    expect(rows.last).to_contain_text("listed-29")
    page.get_by_role("button", name="Partitions").press("Enter")
    expect(rows.first.locator("td").nth(1)).to_have_text("1")
    page.get_by_role("button", name="Partitions").press("Enter")
    expect(rows.first.locator("td").nth(1)).to_have_text("3")
    page.get_by_label("Search topics").fill("no-such-topic")
    expect(page.get_by_text("Clear the search field to see all rows.")).to_be_visible()
    page.get_by_label("Search topics").fill("listed-0")
    expect(rows).to_have_count(10)
    shot(page, "topics")


def test_internal_topics_are_shown_on_demand(page: Page, admin, broker):
    admin.alter_group_offsets("for-the-offsets-topic", {TopicPartition(_topic(admin, "kept"), 0): 0})
    page.goto("/topics")
    page.get_by_label("Search topics").fill("__consumer")
    expect(page.get_by_text("No match for")).to_be_visible()
    page.get_by_label("Show internal topics").check()
    expect(page.get_by_role("link", name="__consumer_offsets")).to_be_visible()


def test_topic_is_created_changed_emptied_and_deleted(page: Page, admin, broker, shot):
    page.goto("/topics")
    page.get_by_label("Name").fill("created-here")
    page.get_by_label("Partitions", exact=True).fill("2")
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Topic created-here")
    assert len(admin.describe_topics(["created-here"])["created-here"].partitions) == 2

    page.get_by_label("Name", exact=True).fill("retention.ms")
    page.get_by_label("Value").fill("123456")
    page.get_by_role("button", name="Set configuration").click()
    resource = ConfigResource(ResourceKind.TOPIC, "created-here")
    expect(page.get_by_role("row", name=re.compile("^retention.ms"))).to_contain_text("this topic")
    assert admin.describe_configs([resource])[resource]["retention.ms"].value == "123456"
    page.get_by_role("button", name="Reset to default").click()
    confirm(page, "Reset to default")
    eventually("the default", lambda: admin.describe_configs([resource])[resource]["retention.ms"].value != "123456")

    page.get_by_label("New number of partitions").fill("3")
    page.get_by_role("button", name="Add partitions").click()
    confirm(page, "Add partitions")
    eventually(
        "the third partition", lambda: len(admin.describe_topics(["created-here"])["created-here"].partitions) == 3
    )

    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        producer.send("created-here", b"x", partition=1).result(20)
    row = page.locator("tbody tr").filter(has=page.get_by_role("link", name="Messages")).nth(1)
    expect(row.locator("td").nth(5)).to_have_text("1")
    shot(page, "topic")
    page.get_by_role("button", name="Delete all records").click()
    confirm(page, "Delete all records")
    first = TopicPartition("created-here", 1)
    eventually("no records", lambda: admin.list_offsets({first: EARLIEST})[first].offset == 1)

    page.get_by_role("button", name="Delete topic").click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog.get_by_role("button", name="Delete topic")).to_be_disabled()
    dialog.get_by_label("Type created-here to confirm").fill("created-here")
    confirm(page, "Delete topic")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    assert "created-here" not in admin.list_topics()


def test_unconfirmed_actions_are_not_run(page: Page, admin):
    topic = _topic(admin, "not-confirmed")
    page.goto(f"/topics/{topic}")
    page.get_by_role("button", name="Delete topic").click()
    page.get_by_role("alertdialog").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alertdialog")).to_have_count(0)
    page.get_by_role("button", name="Delete all records").click()
    expect(page.get_by_role("alertdialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("alertdialog")).to_have_count(0)
    assert topic in admin.list_topics()


def test_errors_are_shown_next_to_the_form(page: Page, admin):
    topic = _topic(admin, "refusing")
    page.goto("/topics")
    page.get_by_label("Name").fill(topic)
    page.get_by_role("button", name="Create topic").click()
    expect(page.get_by_role("alert").filter(has_text="TOPIC_ALREADY_EXISTS")).to_be_visible()
    page.goto(f"/topics/{topic}")
    page.get_by_label("Name", exact=True).fill("no.such.option")
    page.get_by_label("Value").fill("1")
    page.get_by_role("button", name="Set configuration").click()
    expect(page.get_by_role("alert").filter(has_text="no.such.option")).to_be_visible()
    page.goto("/topics/not-there")
    expect(page.get_by_text("Topic not-there does not exist.")).to_be_visible()
    expect(page.get_by_role("button", name="Delete topic")).to_be_hidden()


def test_produce_form_sends_a_record(page: Page, admin, broker, shot):
    topic = _topic(admin, "typed")
    page.goto(f"/topics/{topic}/produce")
    page.get_by_role("textbox", name="Key", exact=True).fill("k1")
    page.get_by_label("Value", exact=True).fill('{"total": 1')
    page.get_by_label("Value format").select_option("JSON")
    page.get_by_label("Headers").fill("trace=abc\nsource=ui")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert").filter(has_text="invalid value: not JSON")).to_be_visible()
    assert _end(admin, topic) == 0
    page.get_by_label("Value", exact=True).fill('{"total": 1}')
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_text("Sent to partition 0 at offset 0")).to_be_visible()
    assert _end(admin, topic) == 1
    shot(page, "produce")
    page.get_by_role("link", name="Show the newest messages").click()
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text('k1{"total": 1}2')  # key, value, two headers
    expect(row).to_contain_text(re.compile(r"\d UTC"))


def _topic(admin, name: str) -> str:
    admin.create_topics([NewTopic(name, 1, 1)])
    return name


def _end(admin, topic: str) -> int:
    tp = TopicPartition(topic, 0)
    return int(admin.list_offsets({tp: LATEST})[tp].offset)
