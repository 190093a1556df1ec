"""Record batches between headrace and Kafka's classes, in both directions."""

import pytest

from headrace.wire import columns
from headrace.wire.compression import CODEC_IDS
from headrace.wire.records import Marker, encode_marker, read_batches
from tests.support import samples
from tests.support.peers.batches import Batch, read_by_us
from tests.support.writers import WRITERS, records_of

TRANSACTIONAL = {"producer_id": 4_711, "producer_epoch": 3, "base_sequence": 17, "transactional": True}

BATCHES = {
    **{f"small-{name}": Batch.of(samples.small(), codec=codec) for name, codec in CODEC_IDS.items()},
    **{f"large-{name}": Batch.of(samples.large(), codec=codec) for name, codec in CODEC_IDS.items()},
    "transactional": Batch.of(samples.small(), **TRANSACTIONAL),
    "transactional-gzip": Batch.of(samples.small(), codec=CODEC_IDS["gzip"], **TRANSACTIONAL),
    "idempotent": Batch.of(samples.small(), producer_id=1 << 40, producer_epoch=32_767, base_sequence=0),
    "last-sequence-numbers": Batch.of(samples.small(), producer_id=7, producer_epoch=0, base_sequence=2_147_483_645),
    "far-in-the-log": Batch.of(samples.shifted(samples.small(), 1 << 50), leader_epoch=12),
    "append-time": Batch.of(samples.small(), append_time=samples.TIME_MS + 9),
    "append-time-zstd": Batch.of(samples.small(), codec=CODEC_IDS["zstd"], append_time=samples.TIME_MS + 9),
    "the-epoch": Batch.of([record._replace(timestamp=0) for record in samples.small()]),
    "no-timestamps": Batch.of([record._replace(timestamp=-1) for record in samples.small()]),
    "centuries": Batch.of([samples.small()[0]._replace(offset=n, timestamp=t) for n, t in enumerate((1 << 45, 0))]),
}
BY_THE_BROKER = {
    "compacted": Batch.of([record for record in samples.small() if record.offset not in (1, 2, 4)], leader_epoch=1),
    "compacted-to-nothing": Batch(base_offset=10, last_offset=25, max_timestamp=samples.TIME_MS, leader_epoch=2),
}
MARKERS = {
    name: Batch(
        base_offset=99,
        last_offset=99,
        max_timestamp=samples.TIME_MS,
        producer_id=4_711,
        producer_epoch=3,
        transactional=True,
        marker=Marker(committed, 1 << 20 | 5),
    )
    for name, committed in (("commit", True), ("abort", False))
}


@pytest.fixture(scope="module")
def by_java(kafka_jars, java_batches):
    """The batches above as Java writes them."""
    return java_batches.write(kafka_jars("4.3.0"), BATCHES | BY_THE_BROKER | MARKERS)


@pytest.fixture(scope="module")
def ours_as_java_reads_them(kafka_jars, java_batches):
    """Return the batches above, encoded by every encoder of headrace and decoded by Java."""
    files = {f"{way}.{name}": write(BATCHES[name]) for way, write in WRITERS.items() for name in BATCHES}
    files |= {name: ours_of_marker(batch) for name, batch in MARKERS.items()}
    return java_batches.read(kafka_jars("4.3.0"), files)


def ours_of_marker(batch):
    return encode_marker(
        batch.marker, batch.producer_id, batch.producer_epoch, batch.max_timestamp, offset=batch.base_offset
    )


@pytest.mark.parametrize("name", [*BATCHES, *BY_THE_BROKER, *MARKERS])
def test_batches_of_java_are_decoded(name, by_java):
    (batch,) = read_batches(by_java[name])
    assert read_by_us(batch) == (BATCHES | BY_THE_BROKER | MARKERS)[name]


@pytest.mark.parametrize("name", [*BATCHES, *BY_THE_BROKER])
def test_a_batch_of_java_gives_the_same_columns(name, by_java):
    (batch,) = read_batches(by_java[name])
    decoder = columns.ArrowDecoder(with_headers=True)
    decoder.add(batch)
    assert records_of(decoder.finish()) == list((BATCHES | BY_THE_BROKER)[name].records)


def test_consecutive_batches_of_java_are_decoded(by_java):
    names = [name for name in BATCHES if name.startswith(("small", "large"))]
    batches = list(read_batches(b"".join(by_java[name] for name in names)))
    decoder = columns.ArrowDecoder(with_headers=True)
    for batch in batches:
        decoder.add(batch)
    expected = [record for name in names for record in BATCHES[name].records]
    assert [record for batch in batches for record in batch.records()] == expected
    assert records_of(decoder.finish()) == expected


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("way", WRITERS)
def test_java_finds_our_batch_valid_and_equal(way, name, ours_as_java_reads_them):
    assert ours_as_java_reads_them[f"{way}.{name}"] == [BATCHES[name]]


@pytest.mark.parametrize("name", MARKERS)
def test_java_decodes_our_transaction_marker(name, ours_as_java_reads_them):
    assert ours_as_java_reads_them[name] == [MARKERS[name]]


@pytest.mark.parametrize("way", WRITERS)
def test_uncompressed_batches_equal_those_of_java(way, by_java):
    names = [name for name, batch in BATCHES.items() if batch.codec == 0 and batch.append_time < 0]
    for name in names:
        assert bytes(WRITERS[way](BATCHES[name])) == by_java[name], name
    assert len(names) > 5


@pytest.mark.parametrize("name", MARKERS)
def test_transaction_markers_equal_those_of_java(name, by_java):
    assert bytes(ours_of_marker(MARKERS[name])) == by_java[name]
