"""Message sets: comparison with other clients, and invalid bytes."""

import contextlib
import struct
import zlib

import aiokafka.record.legacy_records as aiokafka_legacy
import aiokafka.record.memory_records as aiokafka_memory
import kafka.record.legacy_records as kafka_python_legacy
import kafka.record.memory_records as kafka_python_memory
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptBatchError, MalformedError, UnsupportedVersionError, WireError
from headrace.wire import compression, message_sets
from headrace.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from headrace.wire.layout import CONTROL, LOG_APPEND_TIME, NO_TIMESTAMP, BatchHeader, Record

pytestmark = pytest.mark.both_kernels

MAGICS = (0, 1)
CODECS = (NONE, GZIP, SNAPPY, LZ4)
ENTRY_BYTES = 12  # offset and size
HEAD_BYTES = (18, 26)  # up to the key's length
WRAPPER_BYTES = tuple(size + 8 for size in HEAD_BYTES)  # up to the value, the key being null

RECORDS = [
    Record(100, 5, b"k", b"v1", ()),
    Record(101, 9, None, b"second", ()),
    Record(102, 7, b"", None, ()),
    Record(103, NO_TIMESTAMP, None, b"", ()),
]

# RECORDS as encoded by Apache Kafka 3.9.1 and 4.3.0, the second with log append time 777.
JAVA_MAGIC_0_LZ4 = bytes.fromhex(
    "00000000000000670000007eb019cffa0003ffffffff0000007004224d1860401a6100000012000100916400000011615054270f"
    "0081016b0000000276310d00f00b00006500000014a6f2489d0000ffffffff000000067365636f6e350000020090660000000e3d"
    "3148950d0005240000020010671a00e0795748e00000ffffffff0000000000000000"
)
JAVA_MAGIC_1_LZ4_APPEND_TIME = bytes.fromhex(
    "00000000000000670000008a6e234b9e010b0000000000000309ffffffff0000007404224d18604082650000001600010072190d"
    "42d45d01081100d20309000000016b0000000276311300a600010000001c37ae4c742500e3ffffffff000000067365636f6e6428"
    "00960200000016f7761b892800001a00032c000002001003220046b3101bfc220080ffffffff0000000000000000"
)
JAVA_MAGIC_1_GZIP = bytes.fromhex(
    "000000000000006700000073ad4b82e701010000000000000009ffffffff0000005d1f8b08000000000000ff63608003498d48e5"
    "058c301e2b1033660309a63243a810484e46eefe6e8422ceff4000a4d98a5393f3f352a0a24c402c6634d9a40dae8e1d4440d582"
    "00334845ebaf2b4023ff230190140016a7b67391000000"
)
JAVA_MAGIC_1 = bytes.fromhex(
    "000000000000006400000019285923a001000000000000000005000000016b00000002763100000000000000650000001c1edfbb"
    "a001000000000000000009ffffffff000000067365636f6e64000000000000006600000016329334860100000000000000000700"
    "000000ffffffff00000000000000670000001685fad4000100ffffffffffffffffffffffff00000000"
)


def without_timestamps(records):
    return [record._replace(timestamp=NO_TIMESTAMP) for record in records]


def as_read(records, magic):
    return without_timestamps(records) if magic == 0 else list(records)


def reseal(message):
    """Return an entry with corrected size and checksum."""
    body = bytes(message[ENTRY_BYTES + 4 :])
    return bytes(message[:8]) + struct.pack(">iI", 4 + len(body), zlib.crc32(body)) + body


def wrap(inner, *, magic, codec, offset=0, timestamp=0):
    """Return a wrapper around any bytes."""
    value = bytes(compression.compress(codec, inner))
    head = struct.pack(">bb", magic, codec) + (struct.pack(">q", timestamp) if magic else b"")
    return reseal(struct.pack(">qiI", offset, 0, 0) + head + struct.pack(">ii", -1, len(value)) + value)


