"""Many queries in one driver: Spark runs the commits of each in any of its Python processes.

Five queries run, two of which read the topics of two others, while Python workers of tasks and commits are killed.
Spark retries a killed task; a killed commit ends its query, which is restarted from its checkpoint.

`make test-many-queries` runs them for three minutes on each broker (HEADRACE_MANY_QUERIES_SECONDS=180).
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.crashes import committed, open_transactions, settle
from tests.support.peers.broker import Broker
from tests.support.spark_driver import SparkDriver, kill_all
from tests.support.topics import new_topic
from tests.support.waiting import eventually

SECONDS = float(os.environ.get("HEADRACE_MANY_QUERIES_SECONDS", "30"))
SEED = int(os.environ.get("HEADRACE_MANY_QUERIES_SEED", "7"))
KILL_EVERY_SECONDS = (3.0, 6.0)
START_SECONDS_MAX = 120
DRAIN_SECONDS_MAX = 90
ROWS_PER_SECOND_MIN = 10
"""Of the 60 that the sources make; counted from the first batch of every query on."""
STOPS_MAX = 8
LIMIT_SECONDS = 420
COMMITTING, WORKING = "pyspark.sql.worker.python_streaming_sink_runner", "pyspark.worker"
OF_HEADRACE = "headrace/spark/"
"""In the traceback of an error that headrace has raised. One that a kill has caused has none: Python is gone."""


class Query:
    """A query that is started again when it has ended."""

    def __init__(self, name: str, source: dict[str, str], columns: list[str], folder: Path, broker: Broker) -> None:
        self.name = name
        self.topic = new_topic(broker, name, 2)
        self.errors: list[str] = []
        self._source, self._columns, self._folder = source, columns, folder
        # Rows of some batches ride home to the driver, others are written by the tasks.
        self._options = {
            "kafka.bootstrap.servers": broker.bootstrap,
            "topic": self.topic,
            "commit.inline.bytes.max": "1500",
        }

    def start(self, driver: SparkDriver) -> None:
        driver.stream(self.name, self._source, self._columns, self._folder / self.name, self._options, 2)

    def see_to(self, driver: SparkDriver) -> None:
        """Start it again if it has ended."""
        error = driver.end_of(self.name)
        if error is not None:
            self.errors.append(error)
            self.start(driver)


@pytest.mark.timeout(3 * SECONDS + LIMIT_SECONDS)
@pytest.mark.behaviour("S11")
@pytest.mark.parametrize(
    "broker_of_queries",
    [pytest.param("headrace_broker", id="headrace"), pytest.param("kafka", id="apache", marks=pytest.mark.slow)],
    indirect=True,
)
def test_five_queries_in_one_driver_write_every_row_once(broker_of_queries, tmp_path):
    broker = broker_of_queries
    rate = {"format": "rate", "rowsPerSecond": "60"}
    numbers = ["CAST(value % 7 AS STRING) AS key", "CAST(value AS STRING) AS value"]
    sources = [Query(f"rate-{n}", rate, numbers, tmp_path, broker) for n in range(3)]
    copies = [
        Query(
            f"copy-{n}",
            {
                "format": "headrace",
                "kafka.bootstrap.servers": broker.bootstrap,
                "subscribe": sources[n].topic,
                "startingOffsets": "earliest",
            },
            ["key", "value"],
            tmp_path,
            broker,
        )
        for n in range(2)
    ]
    queries = [*sources, *copies]
    driver = SparkDriver(tmp_path / "driver", "local[4,8]")
    try:
        driver.open()
        for query in queries:
            query.start(driver)
        for query in queries:  # Spark starts slowly on a busy machine
            eventually(f"the first batch of {query.name}", caught_up(driver, query, broker, 1), START_SECONDS_MAX)
        kills = run_with_kills(driver, queries)
        for query in sources:
            stop(driver, query, broker)
        for number, query in enumerate(copies):
            expected = len(values(broker, sources[number].topic))
            eventually(f"the end of {query.name}", caught_up(driver, query, broker, expected), DRAIN_SECONDS_MAX)
            stop(driver, query, broker)
    finally:
        driver.close()
    print(f"{kills} kills; restarts:", {query.name: len(query.errors) for query in queries})
    for query in queries:
        assert [error for error in query.errors if OF_HEADRACE in error] == []
        assert len(query.errors) <= kills
        counts = values(broker, query.topic)
        assert len(counts) > SECONDS * ROWS_PER_SECOND_MIN, "hardly anything was written"
        assert [value for value, count in counts.items() if count != 1] == []
        assert not open_transactions(broker.bootstrap, query.topic)
    for query in sources:
        counts = values(broker, query.topic)
        assert sorted(map(int, counts)) == [*range(len(counts))], "rows are missing"
    for number, query in enumerate(copies):
        assert values(broker, query.topic) == values(broker, sources[number].topic)
    assert any(query.errors for query in queries), "no commit was killed"


def run_with_kills(driver: SparkDriver, queries: list[Query]) -> int:
    """Kill workers for the time of the test, and until a kill meets a commit; returns how many were killed."""
    chance = random.Random(SEED)
    over, last = time.monotonic() + SECONDS, time.monotonic() + 3 * SECONDS
    next_kill = time.monotonic() + SECONDS / 4  # without any, queries have to get on with each other as well
    kills = 0
    while time.monotonic() < over or (time.monotonic() < last and not any(query.errors for query in queries)):
        for query in queries:
            query.see_to(driver)
        if time.monotonic() > next_kill:
            module = chance.choice([COMMITTING, WORKING])
            workers = driver.python_workers(module)
            # Most of the pool that commits is idle at any moment: of all of it, some are in the middle of a commit.
            victims = workers if module == COMMITTING else chance.sample(workers, min(1, len(workers)))
            kill_all(victims)
            kills += len(victims)
            next_kill = time.monotonic() + chance.uniform(*KILL_EVERY_SECONDS)
        time.sleep(0.2)
    return kills


def stop(driver: SparkDriver, query: Query, broker: Broker) -> None:
    """To stop a query in the middle of a commit is a kind of death: it is started again to end what is open."""
    for _ in range(STOPS_MAX):
        query.see_to(driver)
        driver.stop(query.name)
        settle(broker.bootstrap, query.topic)
        if not open_transactions(broker.bootstrap, query.topic):
            return
        query.start(driver)
        count = len(values(broker, query.topic)) + 1
        eventually("a batch more", caught_up(driver, query, broker, count), DRAIN_SECONDS_MAX)
    raise AssertionError(f"{query.name} has been stopped {STOPS_MAX} times, and has a transaction open each time")


def caught_up(driver: SparkDriver, query: Query, broker: Broker, count: int):
    def ask() -> bool:
        query.see_to(driver)
        return len(values(broker, query.topic)) >= count

    return ask


def values(broker: Broker, topic: str) -> Counter[str]:
    records = committed(broker.bootstrap, topic).values()
    return Counter((value or b"").decode() for partition in records for _, value in partition)


@pytest.fixture
def broker_of_queries(request):
    return request.getfixturevalue(request.param)
