"""Record batches through a real broker, written and read by librdkafka and headrace."""

import re

import pytest
from confluent_kafka import Producer as LibrdkafkaProducer

from headrace.wire import columns, records
from headrace.wire.api.transactions import InitProducerIdRequest
from headrace.wire.compression import CODEC_IDS, CODEC_NAMES
from headrace.wire.layout import MAGIC_OFFSET
from headrace.wire.records import RecordBatch, read_batches
from tests.support import samples
from tests.support.peers import librdkafka
from tests.support.peers.batches import Batch, read_by_us
from tests.support.peers.connection import Connection
from tests.support.waiting import eventually
from tests.support.writers import WRITERS, records_of

SAMPLES = {"small": samples.small(), "large": samples.large()}
PARTITIONS = {codec: number for number, codec in enumerate(CODEC_IDS)}

BATCH_LINE = re.compile(r"baseOffset: (\d+) lastOffset: (\d+) .* compresscodec: (\w+) .* isvalid: (\w+)")
RECORD_LINE = re.compile(
    r"\| offset: (\d+) CreateTime: (\d+) keySize: (-?\d+) valueSize: (-?\d+) .*?headerKeys: \[(.*?)\](.*)"
)


@pytest.fixture(scope="module")
def connection(either):
    with Connection(either.bootstrap) as connection:
        yield connection


@pytest.fixture(scope="module")
def to_apache(kafka):
    with Connection(kafka.bootstrap) as connection:
        yield connection


@pytest.fixture(scope="module")
def of_librdkafka(either):
    """Topics that librdkafka has written a sample to, a partition for each codec."""
    for name, sample in SAMPLES.items():
        topic = either.create_topic(f"of-librdkafka-{name}", len(PARTITIONS))
        for codec, partition in PARTITIONS.items():
            librdkafka.produce(either.bootstrap, topic, sample, codec=codec, partition=partition)


@pytest.fixture(scope="module")
def ours(either, connection):
    """Topics with both samples of each encoder, one partition for each codec."""
    for way, write in WRITERS.items():
        topic = either.create_topic(f"ours-{way}", len(PARTITIONS))
        for codec, partition in PARTITIONS.items():
            for sample in SAMPLES.values():
                response = connection.produce(
                    topic, write(Batch.of(sample, codec=CODEC_IDS[codec])), partition=partition
                )
                assert response.error_code == 0, response


def ours_expected():
    return SAMPLES["small"] + samples.shifted(SAMPLES["large"], len(SAMPLES["small"]))


def fetch_batches(connection, topic, partition=0):
    """Fetch all batches of a partition; a fetch ends at the end of a segment."""
    batches: list[RecordBatch] = []
    offset, end_offset = 0, 1
    while offset < end_offset:
        fetched = connection.fetch(topic, partition=partition, offset=offset)
        batches += read_batches(fetched.records, partial=True)
        offset, end_offset = batches[-1].header.last_offset + 1, fetched.high_watermark
    return batches


def columns_of(batches):
    decoder = columns.ArrowDecoder(with_headers=True)
    for batch in batches:
        decoder.add(batch)
    return records_of(decoder.finish())


@pytest.mark.parametrize("codec", PARTITIONS)
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.usefixtures("of_librdkafka")
def test_batches_of_librdkafka_are_fetched_and_decoded(sample, codec, connection):
    batches = fetch_batches(connection, f"of-librdkafka-{sample}", partition=PARTITIONS[codec])
    assert {batch.header.codec for batch in batches} == {CODEC_IDS[codec]}
    assert [record for batch in batches for record in batch.records()] == SAMPLES[sample]
    assert columns_of(batches) == SAMPLES[sample]


@pytest.mark.parametrize("codec", PARTITIONS)
@pytest.mark.parametrize("way", WRITERS)
@pytest.mark.usefixtures("ours")
def test_the_broker_accepts_our_batches_and_librdkafka_reads_them(way, codec, either):
    expected = ours_expected()
    consumed = librdkafka.consume(either.bootstrap, f"ours-{way}", len(expected), partition=PARTITIONS[codec])
    assert consumed == expected


@pytest.mark.parametrize("codec", PARTITIONS)
@pytest.mark.usefixtures("ours")
def test_our_batches_are_fetched_unchanged(codec, connection):
    batches = fetch_batches(connection, "ours-columns", partition=PARTITIONS[codec])
    assert [batch.header.codec for batch in batches] == [CODEC_IDS[codec]] * len(SAMPLES)
    assert [record for batch in batches for record in batch.records()] == ours_expected()