def split(data):
    """Return the entries of a set."""
    entries = []
    while data:
        size = ENTRY_BYTES + struct.unpack_from(">i", data, 8)[0]
        entries.append(data[:size])
        data = data[size:]
    return entries


blobs = st.none() | st.binary(max_size=40)
timestamps = st.integers(-1, 2**63 - 1)
contents = st.lists(st.tuples(timestamps, blobs, blobs), min_size=1, max_size=12)


def numbered(rows, first_offset=0):
    return [Record(first_offset + i, time, key, value, ()) for i, (time, key, value) in enumerate(rows)]


@given(contents, st.integers(0, 2**62), st.sampled_from(MAGICS), st.sampled_from(CODECS))
def test_message_sets_survive_encoding_and_decoding(rows, first_offset, magic, codec):
    records = numbered(rows, first_offset)
    assert message_sets.decode(message_sets.encode(records, magic=magic, codec=codec)) == as_read(records, magic)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", CODECS)
def test_gaps_between_offsets_survive(magic, codec):
    records = [RECORDS[0], RECORDS[1]._replace(offset=500), RECORDS[2]._replace(offset=2**40)]
    assert message_sets.decode(message_sets.encode(records, magic=magic, codec=codec)) == as_read(records, magic)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", CODECS)
def test_concatenated_sets_are_one_set(magic, codec):
    later = numbered([(1, b"k", b"v" * 100_000)] * 3, 104)
    data = message_sets.encode(RECORDS, magic=magic, codec=codec) + message_sets.encode(later, magic=magic)
    assert message_sets.decode(data) == as_read(RECORDS + later, magic)


@pytest.mark.parametrize("codec", CODECS)
def test_no_records_are_encoded_as_no_bytes(codec):
    assert message_sets.encode([], magic=1, codec=codec) == b""
    assert message_sets.decode(b"") == []


@pytest.mark.parametrize(("codec", "level"), [(GZIP, 1), (GZIP, 9), (LZ4, 17)])
def test_the_compression_level_is_used(codec, level):
    data = message_sets.encode(RECORDS, magic=1, codec=codec, level=level)
    assert message_sets.decode(data) == RECORDS
    packed = compression.compress(codec, message_sets.encode(numbered([r[1:4] for r in RECORDS]), magic=1), level)
    assert data.endswith(bytes(packed))


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(buffer):
    assert message_sets.decode(buffer(message_sets.encode(RECORDS, magic=1, codec=LZ4))) == RECORDS


# Timestamps


def test_a_wrapper_has_the_highest_timestamp_and_the_last_offset():
    data = message_sets.encode(RECORDS, magic=1, codec=GZIP)
    assert struct.unpack_from(">q", data, 0) == (103,)
    assert struct.unpack_from(">q", data, 18) == (9,)


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_replaces_all_timestamps(codec):
    data = message_sets.encode(RECORDS, magic=1, codec=codec, append_time=777)
    assert [entry[17] for entry in split(data)] == [LOG_APPEND_TIME | codec] * len(split(data))
    assert [record.timestamp for record in message_sets.decode(data)] == [777] * 4


def test_log_append_time_of_the_wrapper_overrides_the_inner_timestamps():
    data = bytearray(message_sets.encode(RECORDS, magic=1, codec=GZIP))
    data[17] |= LOG_APPEND_TIME
    assert [record.timestamp for record in message_sets.decode(reseal(data))] == [9] * 4


def test_magic_0_has_no_append_time():
    assert message_sets.encode(RECORDS, magic=0, append_time=777) == message_sets.encode(RECORDS, magic=0)


# Inner offsets


def test_a_wrapper_without_an_offset_keeps_the_inner_offsets():
    inner = message_sets.encode(numbered([(0, None, b"a"), (0, None, b"b")]), magic=1)
    assert [r.offset for r in message_sets.decode(wrap(inner, magic=1, codec=GZIP, offset=0))] == [0, 1]


