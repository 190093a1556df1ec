"""Drivers killed with kill -9, brokers that die, answers that get lost: the stream goes on, and every row is seen once.

A cell of the crash matrix is a failpoint (the table in headrace.spark.failpoints) and what happens there. The failpoint
holds or kills the process; the query is started again; then the topic is compared with the source.
"""

from __future__ import annotations

import threading
import time

import pytest

from crashes import CrashingQuery, StreamInSession, markers, open_transactions
from headrace.broker import EmbeddedBroker
from peers.embedded import OwnBroker
from topics import new_topic, unique
from waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RESTARTS_MAX = 3


@pytest.fixture
def own_broker():
    """A broker of the test's own, to be killed."""
    broker = OwnBroker(EmbeddedBroker({"transaction.state.log.num.partitions": 4}))
    try:
        broker.embedded.start()
        yield broker
    finally:
        broker.remove()


def assert_clean(query: CrashingQuery, bootstrap: str, topic: str) -> None:
    assert str(query.audit()) == "clean"
    assert not open_transactions(bootstrap, topic)


# -- the driver -----------------------------------------------------------------------------------

KILLED_AT = ["begin.read", "decide.begin", "decide.written", "decide.done", "end.between", "end.done"]


@pytest.mark.behaviour("S06")
@pytest.mark.parametrize("place", KILLED_AT)
def test_a_driver_is_killed_and_the_query_started_again(headrace_broker, tmp_path, place):
    kill_and_restart(headrace_broker, tmp_path, place, "parallel")


@pytest.mark.behaviour("S06")
@pytest.mark.parametrize(("place", "mode"), [("decide.written", "inline"), ("end.between", "parallel")])
def test_a_driver_is_killed_on_apache_kafka(kafka, tmp_path, place, mode):
    topic = kill_and_restart(kafka, tmp_path, place, mode)
    lines = kafka.console_consume(topic, isolation="read_committed", idle_seconds=5)
    assert len(lines) == 200  # Java's own reader counts the same


def kill_and_restart(broker, folder, place, mode):
    topic = new_topic(broker, "killed", 3)
    query = CrashingQuery(folder, broker.bootstrap, topic, options={"commit.mode": mode})
    query.add_file(100)
    query.add_file(100)
    killed = query.run(f"{place}=kill-driver")
    assert killed.code != 0
    assert query.was_reached(place), killed.errors[-2000:]
    again = query.run()
    assert again.code == 0, again.errors[-2000:]
    assert_clean(query, broker.bootstrap, topic)
    return topic


def test_a_zombie_driver_wakes_up_when_another_has_gone_on(spark, headrace_broker, tmp_path):
    """It held its breath before the decision; meanwhile the query was started elsewhere, and finished."""
    topic, sink = new_topic(headrace_broker, "zombie", 3), unique("zombie")
    query = StreamInSession(spark, tmp_path, headrace_broker, topic, sink__id=sink)
    query.add_file(100)
    zombie = query.start("decide.begin=sleep:45", options={**query.options})
    eventually("the zombie at its failpoint", lambda: query.was_reached("decide.begin"), 120)
    query.process()
    query.add_file(50)
    query.process()
    ended = query.end_of(zombie)
    assert ended.code == 1, ended.errors
    assert "another driver has taken over sink.id" in ended.errors, ended.errors[-3000:]
    assert_clean(query, headrace_broker.bootstrap, topic)


# -- the broker -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["inline", "parallel"])
@pytest.mark.parametrize(
    "place", ["task.sent", "task.flushed", "check.done", "decide.written", "decide.done", "end.done"]
)
def test_the_broker_dies_and_comes_back(spark, own_broker, tmp_path, place, mode):
    """With a batch at that place: it goes through all the same, or fails and goes through when it is run again."""
    if mode == "inline" and not place.startswith("decide"):
        pytest.skip("an inline batch is in one place only: the driver's transaction")
    marks = markers(spark)
    topic = new_topic(own_broker, "restart", 3)
    query = StreamInSession(spark, tmp_path, own_broker, topic, commit__mode=mode)
    query.add_file(100)
    query.add_file(100)

    def restart() -> None:
        eventually("the failpoint", lambda: (marks / place).exists(), 60)
        own_broker.kill()
        time.sleep(1)
        own_broker.restart()

    nemesis = threading.Thread(target=restart)
    nemesis.start()
    try:
        run_until_it_ends(query, f"{place}=sleep:4")
    finally:
        nemesis.join()
    assert_clean(query, own_broker.bootstrap, topic)


def run_until_it_ends(query: StreamInSession, failpoints: str = "") -> int:
    """How many times it had to be started again."""
    for restarts in range(RESTARTS_MAX):
        try:
            query.process(failpoints)
            return restarts
        except Exception as error:
            last = error
    raise last


@pytest.mark.parametrize("mode", ["inline", "parallel"])
@pytest.mark.parametrize(
    "api", ["EndTxn", "InitProducerId", "Produce", "DescribeTransactions", "ListTransactions", "Fetch"]
)
def test_an_answer_is_lost(spark, own_broker, tmp_path, api, mode):
    """The broker did what it was asked for and the connection broke before it could say so: it is asked again."""
    topic = new_topic(own_broker, "unanswered", 3)
    query = StreamInSession(spark, tmp_path, own_broker, topic, commit__mode=mode)
    query.add_file(100)
    query.process()
    own_broker.embedded.faults.inject(api=api, when="after", close=True, count=2)
    query.add_file(100)
    assert run_until_it_ends(query) == 0
    assert_clean(query, own_broker.bootstrap, topic)
