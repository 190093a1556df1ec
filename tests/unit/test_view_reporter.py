"""`metric.reporters=view`: reports of a producer to a live view, which never affect the producer."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from headrace import ConfigError, Producer, ProducerInterceptor, SerializationError, TimedOutError
from headrace.config.clock import SYSTEM_CLOCK
from headrace.producer.recent import ERRORS_MAX, Recent
from headrace.producer.snapshot import percentiles
from headrace.telemetry.models import Percentiles, PipelineReport
from headrace.telemetry.sender import ReportSender, check_url, new_envelope
from tests.support.listening_view import ListeningView
from tests.support.small_broker import SmallBroker
from tests.support.waiting import eventually

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


# -- contents of reports -----------------------------------------------------------------------


def test_report_covers_every_stage_of_a_record(broker, view):
    with make(broker, view.url, client_id="shop", interceptor_classes=[Stamp()], value_serializer="str") as producer:
        for number in range(10):
            producer.send("orders", f"order {number}").result(SECONDS)
        reported = view.until("ten records", lambda report: report["totals"]["records"] == 10)
    assert (reported["path"], reported["kind"], reported["client_id"], reported["is_closed"]) == (
        "/report",
        "producer",
        "shop",
        False,
    )
    assert reported["steps"]["interceptors"] == ["Stamp"]
    assert reported["steps"]["value_serializer"] == "StrSerializer"
    assert reported["pool"]["total_bytes"] == 32 * 1024 * 1024
    assert [broker["is_connected"] for broker in reported["brokers"]] == [True]
    assert reported["brokers"][0]["sent_bytes"] > 0
    assert [(topic["topic"], topic["records"]) for topic in reported["topics"]] == [("orders", 10)]
    assert 0 <= reported["latency"]["request"]["p50"] <= reported["latency"]["delivery"]["max"]
    assert reported["errors"] == []


def test_report_has_queued_batches_by_partition(broker, view):
    broker.responding.clear()
    with make(broker, view.url, linger_ms=5, batch_size=1000, max_in_flight_requests_per_connection=1) as producer:
        producer.send("orders", bytes(900))
        eventually("a request in flight", lambda: producer._engine.network.total_in_flight())
        producer.send("orders", bytes(400))
        reported = view.until("a queued batch", lambda report: report["batches"]["oldest"])
        broker.responding.set()
    (queue,) = reported["batches"]["oldest"]
    assert (queue["topic"], queue["partition"], queue["batches"]) == ("orders", 0, 1)
    assert 400 < queue["bytes"] < queue["room_bytes"] == 1000
    assert queue["age_ms"] > 0
    assert reported["brokers"][0]["in_flight"] == 1
    assert reported["pool"]["used_bytes"] == 2000


def test_report_has_recent_errors_with_counts(broker, view):
    broker.error_code = NOT_LEADER
    with make(broker, view.url, retries=2, retry_backoff_ms=1) as producer:
        future = producer.send("orders", b"one")
        assert future.exception(SECONDS) is not None
        with pytest.raises(SerializationError):
            producer.send("orders", "not bytes")
        reported = view.until("all errors", lambda report: report["totals"]["errors"] == 2)
    refused, failed, retried = reported["errors"]
    assert refused["where"] == "send"
    assert failed["where"] == "orders-0, failed"
    assert "NOT_LEADER" in failed["text"]
    assert (retried["where"], retried["count"]) == ("orders-0, sent again", 2)
    assert reported["totals"]["retries"] == 2


def test_last_report_says_that_the_producer_is_closed(broker, view):
    with make(broker, view.url) as producer:
        producer.send("orders", b"one").result(SECONDS)
    last = view.until("the last report", lambda report: report["is_closed"])
    assert last["totals"]["records"] == 1
    eventually("the end of the thread", lambda: not view_threads())


def test_producer_closed_during_a_post_sends_a_final_report(broker, view):
    view.may_respond.clear()
    with make(broker, view.url):
        eventually("a post in progress", lambda: view.request_count)
    view.may_respond.set()
    assert view.until("the last report", lambda report: report["is_closed"])


def test_program_that_exits_after_close_sends_the_final_report(broker, view):
    code = (
        "import sys; from headrace import Producer\n"
        "with Producer(bootstrap_servers=sys.argv[1], enable_idempotence=False, metric_reporters='view',"
        " view_url=sys.argv[2]) as producer:\n"
        "    producer.send('orders', b'one').result(10)\n"
    )
    subprocess.run([sys.executable, "-c", code, broker.address, view.url], timeout=30, check=True)
    assert view.reports[-1]["is_closed"]
    assert view.reports[-1]["totals"]["records"] == 1


def test_token_is_sent_with_every_report_and_never_shown(broker, view):
    with make(broker, view.url, view_token="a-secret") as producer:
        view.until("a report", lambda report: True)
        assert "a-secret" not in f"{producer.config!r} {producer.settings!r}"
    assert set(view.tokens) == {"Bearer a-secret"}


# -- a view that is unreachable, slow or refuses -----------------------------------------------


def test_unreachable_view_costs_one_log_line_and_is_retried(broker, view, caplog):
    with ListeningView() as gone:
        port = gone.port
    with make(broker, f"http://127.0.0.1:{port}") as producer:
        eventually("a warning", lambda: "cannot report to the live view" in caplog.text)
        producer.send("orders", b"one").result(SECONDS)
        with ListeningView(port) as back:
            back.until("a report", lambda report: report["totals"]["records"] == 1)
    warnings = [
        record for record in caplog.records if "live view" in record.getMessage() and record.levelname == "WARNING"
    ]
    assert len(warnings) == 1
    assert "retrying" in warnings[0].getMessage()


def test_view_that_never_responds_delays_neither_send_nor_close(broker, view):
    view.may_respond.clear()
    with make(broker, view.url) as producer:
        eventually("a post in progress", lambda: view.request_count)
        for _ in range(100):
            producer.send("orders", b"one").result(SECONDS)
        began = time.monotonic()
    assert time.monotonic() - began < 0.5
    assert len(broker.values("orders")) == 100


def test_refused_report_is_logged_with_the_remedy(broker, view, caplog):
    view.status = 401
    with make(broker, view.url):
        eventually("a warning", lambda: "HTTP status 401" in caplog.text)
    assert "set view.token to the token of the view" in caplog.text


def test_failing_source_does_not_end_the_thread(view, caplog):
    class Source:
        calls = 0

        def create_report(self, *, is_last):
            self.calls += 1
            if self.calls == 1:
                raise ValueError("of a report")
            return PipelineReport(**new_envelope(1.0), name="p", state=f"call {self.calls}")

        def acknowledge(self, report):
            pass

    sender = ReportSender(view.url, None, Source(), 0.01)
    assert view.until("the second report", lambda report: True)["state"] == "call 2"
    sender.close()
    assert "ValueError: of a report" in caplog.text


@pytest.mark.parametrize(
    "url", ["", "localhost:9080", "ftp://here", "http://", "http://here:port", "http://here:99999"]
)
def test_invalid_url_is_refused_with_an_example(url):
    with pytest.raises(ConfigError, match=r"invalid view.url: expected the URL of a live view such as http://127"):
        check_url(url)


def test_producer_with_an_invalid_url_is_not_created(broker):
    with pytest.raises(ConfigError, match=r"invalid view.url: .*, got 'nonsense'"):
        make(broker, "nonsense")


# -- recent latencies and errors ---------------------------------------------------------------


def test_percentiles():
    assert percentiles([]) is None
    assert percentiles([3.0]) == Percentiles(3.0, 3.0, 3.0, 3.0)
    assert percentiles(range(1, 101)) == Percentiles(51, 95, 99, 100)


def test_recent_errors_are_bounded():
    recent = Recent(SYSTEM_CLOCK)
    for number in range(ERRORS_MAX + 5):
        recent.failed("here", TimedOutError(f"number {number}"))
    texts = [error.text for error in recent.errors()]
    assert texts[0] == f"number {ERRORS_MAX + 4}"
    assert len(texts) == ERRORS_MAX