def test_inner_offsets_of_magic_1_are_relative_to_the_wrappers():
    inner = message_sets.encode([RECORDS[0]._replace(offset=3), RECORDS[1]._replace(offset=7)], magic=1)
    assert [r.offset for r in message_sets.decode(wrap(inner, magic=1, codec=GZIP, offset=1007))] == [1003, 1007]


def test_inner_offsets_of_magic_0_are_absolute():
    inner = message_sets.encode(RECORDS, magic=0)
    assert [r.offset for r in message_sets.decode(wrap(inner, magic=0, codec=GZIP, offset=5))] == [
        100,
        101,
        102,
        103,
    ]


def test_a_wrapper_offset_below_the_last_inner_offset_is_rejected():
    inner = message_sets.encode(RECORDS, magic=1)
    with pytest.raises(CorruptBatchError, match="at 0: expected an offset of 103 or more, got 50"):
        message_sets.decode(wrap(inner, magic=1, codec=GZIP, offset=50))


@pytest.mark.parametrize("offset", [-(2**63), 104])
def test_inner_offsets_outside_their_range_are_rejected(offset):
    inner = message_sets.encode([RECORDS[0]._replace(offset=offset), *RECORDS], magic=1)
    with pytest.raises(CorruptBatchError, match=f"expected an offset from 0 to 103, got {offset}"):
        message_sets.decode(wrap(inner, magic=1, codec=GZIP, offset=2**63 - 1))


# Apache Kafka


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (JAVA_MAGIC_0_LZ4, without_timestamps(RECORDS)),
        (JAVA_MAGIC_1_LZ4_APPEND_TIME, [record._replace(timestamp=777) for record in RECORDS]),
        (JAVA_MAGIC_1_GZIP, RECORDS),
        (JAVA_MAGIC_1, RECORDS),
    ],
)
def test_sets_of_apache_kafka_are_read(data, expected):
    assert message_sets.decode(data) == expected


def test_an_uncompressed_set_equals_apache_kafkas():
    assert message_sets.encode(RECORDS, magic=1) == JAVA_MAGIC_1


# Other clients


def built_by(module, rows, magic, codec):
    builder = module.LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, (timestamp, key, value) in enumerate(rows):
        assert builder.append(offset, timestamp, key, value) is not None
    return bytes(builder.build())


def read_by(module, data):
    sets = module.MemoryRecords(data)
    rows = []
    while sets.has_next():
        batch = sets.next_batch()
        assert batch.validate_crc()
        rows += [Record(r.offset, timestamp_of(r), r.key, r.value, ()) for r in batch]
    return rows


def timestamp_of(record):
    return NO_TIMESTAMP if record.timestamp is None else record.timestamp


# kafka-python needs packages for snappy and lz4 that are not installed; aiokafka rejects lz4 in magic 0.
KAFKA_PYTHON = [(kafka_python_legacy, kafka_python_memory, m, c) for m in MAGICS for c in (NONE, GZIP)]
AIOKAFKA = [(aiokafka_legacy, aiokafka_memory, m, c) for m in MAGICS for c in CODECS if (m, c) != (0, LZ4)]
CLIENTS = KAFKA_PYTHON + AIOKAFKA


@given(contents, st.sampled_from([client for client in CLIENTS if client[-1] == NONE]))
def test_uncompressed_sets_equal_those_of_other_clients(rows, client):
    module, _, magic, codec = client
    assert message_sets.encode(numbered(rows), magic=magic) == built_by(module, rows, magic, codec)


@given(contents, st.sampled_from([client for client in CLIENTS if client[-1] != NONE]))
def test_compressed_sets_of_other_clients_have_equal_contents(rows, client):
    module, _, magic, codec = client
    theirs = built_by(module, rows, magic, codec)
    inner = compression.decompress(codec, theirs[WRAPPER_BYTES[magic] :])
    assert bytes(inner) == message_sets.encode(numbered(rows), magic=magic)


