"""Record batches between headrace and Python clients: kafka-python, and aiokafka compiled and plain."""

from dataclasses import replace

import aiokafka.codec
import aiokafka.record.default_records as of_aiokafka
import kafka.codec
import kafka.record.default_records as of_kafka_python
import pytest

from headrace.wire import columns
from headrace.wire.compression import CODEC_IDS
from headrace.wire.layout import Record
from headrace.wire.records import read_batches
from tests.support import samples
from tests.support.peers.batches import Batch, read_by_us
from tests.support.writers import WRITERS, records_of

BUILDERS = {
    "kafka-python": of_kafka_python.DefaultRecordBatchBuilder,
    "aiokafka-compiled": of_aiokafka._DefaultRecordBatchBuilderCython,
    "aiokafka-plain": of_aiokafka._DefaultRecordBatchBuilderPy,
}
PARSERS = {
    "kafka-python": of_kafka_python.DefaultRecordBatch,
    "aiokafka-compiled": of_aiokafka._DefaultRecordBatchCython,
    "aiokafka-plain": of_aiokafka._DefaultRecordBatchPy,
}
CODECS = {"kafka-python": kafka.codec, "aiokafka-compiled": aiokafka.codec, "aiokafka-plain": aiokafka.codec}
# A client knows the codecs it has a library for.
PAIRS = [
    (client, codec)
    for client, codecs in CODECS.items()
    for codec in CODEC_IDS
    if codec == "none" or getattr(codecs, f"has_{codec}")()
]
PRODUCERS = {
    "nobody": {},
    "idempotent": {"producer_id": 1 << 40, "producer_epoch": 7, "base_sequence": 2_147_483_000},
    "transactional": {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "transactional": True},
}
SAMPLES = {"small": samples.small(), "large": samples.large()}


def batch_of(sample, producer, codec):
    return Batch.of(SAMPLES[sample], codec=CODEC_IDS[codec], **PRODUCERS[producer])


def written_by(client, batch):
    builder = BUILDERS[client](
        magic=2,
        compression_type=batch.codec,
        is_transactional=int(batch.transactional),
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        batch_size=1 << 20,
    )
    for record in batch.records:
        assert builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def read_by(client, data):
    batch = PARSERS[client](bytes(data))
    assert batch.validate_crc()
    facts = {
        "codec": batch.compression_type,
        "base_offset": batch.base_offset,
        "last_offset": batch.base_offset + batch.last_offset_delta,
        "max_timestamp": batch.max_timestamp,
        "append_time": batch.max_timestamp if batch.timestamp_type else -1,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
    }
    records = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    return Batch(records=tuple(records), **facts)


def without_leader_epoch(data):
    """Clear header fields that producers may set freely: clients differ."""
    return bytes(data[:12]) + bytes(data[16:])


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize(("client", "codec"), PAIRS)
def test_batches_of_python_clients_are_decoded(client, codec, producer, sample):
    batch = batch_of(sample, producer, codec)
    (encoded,) = read_batches(written_by(client, batch))
    decoder = columns.ArrowDecoder(with_headers=True)
    decoder.add(encoded)

    decoded = read_by_us(encoded)
    assert decoded.leader_epoch in (0, -1)
    assert decoded == replace(batch, leader_epoch=decoded.leader_epoch)
    assert records_of(decoder.finish()) == list(batch.records)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("way", WRITERS)
@pytest.mark.parametrize(("client", "codec"), PAIRS)
def test_python_clients_decode_our_batches(client, codec, way, producer, sample):
    batch = batch_of(sample, producer, codec)
    assert read_by(client, WRITERS[way](batch)) == batch


@pytest.mark.parametrize("client", PARSERS)
def test_a_python_client_sees_the_append_time_we_set(client):
    batch = Batch.of(samples.small(), append_time=samples.TIME_MS + 77)
    assert read_by(client, WRITERS["encode"](batch)) == batch


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("producer", PRODUCERS)
@pytest.mark.parametrize("client", BUILDERS)
def test_uncompressed_batches_equal_those_of_python_clients(client, producer, sample):
    batch = batch_of(sample, producer, "none")
    theirs = without_leader_epoch(written_by(client, batch))
    assert [without_leader_epoch(write(batch)) for write in WRITERS.values()] == [theirs] * len(WRITERS)
