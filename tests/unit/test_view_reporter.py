"""`metric.reporters=view`: a producer tells a live view what goes on inside, and never suffers from it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from headrace import ConfigError, Producer, ProducerInterceptor, SerializationError, TimedOutError
from headrace.client.clock import SYSTEM_CLOCK
from headrace.producer.recent import ERRORS_MAX, Recent, percentiles
from headrace.producer.view_link import ViewLink, check_url
from listening_view import ListeningView
from small_broker import SmallBroker
from waiting import eventually

SECONDS = 10
NOT_LEADER = 6


@pytest.fixture
def broker():
    with SmallBroker() as broker:
        yield broker


@pytest.fixture
def view():
    with ListeningView() as view:
        yield view


class Stamp(ProducerInterceptor):
    pass


def make(broker, url, **options):
    short = {"request.timeout.ms": 3000, "delivery.timeout.ms": 4000, "metric.reporters": "view", "view.url": url}
    return Producer(short, bootstrap_servers=broker.address, enable_idempotence=False, **options)


def view_threads():
    return [thread for thread in threading.enumerate() if thread.name == "headrace-view"]


# -- what is told ------------------------------------------------------------------------------


def test_the_view_is_told_of_every_step_of_a_records_journey(broker, view):
    with make(broker, view.url, client_id="shop", interceptor_classes=[Stamp()], value_serializer="str") as producer:
        for number in range(10):
            producer.send("orders", f"order {number}").result(SECONDS)
        told = view.until("ten records", lambda report: report["totals"]["records"] == 10)
    assert (told["path"], told["kind"], told["client_id"], told["is_closed"]) == ("/report", "producer", "shop", False)
    assert told["steps"]["interceptors"] == ["Stamp"]
    assert told["steps"]["value_serializer"] == "StrSerializer"
    assert told["pool"]["total_bytes"] == 32 * 1024 * 1024
    assert [broker["is_connected"] for broker in told["brokers"]] == [True]
    assert told["brokers"][0]["sent_bytes"] > 0
    assert [(topic["topic"], topic["records"]) for topic in told["topics"]] == [("orders", 10)]
    assert 0 <= told["latency"]["request"]["p50"] <= told["latency"]["delivery"]["max"]
    assert told["errors"] == []


def test_what_waits_is_told_by_partition_with_fill_and_age(broker, view):
    broker.answers.clear()
    with make(broker, view.url, linger_ms=5, batch_size=1000, max_in_flight_requests_per_connection=1) as producer:
        producer.send("orders", bytes(900))
        eventually("a request in flight", lambda: producer._client.total_in_flight())
        producer.send("orders", bytes(400))
        told = view.until("a batch that waits", lambda report: report["batches"]["oldest"])
        broker.answers.set()
    (waiting,) = told["batches"]["oldest"]
    assert (waiting["topic"], waiting["partition"], waiting["batches"]) == ("orders", 0, 1)
    assert 400 < waiting["bytes"] < waiting["room_bytes"] == 1000
    assert waiting["age_ms"] > 0
    assert told["brokers"][0]["in_flight"] == 1
    assert told["pool"]["used_bytes"] == 2000


def test_errors_are_told_in_words_and_the_same_one_is_counted(broker, view):
    broker.error_code = NOT_LEADER
    with make(broker, view.url, retries=2, retry_backoff_ms=1) as producer:
        future = producer.send("orders", b"one")
        assert future.exception(SECONDS) is not None
        with pytest.raises(SerializationError):
            producer.send("orders", "not bytes")
        told = view.until("all errors", lambda report: report["totals"]["errors"] == 2)
    refused, failed, retried = told["errors"]
    assert refused["where"] == "send"
    assert failed["where"] == "orders-0, failed"
    assert "NOT_LEADER" in failed["text"]
    assert (retried["where"], retried["count"]) == ("orders-0, sent again", 2)
    assert told["totals"]["retries"] == 2


def test_the_last_report_says_that_the_producer_is_closed(broker, view):
    with make(broker, view.url) as producer:
        producer.send("orders", b"one").result(SECONDS)
    last = view.until("the last report", lambda report: report["is_closed"])
    assert last["totals"]["records"] == 1
    eventually("the end of the thread", lambda: not view_threads())


def test_a_producer_that_is_closed_in_the_middle_of_a_post_tells_its_end_too(broker, view):
    view.may_respond.clear()
    with make(broker, view.url):
        eventually("a post under way", lambda: view.request_count)
    view.may_respond.set()
    assert view.until("the last report", lambda report: report["is_closed"])


def test_a_program_that_closes_its_producer_and_ends_has_told_its_end(broker, view):
    code = (
        "import sys; from headrace import Producer\n"
        "with Producer(bootstrap_servers=sys.argv[1], enable_idempotence=False, metric_reporters='view',"
        " view_url=sys.argv[2]) as producer:\n"
        "    producer.send('orders', b'one').result(10)\n"
    )
    subprocess.run([sys.executable, "-c", code, broker.address, view.url], timeout=30, check=True)
    assert view.reports[-1]["is_closed"]
    assert view.reports[-1]["totals"]["records"] == 1


def test_the_token_goes_with_every_report_and_is_shown_nowhere(broker, view):
    with make(broker, view.url, view_token="a-secret") as producer:
        view.until("a report", lambda report: True)
        assert "a-secret" not in f"{producer.config!r} {producer.settings!r}"
    assert set(view.tokens) == {"Bearer a-secret"}


# -- a view that is away, slow or wrong --------------------------------------------------------


def test_a_view_that_is_away_costs_one_line_of_the_log_and_is_found_when_it_comes(broker, view, caplog):
    with ListeningView() as gone:
        port = gone.port
    with make(broker, f"http://127.0.0.1:{port}") as producer:
        eventually("a warning", lambda: "is told nothing for now" in caplog.text)
        producer.send("orders", b"one").result(SECONDS)
        with ListeningView(port) as back:
            back.until("a report", lambda report: report["totals"]["records"] == 1)
    warnings = [
        record for record in caplog.records if "live view" in record.getMessage() and record.levelname == "WARNING"
    ]
    assert len(warnings) == 1
    assert "nothing else is affected" in warnings[0].getMessage()


def test_a_view_that_never_answers_keeps_neither_send_nor_close_waiting(broker, view):
    view.may_respond.clear()
    with make(broker, view.url) as producer:
        eventually("a post under way", lambda: view.request_count)
        for _ in range(100):
            producer.send("orders", b"one").result(SECONDS)
        began = time.monotonic()
    assert time.monotonic() - began < 0.5
    assert len(broker.values("orders")) == 100


def test_a_view_that_refuses_is_told_of_with_the_remedy(broker, view, caplog):
    view.status = 401
    with make(broker, view.url):
        eventually("a warning", lambda: "it answered 401" in caplog.text)
    assert "set view.token to the view's" in caplog.text


def test_a_source_that_fails_ends_neither_thread_nor_process(view, caplog):
    class Source:
        calls = 0

        def report(self, *, is_last):
            self.calls += 1
            if self.calls == 1:
                raise ValueError("of a report")
            return {"calls": self.calls}

        def delivered(self, report):
            pass

    link = ViewLink(view.url, None, Source(), 0.01)
    assert view.until("the second report", lambda report: True)["calls"] == 2
    link.close()
    assert "ValueError: of a report" in caplog.text


@pytest.mark.parametrize(
    "url", ["", "localhost:9080", "ftp://here", "http://", "http://here:port", "http://here:99999"]
)
def test_an_address_that_is_none_is_refused_with_an_example(url):
    with pytest.raises(ConfigError, match=r"view.url is .*; it may be the address of a live view, as http://127"):
        check_url(url)


def test_a_producer_with_a_wrong_address_is_not_made(broker):
    with pytest.raises(ConfigError, match=r"view.url is 'nonsense'"):
        make(broker, "nonsense")


# -- what is recent ----------------------------------------------------------------------------


def test_percentiles_are_of_what_there_is():
    assert percentiles([]) is None
    assert percentiles([3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0, "max": 3.0}
    assert percentiles(range(1, 101)) == {"p50": 51, "p95": 95, "p99": 99, "max": 100}


def test_the_newest_errors_are_kept_and_no_more():
    recent = Recent(SYSTEM_CLOCK)
    for number in range(ERRORS_MAX + 5):
        recent.failed("here", TimedOutError(f"number {number}"))
    texts = [error.text for error in recent.errors()]
    assert texts[0] == f"number {ERRORS_MAX + 4}"
    assert len(texts) == ERRORS_MAX
