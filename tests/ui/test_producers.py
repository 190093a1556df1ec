"""Producers page: real producers that report, and the diagram with their figures."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, Page, expect

from headrace import Producer, ProducerInterceptor, SerializationError
from headrace.broker import EmbeddedBroker
from tests.support.topics import unique


class Stamp(ProducerInterceptor):
    pass


@contextmanager
def busy(broker: EmbeddedBroker, url: str, client_id: str, **options: object) -> Iterator[Producer]:
    """A producer that reports and sends until the end of the block."""
    over = threading.Event()
    given = {"client.id": client_id, "metric.reporters": "view", "view.url": url, "linger.ms": 300, **options}
    producer = Producer(given, bootstrap_servers=broker.bootstrap)
    topic = unique("journey")

    def send() -> None:
        while not over.wait(0.01):
            for number in range(20):
                producer.send(topic, b"x" * 100, key=b"%d" % number)

    with producer:
        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield producer
        finally:
            over.set()
            sender.join(10)


def table(page: Page, name: str) -> Locator:
    return page.locator(f'.hr-table[aria-label="{name}"]')


def row_of(page: Page, client_id: str) -> Locator:
    return table(page, "Producers").get_by_role("row").filter(has_text=client_id)


def open_diagram(page: Page, client_id: str) -> Locator:
    """Select a producer in the list."""
    page.goto("/producers")
    page.get_by_label("Search producers").fill(client_id)
    page.get_by_role("link", name=client_id, exact=True).click()
    expect(page.locator("#journey .hr-note")).to_contain_text(client_id)
    return page.locator("#journey")


def test_diagram_shows_the_figures_of_every_stage(page: Page, broker, live, shot):
    client_id = unique("shop")
    with busy(broker, live.url, client_id, **{"interceptor.classes": [Stamp()]}) as producer:
        with pytest.raises(SerializationError):
            producer.send("orders", "not bytes")
        diagram = open_diagram(page, client_id)
        for text in (
            r"\d[\d,.]* k? ?records/s",
            "Stamp",
            "value: BytesSerializer",
            r"of 32.0 MiB used",
            r"0 threads waiting for memory",
            r"\d+ queued for \d+ partition",
            r"ms old, \d+% full",
            r"broker 1: \d of 5 requests",
            r"0 records retried",
            r"request: p50 [\d.]+ ms, p99 [\d.]+ ms",
            r"1 record failed",
        ):
            expect(diagram.locator("svg text").filter(has_text=re.compile(text)).first).to_be_visible()
        expect(row_of(page, client_id)).to_contain_text("live")
        errors = table(page, "Recent errors")
        expect(errors).to_contain_text("BytesSerializer expected bytes, got str")
        expect(table(page, "Brokers of this producer")).to_contain_text(broker.bootstrap)
        expect(table(page, "Topics of this producer")).to_contain_text("journey-")
        shot(page, "producers")


def test_unreachable_broker_is_shown(page: Page, broker, live):
    client_id = unique("lost")
    producer = Producer(
        bootstrap_servers="127.0.0.1:1", client_id=client_id, metric_reporters="view", view_url=live.url, max_block_ms=1
    )
    with producer:
        with pytest.raises(Exception, match="is not in the metadata"):
            producer.send("orders", b"one").result(0)
        diagram = open_diagram(page, client_id)
        expect(diagram.locator("svg")).to_contain_text("no broker known yet")
        expect(table(page, "Recent errors")).to_contain_text("is a broker running there?")


def test_closed_producer_is_shown_as_closed(page: Page, broker, live):
    client_id = unique("short")
    with busy(broker, live.url, client_id):
        open_diagram(page, client_id)
        expect(row_of(page, client_id)).to_contain_text("live")
    expect(row_of(page, client_id)).to_contain_text("closed")


def test_unknown_producer_shows_a_note(page: Page):
    page.goto("/producers?id=nobody")
    expect(page.get_by_text("Unknown producer")).to_be_visible()
    expect(page.locator("#journey")).to_be_hidden()


def test_names_from_producers_are_escaped(page: Page, broker, live):
    client_id = f"<img src=x onerror=alert(1)>{unique('x')}"
    with busy(broker, live.url, client_id):
        page.goto("/producers")
        page.get_by_label("Search producers").fill(client_id)
        row_of(page, client_id).get_by_role("link").click()
        expect(page.locator("#journey .hr-note")).to_contain_text(client_id)
        assert page.locator("img[src=x]").count() == 0
