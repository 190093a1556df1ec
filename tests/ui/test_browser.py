"""Reading for the message browser: bounded, and bit by bit everything, once."""

from __future__ import annotations

import pytest

from headrace.client.admin import NewTopic
from headrace.client.facts.filters import filters_of, header_of, pattern_of
from headrace.client.offsets import Isolation
from headrace.errors import BrokerError
from headrace.producer.producer import Producer
from headrace.ui.message_reader import Begin, Wanted, open_reading

RECORDS = 300
BASE_MS = 1_760_000_000_000
REQUESTS_MAX = 5000


@pytest.fixture(scope="module")
def topic(broker) -> str:
    """Three partitions; in the first, the first ten records belong to a transaction that was aborted."""
    from headrace.client.admin import AdminClient

    with AdminClient(broker.bootstrap) as admin:
        admin.create_topics([NewTopic("read-by-bits", 3, 1)])
    with Producer(bootstrap_servers=broker.bootstrap, transactional_id="read-by-bits") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(10):
            producer.send("read-by-bits", b"never", partition=0)
        producer.flush()
        producer.abort_transaction()
    with Producer(bootstrap_servers=broker.bootstrap, batch_size=500) as producer:
        for n in range(RECORDS):
            producer.send("read-by-bits", b"%d" % n, partition=n % 3, timestamp_ms=BASE_MS + n)
        producer.flush()
    return "read-by-bits"


def all_of(admin, wanted: Wanted, rows_max: int, seconds_max: float) -> list[bytes]:
    reading = open_reading(admin, wanted)
    values: list[bytes] = []
    for _ in range(REQUESTS_MAX):
        found = reading.more(rows_max, seconds_max)
        assert len(found.rows) <= rows_max
        assert found.stopped
        values += [row.value or b"" for row in found.rows]
        if not found.can_go_on:
            return values
    raise AssertionError(f"no end after {REQUESTS_MAX} requests")


@pytest.mark.parametrize("begin", [Begin.OLDEST, Begin.NEWEST])
@pytest.mark.parametrize(("rows_max", "seconds_max"), [(7, 3.0), (50, 0.001), (1000, 3.0)])
def test_going_on_brings_everything_once(admin, topic, begin, rows_max, seconds_max):
    values = all_of(admin, Wanted(topic, begin), rows_max, seconds_max)
    assert sorted(map(int, values)) == list(range(RECORDS))


def test_the_newest_come_in_the_order_of_time_across_partitions(admin, topic):
    found = open_reading(admin, Wanted(topic)).more(20)
    assert [int(row.value or b"") for row in found.rows] == list(range(RECORDS - 1, RECORDS - 21, -1))
    assert "There are more" in found.stopped
    assert "partition 2 at offset 50" in found.stopped


def test_what_was_aborted_is_seen_only_by_who_asks_for_it(admin, topic):
    wanted = Wanted(topic, Begin.OLDEST, partition=0, isolation=Isolation.READ_UNCOMMITTED)
    assert all_of(admin, wanted, 1000, 3.0).count(b"never") == 10


def test_a_filter_that_finds_nothing_says_how_far_it_has_looked(admin, topic):
    matches = filters_of(pattern_of("no-such-key"), None, [header_of("h=1")])
    found = open_reading(admin, Wanted(topic, matches=matches)).more()
    assert (found.rows, found.read, found.can_go_on) == ([], RECORDS, False)
    assert found.stopped.startswith("This is the beginning. Looked at 300 records")


def test_beyond_the_end_and_before_the_beginning_there_is_an_answer(admin, topic):
    assert all_of(admin, Wanted(topic, Begin.OFFSET, 10**9), 50, 3.0) == []
    assert all_of(admin, Wanted(topic, Begin.TIME, BASE_MS + RECORDS, partition=1), 50, 3.0) == []
    assert len(all_of(admin, Wanted(topic, Begin.TIME, 0), 50, 3.0)) == RECORDS
    with pytest.raises(BrokerError, match="has 3 partitions, from 0 on, and none with number 3"):
        open_reading(admin, Wanted(topic, partition=3))


def test_following_brings_what_is_new_and_nothing_else(admin, broker, topic):
    reading = open_reading(admin, Wanted(topic, partition=1), follow=True)
    assert reading.more(seconds_max=0.0).rows == []
    with Producer(bootstrap_servers=broker.bootstrap) as producer:
        offset = producer.send(topic, b"999", partition=1).result(20).offset
    assert [row.offset for row in reading.more().rows] == [offset]
