"""Consumers page, and members on group pages: real consumers that report what they see."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, Page, expect

from headrace import ConfigError, Consumer, Producer, ShareConsumer, TopicPartition
from tests.support.topics import unique
from tests.support.waiting import eventually

COUNT = 100


@pytest.fixture
def topic(broker):
    name = broker.create_topic(unique("seen"), 2)
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(COUNT):
            producer.send(name, b"x" * 100, partition=number % 2)
    return name


def open_consumer(broker, url, client_id, **options) -> Consumer:
    defaults = {"metric.reporters": "view", "view.url": url, "auto.offset.reset": "earliest", "max.poll.records": 10}
    return Consumer({"client.id": client_id, **defaults, **options}, bootstrap_servers=broker.bootstrap)


@contextmanager
def polled(consumer: Consumer, act: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Poll until the end of the block, after `act`, on a thread of its own."""
    over, ready = threading.Event(), threading.Event()

    def run() -> None:
        while not over.is_set():
            consumer.poll(0.1)
            if not ready.is_set() and consumer.positions():
                act()
                ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(20)
        yield
    finally:
        over.set()
        thread.join(20)


def row_of(page: Page, table: str, text: str) -> Locator:
    return page.locator(f'.hr-table[aria-label="{table}"]').get_by_role("row").filter(has_text=text)


def test_a_consumer_shows_its_positions_lag_pauses_and_buffer(page: Page, broker, live, topic, shot):
    client_id = unique("reader")
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with open_consumer(broker, live.url, client_id, **{"max.partition.fetch.bytes": 2000}) as consumer:
        consumer.assign({one: 7, two: 0})
        consumer.pause([one])
        with polled(consumer):
            page.goto("/consumers")
            page.get_by_label("Search consumers").fill(client_id)
            row = row_of(page, "Consumers", client_id)
            expect(row).to_contain_text("● live")
            expect(row).to_contain_text("2, 1 paused")
            page.get_by_role("link", name=client_id, exact=True).click()
            paused = row_of(page, "Positions", "paused")
            expect(paused.get_by_role("cell")).to_have_text([topic, "0", "7", "–", "paused"])
            fetching = row_of(page, "Positions", "fetching")
            expect(fetching.get_by_role("cell")).to_have_text([topic, "1", "50", "0 records", "fetching"])
            tile = page.locator
            expect(tile('[data-tile="Partitions"]')).to_contain_text("1 paused")
            expect(tile('[data-tile="Buffer used"]')).to_contain_text("of 50.0 MiB")
            expect(tile('[data-tile="Read rate"]')).to_contain_text("records/s")
            expect(tile('[data-tile="Last poll"]')).to_contain_text(re.compile(r"ms ago|s ago"))
            shot(page, "consumers")
    expect(row_of(page, "Consumers", client_id)).to_contain_text("closed")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_page_shows_what_its_members_see(page: Page, broker, live, topic, protocol, shot):
    group, client_id = unique("billing"), unique("member")
    options = {"group.id": group, "group.protocol": protocol}
    with open_consumer(broker, live.url, client_id, **options) as consumer:
        consumer.subscribe([topic])
        with polled(consumer, lambda: consumer.pause([TopicPartition(topic, 1)])):
            page.goto(f"/group?name={group}")
            row = row_of(page, "Reporting members", client_id)
            epoch = consumer.group_metadata().generation_id
            name = "generation" if protocol == "classic" else "epoch"
            expect(row).to_contain_text(f"stable, {name} {epoch}")
            expect(row).to_contain_text("2, 1 paused")
            shot(page, f"group-members-{protocol}")
            row.get_by_role("link", name=client_id).click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Consumers")
            expect(page.locator('[data-tile="Membership"]')).to_contain_text("1 rebalance")
            expect(row_of(page, "Positions", topic)).to_have_count(2)


def test_a_consumer_that_stalls_shows_its_full_buffer_and_its_last_poll(page: Page, broker, live, topic):
    client_id = unique("stalled")
    limits = {"fetch.max.bytes": 3000, "max.partition.fetch.bytes": 3000, "max.poll.records": 1}
    with open_consumer(broker, live.url, client_id, **limits) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        eventually("a record", lambda: consumer.poll(1))
        page.goto("/consumers")
        page.get_by_label("Search consumers").fill(client_id)
        row = row_of(page, "Consumers", client_id)
        expect(row).to_contain_text(re.compile(r"[1-9][\d.,]* (B|KiB) of 2\.9 KiB"))
        expect(row).to_contain_text(re.compile(r"[2-9]\.\d s ago"))


def test_invalid_options_for_reports_are_refused(broker):
    with pytest.raises(ConfigError, match=r"invalid view\.url"):
        open_consumer(broker, "nowhere", "c")
    with pytest.raises(ConfigError, match=r"view\.url is not an option of share consumers"):
        ShareConsumer({"view.url": "http://127.0.0.1:1", "group.id": "g"}, bootstrap_servers=broker.bootstrap)
