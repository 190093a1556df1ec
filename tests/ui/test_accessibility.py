"""Accessibility: names for screen readers, contrast, keyboard only; and no requests to other hosts."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from headrace.client.admin import TopicPartition
from headrace.client.queries.transactions import blocked_partitions
from headrace.producer.producer import Producer
from tests.support.page_checks import flaws
from tests.support.topics import unique

SECONDS_MAX = 20
TABS_MAX = 60


@pytest.fixture
def writer(broker):
    """A producer in the middle of a transaction."""
    topic, name = broker.create_topic(unique("keys")), unique("keys")
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result(SECONDS_MAX)
        yield topic, name


def test_every_page_is_accessible_and_requests_no_other_host(tab, live, admin, broker, writer):
    page, watch = tab
    topic, name = writer
    admin.alter_group_offsets("checked", {TopicPartition(topic, 0): 0})
    paths = [
        "/",
        "/topics",
        f"/topics/{topic}",
        "/producers",
        "/consumers",
        "/pipelines",
        "/transactions",
        f"/transaction?id={name}",
    ]
    flaws_by_page = {}
    for path in [*paths, "/groups", "/group?name=checked", "/faults"]:
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".hr-tile, .hr-table, .hr-empty").filter(visible=True).first).to_be_visible()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            expect(page.locator("body")).to_have_class(re.compile(rf"body--{scheme}"))
            if wrong := flaws(page):
                flaws_by_page[path, scheme] = wrong
    assert flaws_by_page == {}
    ours = urlsplit(live.url).netloc
    assert {urlsplit(url).netloc for url in watch.requests} == {ours}
    watch.check()


def test_transaction_is_aborted_with_the_keyboard_only(page: Page, admin, writer):
    topic, name = writer
    partition = TopicPartition(topic, 0)
    page.goto("/")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    page.keyboard.press("g")
    page.keyboard.press("x")
    expect(page.get_by_role("heading", level=1)).to_have_text("Transactions")
    expect(page.get_by_role("row").filter(has_text=name).first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type(name)
    expect(page.get_by_role("button", name="Abort", exact=True)).to_have_count(1)
    tab_to(page, "Abort")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alertdialog").get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("alertdialog")).to_have_count(0)
    assert blocked_partitions(admin, [partition]), "aborted without confirmation"
    tab_to(page, "Abort")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alertdialog").get_by_role("button", name="Cancel")).to_be_focused()
    tab_to(page, "Abort transaction")
    page.keyboard.press("Enter")
    expect(page.get_by_text("No open transactions").or_(page.get_by_text("No match for")).first).to_be_visible()
    assert not blocked_partitions(admin, [partition])


def tab_to(page, label):
    """Press Tab until a button has the focus."""
    for _ in range(TABS_MAX):
        if page.evaluate("document.activeElement.innerText") == label:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{label!r} is not reached by {TABS_MAX} presses of Tab")