@pytest.mark.parametrize("way", WRITERS)
def test_kafkas_dump_log_tool_finds_our_batches_valid(way, kafka, to_apache):
    topic = kafka.create_topic(f"dumped-{way}")
    small = samples.small()
    for codec in CODEC_IDS.values():
        assert to_apache.produce(topic, WRITERS[way](Batch.of(small, codec=codec))).error_code == 0

    dump = kafka.dump_log(topic)

    batches = [match.groups() for line in dump.splitlines() if (match := BATCH_LINE.search(line))]
    assert batches == [
        (str(codec * len(small)), str(codec * len(small) + len(small) - 1), CODEC_NAMES[codec], "true")
        for codec in CODEC_IDS.values()
    ]
    dumped = [match.groups() for line in dump.splitlines() if (match := RECORD_LINE.match(line))]
    assert dumped == [line_of(record) for codec in CODEC_IDS.values() for record in samples.shifted(small, codec * 6)]


def line_of(record):
    """The parts of a record's line in Kafka's dump."""
    key = "" if record.key is None else f" key: {record.key.decode()}"
    value = "" if record.value is None else f" payload: {record.value.decode()}"
    return (
        str(record.offset),
        str(record.timestamp),
        str(-1 if record.key is None else len(record.key)),
        str(-1 if record.value is None else len(record.value)),
        ",".join(name for name, _ in record.headers),
        key + value,
    )


def test_kafkas_console_consumer_prints_what_we_wrote(kafka, to_apache):
    topic = kafka.create_topic("printed")
    for codec in CODEC_IDS.values():
        batch = Batch.of(samples.small()[:2], codec=codec)
        assert to_apache.produce(topic, WRITERS["columns"](batch)).error_code == 0

    lines = kafka.console_consume(topic, records_max=10)

    first = f"CreateTime:{samples.TIME_MS}\tPartition:0\tOffset:%d\tNO_HEADERS\tkey\tvalue"
    second = f"CreateTime:{samples.TIME_MS + 250}\tPartition:0\tOffset:%d\t%s\tnull\tno key"
    headers = "plain:1,plain:2,empty:,null:null"
    assert lines == [line for offset in range(0, 10, 2) for line in (first % offset, second % (offset + 1, headers))]


def test_log_append_time_of_the_broker_is_read(either, connection):
    topic = either.create_topic("append-time", configs={"message.timestamp.type": "LogAppendTime"})
    response = connection.produce(topic, WRITERS["encode"](Batch.of(samples.small(), codec=CODEC_IDS["zstd"])))
    (batch,) = fetch_batches(connection, topic)
    assert response.log_append_time_ms > samples.TIME_MS
    assert {record.timestamp for record in batch.records()} == {response.log_append_time_ms}
    assert columns_of([batch]) == batch.records()


def test_a_resent_idempotent_batch_is_recognised_as_a_duplicate(either, connection):
    topic = either.create_topic("idempotent")
    given = eventually("a producer id", lambda: new_producer_id(connection))
    who = {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}
    first = WRITERS["open-batch"](Batch.of(samples.small(), base_sequence=0, **who))
    second = WRITERS["columns"](Batch.of(samples.small(), base_sequence=6, codec=CODEC_IDS["lz4"], **who))

    responses = [connection.produce(topic, data) for data in (first, second, first, second)]

    assert [(response.error_code, response.base_offset) for response in responses] == [(0, 0), (0, 6), (0, 0), (0, 6)]
    assert len(librdkafka.consume(either.bootstrap, topic, 12)) == 12
    assert connection.fetch(topic).high_watermark == 12


def new_producer_id(connection):
    given = connection.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
    # The first request makes the broker load a block of producer ids; until then it returns an error.
    return given if given.error_code == 0 else None


def test_the_markers_of_a_real_coordinator_are_read_as_commit_and_abort(either, connection):
    topic = either.create_topic("transactions")
    producer = LibrdkafkaProducer(
        {"bootstrap.servers": either.bootstrap, "transactional.id": "of-librdkafka", "linger.ms": 100, "log_level": 0}
    )
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        librdkafka.append(producer, topic, samples.small())
        end(30)

    # The response to a commit or abort is sent before the markers are written.
    eventually("the second marker", lambda: connection.fetch(topic).last_stable_offset == 14)
    batches = fetch_batches(connection, topic)
    decoded = [read_by_us(batch) for batch in batches]
    (aborted,) = connection.fetch(topic, offset=7, committed=True).aborted_transactions

    assert [batch.base_offset for batch in decoded] == [0, 6, 7, 13]
    assert [batch.transactional for batch in decoded] == [True] * 4
    assert [batch.marker and batch.marker.committed for batch in decoded] == [None, True, None, False]
    assert {batch.producer_id for batch in decoded} == {aborted.producer_id}
    assert aborted.first_offset == 7
    # A decoded marker of a coordinator is encoded to the same bytes.
    for there, marker in ((batches[1], decoded[1]), (batches[3], decoded[3])):
        assert marker.marker is not None
        again = records.encode_marker(
            marker.marker, marker.producer_id, marker.producer_epoch, marker.max_timestamp, marker.base_offset
        )
        assert bytes(again)[MAGIC_OFFSET:] == bytes(there.view)[MAGIC_OFFSET:]
