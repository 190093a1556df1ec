"""Message sets, magic 0 and 1, between us, Kafka 3.9's own classes, and a Kafka 3.9 broker."""

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
def test_a_message_set_of_java_says_what_java_meant(name, by_java):
    assert message_sets.decode(by_java[name]) == list(SETS[name].records)


@pytest.mark.parametrize("name", SETS)
def test_java_finds_our_message_set_valid_and_equal(name, ours_as_java_reads_them):
    found, wanted = ours_as_java_reads_them[name], SETS[name]
    assert not isinstance(found, str), found
    assert {(batch.magic, batch.codec, batch.append_time) for batch in found} == {
        (wanted.magic, wanted.codec, wanted.append_time)
    }
    assert len(found) == (1 if wanted.codec else len(wanted.records))
    assert [record for batch in found for record in batch.records] == list(wanted.records)


def test_where_nothing_is_compressed_our_message_sets_are_javas_byte_for_byte(by_java):
    names = [name for name, batch in SETS.items() if batch.codec == 0]
    assert [ours(SETS[name]) for name in names] == [by_java[name] for name in names]


@pytest.fixture(scope="module")
def connection(kafka39):
    with Connection(kafka39.bootstrap) as connection:
        yield connection


@pytest.mark.parametrize(("version", "magic"), PRODUCE_MAGICS.items())
def test_a_broker_takes_our_message_sets_and_a_modern_consumer_reads_them(version, magic, kafka39, connection):
    topic = kafka39.create_topic(f"sets-{version}", len(PARTITIONS))
    count = len(samples.small())
    expected = as_kept(samples.small() + samples.shifted(samples.large(), count), magic)
    for codec, partition in PARTITIONS.items():
        for records in (samples.small(), samples.large()):
            data = message_sets.encode(records, magic=magic, codec=CODEC_IDS[codec])
            answer = connection.produce(topic, data, version=version, partition=partition)
            assert answer.error_code == 0, (codec, answer)
        found = librdkafka.consume(kafka39.bootstrap, topic, len(expected), partition=partition)
        assert found == expected, codec


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
def test_what_a_broker_turns_into_message_sets_we_read(version, magic, codec, connection, of_librdkafka):
    written = samples.small() + samples.shifted(samples.large(), len(samples.small()))
    found: list[Record] = []
    # A set may be larger than the batch it was made of: what has no room then is cut off, and fetched again.
    while len(found) < len(written):
        fetched = connection.fetch(of_librdkafka, version=version, partition=PARTITIONS[codec], offset=len(found))
        records = message_sets.decode(fetched.records, partial_tail=True, mixed_magic=True)
        assert records, f"nothing at offset {len(found)}"
        # A compressed set comes whole, though only its end was asked for.
        found += [record for record in records if record.offset >= len(found)]
    assert found == as_kept(written, magic)