@given(contents, st.sampled_from(CLIENTS))
def test_sets_of_other_clients_are_read(rows, client):
    module, _, magic, codec = client
    assert message_sets.decode(built_by(module, rows, magic, codec)) == as_read(numbered(rows), magic)


@given(contents, st.integers(0, 2**62), st.sampled_from(CLIENTS))
def test_other_clients_read_our_sets(rows, first_offset, client):
    _, module, magic, codec = client
    records = numbered(rows, first_offset)
    assert read_by(module, message_sets.encode(records, magic=magic, codec=codec)) == as_read(records, magic)


# The LZ4 frames of magic 0 (KAFKA-3160)

JAVA_FRAME = JAVA_MAGIC_0_LZ4[WRAPPER_BYTES[0] :]
CHECKSUM_AT = 6  # in a frame without optional fields


@pytest.mark.parametrize(
    ("data", "digest"), [(b"", 0x02CC5D05), (b"a", 0x550D7456), (b"abc", 0x32D153FF), (b"abcd", 0xA3643705)]
)
def test_xxhash_has_the_published_digests(data, digest):
    assert message_sets._xxh32_short(data) == digest


def test_lz4_in_magic_0_is_written_with_the_checksum_that_old_brokers_expect():
    frame = message_sets.encode(RECORDS, magic=0, codec=LZ4)[WRAPPER_BYTES[0] :]
    correct = bytes(compression.compress(LZ4, message_sets.encode(RECORDS, magic=0)))
    assert frame[CHECKSUM_AT] == message_sets._xxh32_short(frame[:CHECKSUM_AT]) >> 8 & 0xFF
    assert frame[CHECKSUM_AT] != correct[CHECKSUM_AT]
    assert frame[:CHECKSUM_AT] + frame[CHECKSUM_AT + 1 :] == correct[:CHECKSUM_AT] + correct[CHECKSUM_AT + 1 :]


def test_fixing_and_breaking_the_lz4_checksum_gives_apache_kafkas_bytes():
    mended = bytes(message_sets._fix_lz4_checksum(memoryview(JAVA_FRAME)))
    assert bytes(compression.decompress(LZ4, mended)) == message_sets.encode(RECORDS, magic=0)
    assert message_sets._break_lz4_checksum(mended) == JAVA_FRAME
    with pytest.raises(CorruptBatchError):
        compression.decompress(LZ4, JAVA_FRAME)


def test_lz4_in_magic_0_is_also_read_with_the_correct_checksum():
    inner = message_sets.encode(RECORDS, magic=0)
    assert message_sets.decode(wrap(inner, magic=0, codec=LZ4)) == without_timestamps(RECORDS)


def test_lz4_in_magic_1_needs_the_correct_checksum():
    data = bytearray(message_sets.encode(RECORDS, magic=1, codec=LZ4))
    compression.decompress(LZ4, data[WRAPPER_BYTES[1] :])
    data[WRAPPER_BYTES[1] + CHECKSUM_AT] ^= 0xFF
    with pytest.raises(CorruptBatchError, match="lz4"):
        message_sets.decode(reseal(data))


def test_the_content_size_is_removed_from_a_frame_for_old_brokers():
    frame = bytes(message_sets._fix_lz4_checksum(memoryview(JAVA_FRAME)))
    sized = message_sets._fix_lz4_checksum(
        frame[:4] + bytes([frame[4] | 0x08, frame[5]]) + struct.pack("<Q", 113) + frame[6:]
    )
    assert len(compression.decompress(LZ4, sized)) == 113
    assert message_sets._break_lz4_checksum(sized) == JAVA_FRAME


@pytest.mark.parametrize("magic", MAGICS)
def test_message_sets_have_independent_lz4_blocks_for_java(magic):
    data = message_sets.encode([Record(0, 0, None, bytes(200_000), ())], magic=magic, codec=LZ4)
    assert data[WRAPPER_BYTES[magic] + 4] & 0x20


