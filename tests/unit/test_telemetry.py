"""Reports as JSON: what is encoded is decoded, and invalid input is refused with the name of the field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.telemetry.codec import ITEMS_MAX, TEXT_CHARACTERS_MAX, ReportError, decode, encode
from headrace.telemetry.models import (
    AccumulatorStatus,
    BatchReport,
    BrokerConnection,
    BufferPoolStatus,
    CommitReport,
    ConsumerReport,
    ConsumerTotals,
    CurrentBatch,
    FetchBufferStatus,
    Latencies,
    MemberStatus,
    PartitionQueueStatus,
    Percentiles,
    PipelineReport,
    PipelineTotals,
    PositionStatus,
    ProducerReport,
    ProducerTotals,
    ReportedError,
    SendSteps,
    SourceReport,
    TopicLag,
    TopicTotals,
    TransactionStatus,
)

ENVELOPE: dict[str, Any] = {"id": "p1", "host": "h", "pid": 1, "interval_ms": 1000, "started_ms": 1, "time_ms": 2}
PRODUCER = ProducerReport(
    **ENVELOPE,
    client_id="shop",
    transaction=TransactionStatus("orders-1", "IN_TRANSACTION"),
    steps=SendSteps("BytesSerializer", "StrSerializer", None, ("Stamp",), 1),
    pool=BufferPoolStatus(100.0, 40.0, 1, 2.5, 0),
    batches=AccumulatorStatus(16384, 5.0, 1, 2, (PartitionQueueStatus("orders", 0, 1, 2, 3, 400, 1000, 1.5, 0),)),
    brokers=(BrokerConnection(1, "127.0.0.1:9092", True, 1, 5, 500.0),),
    topics=(TopicTotals("orders", 5.0, 500.0),),
    totals=ProducerTotals(5.0, 500.0, 0.0, 0.0, 0.0),
    latency=Latencies(delivery=Percentiles(1.0, 2.0, 3.0, 4.0)),
    errors=(ReportedError(1, "send", "failed", 2),),
)
CONSUMER = ConsumerReport(
    **ENVELOPE,
    client_id="reader",
    member=MemberStatus("billing", "consumer", "stable", "member-1", 3),
    assigned=2,
    paused=1,
    lag=7,
    positions=(PositionStatus("orders", 0, "fetching", 5, 7), PositionStatus("orders", 1, "paused")),
    buffer=FetchBufferStatus(1000, 400),
    poll_age_ms=1.5,
    totals=ConsumerTotals(5.0, 500.0, 2.0, 1.0),
)
COMMITS = CommitReport(
    **ENVELOPE,
    name="orders",
    sink="s",
    query="q",
    delivery="exactly-once",
    now=CurrentBatch(batch=2, since_ms=5),
    batches=(BatchReport(batch=1, sequence=1, rows=10, decide_ms=2.5, outcome="committed"),),
)
DRIVER = PipelineReport(
    **ENVELOPE,
    name="orders",
    state="running",
    totals=PipelineTotals(rows=10, behind=7),
    sources=(SourceReport("orders at kafka:9092", 7, (TopicLag("orders", 2, 7, 1_700_000_000_123),)),),
)


def changed(report, **fields):
    return json.dumps({**json.loads(encode(report)), **fields}).encode()


@pytest.mark.parametrize("report", [PRODUCER, CONSUMER, COMMITS, DRIVER], ids=lambda report: report.kind)
def test_reports_survive_encoding(report):
    assert decode(encode(report)) == report


def test_missing_and_null_fields_take_their_default_and_unknown_ones_are_ignored():
    report = decode(changed(DRIVER, totals=None, error=None, new_field=[1]))
    assert report == replace(DRIVER, totals=PipelineTotals(), error="")


def test_long_texts_are_cut():
    report = decode(changed(PRODUCER, client_id="x" * 10_000))
    assert isinstance(report, ProducerReport)
    assert len(report.client_id) == TEXT_CHARACTERS_MAX


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "report: expected an object"),
        (b'{"kind": "unknown"}', "kind: expected producer, consumer, commits, pipeline, got 'unknown'"),
        (b'{"kind": []}', "kind: expected producer"),
        (changed(PRODUCER, pid="1"), "pid: expected a number, got str"),
        (changed(PRODUCER, pid=True), "pid: expected a number, got True"),
        (changed(PRODUCER, host=1), "host: expected a string, got 1"),
        (changed(PRODUCER, is_closed=0), "is_closed: expected true or false, got 0"),
        (changed(PRODUCER, started_ms=1e300), "started_ms: expected a finite number below 2\\^62"),
        (changed(PRODUCER, started_ms=float("nan")), "started_ms: expected a finite number"),
        (changed(PRODUCER, started_ms=10**400), "started_ms: expected a finite number"),
        (changed(PRODUCER, brokers=[{}] * (ITEMS_MAX + 1)), f"brokers: expected a list of at most {ITEMS_MAX} items"),
        (changed(PRODUCER, brokers=[{"id": 1}]), r"brokers\[0\].address: expected a string, got None"),
        (changed(PRODUCER, pool=None), "pool: expected an object, got None"),
        (changed(COMMITS, batches=[{}]), r"batches\[0\].batch: expected a number"),
    ],
)
def test_invalid_reports_are_refused_with_the_field(body, error):
    with pytest.raises(ReportError, match=error):
        decode(body)
