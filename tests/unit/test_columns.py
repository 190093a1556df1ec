"""Record batches from Arrow columns and back."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptBatchError, WireError
from headrace.wire import _reference as reference
from headrace.wire import columns
from headrace.wire.compression import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD
from headrace.wire.kernel import kernel
from headrace.wire.layout import HEADER_BYTES, Record
from headrace.wire.records import encode, read_batches, seal

pytestmark = pytest.mark.both_kernels

NOW = 1_700_000_000_000

cells = st.none() | st.binary(max_size=80)
header_lists = st.none() | st.lists(st.tuples(st.text(max_size=8), cells), max_size=3)
row = st.tuples(cells, cells, header_lists, st.none() | st.integers(0, 2**50), st.integers(0, 4))


def headers_array(lists):
    return pa.array(
        [None if h is None else [{"key": k, "value": v} for k, v in h] for h in lists], columns.HEADERS_TYPE
    )


def by_partition(encoded, codec=NONE):
    records: defaultdict[int, list] = defaultdict(list)
    for batch in encoded:
        (parsed,) = read_batches(seal(batch, codec=codec))
        records[batch.partition] += [record[1:] for record in parsed.records()]
    return dict(records)


@settings(deadline=None)
@given(st.lists(row, max_size=60), st.integers(200, 2000), st.booleans())
def test_rows_arrive_in_their_partition_in_order(drawn, batch_bytes_max, large):
    binary = pa.large_binary() if large else pa.binary()
    keys, values, headers, times, partitions = [list(column) for column in zip(*drawn, strict=True)] or [[]] * 5
    encoded = columns.encode(
        pa.array(values, binary),
        key=pa.array(keys, binary),
        headers=headers_array(headers),
        timestamp=pa.array(times, pa.int64()),
        partition=pa.array(partitions, pa.int32()),
        partition_count=5,
        now_ms=NOW,
        batch_bytes_max=batch_bytes_max,
    )
    expected = defaultdict(list)
    for key, value, header, time, partition in drawn:
        expected[partition].append((NOW if time is None else time, key, value, tuple(header or ())))
    assert by_partition(encoded) == dict(expected)
    for batch in encoded:
        assert batch.size <= batch_bytes_max or batch.record_count == 1


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_all_binary_and_string_types_are_accepted(kind):
    texts = ["alpha", None, "", "ünïcode", "a much longer piece of text, beyond what a view holds inline"]
    binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    data = [t.encode() if binary and t is not None else t for t in texts]
    array = pa.array(data, kind)
    encoded = columns.encode(
        array, key=array, partition=pa.array([0] * 5), partition_count=1, now_ms=NOW, batch_bytes_max=10_000
    )
    expected = [t if t is None else t.encode() for t in texts]
    assert [(k, v) for _, k, v, _ in by_partition(encoded)[0]] == [(e, e) for e in expected]


def test_slices_of_columns_are_encoded():
    value = pa.array([b"%d" % i for i in range(100)], pa.binary()).slice(40, 7)
    key = pa.array([None if i % 3 else b"k%d" % i for i in range(100)], pa.large_binary()).slice(40, 7)
    headers = headers_array([[("h", b"%d" % i)] if i % 2 else None for i in range(100)]).slice(40, 7)
    times = pa.array(range(100), pa.int64()).slice(40, 7)
    partitions = pa.array([i % 2 for i in range(100)], pa.int64()).slice(40, 7)
    encoded = columns.encode(
        value,
        key=key,
        headers=headers,
        timestamp=times,
        partition=partitions,
        partition_count=2,
        now_ms=NOW,
        batch_bytes_max=10_000,
    )
    expected = defaultdict(list)
    for i in range(40, 47):
        expected[i % 2].append((i, None if i % 3 else b"k%d" % i, b"%d" % i, (("h", b"%d" % i),) if i % 2 else ()))
    assert by_partition(encoded) == dict(expected)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_become_milliseconds(unit):
    scale = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}[unit]
    times = pa.array([1_700_000_000 * scale], pa.timestamp(unit, tz="UTC"))
    encoded = columns.encode(
        pa.array([b"v"]), timestamp=times, partition=pa.array([0]), partition_count=1, now_ms=0, batch_bytes_max=1000
    )
    assert by_partition(encoded)[0][0][0] == 1_700_000_000_000


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD], ids=CODEC_NAMES)
def test_encoded_columns_can_be_sealed_with_every_codec(codec):
    values = [b"value %d" % i for i in range(1000)]
    encoded = columns.encode(
        pa.array(values), partition=pa.array([0] * 1000), partition_count=1, now_ms=NOW, batch_bytes_max=4096
    )
    assert [v for _, _, v, _ in by_partition(encoded, codec)[0]] == values


def test_spare_buffers_of_any_size_are_reused():
    def run(spare):
        return columns.encode(
            pa.array([b"x" * 50] * 100),
            partition=pa.array([0] * 100),
            partition_count=1,
            now_ms=NOW,
            batch_bytes_max=1000,
            spare=spare,
        )

    first = run([])
    looked_at = bytearray(1000)
    view = memoryview(looked_at)
    spare = [batch.buffer for batch in first] + [bytearray(10), looked_at]
    again = run(spare)
    assert by_partition(again) == by_partition(run([]))
    assert all(batch.buffer is not looked_at for batch in again)
    assert bytes(view) == bytes(1000)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"value": pa.array([1])}, TypeError, "column value has type int64; expected binary or string"),
        ({"key": pa.array([b"a", b"b"])}, ValueError, "column key has 2 rows, value has 1"),
        ({"partition": pa.array([5])}, ValueError, "row 0: expected a partition from 0 to 1, got 5"),
        ({"partition": pa.array([-1])}, ValueError, "row 0: expected a partition from 0 to 1, got -1"),
        ({"partition": pa.array([None], pa.int32())}, ValueError, "column partition has 1 nulls"),
        ({"timestamp": pa.array([1.5])}, TypeError, "column timestamp has type double"),
        ({"headers": pa.array(["x"])}, TypeError, "column headers has type string; expected list<struct"),
        ({"headers": headers_array([[(None, b"x")]])}, ValueError, "a header without a key"),
    ],
)
def test_the_error_of_an_invalid_column_names_it(changes, error, words):
    arguments = {"value": pa.array([b"v"]), "partition": pa.array([0]), **changes}
    with pytest.raises(error, match=words):
        columns.encode(arguments.pop("value"), **arguments, partition_count=2, now_ms=NOW, batch_bytes_max=1000)


@settings(deadline=None)
@given(st.lists(cells, max_size=50), st.integers(1, 1000))
def test_partitions_of_keys_equal_those_of_the_scalar_hash(keys, count):
    expected = [None if key is None else (kernel.murmur2(key) & 0x7FFFFFFF) % count for key in keys]
    assert columns.partition_for_keys(pa.array(keys, pa.binary()), count).to_pylist() == expected


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(cells, cells, header_lists.map(lambda h: tuple(h or ()))), min_size=1), max_size=5),
    st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]),
    st.booleans(),
)
def test_decoding_to_columns_equals_decoding_to_objects(batches, codec, with_headers):
    log, expected, offset = b"", [], 100
    for drawn in batches:
        rows = [Record(offset + i, NOW + i, key, value, headers) for i, (key, value, headers) in enumerate(drawn)]
        offset += len(rows)
        expected += rows
        log += bytes(encode(rows, codec=codec))
    decoder = columns.ArrowDecoder(with_headers=with_headers)
    for batch in read_batches(log):
        decoder.add(batch)
    assert decoder.row_count == len(expected)
    table = decoder.finish()
    table.validate(full=True)
    assert table["offset"].to_pylist() == [r.offset for r in expected]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [r.timestamp for r in expected]
    assert table["key"].to_pylist() == [r.key for r in expected]
    assert table["value"].to_pylist() == [r.value for r in expected]
    if with_headers:
        decoded = [tuple((h["key"], h["value"]) for h in hs) for hs in table["headers"].to_pylist()]
        assert decoded == [r.headers for r in expected]


def test_only_offsets_in_range_are_decoded():
    (batch,) = read_batches(encode([Record(i, 0, None, b"%d" % i, (("h", b""),)) for i in range(10)]))
    decoder = columns.ArrowDecoder(with_headers=True)
    decoder.add(batch, first_offset=3, end_offset=7)
    table = decoder.finish()
    table.validate(full=True)
    assert table["offset"].to_pylist() == [3, 4, 5, 6]
    assert len(table["headers"]) == 4


def test_log_append_time_is_the_timestamp_of_every_row():
    (batch,) = read_batches(encode([Record(i, i, None, b"", ()) for i in range(3)], append_time=77))
    decoder = columns.ArrowDecoder()
    decoder.add(batch)
    assert decoder.finish()["timestamp"].cast(pa.int64()).to_pylist() == [77, 77, 77]


def test_a_corrupt_batch_is_rejected():
    broken = bytearray(encode([Record(0, 0, None, b"value", ())]))
    broken[-1] ^= 1
    (batch,) = read_batches(broken)
    with pytest.raises(CorruptBatchError):
        columns.ArrowDecoder().add(batch)


@settings(deadline=None)
@given(st.binary(max_size=120), st.integers(0, 2**31 - 1), st.booleans())
def test_garbage_never_becomes_columns(payload, count, with_headers):
    decoder = kernel.ColumnDecoder(with_headers)
    try:
        decoder.add(payload, count, base_offset=0, base_timestamp=0, append_time=-1, first_offset=0, end_offset=2**62)
    except WireError:
        return
    assert decoder.row_count <= len(payload) // 7


def test_an_empty_decoder_gives_empty_columns():
    table = columns.ArrowDecoder(with_headers=True).finish()
    table.validate(full=True)
    assert table.num_rows == 0
    assert table.column_names == ["offset", "timestamp", "key", "value", "headers"]


def test_a_record_larger_than_the_limit_is_alone_in_its_batch():
    encoded = columns.encode(
        pa.array([b"a", b"b" * 5000, b"c"]),
        partition=pa.array([0, 0, 0]),
        partition_count=1,
        now_ms=NOW,
        batch_bytes_max=HEADER_BYTES + 50,
    )
    assert [batch.record_count for batch in encoded] == [1, 1, 1]
    assert [v for _, _, v, _ in by_partition(encoded)[0]] == [b"a", b"b" * 5000, b"c"]


# -- row hash ----------------------------------------------------------------------------


def hash_of(rows, topic="topic"):
    keys, values, headers = [list(column) for column in zip(*rows, strict=True)] or [[]] * 3
    binary = pa.binary()
    return columns.hash_rows(
        topic, pa.array(values, binary), key=pa.array(keys, binary), headers=headers_array(headers)
    )


hashed_row = st.tuples(cells, st.none() | st.binary(max_size=200), header_lists)


@settings(deadline=None)
@given(st.lists(hashed_row, max_size=20), st.text(max_size=10), st.booleans())
def test_both_kernels_hash_rows_alike(rows, topic, large):
    keys, values, headers = [list(column) for column in zip(*rows, strict=True)] or [[]] * 3
    kind = pa.large_binary() if large else pa.binary()
    arguments = (
        topic.encode(),
        columns.bytes_column(pa.array(keys, kind), "key"),
        columns.bytes_column(pa.array(values, kind), "value"),
        columns.headers_column(headers_array(headers)),
        len(rows),
    )
    assert kernel.hash_rows(*arguments) == reference.hash_rows(*arguments)


@settings(deadline=None)
@given(st.lists(hashed_row, max_size=12), st.randoms(use_true_random=False), st.integers(0, 12))
def test_the_row_hash_does_not_depend_on_the_order(rows, chance, cut):
    shuffled = list(rows)
    chance.shuffle(shuffled)
    assert hash_of(shuffled) == hash_of(rows) == (hash_of(rows[:cut]) + hash_of(rows[cut:])) % 2**64


@settings(deadline=None)
@given(st.lists(hashed_row, min_size=1, max_size=4), st.lists(hashed_row, min_size=1, max_size=4))
def test_different_rows_have_different_hashes(left, right):
    def plain(rows):
        return sorted(repr((key, value, tuple(headers or ()))) for key, value, headers in rows)

    assert (hash_of(left) == hash_of(right)) == (plain(left) == plain(right))


@pytest.mark.parametrize("size", range(70))
def test_every_byte_of_a_cell_changes_its_hash(size):
    data = bytes(range(size))
    changed = [bytes((*data[:at], data[at] ^ 1, *data[at + 1 :])) for at in range(size)]
    hashes = {hash_of([(None, cell, None)]) for cell in (data, *changed, data + bytes(1))}
    assert len(hashes) == size + 2


def test_the_row_hash_distinguishes_the_columns_of_a_row():
    rows = [
        (b"ab", b"c", None),
        (b"a", b"bc", None),
        (None, b"abc", None),
        (b"", b"abc", None),
        (b"abc", None, None),
        (b"abc", b"", None),
        (b"a", b"b", [("c", None)]),
        (b"a", b"b", [("c", b"")]),
        (b"a", b"b", [("", b"c")]),
        (b"a", b"b", [("c", None), ("c", None)]),
    ]
    hashes = [hash_of([row]) for row in rows]
    assert len(set(hashes)) == len(rows)
    assert hash_of(rows[:1], "another") != hashes[0]
    assert hash_of(rows[:1] * 2) != hashes[0] * 2 + 1


SHORT = ("", "x", "y", "zz", "one", "four", "fifteen bytes..", "more than sixteen bytes, and less than forty")


def test_exchanging_cells_between_rows_changes_the_hash():
    """A sum of separate hashes of topic, key and value would not detect it."""
    single: dict[tuple[str, ...], int] = {
        (topic, key, value): hash_of([(key.encode(), value.encode(), None)], topic)
        for topic, key, value in itertools.product(SHORT, repeat=3)
    }
    assert len(set(single.values())) == len(single)
    pairs = [*itertools.combinations(SHORT, 2)]
    for (a, b), (c, d), fixed, position in itertools.product(pairs, pairs, SHORT, range(3)):

        def sum_of(*rows: tuple[str, str], fixed: str = fixed, position: int = position) -> int:
            return sum(single[(*row[:position], fixed, *row[position:])] for row in rows) % 2**64

        assert sum_of((a, c), (b, d)) != sum_of((a, d), (b, c))


def test_the_row_hash_never_changes():
    """It is stored in decisions and compared by later versions."""
    row = (b"key", bytes(range(100)), [("trace", b"0123456789")])
    assert hash_of([row]) == 0x1C6023C69E2E2B20
    assert hash_of([]) == 0


def test_no_key_and_no_headers_hash_like_nulls():
    value = pa.array([b"one", b"two"], pa.binary())
    nulls = pa.nulls(2, pa.binary())
    plain = columns.hash_rows("topic", value)
    assert plain == columns.hash_rows("topic", value, key=nulls, headers=pa.nulls(2))
    assert plain == columns.hash_rows("topic", value, headers=headers_array([None, []]))


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.string(), pa.string_view()], ids=str)
def test_slices_and_other_types_of_a_column_have_the_same_hash(kind):
    cells = pa.array([None if i % 5 == 0 else f"row {i}" for i in range(60)])
    headers = headers_array([[("h", b"%d" % i)] if i % 2 else None for i in range(60)])
    expected = hash_of(
        [(None if i % 5 == 0 else b"row %d" % i,) * 2 + ([("h", b"%d" % i)] if i % 2 else None,) for i in range(20, 41)]
    )
    part = cells.cast(kind).slice(20, 21)
    assert columns.hash_rows("topic", part, key=part, headers=headers.slice(20, 21)) == expected
