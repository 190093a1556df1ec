"""Diagram of a record's path through a producer, with live figures at each stage.

send() → interceptors → serialize, partition → buffer pool
   ↑                                               ↓
responses ← in flight ← requests ←───────────── batches
"""

from __future__ import annotations

from headrace.telemetry.models import Percentiles, ProducerReport
from headrace.ui import formatting
from headrace.ui.charts import Arrow, Box, Diagram, Label, Tone
from headrace.ui.reports import ReportedProducer

WIDTH, HEIGHT = 1180, 346
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 262, 126, 42
_TOP, _BOTTOM = 24, 216
_POOL_WARN_SHARE, _POOL_BAD_SHARE = 0.75, 0.95
_BROKERS_DRAWN_MAX = 3


def create_producer_diagram() -> Diagram:
    return Diagram("Path of a record from send() to its response, with figures for each stage", WIDTH, HEIGHT)


def draw_producer(diagram: Diagram, producer: ReportedProducer) -> None:
    report = producer.report
    boxes = [
        _send(producer),
        _interceptors(report),
        _serialize(report),
        _pool(report),
        _batches(report),
        _requests(report),
        _in_flight(report),
        _responses(report),
    ]
    labels = [Label(2, 14, "application threads"), Label(2, _BOTTOM - 10, "I/O thread")]
    diagram.show(boxes, _ARROWS, labels)


def _x(column: int) -> int:
    return 4 + column * (_BOX_WIDTH + _GAP)


def _box(
    column: int,
    y: int,
    title: str,
    lines: list[str],
    *,
    tone: Tone = "",
    mark: str = "",
    bar: float | None = None,
) -> Box:
    return Box(_x(column), y, _BOX_WIDTH, _BOX_HEIGHT, title, lines, tone=tone, bar=bar, mark=mark)


def _across(column: int, y: int, step: int) -> Arrow:
    """An arrow from a box to its neighbour on the right (step 1) or left (step -1)."""
    middle = y + _BOX_HEIGHT // 2
    if step > 0:
        return Arrow([(_x(column) + _BOX_WIDTH, middle), (_x(column + 1) - 3, middle)])
    return Arrow([(_x(column), middle), (_x(column - 1) + _BOX_WIDTH + 3, middle)])


