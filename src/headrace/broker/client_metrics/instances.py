"""Client instances: what each has to push and when, and the metrics it pushed last.

    GetTelemetrySubscriptions ─► the subscriptions that match the client ─► metrics, interval, subscription id
    PushTelemetry             ─► rejected: before its time, of another subscription, too large, not OTLP
                                 accepted: replaces the points of the instance

Rules and errors are those of Apache Kafka's ClientMetricsManager. An instance that does not push any more is dropped
after three intervals, or a minute.
"""

from __future__ import annotations

import math
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.catalog.configs import CLIENT_METRICS, Configs
from headrace.broker.client_metrics.options import ALL_METRICS, INTERVAL_MS_DEFAULT, ClientFacts, Subscription
from headrace.config.clock import Clock
from headrace.errors import BrokerError, Code
from headrace.wire.compression import GZIP, LZ4, SNAPPY, ZSTD

if TYPE_CHECKING:
    from headrace.broker.client_metrics.otlp import Attributes, Point

INSTANCES_MAX = 1_000
POINTS_MAX = 50_000
"""Of all instances; the least recently used ones are dropped first."""
EXPIRY_INTERVALS = 3
EXPIRY_MS_MIN = 60_000
COMPRESSION_TYPES = (ZSTD, LZ4, GZIP, SNAPPY)
"""In the order in which clients are to choose."""

_RETRIED = (Code.UNKNOWN_SUBSCRIPTION_ID, Code.UNSUPPORTED_COMPRESSION_TYPE)
"""Errors after which a client may ask for its subscription at once."""


class Assignment(NamedTuple):
    """What a client has to push."""

    subscription_id: int
    metrics: tuple[str, ...]  # prefixes; an empty one is all metrics
    interval_ms: int


