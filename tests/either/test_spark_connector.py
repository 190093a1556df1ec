"""Spark's own Kafka connector reads and writes."""

from __future__ import annotations

import pytest

from headrace.wire.layout import Record
from tests.support.peers import librdkafka
from tests.support.topics import new_topic, unique

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

TIME = 1_700_000_000_000
FIRST_SECONDS_MAX = 90


def test_spark_reads_committed_rows_in_a_batch_and_in_a_stream_and_writes_some(either, spark_connector):
    topic = new_topic(either, "spark", 2)
    producer = librdkafka.transactional(either.bootstrap, unique("spark"))
    for ending, partition, start in (("commit", 0, 0), ("abort", 0, 50), ("commit", 1, 100), ("commit", 0, 200)):
        producer.begin_transaction()
        records = [Record(n, TIME + n, b"%d" % n, b"row %d" % n, ()) for n in range(start, start + 50)]
        librdkafka.append(producer, topic, records, partition)
        getattr(producer, f"{ending}_transaction")(librdkafka.SECONDS_MAX)

    def run(do, **arguments):
        return spark_connector(do, bootstrap=either.bootstrap, topic=topic, seconds_max=FIRST_SECONDS_MAX, **arguments)

    def row(partition, offset, n):
        return [partition, offset, str(n), f"row {n}", TIME + n]

    committed = [row(0, n, n) for n in range(50)] + [row(0, n - 98, n) for n in range(200, 250)]
    committed += [row(1, n - 100, n) for n in range(100, 150)]
    assert run("rows", isolation="read_committed")["rows"] == committed
    assert len(run("rows", isolation="read_uncommitted")["rows"]) == 200
    assert run("streamed")["values"] == sorted(row[3] for row in committed)

    target = new_topic(either, "spark-wrote")
    texts = [f"text {n}" for n in range(100)]
    spark_connector("written", bootstrap=either.bootstrap, topic=target, texts=texts)
    written = [record.value for record in librdkafka.consume(either.bootstrap, target, 100)]
    assert written == [text.encode() for text in texts]
