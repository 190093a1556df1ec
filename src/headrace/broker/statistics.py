"""What a broker has served since its start: by type of request and by topic, with the rates of the last minute.

    Dispatcher → RequestStatistics: requests, failures by error code, times
    ReplicaManager.append → TopicStatistics: records and bytes in, also of the short cut for produce requests
    responses to Produce and Fetch → TopicStatistics: bytes out, failures

Recording is an addition. Rates come from copies of the counters that are made every few seconds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headrace.broker.clock import Timer, TimerClock
from headrace.errors import error_name
from headrace.wire.api import api_name
from headrace.wire.fields import ARRAY
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message, Struct

if TYPE_CHECKING:
    from headrace.broker.catalog.topics import Topics
    from headrace.wire.api.fetch import FetchRequest, FetchResponse
    from headrace.wire.api.produce import ProduceResponse

COPY_EVERY_MS = 10_000
COPIES = 6
"""Rates are those of the last COPIES × COPY_EVERY_MS."""


class RequestStatistics:
    """The requests of one type."""

    __slots__ = ("errors", "failed", "maximum_s", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = 0
        self.failed = 0  # with an error code in the response, or a closed connection instead of it
        self.seconds = 0.0  # from the request to its response, waiting included
        self.maximum_s = 0.0  # since the last copy
        self.errors: Counter[int] = Counter()  # by code: a response may have several

    def record(self, seconds: float) -> None:
        self.requests += 1
        self.seconds += seconds
        if seconds > self.maximum_s:
            self.maximum_s = seconds

    def counters(self) -> tuple[float, ...]:
        return self.requests, self.failed, self.seconds


class TopicStatistics:
    """The partitions of a topic that this broker leads."""

    __slots__ = ("bytes_in", "bytes_out", "failed_fetches", "failed_produces", "records_in")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.bytes_out = 0  # to consumers
        self.failed_produces = 0  # partitions of requests
        self.failed_fetches = 0

    def counters(self) -> tuple[int, ...]:
        """Return the counters in the order of their names."""
        return self.bytes_in, self.bytes_out, self.failed_fetches, self.failed_produces, self.records_in


class _Copy(NamedTuple):
    """The counters at one time, and the longest times before it."""

    time_ms: float
    requests: dict[int, tuple[float, ...]]
    topics: dict[str, tuple[float, ...]]
    maxima_s: dict[int, float]


class Statistics:
    """The statistics of a broker. Event loop only."""

    def __init__(self, clock: TimerClock) -> None:
        self._clock = clock
        self.requests: dict[int, RequestStatistics] = {}  # by API key
        self.topics: dict[str, TopicStatistics] = {}
        self._copies = deque([self._copy()], maxlen=COPIES)
        self._timer: Timer | None = None

    def start(self) -> None:
        self._timer = self._clock.call_later(COPY_EVERY_MS, self._on_timer)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def request(self, api_key: int) -> RequestStatistics:
        """Return the statistics of a type of request."""
        statistics = self.requests.get(api_key)
        if statistics is None:
            statistics = self.requests[api_key] = RequestStatistics()
        return statistics

    def topic(self, name: str) -> TopicStatistics:
        """Return the statistics of an existing topic."""
        statistics = self.topics.get(name)
        if statistics is None:
            statistics = self.topics[name] = TopicStatistics()
        return statistics

    @property
    def failed_requests(self) -> int:
        return sum(statistics.failed for statistics in self.requests.values())

    def responded(self, api_key: int, response: Message, seconds: float) -> None:
        """Record a request and the errors in its response."""
        statistics = self.request(api_key)
        statistics.record(seconds)
        codes: list[int] = []
        _collect(_error_fields(type(response)), response, codes)
        if codes:
            statistics.failed += 1
            statistics.errors.update(codes)

    def closed(self, api_key: int, seconds: float) -> None:
        """Record a failed request whose connection is closed without a response."""
        statistics = self.request(api_key)
        statistics.record(seconds)
        statistics.failed += 1

    def fetched(self, request: FetchRequest, response: FetchResponse, topics: Topics) -> None:
        """Record what a consumer was sent."""
        if request.replica_id >= 0 or request.replica_state.replica_id >= 0:
            return  # a follower
        for topic in response.responses:
            name = _existing(topic.topic, topic.topic_id, topics)
            if name is None:
                continue
            statistics = self.topic(name)
            for partition in topic.partitions:
                if partition.error_code:
                    statistics.failed_fetches += 1
                elif partition.records:
                    statistics.bytes_out += len(cast(Buffer, partition.records))

    def produced(self, response: ProduceResponse, topics: Topics) -> None:
        """Record the failures of a produce request."""
        for topic in response.responses:
            failed = sum(partition.error_code != 0 for partition in topic.partition_responses)
            if failed and (name := _existing(topic.name, topic.topic_id, topics)) is not None:
                self.topic(name).failed_produces += failed

    def request_rows(self) -> list[dict[str, Any]]:
        """Return a row for each type of request, by name."""
        first = self._copies[0]
        rows = []
        for api_key, statistics in self.requests.items():
            requests, failed, seconds = self._growth(first, statistics.counters(), first.requests.get(api_key))
            longest_s = max(statistics.maximum_s, *(copy.maxima_s.get(api_key, 0.0) for copy in self._copies))
            rows.append(
                {
                    "api": api_name(api_key),
                    "requests": statistics.requests,
                    "failed": statistics.failed,
                    "errors": {error_name(code): count for code, count in sorted(statistics.errors.items())},
                    "seconds": statistics.seconds,
                    "requests_per_s": requests,
                    "failed_per_s": failed,
                    "mean_ms": seconds / requests * 1000 if requests else 0.0,
                    "max_ms": longest_s * 1000,
                }
            )
        return sorted(rows, key=lambda row: str(row["api"]))

    def topic_rows(self, rows_max: int | None = None) -> list[dict[str, Any]]:
        """Return a row for each topic with traffic, by name; `rows_max`: those with the most bytes."""
        first = self._copies[0]
        busiest = sorted(self.topics, key=lambda name: self.topics[name].bytes_in + self.topics[name].bytes_out)
        rows = []
        for name in sorted(busiest if rows_max is None else busiest[-rows_max:]):
            counters = self.topics[name].counters()
            rates = self._growth(first, counters, first.topics.get(name))
            row: dict[str, float] = dict(zip(TopicStatistics.__slots__, counters, strict=True))
            row |= {f"{key}_per_s": rate for key, rate in zip(TopicStatistics.__slots__, rates, strict=True)}
            rows.append({"topic": name, **row})
        return rows

    def _growth(self, first: _Copy, counters: tuple[float, ...], before: tuple[float, ...] | None) -> list[float]:
        """Return the growth of counters per second since a copy."""
        seconds = max(self._clock.monotonic_ms() - first.time_ms, 1.0) / 1000
        return [(now - then) / seconds for now, then in zip(counters, before or (0,) * len(counters), strict=True)]

    def _on_timer(self) -> None:
        self._copies.append(self._copy())
        self.start()

    def _copy(self) -> _Copy:
        maxima_s = {api_key: statistics.maximum_s for api_key, statistics in self.requests.items()}
        for statistics in self.requests.values():
            statistics.maximum_s = 0.0
        return _Copy(
            self._clock.monotonic_ms(),
            {api_key: statistics.counters() for api_key, statistics in self.requests.items()},
            {name: statistics.counters() for name, statistics in self.topics.items()},
            maxima_s,
        )


def merged(rows: Iterable[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return the rows of several brokers with those of the same type of request, topic or group added up."""
    totals: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = totals.get(row[key])
        if total is None:
            totals[row[key]] = dict(row)
            continue
        if "mean_ms" in row and (rate := total["requests_per_s"] + row["requests_per_s"]):
            time_ms = sum(each["mean_ms"] * each["requests_per_s"] for each in (total, row))
            total["mean_ms"] = time_ms / rate
        for name, value in row.items():
            if name == "max_ms":
                total[name] = max(total[name], value)
            elif name == "errors":
                total[name] = dict(Counter(total[name]) + Counter(value))
            elif name not in (key, "mean_ms"):
                total[name] += value
    return [totals[name] for name in sorted(totals)]