_ARROWS = [
    *(_across(column, _TOP, 1) for column in (0, 1, 2)),
    Arrow([(_x(3) + _BOX_WIDTH // 2, _TOP + _BOX_HEIGHT), (_x(3) + _BOX_WIDTH // 2, _BOTTOM - 3)]),
    *(_across(column, _BOTTOM, -1) for column in (3, 2, 1)),
    Arrow([(_x(0) + _BOX_WIDTH // 2, _BOTTOM), (_x(0) + _BOX_WIDTH // 2, _TOP + _BOX_HEIGHT + 3)]),
]


def _send(producer: ReportedProducer) -> Box:
    report = producer.report
    lines = [
        formatting.rate(producer.records.last),
        f"{formatting.short_count(report.totals.records)} records total",
        f"{formatting.size_rate(producer.sent.last)} on the wire",
    ]
    if report.transaction is not None:
        lines.append(f"transaction: {report.transaction.state}")
    if report.is_closed:
        return _box(0, _TOP, "send()", lines, tone="faint", mark="closed")
    if producer.is_silent:
        return _box(0, _TOP, "send()", lines, tone="warn", mark="silent")
    return _box(0, _TOP, "send()", lines, tone="good", mark="live")


def _interceptors(report: ProducerReport) -> Box:
    steps = report.steps
    if not steps.interceptors:
        return _box(1, _TOP, "Interceptors", ["none"], tone="faint")
    lines = [", ".join(steps.interceptors)]
    if steps.interceptor_errors:
        lines.append(f"{formatting.plural(steps.interceptor_errors, 'error')}: see the log")
        return _box(1, _TOP, "Interceptors", lines, tone="warn", mark="failing")
    return _box(1, _TOP, "Interceptors", [*lines, "no errors"])


def _serialize(report: ProducerReport) -> Box:
    steps = report.steps
    lines = [
        f"key: {steps.key_serializer}",
        f"value: {steps.value_serializer}",
        f"partitioner: {steps.partitioner or 'built-in'}",
    ]
    return _box(2, _TOP, "Serialize, partition", lines)


def _pool(report: ProducerReport) -> Box:
    pool = report.pool
    share = pool.used_bytes / pool.total_bytes if pool.total_bytes else 0.0
    lines = [
        f"{formatting.size(pool.used_bytes)} of {formatting.size(pool.total_bytes)} used",
        f"{formatting.plural(pool.waiting_threads, 'thread')} waiting for memory",
        f"{formatting.milliseconds(pool.waited_ms)} waited in total",
    ]
    if pool.waiting_threads or share >= _POOL_BAD_SHARE:
        return _box(3, _TOP, "Buffer pool", lines, tone="bad", mark="full", bar=share)
    return _box(3, _TOP, "Buffer pool", lines, tone="warn" if share >= _POOL_WARN_SHARE else "", bar=share)


def _batches(report: ProducerReport) -> Box:
    batches = report.batches
    lines = [f"{formatting.count(batches.queued)} queued for {formatting.plural(batches.partitions, 'partition')}"]
    fill = None
    if batches.oldest:
        oldest = batches.oldest[0]
        fill = oldest.fill
        lines += [f"oldest: {oldest.name}", f"{formatting.milliseconds(oldest.age_ms)} old, {fill:.0%} full"]
    else:
        lines += [f"batch.size {formatting.size(batches.batch_bytes)}", f"linger.ms {batches.linger_ms:g}"]
    if report.latency.queue is not None:
        lines.append(f"queue time: {_spread(report.latency.queue)}")
    return _box(3, _BOTTOM, "Batches", lines, bar=fill)


def _requests(report: ProducerReport) -> Box:
    totals = report.totals
    lines = [
        f"{formatting.plural(totals.retries, 'record')} retried",
        f"{formatting.plural(totals.splits, 'batch', 'batches')} split",
        f"{formatting.size(totals.sent_bytes)} sent in total",
    ]
    if any(queue.attempts for queue in report.batches.oldest):
        return _box(2, _BOTTOM, "Requests", lines, tone="warn", mark="retrying")
    return _box(2, _BOTTOM, "Requests", lines)


def _in_flight(report: ProducerReport) -> Box:
    brokers = sorted(report.brokers, key=lambda broker: -broker.in_flight)
    if not brokers:
        return _box(1, _BOTTOM, "In flight", ["no broker known yet"], tone="warn", mark="no broker")
    lines = [
        f"broker {broker.id}: {broker.in_flight} of {broker.in_flight_max} requests"
        + ("" if broker.is_connected else ", disconnected")
        for broker in brokers[:_BROKERS_DRAWN_MAX]
    ]
    if len(brokers) > _BROKERS_DRAWN_MAX:
        lines.append(f"and {len(brokers) - _BROKERS_DRAWN_MAX} more brokers")
    bar = max(broker.in_flight / max(1, broker.in_flight_max) for broker in brokers)
    if any(not broker.is_connected and broker.sent_bytes for broker in brokers):
        return _box(1, _BOTTOM, "In flight", lines, tone="warn", mark="disconnected", bar=bar)
    return _box(1, _BOTTOM, "In flight", lines, bar=bar)


def _responses(report: ProducerReport) -> Box:
    lines = []
    request, delivery, errors = report.latency.request, report.latency.delivery, report.totals.errors
    if request is not None:
        lines.append(f"request: {_spread(request)}")
    if delivery is not None:
        lines += [
            f"delivery: {_spread(delivery)}",
            f"p95 {formatting.milliseconds(delivery.p95)}, max {formatting.milliseconds(delivery.max)}",
        ]
    lines.append(f"{formatting.plural(errors, 'record')} failed")
    return _box(0, _BOTTOM, "Responses", lines, tone="bad" if errors else "", mark="errors" if errors else "")


def _spread(latency: Percentiles) -> str:
    return f"p50 {formatting.milliseconds(latency.p50)}, p99 {formatting.milliseconds(latency.p99)}"
