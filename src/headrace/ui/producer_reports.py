"""Producers that report: the last look inside of each, and fifteen minutes of its figures."""

from __future__ import annotations

import time
from dataclasses import dataclass

from headrace.ui import formatting
from headrace.ui.collector import Rate, Series
from headrace.ui.report_fields import Fields

SILENT_INTERVALS = 5
"""Who has missed so many reports has gone, or cannot reach the view."""

FRESH_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, fields: Fields, name: str) -> Percentiles | None:
        if not fields.has(name):
            return None
        found = fields.inner(name)
        return cls(*(found.number(one) for one in ("p50", "p95", "p99", "max")))


@dataclass(frozen=True, slots=True)
class WaitingBatch:
    """The batches of a partition; records, bytes and room are those of the last of them."""

    topic: str
    partition: int
    leader: int
    batches: int
    records: int
    bytes: int
    room_bytes: int
    age_ms: float
    attempts: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def fill(self) -> float:
        return min(1.0, self.bytes / self.room_bytes) if self.room_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ReachedBroker:
    id: int
    address: str
    is_connected: bool
    in_flight: int
    in_flight_max: int
    sent_bytes: float


@dataclass(frozen=True, slots=True)
class ToldError:
    time_ms: int
    where: str
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Look:
    """What a producer has told once."""

    client_id: str
    place: str
    started_ms: int
    interval_ms: int
    is_closed: bool
    transactional_id: str | None
    transaction_state: str
    interceptors: tuple[str, ...]
    interceptor_errors: int
    key_serializer: str
    value_serializer: str
    partitioner: str | None
    pool_bytes: float
    pool_used_bytes: float
    waiting_threads: int
    waited_ms: float
    exhausted: int
    batch_bytes: int
    linger_ms: float
    partitions: int
    queued: int
    oldest: tuple[WaitingBatch, ...]
    brokers: tuple[ReachedBroker, ...]
    topics: tuple[tuple[str, float, float], ...]
    """Name, records, bytes; the largest first."""
    records: float
    sent_bytes: float
    retries: float
    errors: float
    splits: float
    queue: Percentiles | None
    request: Percentiles | None
    delivery: Percentiles | None
    last_errors: tuple[ToldError, ...]

    @classmethod
    def of(cls, found: Fields) -> Look:
        steps, pool, batches, totals = (found.inner(name) for name in ("steps", "pool", "batches", "totals"))
        transaction = found.inner("transaction") if found.has("transaction") else None
        latency = found.inner("latency")
        return cls(
            client_id=found.text("client_id"),
            place=f"{found.text('host')}, process {found.whole('pid')}",
            started_ms=found.whole("started_ms"),
            interval_ms=max(100, found.whole("interval_ms")),
            is_closed=found.flag("is_closed"),
            transactional_id=None if transaction is None else transaction.text("id"),
            transaction_state="" if transaction is None else transaction.text("state"),
            interceptors=steps.texts("interceptors"),
            interceptor_errors=steps.whole("interceptor_errors"),
            key_serializer=steps.text("key_serializer"),
            value_serializer=steps.text("value_serializer"),
            partitioner=steps.text("partitioner", "") or None,
            pool_bytes=pool.number("total_bytes"),
            pool_used_bytes=pool.number("used_bytes"),
            waiting_threads=pool.whole("waiting_threads"),
            waited_ms=pool.number("waited_ms"),
            exhausted=pool.whole("exhausted"),
            batch_bytes=batches.whole("batch_bytes"),
            linger_ms=batches.number("linger_ms"),
            partitions=batches.whole("partitions"),
            queued=batches.whole("queued"),
            oldest=tuple(_waiting(one) for one in batches.items("oldest")),
            brokers=tuple(_broker(one) for one in found.items("brokers")),
            topics=tuple(
                (one.text("topic"), one.number("records"), one.number("bytes")) for one in found.items("topics")
            ),
            records=totals.number("records"),
            sent_bytes=totals.number("sent_bytes"),
            retries=totals.number("retries"),
            errors=totals.number("errors"),
            splits=totals.number("splits"),
            queue=Percentiles.of(latency, "queue"),
            request=Percentiles.of(latency, "request"),
            delivery=Percentiles.of(latency, "delivery"),
            last_errors=tuple(
                ToldError(one.whole("time_ms"), one.text("where"), one.text("text"), one.whole("count"))
                for one in found.items("errors")
            ),
        )


def _waiting(found: Fields) -> WaitingBatch:
    return WaitingBatch(
        topic=found.text("topic"),
        partition=found.whole("partition"),
        leader=found.whole("leader"),
        batches=found.whole("batches"),
        records=found.whole("records"),
        bytes=found.whole("bytes"),
        room_bytes=found.whole("room_bytes"),
        age_ms=found.number("age_ms"),
        attempts=found.whole("attempts"),
    )


def _broker(found: Fields) -> ReachedBroker:
    return ReachedBroker(
        id=found.whole("id"),
        address=found.text("address"),
        is_connected=found.flag("is_connected"),
        in_flight=found.whole("in_flight"),
        in_flight_max=found.whole("in_flight_max"),
        sent_bytes=found.number("sent_bytes"),
    )


def heard_of(heard_s: float) -> str:
    """just now, or 12 s ago"""
    return "just now" if time.time() - heard_s < FRESH_SECONDS else formatting.ago(heard_s)


class ToldProducer:
    """One that reports, for as long as it is remembered."""

    def __init__(self, id: str, look: Look) -> None:
        self.id = id
        self.last = look
        self.heard_s = 0.0  # since 1970, by the clock of the view
        self.records = Rate[str]()
        self.sent = Rate[str]()
        self.used_share = Series()
        self.p50_ms = Series()
        self.p99_ms = Series()

    def take(self, look: Look) -> None:
        now = self.heard_s = time.time()
        self.last = look
        self.records.read(now, {"records": look.records})
        self.sent.read(now, {"bytes": look.sent_bytes})
        self.used_share.add(now, 100 * look.pool_used_bytes / look.pool_bytes if look.pool_bytes else 0.0)
        self.p50_ms.add(now, look.delivery.p50 if look.delivery else None)
        self.p99_ms.add(now, look.delivery.p99 if look.delivery else None)

    @property
    def is_silent(self) -> bool:
        """Nothing was heard for so long that something is wrong, unless it has said farewell."""
        return not self.last.is_closed and time.time() - self.heard_s > SILENT_INTERVALS * self.last.interval_ms / 1000

    @property
    def is_live(self) -> bool:
        return not self.last.is_closed and not self.is_silent
