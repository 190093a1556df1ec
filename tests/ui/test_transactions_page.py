"""Transaction pages: open and hanging transactions, and aborting them. Effects are checked with an admin client."""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from headrace import FatalError
from headrace.client.admin import TopicPartition
from headrace.client.queries.transactions import blocked_partitions
from headrace.producer.producer import Producer
from tests.support.hanging import plant_hanging
from tests.support.topics import unique
from tests.support.waiting import eventually

SECONDS_MAX = 20


@contextmanager
def open_transaction(broker, topic):
    """A producer in the middle of a transaction, and its id."""
    name = unique("writer")
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"first").result(SECONDS_MAX)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"open").result(SECONDS_MAX)
        yield producer, name


def beyond_lso(admin, topic):
    return blocked_partitions(admin, [TopicPartition(topic, 0)])


def test_open_transaction_is_shown_and_aborted_after_confirmation(page: Page, broker, admin, shot):
    topic = broker.create_topic(unique("txn"))
    with open_transaction(broker, topic) as (producer, name):
        with Producer(bootstrap_servers=broker.bootstrap) as other:
            for _ in range(2):
                other.send(topic, b"waits").result(SECONDS_MAX)
        page.goto("/transactions")
        row = page.get_by_role("table").first.get_by_role("row").filter(has_text=name)
        expect(row).to_contain_text("Ongoing")
        expect(row).to_contain_text("3 records")
        expect(row).to_contain_text(re.compile(r"\d+(\.\d+)? m?s"))
        shot(page, "transactions")

        row.get_by_role("button", name="Abort").click()
        page.get_by_role("button", name="Cancel").click()
        assert beyond_lso(admin, topic), "aborted although it was cancelled"

        row.get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Transactional id {name}")
        expect(page.locator('[data-tile="State"]')).to_contain_text("Ongoing")
        expect(page.locator('[data-tile="Beyond LSO"]')).to_contain_text("3 records")
        steps = page.locator("section").filter(has_text="State history")
        for state in ("Empty", "Ongoing", "PrepareCommit", "CompleteCommit"):
            expect(steps.get_by_role("row").filter(has_text=state).first).to_be_visible()
        shot(page, "transaction")

        page.get_by_role("button", name="Abort transaction").click()
        dialog = page.get_by_role("alertdialog")
        expect(dialog).to_contain_text(f"Abort the transaction of '{name}'")
        dialog.get_by_role("button", name="Abort transaction").click()
        expect(page.locator('[data-tile="Open for"]')).to_contain_text("not open")
        for state in ("PrepareAbort", "CompleteAbort"):
            expect(steps.get_by_role("row").filter(has_text=state)).to_be_visible()
        assert not beyond_lso(admin, topic)
        assert admin.describe_transactions([name])[name].partitions == frozenset()
        with pytest.raises(FatalError):
            producer.commit_transaction()


def test_hanging_transaction_is_listed_and_aborted_in_its_partition(page: Page, broker, admin):
    topic = broker.create_topic(unique("hanging"))
    plant_hanging(broker.bootstrap, topic, unique("lost"))
    page.goto(f"/topics/{topic}")  # makes the collector know the new partition
    expect(page.get_by_role("heading", level=1)).to_contain_text(topic)
    page.goto("/transactions")
    row = page.get_by_role("row").filter(has_text=topic)
    expect(row).to_contain_text("1 record", timeout=SECONDS_MAX * 1000)
    row.get_by_role("button", name="Abort").click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text(f"Write an abort marker to {topic}-0")
    dialog.get_by_role("button", name="Abort transaction").click()
    eventually("the marker", lambda: not beyond_lso(admin, topic))
    expect(row).to_have_count(0)


def test_unknown_transactional_id_shows_an_error(page: Page):
    page.goto("/transaction?id=not%2Fthere")
    expect(page.get_by_text("Unknown transactional id 'not/there'")).to_be_visible()
