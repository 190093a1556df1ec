"""The collector queries the cluster for all pages: at a bounded rate, and only feeds that are read."""

from __future__ import annotations

import time

import pytest

from headrace.client.blocking import ClientSettings
from headrace.errors import TimedOutError
from headrace.ui.collector import Collector
from headrace.ui.view import ReadOnlyError, View, ViewOptions
from tests.support.waiting import eventually


@pytest.fixture
def collector(broker):
    collector = Collector(ClientSettings(broker.bootstrap))
    collector.start()
    yield collector
    collector.stop()


def test_feed_that_is_read_is_fetched_and_shared(collector):
    feed = collector.feed("topics", lambda admin: admin.list_topics(), every_s=0.05)
    assert collector.feed("topics", lambda admin: [], every_s=9) is feed
    eventually("three results", lambda: feed.get() is not None and feed.fetch_count >= 3)
    assert feed.at is not None
    assert abs(feed.at - time.time()) < 5
    assert collector.failure is None


def test_feed_that_is_not_read_is_not_fetched(collector):
    feed = collector.feed("quiet", lambda admin: 1, every_s=0.01)
    eventually("a result", lambda: feed.value)
    feed._last_read = float("-inf")  # as if all browsers were closed
    assert not feed.is_watched
    assert feed.due == float("inf")


def test_expensive_feeds_are_fetched_less_often_than_slow_ones(collector):
    work = collector.feed("work", lambda admin: len([n * n for n in range(2_000_000)]), every_s=0.01)
    assert eventually("a result", work.get) == 2_000_000
    assert work.due - time.monotonic() > 2

    def wait(admin):
        time.sleep(0.1)
        return 1

    waiting = collector.feed("waiting", wait, every_s=0.01)
    eventually("several results", lambda: waiting.get() and waiting.fetch_count > 3, seconds_max=10)


def test_bug_in_a_feed_stops_neither_the_thread_nor_other_feeds(collector):
    broken = collector.feed("broken", lambda admin: 1 // 0, every_s=0.05)
    sound = collector.feed("sound", lambda admin: admin.list_topics() is not None, every_s=0.05)
    eventually("the failure", lambda: broken.get() or broken.failure)
    assert broken.failure is not None
    assert "ZeroDivisionError" in broken.failure.text
    assert eventually("the other feed", sound.get)
    assert collector.failure is None  # the cluster is reachable


def test_failure_ends_when_a_fetch_succeeds(collector):
    results = [TimedOutError("not yet"), 7]

    def fetch(admin):
        result = results.pop(0) if len(results) > 1 else results[0]
        if isinstance(result, Exception):
            raise result
        return result

    feed = collector.feed("flaky", fetch, every_s=5)
    eventually("the failure", lambda: collector.failure or feed.value)
    assert eventually("a retry", feed.get, seconds_max=4) == 7
    assert feed.failure is None
    eventually("the end of the failure", lambda: collector.failure is None)


def test_read_only_view_refuses_changes(broker):
    view = View(ViewOptions(client=ClientSettings(broker.bootstrap), producer={}, read_only=True))
    with pytest.raises(ReadOnlyError, match="read-only"):
        view.check_writable()
