"""Enforcing quotas: the rates of clients and their throttle times.

    request → the most specific quota of its user and client id → its rate over the last windows
            → above the quota: throttle until the rate is below it, if nothing more is sent

As in Kafka, the response contains the throttle time, and the connection is muted for that time. Clients of the same
quota share its rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.broker.catalog.configs import (
    CLIENT_ID,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    Quotas,
)
from headrace.broker.context import Context
from headrace.config import Config
from headrace.config.clock import Clock
from headrace.config.sampling import Samples
from headrace.wire.api import ApiKey

RATES_MAX = 10_000
"""How many rates are tracked; the least recently used are dropped first."""

_BYTE_RATES: dict[int, str] = {ApiKey.PRODUCE: PRODUCER_BYTE_RATE, ApiKey.FETCH: CONSUMER_BYTE_RATE}
_NEVER_THROTTLED = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE})


class _Limit(NamedTuple):
    value: float
    shared_by: tuple[str | None, str | None]  # user and client id; None: any


class QuotaManager:
    """Tracks the usage of clients. Event loop only."""

    def __init__(self, quotas: Quotas, clock: Clock, config: Config) -> None:
        self._quotas = quotas
        self._clock = clock
        self._windows_max = config.of(int, "quota.window.num")
        self._window_ms = config.of(int, "quota.window.size.seconds") * 1000
        self._rates: dict[tuple[str, tuple[str | None, str | None]], Samples] = {}
        self._limits: dict[tuple[str, str, str], _Limit | None] = {}
        self._version = 0

    @property
    def active(self) -> bool:
        """Whether any quota is set; otherwise usage is not tracked."""
        return bool(self._quotas.by_entity)

    def throttle_ms(
        self, context: Context, *, api_key: int, request_bytes: int, response_bytes: int, handler_ms: float
    ) -> int:
        """Record a served request; return its throttle time."""
        if api_key in _NEVER_THROTTLED or not self.active:
            return 0
        used = 0
        rate = _BYTE_RATES.get(api_key)
        if rate is not None:
            used = self._record(context, rate, request_bytes if api_key == ApiKey.PRODUCE else response_bytes)
        # As in Kafka: 100 % is one second per second, and throttling is limited to one window.
        percent = self._record(context, REQUEST_PERCENTAGE, handler_ms / 10)
        return max(used, min(percent, self._window_ms))

    def _record(self, context: Context, name: str, value: float) -> int:
        limit = self._limit(context.session.principal.removeprefix("User:"), context.client_id or "", name)
        if limit is None:
            return 0
        now_ms = self._clock.monotonic_ms()
        rate = self._rate(name, limit.shared_by)
        rate.record(value, now_ms)
        measured, span_ms = rate.rate_and_span_ms(now_ms)
        if measured <= limit.value:
            return 0
        return round((measured - limit.value) / limit.value * span_ms) if limit.value > 0 else self._window_ms

    def _rate(self, name: str, shared_by: tuple[str | None, str | None]) -> Samples:
        key = (name, shared_by)
        rate = self._rates.pop(key, None)
        if rate is None:
            rate = Samples(self._windows_max, self._window_ms)
            if len(self._rates) >= RATES_MAX:
                del self._rates[next(iter(self._rates))]
        self._rates[key] = rate  # most recently used
        return rate

    def _limit(self, user: str, client_id: str, name: str) -> _Limit | None:
        if self._version != self._quotas.version:
            self._version = self._quotas.version
            self._limits.clear()
        key = (user, client_id, name)
        if key not in self._limits:
            if len(self._limits) >= RATES_MAX:
                self._limits.clear()
            self._limits[key] = self._most_specific(user, client_id, name)
        return self._limits[key]

    def _most_specific(self, user: str, client_id: str, name: str) -> _Limit | None:
        for entity, shared_by in _candidates(user, client_id):
            value = self._quotas.by_entity.get(entity, {}).get(name)
            if value is not None:
                return _Limit(value, shared_by)
        return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[Entity, tuple[str | None, str | None]]]:
    """Yield the entities that may have the quota, most specific first as in Kafka, and the clients that share it."""
    for user_name in (user, None):
        for client_name in (client_id, None):
            yield ((CLIENT_ID, client_name), (USER, user_name)), (user, client_id)
        yield ((USER, user_name),), (user, None)
    for client_name in (client_id, None):
        yield ((CLIENT_ID, client_name),), (None, client_id)
