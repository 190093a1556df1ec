"""The producer on its own: what `headrace bench producer` measures.

topic → rounds of as fast as it goes → a steady rate → medians and percentiles → topic deleted
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.cli.connection import Connection
    from headrace.producer.producer import Producer

WARM_UP_RECORDS = 1_000
SECONDS_MAX = 600.0
"""For the acknowledgements of one round."""
PERCENTILES = (50, 95, 99, 99.9)
TICK_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Load:
    records: int
    value_bytes: int
    rounds: int
    partitions: int
    rate: int
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """Medians over rounds; latencies in milliseconds, by percentile."""

    bootstrap: str
    records: int
    value_bytes: int
    rounds: int
    records_per_s: float
    mb_per_s: float
    cpu_us_per_record: float
    latency_rate: int
    latency_ms: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        latencies = ", ".join(f"p{name} {value:.2f}" for name, value in self.latency_ms.items())
        return "\n".join(
            [
                f"{self.records_per_s:,.0f} records/s, {self.mb_per_s:,.1f} MB/s of values, "
                f"{self.cpu_us_per_record:.2f} µs of CPU a record",
                f"  ({self.records:,} records of {self.value_bytes} bytes, median of {self.rounds}, {self.bootstrap})",
                f"latency in ms at {self.latency_rate:,} records/s: {latencies}",
            ]
        )


def measure(connection: Connection, topic: str | None, load: Load, say: Callable[[str], None]) -> Result:
    with _topic(connection, topic, load.partitions) as name, connection.producer() as producer:
        value = b"v" * load.value_bytes
        _send(producer, name, value, WARM_UP_RECORDS)
        rates, costs = [], []
        for number in range(load.rounds):
            rate, cost = _round(producer, name, value, load.records)
            rates.append(rate)
            costs.append(cost)
            say(f"round {number + 1} of {load.rounds}: {rate:,.0f} records/s")
        latencies = _latencies(producer, name, value, load)
    rate = statistics.median(rates)
    return Result(
        connection.bootstrap,
        load.records,
        load.value_bytes,
        load.rounds,
        rate,
        rate * load.value_bytes / 1e6,
        statistics.median(costs),
        load.rate,
        latencies,
    )


@contextlib.contextmanager
def _topic(connection: Connection, name: str | None, partitions: int) -> Iterator[str]:
    """The user's own, which is left as it is then, or one that is gone afterwards."""
    if name is not None:
        yield name
        return
    from headrace.client.admin import NewTopic

    made = f"headrace-bench-{uuid.uuid4().hex[:12]}"
    with connection.admin() as admin:
        admin.create_topics([NewTopic(made, partitions)])
    try:
        yield made
    finally:
        with contextlib.suppress(HeadraceError), connection.admin() as admin:
            admin.delete_topics([made])


def _send(producer: Producer, topic: str, value: bytes, count: int) -> None:
    send = producer.send
    last = None
    for _ in range(count):
        last = send(topic, value)
    producer.flush(SECONDS_MAX)
    if last is not None:
        last.result(SECONDS_MAX)  # an error ends the measurement


def _round(producer: Producer, topic: str, value: bytes, count: int) -> tuple[float, float]:
    """Records a second, and microseconds of CPU for each."""
    cpu, started = _cpu_seconds(), time.perf_counter()
    _send(producer, topic, value, count)
    seconds = time.perf_counter() - started
    return count / seconds, (_cpu_seconds() - cpu) / count * 1e6


def _latencies(producer: Producer, topic: str, value: bytes, load: Load) -> dict[str, float]:
    """From send() to the acknowledgement, at a steady rate."""
    taken: list[float] = []
    failures: list[Exception] = []
    started = time.perf_counter()
    count, sent = int(load.rate * load.latency_seconds), 0
    while sent < count:
        due = min(count, int((time.perf_counter() - started) * load.rate) + 1)
        while sent < due:
            producer.send(topic, value, on_delivery=_noting(time.perf_counter(), taken, failures))
            sent += 1
        time.sleep(TICK_SECONDS)
    producer.flush(SECONDS_MAX)
    if failures:
        raise failures[0]
    taken.sort()
    return {f"{p:g}": taken[min(len(taken) - 1, int(len(taken) * p / 100))] * 1000 for p in PERCENTILES}


def _noting(since: float, taken: list[float], failures: list[Exception]) -> Callable[[object, Exception | None], None]:
    def on_delivery(_: object, error: Exception | None) -> None:
        if error is not None:
            failures.append(error)
        taken.append(time.perf_counter() - since)

    return on_delivery


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
