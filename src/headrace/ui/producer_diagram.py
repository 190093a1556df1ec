"""A record's journey through a producer, drawn with its figures: out along the top, back along the bottom.

send() → interceptors → serialise, partition → buffer pool
   ↑                                               ↓
answers ← in flight ← requests ←─────────────── batches
"""

from __future__ import annotations

from headrace.ui import formatting
from headrace.ui.charts import Arrow, Box, Drawing, Label, Tone
from headrace.ui.producer_reports import Look, Percentiles, ToldProducer

WIDTH, HEIGHT = 1180, 346
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 262, 126, 42
_TOP, _BOTTOM = 24, 216
_POOL_WARN_SHARE, _POOL_BAD_SHARE = 0.75, 0.95
_BROKERS_DRAWN_MAX = 3


def journey() -> Drawing:
    """A place for it."""
    return Drawing("A record's journey: from send() to its answer, with the figures of each step", WIDTH, HEIGHT)


def show_journey(drawing: Drawing, told: ToldProducer) -> None:
    look = told.last
    boxes = [
        _sent(told),
        _interceptors(look),
        _prepared(look),
        _pool(look),
        _batches(look),
        _requests(look),
        _in_flight(look),
        _answers(look),
    ]
    drawing.show(boxes, _ARROWS, [Label(2, 14, "in your threads"), Label(2, _BOTTOM - 10, "in the I/O thread")])


def _x(column: int) -> int:
    return 4 + column * (_BOX_WIDTH + _GAP)


def _box(
    column: int,
    y: int,
    title: str,
    lines: list[str],
    tone: Tone = "",
    mark: str = "",
    bar: float | None = None,
) -> Box:
    return Box(_x(column), y, _BOX_WIDTH, _BOX_HEIGHT, title, lines, tone, bar, mark)


def _across(column: int, y: int, step: int) -> Arrow:
    """From a box to the one beside it."""
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


def _sent(told: ToldProducer) -> Box:
    look = told.last
    lines = [
        formatting.rate(told.records.last),
        f"{formatting.short_count(look.records)} records so far",
        f"{formatting.size_rate(told.sent.last)} on the wire",
    ]
    if look.transactional_id is not None:
        lines.append(f"transaction: {look.transaction_state}")
    if told.last.is_closed:
        return _box(0, _TOP, "send()", lines, "faint", "closed")
    return _box(0, _TOP, "send()", lines, "warn" if told.is_silent else "good", "silent" if told.is_silent else "live")


def _interceptors(look: Look) -> Box:
    if not look.interceptors:
        return _box(1, _TOP, "Interceptors", ["none"], "faint")
    lines = [", ".join(look.interceptors)]
    if look.interceptor_errors:
        lines.append(f"{formatting.things(look.interceptor_errors, 'error')}: see the log")
        return _box(1, _TOP, "Interceptors", lines, "warn", "failing")
    return _box(1, _TOP, "Interceptors", [*lines, "no errors"])


def _prepared(look: Look) -> Box:
    lines = [
        f"key: {look.key_serializer}",
        f"value: {look.value_serializer}",
        f"partition: {look.partitioner or 'built in (key, sticky)'}",
    ]
    return _box(2, _TOP, "Serialise, partition", lines)


def _pool(look: Look) -> Box:
    share = look.pool_used_bytes / look.pool_bytes if look.pool_bytes else 0.0
    lines = [
        f"{formatting.size(look.pool_used_bytes)} of {formatting.size(look.pool_bytes)} used",
        f"{formatting.things(look.waiting_threads, 'thread')} waiting for memory",
        f"{formatting.milliseconds(look.waited_ms)} waited so far",
    ]
    if look.waiting_threads or share >= _POOL_BAD_SHARE:
        return _box(3, _TOP, "Buffer pool", lines, "bad", "full", share)
    return _box(3, _TOP, "Buffer pool", lines, "warn" if share >= _POOL_WARN_SHARE else "", "", share)


def _batches(look: Look) -> Box:
    lines = [f"{formatting.count(look.queued)} waiting, for {formatting.things(look.partitions, 'partition')}"]
    fill = None
    if look.oldest:
        oldest = look.oldest[0]
        fill = oldest.fill
        lines += [
            f"oldest: {oldest.name}",
            f"{formatting.milliseconds(oldest.age_ms)} old, {fill:.0%} full",
        ]
    else:
        lines += [f"batch.size {formatting.size(look.batch_bytes)}", f"linger.ms {look.linger_ms:g}"]
    if look.queue is not None:
        lines.append(f"wait: {_spread(look.queue)}")
    return _box(3, _BOTTOM, "Batches", lines, bar=fill)


def _requests(look: Look) -> Box:
    lines = [
        f"{formatting.things(look.retries, 'record')} sent again",
        f"{formatting.things(look.splits, 'batch', 'batches')} split",
        f"{formatting.size(look.sent_bytes)} sent so far",
    ]
    waits = any(one.attempts for one in look.oldest)
    return _box(2, _BOTTOM, "Requests", lines, "warn" if waits else "", "retrying" if waits else "")


def _in_flight(look: Look) -> Box:
    brokers = sorted(look.brokers, key=lambda broker: -broker.in_flight)
    away = [broker for broker in brokers if not broker.is_connected and broker.sent_bytes]
    lines = [
        f"broker {broker.id}: {broker.in_flight} of {broker.in_flight_max} requests"
        + ("" if broker.is_connected else ", no connection")
        for broker in brokers[:_BROKERS_DRAWN_MAX]
    ]
    if len(brokers) > _BROKERS_DRAWN_MAX:
        lines.append(f"and {len(brokers) - _BROKERS_DRAWN_MAX} brokers more")
    if not brokers:
        return _box(1, _BOTTOM, "In flight", ["no broker has answered yet"], "warn", "no broker")
    most = max((broker.in_flight / max(1, broker.in_flight_max) for broker in brokers), default=0.0)
    return _box(1, _BOTTOM, "In flight", lines, "warn" if away else "", "broker away" if away else "", most)


def _answers(look: Look) -> Box:
    lines = []
    if look.request is not None:
        lines.append(f"request: {_spread(look.request)}")
    if look.delivery is not None:
        lines += [
            f"whole way: {_spread(look.delivery)}",
            f"p95 {formatting.milliseconds(look.delivery.p95)}, max {formatting.milliseconds(look.delivery.max)}",
        ]
    lines.append(f"{formatting.things(look.errors, 'record')} failed")
    return _box(0, _BOTTOM, "Answers", lines, "bad" if look.errors else "", "errors" if look.errors else "")


def _spread(times: Percentiles) -> str:
    return f"p50 {formatting.milliseconds(times.p50)}, p99 {formatting.milliseconds(times.p99)}"
