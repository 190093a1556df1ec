"""Batches that a broker must refuse: the error of each, and that nothing is appended."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from headrace.errors import Code
from headrace.wire import message_sets
from headrace.wire.api.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.kernel import kernel
from headrace.wire.layout import ATTRIBUTES_OFFSET, CONTROL, CRC_OFFSET, Record
from headrace.wire.records import BatchProducer, encode
from tests.support.peers.broker import Broker
from tests.support.peers.connection import Connection
from tests.support.raw_producer import TIME_MS, plain_batch
from tests.support.topics import new_topic

LAST_OFFSET_DELTA_OFFSET = 23
COUNT_OFFSET = 57
MAGIC_OFFSET = 16


@pytest.fixture
def link(either: Broker) -> Iterator[Connection]:
    with Connection(either.bootstrap) as connection:
        yield connection


@pytest.fixture
def topic(either: Broker) -> str:
    return new_topic(either, "refusals")


def patched(batch: bytes, offset: int, layout: str, value: int, mend: bool = True) -> bytes:
    """A batch with other bytes at an offset, and the checksum that belongs to them."""
    data = bytearray(batch)
    struct.pack_into(layout, data, offset, value)
    if mend:
        struct.pack_into(">I", data, CRC_OFFSET, kernel.crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))
    return bytes(data)


BATCH = plain_batch(b"one", b"two")
ATTRIBUTES = struct.unpack_from(">h", BATCH, ATTRIBUTES_OFFSET)[0]
RECORDS = [Record(0, TIME_MS, b"key", b"value", ())]

REFUSED = {
    "a wrong checksum": (patched(BATCH, len(BATCH) - 1, ">B", 7, mend=False), Code.CORRUPT_MESSAGE),
    "fewer records than offsets": (patched(BATCH, COUNT_OFFSET, ">i", 1), Code.INVALID_RECORD),
    "more records than offsets": (patched(BATCH, COUNT_OFFSET, ">i", 3), Code.INVALID_RECORD),
    "a last offset past the records": (patched(BATCH, LAST_OFFSET_DELTA_OFFSET, ">i", 5), Code.INVALID_RECORD),
    "a control batch": (patched(BATCH, ATTRIBUTES_OFFSET, ">h", ATTRIBUTES | CONTROL), Code.INVALID_RECORD),
    "no sequence with a producer id": (
        bytes(encode(RECORDS, producer=BatchProducer(7, 0, -1, transactional=False))),
        Code.INVALID_RECORD,
    ),
    "two batches in one": (BATCH + BATCH, Code.INVALID_RECORD),
    "an old message set in a new request": (message_sets.encode(RECORDS, magic=1), Code.INVALID_RECORD),
    "a record that ends before it begins": (patched(BATCH, 61, ">B", 0x7F), Code.INVALID_RECORD),
    "a record that is longer than the batch": (patched(BATCH, 61, ">B", 0x7E), Code.INVALID_RECORD),
    "a key that is longer than its record": (patched(BATCH, 65, ">B", 0x7E), Code.INVALID_RECORD),
    "more headers than bytes": (patched(BATCH, len(BATCH) - 1, ">B", 0x7E), Code.INVALID_RECORD),
    "a negative count of headers": (patched(BATCH, len(BATCH) - 1, ">B", 0x7F), Code.INVALID_RECORD),
    "a size of less than a header": (patched(BATCH, 8, ">i", 20, mend=False), Code.CORRUPT_MESSAGE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_batch_is_refused(link: Connection, topic: str, case: str) -> None:
    data, code = REFUSED[case]

    response = link.produce(topic, data)

    assert Code(response.error_code) is code, case
    taken = link.produce(topic, BATCH)
    assert (taken.error_code, taken.base_offset) == (0, 0)


def test_a_batch_over_max_message_bytes_is_too_large(either: Broker, link: Connection) -> None:
    topic = new_topic(either, "small", max_message_bytes=1000)

    assert link.produce(topic, plain_batch(b"x" * 1000)).error_code == Code.MESSAGE_TOO_LARGE
    assert link.produce(topic, plain_batch(b"x" * 900)).error_code == 0


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250])
def test_a_topic_with_an_invalid_name_cannot_be_written_to(link: Connection, name: str) -> None:
    assert link.produce(name, BATCH).error_code in (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.INVALID_TOPIC_EXCEPTION)


@pytest.mark.parametrize("creates", [True, False], ids=["may create it", "must not create it"])
def test_metadata_of_an_invalid_name_is_an_invalid_topic(link: Connection, creates: bool) -> None:
    message = MetadataRequest(topics=[MetadataRequestTopic(name="not a name!")], allow_auto_topic_creation=creates)
    response = link.call(message, 9)
    (entry,) = response.topics
    assert entry.error_code == Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_clients_cannot_write_to_internal_topics(link: Connection, topic: str) -> None:
    response = link.produce(topic, bytes(encode(RECORDS)))

    assert response.error_code in (Code.INVALID_TOPIC_EXCEPTION, Code.UNKNOWN_TOPIC_OR_PARTITION)


def test_partitions_that_do_not_exist_are_unknown(link: Connection, topic: str) -> None:
    assert link.produce(topic, BATCH, partition=1).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert link.produce(topic, BATCH, partition=-1).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert link.produce("nowhere-to-be-found", BATCH).error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
