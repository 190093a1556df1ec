"""First content within a second with 2,000 topics and a topic of 2 GB. Part of `make test-ui`."""

from __future__ import annotations

import statistics

import pytest
from playwright.sync_api import Browser, expect

from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient, NewTopic
from headrace.producer.producer import Producer
from tests.support.live_view import LiveView, open_tab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = 2000
PARTITIONS = 5
TOPIC_BYTES = 2_000_000_000
VALUE_BYTES = 1000
FIRST_MS_MAX = 1000
ROUNDS = 3
CREATE_AT_ONCE = 200


@pytest.fixture(scope="module")
def large_cluster():
    """A view of a broker with many topics and a large one."""
    with EmbeddedBroker() as broker, AdminClient(broker.bootstrap) as admin:
        names = [f"topic-{number:04}" for number in range(TOPICS)]
        for first in range(0, TOPICS, CREATE_AT_ONCE):
            admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names[first : first + CREATE_AT_ONCE]])
        admin.create_topics([NewTopic("large", 1, 1)])
        with Producer(bootstrap_servers=broker.bootstrap, batch_size=500_000, linger_ms=20) as producer:
            value = b"x" * (VALUE_BYTES - 10)
            for number in range(TOPIC_BYTES // VALUE_BYTES):
                producer.send("large", b"%010d" % number + value)
            producer.flush()
        with LiveView(broker.bootstrap, data_dir=broker.data_dir) as view:
            yield view


def first_ms(browser: Browser, view: LiveView, path: str, text: str) -> float:
    """Median time from navigation until a text is visible, in a browser with a warm cache."""
    with open_tab(browser, view.url) as (page, watch):
        page.goto("/")
        expect(page.locator('[data-tile="Topics"]')).to_contain_text(f"{TOPICS + 1:,}")
        samples = []
        for _ in range(ROUNDS):
            page.goto(path, wait_until="commit")
            samples.append(float(page.evaluate(_TIME_TO_TEXT, text)))
            page.goto("/faults")
        watch.check()
    return statistics.median(samples)


_TIME_TO_TEXT = """text => new Promise((resolve, reject) => {
  const check = () => {
    if ([...document.querySelectorAll("td")].some(cell => cell.innerText.includes(text))) resolve(performance.now());
    else if (performance.now() > 20000) reject(new Error(`not shown: ${text}`));
    else requestAnimationFrame(check);
  };
  check();
})"""


def test_list_of_many_topics_appears_within_a_second(large_cluster, browser):
    took = first_ms(browser, large_cluster, "/topics", "topic-0010")
    print(f"{TOPICS:,} topics: the first rows after {took:.0f} ms")
    assert took <= FIRST_MS_MAX


@pytest.mark.parametrize("share", [0.0, 0.37, 0.999], ids=["first", "middle", "last"])
def test_message_of_a_large_topic_appears_within_a_second(large_cluster, browser, share):
    offset = int(TOPIC_BYTES // VALUE_BYTES * share)
    took = first_ms(browser, large_cluster, f"/topics/large/messages?begin=offset&at={offset}", f"{offset:010d}")
    print(f"offset {offset:,} of {TOPIC_BYTES / 1e9:g} GB: the first row after {took:.0f} ms")
    assert took <= FIRST_MS_MAX