@pytest.mark.parametrize("size", range(9))
def test_a_truncated_lz4_frame_is_corrupt(size):
    value = b"\x04\x22\x4d\x18\x68\x40\x82\x00\x00"[:size]
    head = struct.pack(">qiIbbii", 0, 0, 0, 0, LZ4, -1, size)
    with pytest.raises(CorruptBatchError, match="lz4"):
        message_sets.decode(reseal(head + value))


# Unsupported codecs


def test_zstd_is_not_written():
    with pytest.raises(UnsupportedVersionError, match="gzip, snappy and lz4, not zstd"):
        message_sets.encode(RECORDS, magic=1, codec=ZSTD)


@pytest.mark.parametrize(("codec", "name"), [(ZSTD, "zstd"), (5, "codec 5"), (7, "codec 7")])
def test_unsupported_codecs_are_not_read(codec, name):
    data = bytearray(message_sets.encode(RECORDS, magic=1, codec=GZIP))
    data[17] = codec
    with pytest.raises(CorruptBatchError, match=f"expected gzip, snappy or lz4, got {name}"):
        message_sets.decode(reseal(data))


def test_magic_2_is_not_written():
    with pytest.raises(UnsupportedVersionError, match="magic 0 or 1 for a message set, got 2"):
        message_sets.encode(RECORDS, magic=2)


@pytest.mark.parametrize("magic", [2, 3, 255])
def test_other_magic_is_not_read(magic):
    data = bytearray(message_sets.encode(RECORDS[:1], magic=1))
    data[16] = magic
    with pytest.raises(MalformedError, match=f"expected magic 0 or 1 in a message set, got {magic}") as caught:
        message_sets.decode(data)
    assert caught.value.offset == 16


# Mixed magic


def test_a_set_of_mixed_magic_is_read_only_with_mixed_magic():
    data = message_sets.encode(RECORDS[:2], magic=0, codec=LZ4) + message_sets.encode(RECORDS[2:], magic=1, codec=LZ4)
    second = len(message_sets.encode(RECORDS[:2], magic=0, codec=LZ4))
    assert message_sets.decode(data, mixed_magic=True) == without_timestamps(RECORDS[:2]) + RECORDS[2:]
    with pytest.raises(MalformedError, match="expected magic 0 in the whole set, got 1") as caught:
        message_sets.decode(data)
    assert caught.value.offset == second


@pytest.mark.parametrize("magic", MAGICS)
def test_inner_messages_must_have_the_magic_of_the_wrapper(magic):
    inner = message_sets.encode(RECORDS[:1], magic=magic) + message_sets.encode(RECORDS[1:], magic=1 - magic)
    with pytest.raises(CorruptBatchError, match=f"expected magic {magic}, got {1 - magic}"):
        message_sets.decode(wrap(inner, magic=magic, codec=GZIP, offset=103), mixed_magic=True)


# Incomplete sets


@pytest.mark.parametrize("magic", MAGICS)
def test_an_incomplete_last_message_is_dropped_only_with_partial_tail(magic):
    data = message_sets.encode(RECORDS, magic=magic)
    ends = [0]
    for entry in split(data):
        ends.append(ends[-1] + len(entry))
    for size in range(len(data)):
        whole = sum(end <= size for end in ends) - 1
        assert message_sets.decode(data[:size], partial_tail=True) == as_read(RECORDS[:whole], magic)
        if size not in ends:
            with pytest.raises(MalformedError) as caught:
                message_sets.decode(data[:size])
            assert caught.value.offset == ends[whole]


def test_an_incomplete_wrapper_has_no_records():
    data = message_sets.encode(RECORDS, magic=1, codec=GZIP)
    assert message_sets.decode(data[:-1], partial_tail=True) == []


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_an_inner_set_must_be_complete_even_with_partial_tail(codec):
    inner = message_sets.encode(RECORDS, magic=1)[:-1]
    with pytest.raises(CorruptBatchError, match="in the compressed message at 0: expected an entry of 34 bytes"):
        message_sets.decode(wrap(inner, magic=1, codec=codec, offset=103), partial_tail=True)


