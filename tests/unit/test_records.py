"""Record batches, record by record."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptBatchError, MalformedError, WireError
from headrace.wire import records
from headrace.wire.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD
from headrace.wire.kernel import kernel
from headrace.wire.layout import HEADER_BYTES, Record
from headrace.wire.records import (
    BatchProducer,
    Marker,
    OpenBatch,
    decode_marker,
    encode,
    encode_marker,
    read_batches,
    seal,
)

pytestmark = pytest.mark.both_kernels

ALL_CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]

cells = st.none() | st.binary(max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=20), cells), max_size=4).map(tuple)
timestamps = st.integers(min_value=0, max_value=2**62)
rows = st.lists(st.tuples(timestamps, cells, cells, header_lists), min_size=1, max_size=30)


def numbered(drawn, first_offset=0):
    return [Record(first_offset + index, *row) for index, row in enumerate(drawn)]


def only(data):
    (batch,) = read_batches(data)
    return batch


@settings(deadline=None)
@given(rows, st.sampled_from(ALL_CODECS), st.integers(min_value=0, max_value=2**62))
def test_records_survive_encoding_and_decoding(drawn, codec, first_offset):
    expected = numbered(drawn, first_offset)
    assert only(encode(expected, codec=codec)).records() == expected


@pytest.mark.behaviour("P28")
@pytest.mark.parametrize("codec", ALL_CODECS, ids=CODEC_NAMES)
@pytest.mark.parametrize("level", [1, 6, 9])
def test_every_level_is_readable(codec, level):
    expected = [Record(index, 1000 + index, b"k%d" % index, b"value" * 50, ()) for index in range(500)]
    assert only(encode(expected, codec=codec, level=level)).records() == expected


def test_the_header_has_the_producer_fields():
    writer = BatchProducer(producer_id=4711, epoch=3, base_sequence=2**31 - 1, transactional=True)
    header = only(encode([Record(9, 5, None, b"x", ()), Record(10, 7, None, b"y", ())], producer=writer)).header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 3, 2**31 - 1)
    assert header.is_transactional
    assert not header.is_control
    assert (header.base_offset, header.last_offset, header.record_count) == (9, 10, 2)
    assert (header.base_timestamp, header.max_timestamp) == (5, 7)


def test_timestamps_may_decrease():
    expected = [Record(0, 1000, None, b"a", ()), Record(1, 10, None, b"b", ()), Record(2, 500, None, b"c", ())]
    batch = only(encode(expected))
    assert batch.records() == expected
    assert batch.header.max_timestamp == 1000


def test_log_append_time_overrides_every_record():
    batch = only(encode([Record(0, 1, None, b"a", ()), Record(1, 2, None, b"b", ())], append_time=99))
    assert [record.timestamp for record in batch.records()] == [99, 99]
    assert batch.header.append_time == 99


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_survives_encoding_as_a_control_batch(committed):
    batch = only(encode_marker(Marker(committed, 12), producer_id=7, epoch=2, timestamp=5, offset=33))
    assert batch.header.is_control
    assert batch.header.is_transactional
    assert (batch.header.producer_id, batch.header.producer_epoch, batch.header.base_sequence) == (7, 2, -1)
    (record,) = batch.records()
    assert record.offset == 33
    assert decode_marker(record) == Marker(committed, 12)


def test_other_control_records_are_not_markers():
    assert decode_marker(Record(0, 0, struct.pack(">hh", 0, 2), b"", ())) is None
    with pytest.raises(MalformedError, match="key of a control record"):
        decode_marker(Record(0, 0, b"\0", b"", ()))
    with pytest.raises(MalformedError, match="value of a transaction marker"):
        decode_marker(Record(0, 0, struct.pack(">hh", 0, 1), b"\0", ()))


def test_a_full_batch_rejects_a_record_and_keeps_the_others():
    batch = OpenBatch(bytearray(HEADER_BYTES + 250))
    assert batch.append(1, None, b"x" * 100) == 0
    assert batch.append(2, b"k", b"y" * 100) == 1
    size = batch.size
    assert batch.append(3, None, b"z" * 100) == -1
    assert (batch.size, batch.record_count) == (size, 2)
    assert batch.append(3, None, b"z") == 2
    assert [record.value for record in only(seal(batch)).records()] == [b"x" * 100, b"y" * 100, b"z"]


def test_a_batch_can_be_filled_to_the_last_byte():
    probe = OpenBatch(bytearray(HEADER_BYTES + 100))
    probe.append(0, b"key", b"value", [("h", b"v")])
    exact = OpenBatch(bytearray(probe.size))
    assert exact.append(0, b"key", b"value", [("h", b"v")]) == 0
    assert OpenBatch(bytearray(probe.size - 1)).append(0, b"key", b"value", [("h", b"v")]) == -1


@settings(deadline=None)
@given(cells, cells, header_lists, timestamps)
def test_the_size_bound_of_a_record_holds(key, value, headers, timestamp):
    room = HEADER_BYTES + records.record_bytes_max(key, value, headers)
    assert OpenBatch(bytearray(room)).append(timestamp, key, value, headers) == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_key_and_value_may_be_any_buffer(kind):
    batch = OpenBatch(bytearray(1000))
    batch.append(0, kind(b"key"), kind(b"value"), [("h", kind(b"v"))])
    assert only(seal(batch)).records() == [Record(0, 0, b"key", b"value", (("h", b"v"),))]


@pytest.mark.parametrize("bad", ["text", 5, 1.5, object()])
def test_a_value_that_is_not_a_buffer_is_a_type_error_and_changes_nothing(bad):
    batch = OpenBatch(bytearray(1000))
    batch.append(0, b"k", b"v")
    size = batch.size
    for key, value in ((bad, b"v"), (b"k", bad)):
        with pytest.raises(TypeError):
            batch.append(0, key, value)
    assert (batch.size, batch.record_count) == (size, 1)


def test_a_buffer_too_small_for_a_header_is_rejected():
    with pytest.raises(ValueError, match="61 bytes or more, got 60"):
        OpenBatch(bytearray(60))


def test_consecutive_batches_are_read():
    first, second = encode([Record(0, 0, None, b"a", ())]), encode([Record(1, 0, None, b"b", ())], codec=ZSTD)
    assert [batch.header.base_offset for batch in read_batches(bytes(first) + bytes(second))] == [0, 1]


def test_an_incomplete_last_batch_is_dropped_only_if_partial():
    whole = bytes(encode([Record(0, 0, None, b"a", ())]))
    for cut in range(1, len(whole)):
        data = whole + whole[:cut]
        assert len(list(read_batches(data, partial=True))) == 1
        with pytest.raises(MalformedError, match="left"):
            list(read_batches(data))


@pytest.mark.parametrize("codec", ALL_CODECS, ids=CODEC_NAMES)
def test_the_checksum_detects_every_flipped_byte(codec):
    whole = bytes(encode([Record(0, 0, b"key", b"value", (("h", b"v"),))], codec=codec))
    for position in range(17, len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 0x55
        with pytest.raises(WireError):
            only(broken).records()


def test_a_checksum_error_names_both_checksums_and_the_batch():
    broken = bytearray(encode([Record(42, 0, None, b"value", ())]))
    broken[-1] ^= 1
    with pytest.raises(CorruptBatchError, match=r"batch at offset 42: expected checksum 0x.{8}, got 0x"):
        only(broken).verify()


def test_other_magics_and_invalid_lengths_are_rejected_with_their_position():
    whole = bytearray(encode([Record(0, 0, None, b"value", ())]))
    old = bytearray(whole)
    old[16] = 1
    with pytest.raises(MalformedError, match="magic 2, got magic 1") as caught:
        only(old)
    assert caught.value.offset == 16
    short = bytearray(whole)
    short[8:12] = struct.pack(">i", 48)
    with pytest.raises(MalformedError, match="length of 49 or more, got 48"):
        only(short)
    negative = bytearray(whole)
    negative[57:61] = struct.pack(">i", -1)
    with pytest.raises(MalformedError, match="got -1 records"):
        only(negative)


def payload_of(*rows_of_record):
    return bytes(encode([Record(i, *row) for i, row in enumerate(rows_of_record)])[HEADER_BYTES:])


@pytest.mark.parametrize(
    ("mutate", "expected"),
    [
        (lambda p: b"\xff\xff\xff\xff\xff\xff" + p, "varint|length of a record"),
        (lambda p: b"\x7e" + p[1:], "within the batch|length of a record"),
        (lambda p: p + b"\0", "bytes are left"),
        (lambda p: b"\0" + p[1:], "attributes"),
    ],
)
def test_the_error_of_a_malformed_payload_says_what_was_expected(mutate, expected):
    payload = mutate(payload_of((0, b"key", b"value", ())))
    with pytest.raises(MalformedError, match=expected) as caught:
        kernel.decode_records(payload, 1, 0, 0, -1)
    assert caught.value.offset >= 0


def test_a_header_count_beyond_the_record_is_rejected_before_allocating():
    payload = payload_of((0, None, None, ()))
    hostile = bytes([payload[0] + 8]) + payload[1:-1] + b"\xfe\xff\xff\xff\x0f"  # 2**31 - 1 headers
    with pytest.raises(MalformedError, match="count of headers"):
        kernel.decode_records(hostile, 1, 0, 0, -1)


def test_header_keys_that_are_not_utf8_are_rejected():
    payload = payload_of((0, None, None, (("é", b""),)))
    with pytest.raises(MalformedError, match="UTF-8"):
        kernel.decode_records(payload.replace("é".encode(), b"\xff\xfe"), 1, 0, 0, -1)


def test_check_records_raises_as_decode_records_does() -> None:
    batch = encode([Record(n, 5, b"k" if n else None, b"v", (("h", b"x"),)) for n in range(3)])
    payload = bytes(batch[HEADER_BYTES:])

    assert kernel.check_records(payload, 3) == 0
    assert kernel.check_records(bytes(encode([Record(0, 5, b"k", None, ())])[HEADER_BYTES:]), 1) == -1
    with pytest.raises(MalformedError, match="bytes are left"):
        kernel.check_records(payload, 2)
    with pytest.raises(MalformedError):
        kernel.check_records(payload, 4)
    for position in range(len(payload)):  # the same error as when the records are decoded
        damaged = payload[:position] + bytes([payload[position] ^ 0x55]) + payload[position + 1 :]
        try:
            records = kernel.decode_records(damaged, 3, 0, 0, -1)
            right = [record.offset for record in records] == [0, 1, 2]
        except MalformedError:
            right = False
        try:
            kernel.check_records(damaged, 3)
            assert right, damaged
        except MalformedError:
            assert not right, damaged