def _existing(name: str, topic_id: bytes, topics: Topics) -> str | None:
    """Return the name of a topic in a response; None if it does not exist."""
    if name:
        return name if name in topics.by_name else None
    topic = topics.by_id.get(topic_id)
    return None if topic is None else topic.name


class _ErrorFields(NamedTuple):
    """Where the error codes of a struct are."""

    positions: tuple[int, ...]
    arrays: tuple[tuple[int, _ErrorFields], ...]


@cache
def _error_fields(cls: type[Struct]) -> _ErrorFields:
    positions: list[int] = []
    arrays: list[tuple[int, _ErrorFields]] = []
    for position, (name, field) in enumerate(cls.fields.items()):
        if name.endswith("error_code"):
            positions.append(position)
        elif field.kind == ARRAY and isinstance(field.element, type):
            inner = _error_fields(field.element)
            if inner.positions or inner.arrays:
                arrays.append((position, inner))
    return _ErrorFields(tuple(positions), tuple(arrays))


def _collect(fields: _ErrorFields, struct: Struct, codes: list[int]) -> None:
    """Add the error codes of a response other than NONE."""
    for position in fields.positions:
        if struct[position]:
            codes.append(struct[position])
    for position, inner in fields.arrays:
        for element in struct[position] or ():
            _collect(inner, element, codes)