# Invalid bytes


def test_a_message_checksum_error_names_both_checksums_and_the_position():
    entries = split(message_sets.encode(RECORDS, magic=1))
    bad = bytearray(entries[1])
    bad[-1] ^= 1
    stored = struct.unpack_from(">I", bad, 12)[0]
    computed = zlib.crc32(bad[16:])
    match = f"message at {len(entries[0])}: expected checksum {stored:#010x}, got {computed:#010x}"
    with pytest.raises(CorruptBatchError, match=match):
        message_sets.decode(entries[0] + bytes(bad))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_checksums_of_inner_messages_are_verified(codec):
    inner = bytearray(message_sets.encode(RECORDS, magic=1))
    inner[-1] ^= 1
    with pytest.raises(CorruptBatchError, match=r"in the compressed message at 0: message at \d+: expected checksum "):
        message_sets.decode(wrap(inner, magic=1, codec=codec, offset=103))


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 13])
@pytest.mark.parametrize("partial_tail", [False, True])
def test_a_message_size_below_the_minimum_is_rejected(size, partial_tail):
    data = struct.pack(">qi", 0, size) + bytes(100)
    with pytest.raises(MalformedError, match=f"expected a message of at least 14 bytes, got {size} "):
        message_sets.decode(data, partial_tail=partial_tail)


def test_a_message_size_beyond_the_end_is_rejected():
    data = struct.pack(">qi", 0, 2**31 - 1) + bytes(100)
    with pytest.raises(MalformedError, match="expected an entry of 2147483659 bytes or more, 112 left"):
        message_sets.decode(data)


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("length", [-(2**31), -2, 5, 2**31 - 1])
def test_a_length_beyond_the_message_is_rejected(magic, length):
    at = HEAD_BYTES[magic]
    data = bytearray(message_sets.encode([Record(0, 0, b"", b"", ())], magic=magic))
    struct.pack_into(">i", data, at, length)
    with pytest.raises(MalformedError, match=f"expected a key of {length} bytes, 4 left") as caught:
        message_sets.decode(reseal(data))
    assert caught.value.offset == at
    struct.pack_into(">ii", data, at, 0, length)
    with pytest.raises(MalformedError, match=f"expected a value of {length} bytes, 0 left") as caught:
        message_sets.decode(reseal(data))
    assert caught.value.offset == at + 4


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_message_too_short_for_its_lengths_is_rejected(cut):
    data = message_sets.encode([Record(0, 0, None, None, ())], magic=1)
    with pytest.raises(MalformedError, match="expected the length of a "):
        message_sets.decode(reseal(data[:-cut]))


def test_bytes_after_the_value_are_rejected():
    data = reseal(message_sets.encode(RECORDS[:1], magic=1) + b"more")
    with pytest.raises(MalformedError, match="expected the message to end with its value, 4 bytes left"):
        message_sets.decode(data)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_nested_compression_is_rejected(codec):
    inner = message_sets.encode(RECORDS, magic=1, codec=codec)
    with pytest.raises(CorruptBatchError, match="expected an uncompressed message inside a wrapper"):
        message_sets.decode(wrap(inner, magic=1, codec=codec, offset=103))


def test_a_wrapper_with_a_null_value_is_rejected():
    data = bytearray(message_sets.encode([Record(0, 0, None, None, ())], magic=1))
    data[17] = GZIP
    with pytest.raises(CorruptBatchError, match="expected a message set as the value, got null"):
        message_sets.decode(reseal(data))


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_a_wrapper_without_messages_is_rejected(codec):
    with pytest.raises(CorruptBatchError, match="expected messages, got none"):
        message_sets.decode(wrap(b"", magic=1, codec=codec))


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_decompression_stops_at_the_limit(magic, codec):
    bomb = message_sets.encode([Record(0, 0, None, bytes(8 << 20), ())], magic=magic, codec=codec)
    assert len(bomb) < 1 << 20
    with pytest.raises(CorruptBatchError, match=r"expected at most \d+ bytes"):
        message_sets.decode(bomb, bytes_max=65536)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4])
