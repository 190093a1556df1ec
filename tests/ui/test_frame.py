"""The frame of every page: navigation, theme, shortcuts; and the overview page."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from headrace.producer.producer import Producer

PAGES = {
    "/": "Overview",
    "/topics": "Topics",
    "/producers": "Producers",
    "/consumers": "Consumers",
    "/transactions": "Transactions",
    "/groups": "Groups",
    "/pipelines": "Pipelines",
    "/requests": "Requests",
    "/faults": "Faults",
}


@pytest.mark.parametrize("path", PAGES)
def test_every_page_opens_and_marks_its_navigation_entry(page: Page, path: str):
    page.goto(path)
    expect(page.get_by_role("heading", level=1)).to_have_text(PAGES[path])
    expect(page.locator('nav [aria-current="page"]').first).to_have_text(PAGES[path])
    expect(page).to_have_title(re.compile("headrace"))
    expect(page.get_by_text("All times are UTC")).to_be_visible()


def test_overview_shows_brokers_and_throughput(page: Page, broker, shot):
    page.goto("/")
    tile = page.locator
    expect(tile('[data-tile="Brokers"]')).to_contain_text("1")
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for _ in range(20):
            producer.send("overview-in", b"x" * 1000)
            producer.flush()
    expect(tile('[data-tile="Records in"]')).to_contain_text("records/s")
    expect(tile('[data-tile="Bytes in"]')).to_contain_text(re.compile(r"[1-9][\d.,]* .?i?B/s"))
    expect(tile('[data-tile="Failed requests"]')).to_contain_text("requests")
    expect(page.get_by_role("row").filter(has_text=broker.bootstrap)).to_contain_text("controller")
    expect(page.locator('[role="img"] svg').first).to_be_visible()
    shot(page, "overview")


def test_shortcuts_open_pages_and_the_theme_is_kept(page: Page):
    page.goto("/")
    expect(page.get_by_role("button", name="Theme: auto")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("d")
    page.keyboard.press("d")
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    page.keyboard.press("g")
    page.keyboard.press("t")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    page.keyboard.press("/")
    expect(page.get_by_label("Search topics")).to_be_focused()


def test_first_tab_stop_skips_the_navigation(page: Page):
    page.goto("/topics")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#hr-main")).to_be_focused()
