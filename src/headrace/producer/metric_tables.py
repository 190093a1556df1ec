"""Which number feeds which metrics: Kafka's names, a row each, for the producer, a broker and a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from headrace.producer.sampling import Samples

PRODUCER = "producer-metrics"
NODE = "producer-node-metrics"
TOPIC = "producer-topic-metrics"

Row: TypeAlias = tuple[str, str, Callable[[Samples, float], float], str]
"""The samples, the metric's name, how to read it, what it says."""


def _meter(samples: str, name: str, what: str) -> tuple[Row, Row]:
    return (
        (samples, f"{name}-rate", Samples.rate, f"{what}, a second"),
        (samples, f"{name}-total", Samples.lifetime_total, f"{what}, in all"),
    )


def _events(samples: str, name: str, what: str) -> tuple[Row, Row]:
    """How often something was recorded, not how much."""
    return (
        (samples, f"{name}-rate", Samples.event_rate, f"{what}, a second"),
        (samples, f"{name}-total", Samples.event_total, f"{what}, in all"),
    )


def _spread(samples: str, name: str, what: str) -> tuple[Row, Row]:
    return (
        (samples, f"{name}-avg", Samples.mean, f"{what}, mean"),
        (samples, f"{name}-max", Samples.maximum, f"{what}, maximum"),
    )


def _total_ns(name: str, what: str) -> Row:
    return (name, f"{name}-time-ns-total", Samples.lifetime_total, f"nanoseconds {what}, in all")


PRODUCER_ROWS: Final[tuple[Row, ...]] = (
    *_spread("batch-size", "batch-size", "bytes of a batch as sent"),
    *_spread("record-size", "record-size", "bytes of the largest record of a batch"),
    *_spread("record-queue-time", "record-queue-time", "ms from a batch's start until it is sent"),
    ("compression", "compression-rate-avg", Samples.mean, "compressed over uncompressed size of a batch, mean"),
    ("records", "records-per-request-avg", Samples.mean, "records in a produce request, mean"),
    *_meter("records", "record-send", "records sent"),
    *_meter("record-retry", "record-retry", "records sent again"),
    *_meter("record-error", "record-error", "records that failed"),
    *_meter("batch-split", "batch-split", "batches split because the broker found them too large"),
    *_spread("request-latency", "request-latency", "ms from a produce request to its response"),
    *_spread("produce-throttle-time", "produce-throttle-time", "ms for which a broker slowed us down"),
    *_meter("request-size", "outgoing-byte", "bytes sent"),
    *_spread("request-size", "request-size", "bytes of a request"),
    *_events("request-size", "request", "requests sent"),
    *_meter("response-size", "incoming-byte", "bytes received"),
    *_events("response-size", "response", "responses received"),
    *_meter("network-io", "network-io", "requests and responses on all connections"),
    *_events("io-wait", "select", "waits of the I/O thread for sockets"),
    ("io-wait", "io-wait-time-ns-avg", Samples.mean, "nanoseconds the I/O thread waits for sockets, mean"),
    ("io-wait", "io-wait-ratio", Samples.time_share, "share of time the I/O thread waits"),
    _total_ns("io-wait", "the I/O thread waited"),
    ("io", "io-time-ns-avg", Samples.mean, "nanoseconds the I/O thread works between two waits, mean"),
    ("io", "io-ratio", Samples.time_share, "share of time the I/O thread works"),
    _total_ns("io", "the I/O thread worked"),
    *_meter("connection-creation", "connection-creation", "connections made"),
    *_meter("connection-close", "connection-close", "connections closed"),
    *_meter("successful-authentication", "successful-authentication", "connections authenticated"),
    *_meter("failed-authentication", "failed-authentication", "connections that failed to authenticate"),
    *_meter("successful-reauthentication", "successful-reauthentication", "connections authenticated again"),
    *_meter("failed-reauthentication", "failed-reauthentication", "connections that failed to authenticate again"),
    *_spread("reauthentication-latency", "reauthentication-latency", "ms that authenticating again took"),
    # A broker's metric, which Kafka's clients carry along: seen from this side, no peer ever authenticates again.
    (
        "successful-authentication",
        "successful-authentication-no-reauth-total",
        Samples.lifetime_total,
        "connections authenticated whose peer never does so again, in all",
    ),
    # Kafka's producer has no metrics of errors in the application's own code; these two are headrace's.
    ("callback-error", "callback-error-total", Samples.lifetime_total, "delivery callbacks that raised, in all"),
    *_meter("buffer-exhausted", "buffer-exhausted", "records dropped for want of buffer memory"),
    ("bufferpool-wait", "bufferpool-wait-ratio", Samples.time_share, "share of time that senders wait for memory"),
    _total_ns("bufferpool-wait", "that senders waited for memory"),
    _total_ns("flush", "in flush"),
    _total_ns("metadata-wait", "that senders waited for metadata"),
    _total_ns("txn-init", "in init_transactions"),
    _total_ns("txn-begin", "in begin_transaction"),
    _total_ns("txn-send-offsets", "in send_offsets_to_transaction"),
    _total_ns("txn-prepare", "in prepare_transaction"),
    _total_ns("txn-commit", "in commit_transaction"),
    _total_ns("txn-abort", "in abort_transaction"),
)
NODE_ROWS: Final[tuple[Row, ...]] = (
    *_meter("request-size", "outgoing-byte", "bytes sent"),
    *_spread("request-size", "request-size", "bytes of a request"),
    *_events("request-size", "request", "requests sent"),
    *_meter("response-size", "incoming-byte", "bytes received"),
    *_events("response-size", "response", "responses received"),
    *_spread("request-latency", "request-latency", "ms from a produce request to its response"),
)
TOPIC_ROWS: Final[tuple[Row, ...]] = (
    *_meter("records", "record-send", "records sent"),
    *_meter("bytes", "byte", "bytes of batches sent"),
    ("compression", "compression-rate", Samples.mean, "compressed over uncompressed size of a batch, mean"),
    *_meter("record-retry", "record-retry", "records sent again"),
    *_meter("record-error", "record-error", "records that failed"),
)
GAUGES: Final[dict[str, str]] = {
    "buffer-total-bytes": "bytes of memory that batches may take",
    "buffer-available-bytes": "bytes of it that are free",
    "waiting-threads": "threads that wait for memory",
    "requests-in-flight": "requests that are not answered yet",
    "metadata-age": "seconds since the metadata came",
    "connection-count": "connections that are open",
    "interceptor-error-total": "calls of interceptors that raised, in all",
}
"""What is looked up when it is asked for; NaN until somebody has registered a function."""
