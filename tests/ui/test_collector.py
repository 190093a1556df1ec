"""One thread asks the cluster for everybody: at a bounded rate, and only what somebody looks at."""

from __future__ import annotations

import time

import pytest

from headrace.client.blocking import ClientSettings
from headrace.errors import TimedOutError
from headrace.ui.collector import Collector
from headrace.ui.view import ReadOnlyError, View, ViewOptions
from waiting import eventually


@pytest.fixture
def collector(broker):
    made = Collector(ClientSettings(broker.bootstrap))
    made.start()
    yield made
    made.stop()


def test_what_is_looked_at_is_asked_for_and_shared(collector):
    feed = collector.feed("topics", lambda admin: admin.list_topics(), every_s=0.05)
    assert collector.feed("topics", lambda admin: [], every_s=9) is feed
    eventually("three answers", lambda: feed.look() is not None and feed.asked >= 3)
    assert feed.at is not None
    assert abs(feed.at - time.time()) < 5
    assert collector.trouble is None


def test_what_nobody_looks_at_is_left_alone(collector):
    feed = collector.feed("quiet", lambda admin: 1, every_s=0.01)
    eventually("an answer", lambda: feed.value)
    feed._looked = float("-inf")  # as if all browsers had left
    assert not feed.is_looked_at
    assert feed.due == float("inf")


def test_what_is_much_work_is_asked_seldom_and_what_only_waits_is_not(collector):
    work = collector.feed("work", lambda admin: len([n * n for n in range(2_000_000)]), every_s=0.01)
    assert eventually("an answer", work.look) == 2_000_000
    assert work.due - time.monotonic() > 2

    def wait(admin):
        time.sleep(0.1)
        return 1

    waiting = collector.feed("waiting", wait, every_s=0.01)
    eventually("several answers", lambda: waiting.look() and waiting.asked > 3, seconds_max=10)


def test_a_mistake_in_a_question_ends_neither_the_thread_nor_the_other_questions(collector):
    broken = collector.feed("broken", lambda admin: 1 // 0, every_s=0.05)
    sound = collector.feed("sound", lambda admin: admin.list_topics() is not None, every_s=0.05)
    eventually("what is wrong", lambda: broken.look() or broken.trouble)
    assert broken.trouble is not None
    assert "ZeroDivisionError" in broken.trouble.text
    assert eventually("the other one", sound.look)
    assert collector.trouble is None  # the cluster is well


def test_a_question_that_is_answered_again_is_in_no_trouble(collector):
    answers = [TimedOutError("not yet"), 7]

    def ask(admin):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    feed = collector.feed("moody", ask, every_s=5)
    eventually("trouble", lambda: collector.trouble or feed.value)
    assert eventually("an answer, soon", feed.look, seconds_max=4) == 7
    assert feed.trouble is None
    eventually("the end of the trouble", lambda: collector.trouble is None)


def test_a_view_that_only_shows_refuses_to_change(broker):
    view = View(ViewOptions(client=ClientSettings(broker.bootstrap), producer={}, read_only=True))
    with pytest.raises(ReadOnlyError, match="read-only"):
        view.check_writable()