def test_the_decompression_limit_is_for_the_whole_set(codec):
    data = message_sets.encode([Record(0, 0, None, bytes(1000), ())], magic=1, codec=codec)
    assert len(message_sets.decode(data * 4, bytes_max=4 * 1034)) == 4
    with pytest.raises(CorruptBatchError, match="expected at most 1033 bytes"):
        message_sets.decode(data * 4, bytes_max=4 * 1034 - 1)


SEEDS = [message_sets.encode(RECORDS, magic=magic, codec=codec) for magic in MAGICS for codec in CODECS]


def decode_or_refuse(data, **how):
    with contextlib.suppress(WireError):
        message_sets.decode(data, bytes_max=1 << 20, **how)


@given(st.sampled_from(SEEDS), st.integers(0, 2**16), st.integers(1, 255), st.booleans())
def test_a_flipped_byte_raises_only_wire_errors(seed, at, mask, lenient):
    data = bytearray(seed)
    data[at % len(data)] ^= mask
    decode_or_refuse(data, partial_tail=lenient, mixed_magic=lenient)


@given(st.sampled_from(SEEDS), st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), max_size=4))
def test_flipped_bytes_with_a_valid_checksum_raise_only_wire_errors(seed, flips):
    data = bytearray(split(seed)[0])
    for at, mask in flips:
        data[16 + at % (len(data) - 16)] ^= mask
    decode_or_refuse(reseal(data))


@given(st.binary(max_size=200), st.sampled_from(MAGICS), st.sampled_from([GZIP, SNAPPY, LZ4]))
def test_any_bytes_raise_only_wire_errors(data, magic, codec):
    decode_or_refuse(data, partial_tail=True)
    decode_or_refuse(wrap(data, magic=magic, codec=codec))
    decode_or_refuse(reseal(bytes(16) + bytes([magic, codec]) + data))


# Conversion


def header(attributes, max_timestamp=9):
    return BatchHeader(0, 0, 0, 2, 0, attributes, 0, 0, max_timestamp, -1, -1, -1, 0)


@pytest.mark.parametrize("magic", MAGICS)
def test_converting_down_keeps_offsets_and_drops_control_batches(magic):
    with_headers = [record._replace(headers=(("h", b"x"),)) for record in RECORDS]
    control = [Record(104, 0, b"\0\0\0\1", b"\0\0\0\0\0\0", ())]
    later = numbered([(11, None, b"later")], 105)
    batches = [(header(SNAPPY), with_headers), (header(CONTROL), control), (header(NONE), later)]
    data = message_sets.convert_down(batches, magic=magic)
    assert [entry[17] for entry in split(data)] == [SNAPPY, NONE]
    assert message_sets.decode(data) == as_read(RECORDS + later, magic)


def test_converting_down_keeps_log_append_time():
    data = message_sets.convert_down([(header(GZIP | LOG_APPEND_TIME, 777), RECORDS)], magic=1)
    assert data[17] == GZIP | LOG_APPEND_TIME
    assert [record.timestamp for record in message_sets.decode(data)] == [777] * 4


def test_a_zstd_batch_is_not_converted_down():
    with pytest.raises(UnsupportedVersionError, match="zstd"):
        message_sets.convert_down([(header(ZSTD), RECORDS)], magic=1)


@given(contents, st.sampled_from(CODECS))
def test_converting_magic_1_to_magic_0_drops_timestamps(rows, codec):
    records = numbered(rows)
    newer = message_sets.decode(message_sets.encode(records, magic=1, codec=codec))
    assert message_sets.decode(message_sets.encode(newer, magic=0, codec=codec)) == without_timestamps(records)
