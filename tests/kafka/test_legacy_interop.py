"""Message sets, magic 0 and 1, between headrace, Kafka 3.9's classes, and a Kafka 3.9 broker."""

import pytest

from headrace.wire import message_sets
from headrace.wire.compression import CODEC_IDS
from headrace.wire.layout import NO_TIMESTAMP, Record
from tests.support import samples
from tests.support.peers import librdkafka
from tests.support.peers.batches import Batch
from tests.support.peers.connection import Connection

VERSION = "3.9.1"
CODECS = [codec for codec in CODEC_IDS if codec != "zstd"]  # which is younger than message sets
PRODUCE_MAGICS = {0: 0, 1: 0, 2: 1}  # by version of the request
FETCH_MAGICS = {0: 0, 1: 0, 2: 1, 3: 1}
PARTITIONS = {codec: number for number, codec in enumerate(CODECS)}


def as_kept(records, magic):
    """What a message set keeps of records."""
    kept = [record._replace(headers=()) for record in records]
    return kept if magic else [record._replace(timestamp=NO_TIMESTAMP) for record in kept]


SAMPLES = {"small": samples.small(), "large": samples.large(), "far": samples.shifted(samples.small(), 1 << 40)}
SETS = {
    f"{sample}-{magic}-{codec}": Batch.of(as_kept(records, magic), magic=magic, codec=CODEC_IDS[codec])
    for sample, records in SAMPLES.items()
    for magic in (0, 1)
    for codec in CODECS
} | {
    f"append-time-{codec}": Batch.of(
        as_kept(samples.small(), 1), magic=1, codec=CODEC_IDS[codec], append_time=samples.TIME_MS + 5
    )
    for codec in CODECS
}


def ours(batch):
    return message_sets.encode(batch.records, magic=batch.magic, codec=batch.codec, append_time=batch.append_time)


@pytest.fixture(scope="module")
def by_java(kafka_jars, java_batches):
    """The sets as Java writes them."""
    return java_batches.write(kafka_jars(VERSION), SETS)


@pytest.fixture(scope="module")
def ours_as_java_reads_them(kafka_jars, java_batches):
    return java_batches.read(kafka_jars(VERSION), {name: ours(batch) for name, batch in SETS.items()})


@pytest.mark.parametrize("name", SETS)
def test_message_sets_of_java_are_decoded(name, by_java):
    assert message_sets.decode(by_java[name]) == list(SETS[name].records)


@pytest.mark.parametrize("name", SETS)
def test_java_finds_our_message_set_valid_and_equal(name, ours_as_java_reads_them):
    decoded, expected = ours_as_java_reads_them[name], SETS[name]
    assert not isinstance(decoded, str), decoded
    assert {(batch.magic, batch.codec, batch.append_time) for batch in decoded} == {
        (expected.magic, expected.codec, expected.append_time)
    }
    assert len(decoded) == (1 if expected.codec else len(expected.records))
    assert [record for batch in decoded for record in batch.records] == list(expected.records)


def test_uncompressed_message_sets_equal_those_of_java(by_java):
    names = [name for name, batch in SETS.items() if batch.codec == 0]
    assert [ours(SETS[name]) for name in names] == [by_java[name] for name in names]


@pytest.fixture(scope="module")
def connection(kafka39):
    with Connection(kafka39.bootstrap) as connection:
        yield connection


@pytest.mark.parametrize(("version", "magic"), PRODUCE_MAGICS.items())
def test_a_broker_accepts_message_sets_and_a_modern_consumer_reads_them(version, magic, kafka39, connection):
    topic = kafka39.create_topic(f"sets-{version}", len(PARTITIONS))
    count = len(samples.small())
    expected = as_kept(samples.small() + samples.shifted(samples.large(), count), magic)
    for codec, partition in PARTITIONS.items():
        for records in (samples.small(), samples.large()):
            data = message_sets.encode(records, magic=magic, codec=CODEC_IDS[codec])
            response = connection.produce(topic, data, version=version, partition=partition)
            assert response.error_code == 0, (codec, response)
        consumed = librdkafka.consume(kafka39.bootstrap, topic, len(expected), partition=partition)
        assert consumed == expected, codec


@pytest.fixture(scope="module")
def of_librdkafka(kafka39):
    """A topic of record batches that old clients will want as message sets, a partition for each codec."""
    topic = kafka39.create_topic("of-librdkafka", len(PARTITIONS))
    for codec, partition in PARTITIONS.items():
        librdkafka.produce(kafka39.bootstrap, topic, samples.small(), codec=codec, partition=partition)
        librdkafka.produce(kafka39.bootstrap, topic, samples.large(), codec=codec, partition=partition)
    return topic


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("version", "magic"), FETCH_MAGICS.items())
def test_message_sets_down_converted_by_a_broker_are_decoded(version, magic, codec, connection, of_librdkafka):
    written = samples.small() + samples.shifted(samples.large(), len(samples.small()))
    decoded: list[Record] = []
    # A set may be larger than its batch: then it is truncated, and the rest is fetched again.
    while len(decoded) < len(written):
        fetched = connection.fetch(of_librdkafka, version=version, partition=PARTITIONS[codec], offset=len(decoded))
        records = message_sets.decode(fetched.records, partial_tail=True, mixed_magic=True)
        assert records, f"nothing at offset {len(decoded)}"
        # A compressed set is returned as a whole, also if only its end was requested.
        decoded += [record for record in records if record.offset >= len(decoded)]
    assert decoded == as_kept(written, magic)
