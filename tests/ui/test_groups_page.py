"""Group pages: lag, members, offset reset, deletion. Effects are checked with an admin client."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Page, expect

from headrace.client.admin import TopicPartition
from headrace.producer.producer import Producer
from tests.support.group_members import member
from tests.support.live_view import LiveView, open_tab
from tests.support.topics import new_topic, unique
from tests.support.waiting import eventually

SECONDS_MAX = 20
AGE_MS = 3 * 3_600_000
COUNT = 10


@pytest.fixture
def topic(broker):
    """Two partitions with ten records each, written three hours ago."""
    name = broker.create_topic(unique("group"), 2)
    then_ms = int(time.time() * 1000) - AGE_MS
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        sent = [producer.send(name, b"x", partition=n % 2, timestamp_ms=then_ms) for n in range(2 * COUNT)]
        for future in sent:
            future.result(SECONDS_MAX)
    return name


@pytest.fixture
def group(admin, topic):
    """A group without members and with a lag of six records; its name needs escaping in URLs and HTML."""
    name = unique('billing/ä&?"<b>{{7*7}}')
    admin.alter_group_offsets(name, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): COUNT})
    return name


def press_and_choose(page, button, choice):
    """Press a button of the page, then a button of the confirmation dialog."""
    page.get_by_role("main").get_by_role("button", name=button).click()
    page.get_by_role("alertdialog").get_by_role("button", name=choice).click()
    expect(page.get_by_role("alertdialog")).to_have_count(0)


def committed(admin, group):
    return [committed.offset for _, committed in sorted(admin.list_group_offsets(group).items())]


def open_group(page, name):
    page.goto("/groups")
    page.get_by_label("Search groups").fill(name)
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Group {name}")


def test_offsets_are_reset_as_previewed_after_confirmation(page: Page, admin, topic, group, shot):
    page.goto("/groups")
    row = page.get_by_role("row").filter(has_text=group)
    expect(row).to_contain_text("6 records")
    expect(row).to_contain_text("3 h 0 m")
    expect(row).to_contain_text("Empty")
    shot(page, "groups")
    open_group(page, group)
    expect(page.locator('[data-tile="Lag"]')).to_contain_text("6 records")
    expect(page.locator('[data-tile="Lag in time"]')).to_contain_text("3 h 0 m")

    page.get_by_label("Set to", exact=True).select_option("shift")
    page.get_by_label("Number of offsets").fill("-3")
    page.get_by_role("button", name="Preview").click()
    changes = page.locator("section").filter(has_text="Reset offsets").get_by_role("table")
    expect(changes.get_by_role("row").nth(1)).to_contain_text(re.compile(r"0\s*4\s*1\s*-3"))
    expect(changes.get_by_role("row").nth(2)).to_contain_text(re.compile(r"1\s*10\s*7\s*-3"))
    shot(page, "group")
    assert committed(admin, group) == [4, COUNT]

    press_and_choose(page, "Set offsets", "Cancel")
    assert committed(admin, group) == [4, COUNT]
    press_and_choose(page, "Set offsets", "Set offsets")
    expect(page.locator('[data-tile="Lag"]')).to_contain_text("12 records")
    assert committed(admin, group) == [1, 7]

    page.get_by_label("Set to", exact=True).select_option("latest")
    page.get_by_label("Topic", exact=True).fill(topic)
    page.get_by_role("textbox", name="Partitions", exact=True).fill("0")
    page.get_by_role("button", name="Preview").click()
    press_and_choose(page, "Set offsets", "Set offsets")
    eventually("the new offsets", lambda: committed(admin, group) == [COUNT, 7])


def test_invalid_input_is_shown_next_to_the_form(page: Page, group):
    open_group(page, group)
    for target, label, value, error in (
        ("time", "Timestamp", "noon", "invalid time 'noon'"),
        ("shift", "Number of offsets", "ten", "expected an integer, got 'ten'"),
        ("earliest", "Topic", "not-there", "topic 'not-there' does not exist"),
    ):
        page.get_by_label("Set to", exact=True).select_option(target)
        page.get_by_role("textbox", name=label).fill(value)
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert").filter(has_text=error)).to_be_visible()


def test_group_with_members_is_not_reset(page: Page, broker, admin, topic, group):
    with member(broker.bootstrap, group, topic):
        open_group(page, group)
        members = page.locator("section").filter(has_text="Members").get_by_role("table").first
        expect(members).to_contain_text("billing-1")
        expect(members).to_contain_text("127.0.0.1")
        expect(page.locator('[data-tile="State"]')).to_contain_text("Stable")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert").filter(has_text="has 1 member (billing-1 at")).to_be_visible()
        assert committed(admin, group) == [4, COUNT]


def test_members_show_protocol_epoch_and_lag(page: Page, broker, admin, topic, shot):
    group = unique("newer")
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 4, TopicPartition(topic, 1): COUNT})
    with member(broker.bootstrap, group, topic, "consumer"):
        open_group(page, group)
        expect(page.locator('[data-tile="State"]')).to_contain_text(
            re.compile(r"consumer protocol, uniform, epoch \d+$")
        )
        (described,) = admin.describe_consumer_groups([group])[group].members
        row = page.locator("section").filter(has_text="Members").get_by_role("table").first.get_by_role("row").nth(1)
        texts = [
            "billing-1",
            "127.0.0.1",
            "consumer",
            f"● {described.epoch}",
            "2",
            "6 records",
            f"{topic}-0, {topic}-1",
        ]
        expect(row.get_by_role("cell")).to_have_text([*texts, "–", described.member_id])
        shot(page, "group-kip-848")


def test_group_is_deleted_after_its_name_is_typed(page: Page, admin, group):
    open_group(page, group)
    page.get_by_role("button", name="Delete group").click()
    dialog = page.get_by_role("alertdialog")
    confirm = dialog.get_by_role("button", name="Delete group")
    expect(confirm).to_be_disabled()
    dialog.get_by_label("to confirm").fill(group)
    confirm.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Groups")
    assert group not in [listing.group_id for listing in admin.list_groups()]


@pytest.mark.slow
def test_members_of_a_kip_848_group_on_apache_kafka(browser, kafka):
    topic, group = new_topic(kafka, "newer", partitions=2), unique("newer")
    with (
        member(kafka.bootstrap, group, topic, "consumer"),
        LiveView(kafka.bootstrap) as view,
        open_tab(browser, view.url) as (page, watch),
    ):
        open_group(page, group)
        expect(page.locator('[data-tile="State"]')).to_contain_text("consumer protocol, uniform")
        members = page.locator("section").filter(has_text="Members").get_by_role("table").first
        expect(members).to_contain_text("billing-1")
        expect(members).to_contain_text(f"{topic}-0, {topic}-1")
        page.goto("/faults")
        expect(page.get_by_text("Faults can be injected into headrace brokers only")).to_be_visible()
        page.goto("/transactions")
        expect(page.get_by_text("No open transactions")).to_be_visible()
        watch.check()