@dataclass(slots=True)
class ClientInstance:
    """A client process that gets telemetry subscriptions."""

    facts: ClientFacts
    assignment: Assignment
    last_get_ms: float = -math.inf
    last_push_ms: float = -math.inf
    last_error: int = Code.NONE
    is_terminating: bool = False
    pushed_time_ms: int | None = None  # since 1970
    points: dict[tuple[str, Attributes], Point] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the client and its subscription, without its metrics."""
        return self.facts._asdict() | {
            "subscribed": list(self.assignment.metrics),
            "interval_ms": self.assignment.interval_ms,
            "pushed_time_ms": self.pushed_time_ms,
            "metrics": len(self.points),
            "is_terminating": self.is_terminating,
        }


class ClientInstances:
    """All client instances of a broker. Event loop only."""

    def __init__(self, configs: Configs, clock: Clock) -> None:
        self._configs = configs
        self._clock = clock
        self._by_id: dict[bytes, ClientInstance] = {}  # the least recently used first

    def get(self, instance_id: bytes, facts: ClientFacts) -> Assignment:
        """Return what a client has to push. Raise THROTTLING_QUOTA_EXCEEDED if it asks too often."""
        now_ms = self._clock.monotonic_ms()
        instance = self._instance(instance_id, facts)
        elapsed_ms = now_ms - max(instance.last_get_ms, instance.last_push_ms)
        if elapsed_ms < instance.assignment.interval_ms and instance.last_error not in _RETRIED:
            raise self._rejected(instance, Code.THROTTLING_QUOTA_EXCEEDED, "requested before the push interval is over")
        instance.last_get_ms, instance.last_error = now_ms, Code.NONE
        return instance.assignment

    def check_push(self, instance_id: bytes, facts: ClientFacts, subscription_id: int, *, is_last: bool) -> None:
        """Raise unless the client may push now."""
        now_ms = self._clock.monotonic_ms()
        instance = self._instance(instance_id, facts)
        if instance.is_terminating:
            raise self._rejected(instance, Code.INVALID_REQUEST, "the client has announced that it terminates")
        is_due = instance.last_get_ms > instance.last_push_ms
        if not is_due and now_ms - instance.last_push_ms < instance.assignment.interval_ms and not is_last:
            raise self._rejected(instance, Code.THROTTLING_QUOTA_EXCEEDED, "pushed before the push interval is over")
        instance.last_push_ms = now_ms
        if subscription_id != instance.assignment.subscription_id:
            raise self._rejected(instance, Code.UNKNOWN_SUBSCRIPTION_ID, "the subscriptions have changed")
        instance.is_terminating = is_last

    def reject(self, instance_id: bytes, code: int) -> None:
        """Note that a push was rejected for another reason."""
        if instance := self._by_id.get(instance_id):
            instance.last_error = code

    def store(self, instance_id: bytes, points: Iterable[Point]) -> None:
        """Replace the points of an instance; deltas are added to the previous values."""
        instance = self._by_id.get(instance_id)
        if instance is None:
            return
        previous, instance.points = instance.points, {}
        for point in points:
            key = (point.name, point.attributes)
            before = previous.get(key)
            if point.is_delta and before is not None:
                point = point._replace(value=before.value + point.value)
            instance.points[key] = point
        instance.pushed_time_ms = self._clock.time_ms()
        self._drop_beyond_limits(instance_id)

    def all(self) -> list[ClientInstance]:
        """Return the instances that have pushed metrics."""
        self._drop_expired()
        return [instance for instance in self._by_id.values() if instance.pushed_time_ms is not None]

    def points_to_json(self, client_instance_id: str) -> list[dict[str, Any]]:
        """Return the metrics of an instance; none if it is unknown."""
        points = (i.points.values() for i in self._by_id.values() if i.facts.client_instance_id == client_instance_id)
        return [
            {"name": point.name, "attributes": dict(point.attributes), "value": point.value, "is_sum": point.is_sum}
            for point in next(points, ())
        ]

    def _instance(self, instance_id: bytes, facts: ClientFacts) -> ClientInstance:
        """Return an instance, with the current subscriptions."""
        instance = self._by_id.pop(instance_id, None)
        assignment = self._assignment(instance_id, facts)
        if instance is None:
            self._drop_expired()
            while len(self._by_id) >= INSTANCES_MAX:
                del self._by_id[next(iter(self._by_id))]
            instance = ClientInstance(facts, assignment)
        instance.facts, instance.assignment = facts, assignment
        self._by_id[instance_id] = instance  # the most recently used
        return instance

    def _assignment(self, instance_id: bytes, facts: ClientFacts) -> Assignment:
        subscriptions = [
            Subscription.of(self._configs.of(CLIENT_METRICS, name)) for name in self._configs.names(CLIENT_METRICS)
        ]
        matching = [subscription for subscription in subscriptions if subscription.matches(facts)]
        names = {name for subscription in matching for name in subscription.metrics}
        metrics = ("",) if ALL_METRICS in names else tuple(sorted(names))
        interval_ms = min((subscription.interval_ms for subscription in matching), default=INTERVAL_MS_DEFAULT)
        checksum = zlib.crc32(f"{metrics} {interval_ms}".encode(), zlib.crc32(instance_id))
        return Assignment(checksum - (1 << 31), metrics, interval_ms)

    def _drop_expired(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for instance_id, instance in list(self._by_id.items()):
            idle_ms = now_ms - max(instance.last_get_ms, instance.last_push_ms)
            if idle_ms > max(EXPIRY_INTERVALS * instance.assignment.interval_ms, EXPIRY_MS_MIN):
                del self._by_id[instance_id]

    def _drop_beyond_limits(self, kept_id: bytes) -> None:
        count = sum(len(instance.points) for instance in self._by_id.values())
        for instance_id, instance in list(self._by_id.items()):
            if count <= POINTS_MAX:
                return
            if instance_id != kept_id:
                count -= len(instance.points)
                instance.points = {}

    def _rejected(self, instance: ClientInstance, code: Code, reason: str) -> BrokerError:
        instance.last_error = code
        return BrokerError(f"telemetry of client {instance.facts.client_id!r}: {reason}", code=code)


def new_instance_id() -> bytes:
    return uuid.uuid4().bytes
