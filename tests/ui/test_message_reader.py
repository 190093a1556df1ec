"""Readers of the message browser: bounded reads that return every message once."""

from __future__ import annotations

import pytest

from headrace.client.admin import NewTopic
from headrace.client.offsets import Isolation
from headrace.client.text_formats import parse_header, parse_pattern, record_filters
from headrace.errors import BrokerError
from headrace.producer.producer import Producer
from headrace.ui.message_reader import ReadRequest, StartFrom, open_reader

RECORDS = 300
BASE_MS = 1_760_000_000_000
READS_MAX = 5000


@pytest.fixture(scope="module")
def topic(broker) -> str:
    """Three partitions; the first ten records of partition 0 belong to an aborted transaction."""
    from headrace.client.admin import AdminClient

    with AdminClient(broker.bootstrap) as admin:
        admin.create_topics([NewTopic("read-in-pages", 3, 1)])
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id="read-in-pages") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(10):
            producer.send("read-in-pages", b"never", partition=0)
        producer.flush()
        producer.abort_transaction()
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=500) as producer:
        for n in range(RECORDS):
            producer.send("read-in-pages", b"%d" % n, partition=n % 3, timestamp_ms=BASE_MS + n)
        producer.flush()
    return "read-in-pages"


def read_all(admin, request: ReadRequest, rows_max: int, seconds_max: float) -> list[bytes]:
    reader = open_reader(admin, request)
    values: list[bytes] = []
    for _ in range(READS_MAX):
        result = reader.read(rows_max, seconds_max)
        assert len(result.rows) <= rows_max
        assert result.stopped
        values += [row.value or b"" for row in result.rows]
        if not result.has_more:
            return values
    raise AssertionError(f"no end after {READS_MAX} reads")


@pytest.mark.parametrize("start", [StartFrom.OLDEST, StartFrom.NEWEST])
@pytest.mark.parametrize(("rows_max", "seconds_max"), [(7, 3.0), (50, 0.001), (1000, 3.0)])
def test_consecutive_reads_return_every_message_once(admin, topic, start, rows_max, seconds_max):
    values = read_all(admin, ReadRequest(topic, start), rows_max, seconds_max)
    assert sorted(map(int, values)) == list(range(RECORDS))


def test_newest_messages_are_ordered_by_time_across_partitions(admin, topic):
    result = open_reader(admin, ReadRequest(topic)).read(20)
    assert [int(row.value or b"") for row in result.rows] == list(range(RECORDS - 1, RECORDS - 21, -1))
    assert "There are more" in result.stopped
    assert "partition 2 at offset 50" in result.stopped


def test_aborted_messages_are_returned_with_read_uncommitted_only(admin, topic):
    request = ReadRequest(topic, StartFrom.OLDEST, partition=0, isolation=Isolation.READ_UNCOMMITTED)
    assert read_all(admin, request, 1000, 3.0).count(b"never") == 10


def test_filter_without_a_match_says_how_far_it_scanned(admin, topic):
    matches = record_filters(parse_pattern("no-such-key"), None, [parse_header("h=1")])
    result = open_reader(admin, ReadRequest(topic, matches=matches)).read()
    assert (result.rows, result.scanned, result.has_more) == ([], RECORDS, False)
    assert result.stopped.startswith("Beginning of the topic. Scanned 300 records")


def test_positions_outside_of_the_topic_are_clamped(admin, topic):
    assert read_all(admin, ReadRequest(topic, StartFrom.OFFSET, 10**9), 50, 3.0) == []
    assert read_all(admin, ReadRequest(topic, StartFrom.TIME, BASE_MS + RECORDS, partition=1), 50, 3.0) == []
    assert len(read_all(admin, ReadRequest(topic, StartFrom.TIME, 0), 50, 3.0)) == RECORDS
    with pytest.raises(BrokerError, match=r"no partition 3 in topic .*: it has 3 partitions, numbered from 0"):
        open_reader(admin, ReadRequest(topic, partition=3))


def test_follow_returns_new_messages_only(admin, broker, topic):
    reader = open_reader(admin, ReadRequest(topic, partition=1), follow=True)
    assert reader.read(seconds_max=0.0).rows == []
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        offset = producer.send(topic, b"999", partition=1).result(20).offset
    assert [row.offset for row in reader.read().rows] == [offset]
