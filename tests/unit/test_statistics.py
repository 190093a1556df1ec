"""Statistics: rates of the last minute, longest times, and the sum over brokers."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.statistics import COPIES, COPY_EVERY_MS, Statistics, merged
from headrace.errors import Code
from headrace.wire.api import ApiKey
from headrace.wire.api.groups import HeartbeatResponse
from headrace.wire.api.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.support.fake_internal import HandClock

WINDOW_MS = COPIES * COPY_EVERY_MS


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def statistics(clock):
    statistics = Statistics(clock)
    statistics.start()
    return statistics


def row(statistics):
    (row,) = statistics.request_rows()
    return row


def test_rates_and_times_are_those_of_the_last_minute(clock, statistics):
    for _ in range(30):
        statistics.responded(ApiKey.HEARTBEAT, HeartbeatResponse(), 0.5)
    asyncio.run(clock.run(COPY_EVERY_MS))
    assert row(statistics)["requests_per_s"] == pytest.approx(3)
    assert row(statistics)["mean_ms"] == pytest.approx(500)
    for _ in range(2 * COPIES):
        asyncio.run(clock.run(COPY_EVERY_MS))
    statistics.responded(ApiKey.HEARTBEAT, HeartbeatResponse(), 0.01)
    facts = row(statistics)
    assert facts["requests"] == 31
    assert facts["requests_per_s"] <= 1 / (WINDOW_MS - COPY_EVERY_MS) * 1000
    assert facts["mean_ms"] == pytest.approx(10)
    assert facts["max_ms"] == pytest.approx(10)


def test_a_longest_time_outlives_the_copy_after_it(clock, statistics):
    statistics.responded(ApiKey.HEARTBEAT, HeartbeatResponse(), 2.0)
    asyncio.run(clock.run(2 * COPY_EVERY_MS))
    assert row(statistics)["max_ms"] == 2000


def test_a_response_with_several_errors_is_one_failed_request(statistics):
    codes = (Code.NONE, Code.MESSAGE_TOO_LARGE, Code.MESSAGE_TOO_LARGE, Code.NOT_LEADER_OR_FOLLOWER)
    partitions = [PartitionProduceResponse(partition_index=index, error_code=code) for index, code in enumerate(codes)]
    response = ProduceResponse(responses=[TopicProduceResponse(name="a", partition_responses=partitions)])
    statistics.responded(ApiKey.PRODUCE, response, 0.0)
    facts = row(statistics)
    assert (facts["requests"], facts["failed"]) == (1, 1)
    assert facts["errors"] == {"MESSAGE_TOO_LARGE": 2, "NOT_LEADER_OR_FOLLOWER": 1}


def test_only_the_topics_with_the_most_bytes_are_listed(statistics):
    for number in range(5):
        statistics.topic(f"t{number}").bytes_in = number
    assert [row["topic"] for row in statistics.topic_rows(2)] == ["t3", "t4"]
    assert len(statistics.topic_rows()) == 5


def test_the_rows_of_several_brokers_are_added_up():
    first = {"api": "Fetch", "requests": 10, "requests_per_s": 1.0, "mean_ms": 3.0, "max_ms": 9.0, "errors": {"A": 1}}
    second = {"api": "Fetch", "requests": 30, "requests_per_s": 3.0, "mean_ms": 7.0, "max_ms": 8.0, "errors": {"A": 2}}
    idle = {**first, "api": "Heartbeat", "requests_per_s": 0.0}
    total, other = merged([first, second, idle, idle], "api")
    assert total == {
        "api": "Fetch",
        "requests": 40,
        "requests_per_s": 4.0,
        "mean_ms": 6.0,
        "max_ms": 9.0,
        "errors": {"A": 3},
    }
    assert (other["requests"], other["max_ms"], other["mean_ms"]) == (20, 9.0, 3.0)
