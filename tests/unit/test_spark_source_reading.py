"""The parts of the source that need no broker: read-ahead, kept fetchers, retries, fetch sizes."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from headrace.client.fetch_data import FETCH_BYTES_MIN, FIRST_FETCH_BYTES_MAX, PartitionReader
from headrace.client.offsets import PartitionOffset
from headrace.errors import BrokerError, Code, ConfigError
from headrace.spark import lookup, reading, source
from headrace.spark.lookup import Lookup
from headrace.spark.reading import AHEAD_MAX, Fetchers, ReadAhead
from headrace.spark.source_options import Mode, parse, schema
from headrace.types import TopicPartition
from tests.support.waiting import eventually

TP = TopicPartition("t", 0)
OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
MIB = 1024 * 1024


# -- reading ahead -----------------------------------------------------------------------------


def test_items_come_in_order_and_only_a_few_are_made_ahead():
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            yield number

    with ReadAhead(source()) as items:
        taken = iter(items)
        assert next(taken) == 0
        # The queued items, and the one that waits for space.
        eventually("the reader to be ahead", lambda: len(made) == AHEAD_MAX + 2)
        assert list(taken) == list(range(1, 20))


def test_an_error_is_raised_after_the_items_before_it():
    def source() -> Iterator[int]:
        yield 1
        raise BrokerError("t-0", code=Code.OFFSET_OUT_OF_RANGE)

    taken: list[int] = []
    with ReadAhead(source()) as items, pytest.raises(BrokerError, match="t-0"):
        taken.extend(items)
    assert taken == [1]


def test_leaving_early_stops_the_thread_and_closes_the_source():
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    with ReadAhead(source()) as items:
        next(iter(items))
    assert closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-read-ahead"]


# -- keeping reading --------------------------------------------------------------------------


class FakeFetcher:
    def __init__(self, options: object) -> None:
        self.fetcher = self
        self.closed = False

    def assign(self, positions: object, *, check: bool) -> None:
        assert not positions

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def kept(monkeypatch):
    monkeypatch.setattr(reading, "KeptFetcher", FakeFetcher)
    store = Fetchers()
    yield store
    store.close_idle()


def test_a_fetcher_serves_one_user_at_a_time_and_the_next_one_after(kept):
    options = parse(OPTIONS, Mode.BATCH)
    with kept.taken(options) as first, kept.taken(options) as second:
        assert first is not second
    with kept.taken(options) as again:
        assert again in (first, second)
    with kept.taken(parse({**OPTIONS, "kafka.client.id": "other"}, Mode.BATCH)) as other:
        assert other not in (first, second)


def test_a_fetcher_is_closed_after_an_error(kept):
    options = parse(OPTIONS, Mode.BATCH)
    with pytest.raises(ValueError, match="x"), kept.taken(options) as first:
        raise ValueError("x")
    assert first.closed
    with kept.taken(options) as second:
        assert second is not first


def test_idle_fetchers_are_closed(kept, monkeypatch):
    monkeypatch.setattr(reading, "IDLE_SECONDS_MAX", 0.01)
    with kept.taken(parse(OPTIONS, Mode.BATCH)) as idle:
        assert not idle.closed
    eventually("the idle fetcher to be closed", lambda: idle.closed)


def test_no_more_than_a_few_fetchers_are_kept(kept, monkeypatch):
    monkeypatch.setattr(reading, "KEPT_MAX", 1)
    options = parse(OPTIONS, Mode.BATCH)
    with kept.taken(options) as first, kept.taken(options) as second:
        pass
    assert (second.closed, first.closed) == (False, True)


# -- looking up offsets ------------------------------------------------------------------------------------


@pytest.fixture
def responses(monkeypatch):
    """Return the results of offset lookups in turn; raise those that are errors."""
    given: list[int | BrokerError] = []

    def list_offsets(client, requested, isolation):
        response = given.pop(0)
        if isinstance(response, BrokerError):
            raise response
        return dict.fromkeys(requested, PartitionOffset(response, -1, 0))

    monkeypatch.setattr(lookup, "list_offsets", list_offsets)
    return given


@pytest.fixture
def offset_lookup():
    subject = Lookup(parse({**OPTIONS, "fetchOffset.retryIntervalMs": "0"}, Mode.STREAM))
    yield subject
    subject.close()


def test_the_end_is_looked_up_again_if_a_new_leader_returns_a_lower_one(offset_lookup, responses):
    responses[:] = [7, 9, 12]
    assert offset_lookup.latest([TP], known={TP: 10}) == {TP: 12}
    responses[:] = [7, 7, 7, 7]
    assert offset_lookup.latest([TP], known={TP: 10}) == {TP: 7}  # so it is true
    assert not responses


def test_retriable_errors_are_retried(offset_lookup, responses):
    passing = BrokerError("t-0", code=Code.LEADER_NOT_AVAILABLE)
    responses[:] = [passing, passing, passing, 5]
    assert offset_lookup.earliest([TP]) == {TP: 5}
    responses[:] = [passing] * 4
    with pytest.raises(BrokerError, match="LEADER_NOT_AVAILABLE"):
        offset_lookup.earliest([TP])
    responses[:] = [BrokerError("t-0", code=Code.TOPIC_AUTHORIZATION_FAILED)]
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        offset_lookup.earliest([TP])


def test_edges_are_looked_up_and_numbers_are_not(offset_lookup, responses):
    spec = parse({**OPTIONS, "startingOffsets": '{"t":{"0":5,"1":-1}}'}, Mode.STREAM).starting
    responses[:] = [9]
    other = TopicPartition("t", 1)
    assert offset_lookup.resolve(spec, [TP, other]) == {TP: 5, other: 9}


# -- reading ahead -------------------------------------------------------------------------


def test_a_fetch_requests_about_what_is_left():
    state = PartitionReader(TP, 1000, until=11_000)
    assert state.fetch_bytes(8 * MIB) == FIRST_FETCH_BYTES_MAX
    assert state.fetch_bytes(1000) == 1000
    state.last_start, state.last_bytes, state.position = 1000, 100_000, 2000  # 100 bytes an offset
    assert state.fetch_bytes(8 * MIB) == 9000 * 125 + FETCH_BYTES_MIN
    assert state.fetch_bytes(MIB) == MIB
    assert PartitionReader(TP, 0).fetch_bytes(8 * MIB) == 8 * MIB  # without an end, no batch is near it


# -- older Sparks ------------------------------------------------------------------------------


def test_the_stream_needs_nothing_that_spark_40_does_not_have(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    spec = importlib.util.spec_from_file_location("old_stream_api", source.__file__)
    assert spec is not None
    assert spec.loader is not None
    old = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "old_stream_api", old)
    spec.loader.exec_module(old)
    assert not old.HAS_LIMITS
    assert old.ReadMaxRows(5).max_rows == 5
    assert isinstance(old.ReadAllAvailable(), old.ReadLimit)


def test_limits_are_refused_where_spark_would_not_keep_them(monkeypatch):
    monkeypatch.setattr(source, "HAS_LIMITS", False)
    limited = source.StreamReader({**OPTIONS, "maxOffsetsPerTrigger": "5"}, schema(["value"]))
    with pytest.raises(ConfigError, match=r"maxOffsetsPerTrigger .*need Spark 4\.2"):
        limited.latestOffset()
    assert source.StreamReader(OPTIONS, schema(["value"])).getDefaultReadLimit() == source.NO_LIMIT


def test_invalid_options_of_a_stream_fail_at_its_first_call():
    """Spark would hide an error of the constructor behind its own."""
    for options, message in (({"endingOffsets": "latest"}, "a stream has no end"), ({"minPartitions": "x"}, "minPart")):
        stream = source.StreamReader({**OPTIONS, **options}, schema(["value"]))
        for method in (stream.initialOffset, stream.getDefaultReadLimit):
            with pytest.raises(ConfigError, match=message):
                method()
        stream.stop()
