"""Brokers that die, responses that get lost: the stream continues, and every row is visible once.

What else can happen at every failpoint is in test_crash_matrix.py.
"""

from __future__ import annotations

import threading

import pytest

from headrace.broker import EmbeddedBroker
from tests.support.crashes import StreamInSession, markers, open_transactions
from tests.support.peers.embedded import OwnBroker
from tests.support.topics import new_topic
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RESTARTS_MAX = 3
REACH_SECONDS_MAX = 120


@pytest.fixture
def own_broker():
    """A broker of the test's own, to be killed."""
    broker = OwnBroker(EmbeddedBroker({"transaction.state.log.num.partitions": 4}))
    try:
        broker.embedded.start()
        yield broker
    finally:
        broker.remove()


def assert_clean(query: StreamInSession, bootstrap: str, topic: str) -> None:
    assert str(query.audit()) == "clean"
    assert not open_transactions(bootstrap, topic)


@pytest.mark.parametrize("mode", ["inline", "parallel"])
@pytest.mark.parametrize(
    "failpoint", ["task.sent", "task.flushed", "check.done", "decide.written", "decide.done", "end.done"]
)
def test_a_batch_survives_a_broker_restart(spark, own_broker, tmp_path, failpoint, mode):
    """With a batch at that failpoint: it succeeds, or fails and succeeds when it is run again."""
    if mode == "inline" and not failpoint.startswith("decide"):
        pytest.skip("an inline batch is only in the transaction of the driver")
    marks = markers(spark)
    topic = new_topic(own_broker, "restart", 3)
    query = StreamInSession(spark, tmp_path, own_broker, topic, commit__mode=mode)
    query.add_file(100)
    query.add_file(100)

    def restart() -> None:
        eventually("the failpoint", lambda: (marks / failpoint).exists(), REACH_SECONDS_MAX)
        own_broker.kill()
        (marks / f"{failpoint}.go").touch()  # it continues while there is no broker
        own_broker.restart()

    nemesis = threading.Thread(target=restart)
    nemesis.start()
    try:
        run_until_it_ends(query, f"{failpoint}=hold")
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
def test_a_batch_survives_a_lost_response(spark, own_broker, tmp_path, api, mode):
    """The broker handled the request, and the connection broke before the response: the request is retried."""
    topic = new_topic(own_broker, "unanswered", 3)
    query = StreamInSession(spark, tmp_path, own_broker, topic, commit__mode=mode)
    query.add_file(100)
    query.process()
    own_broker.embedded.faults.inject(api=api, when="after", close=True, count=2)
    query.add_file(100)
    assert run_until_it_ends(query) == 0
    assert_clean(query, own_broker.bootstrap, topic)
