"""The four codecs."""

from __future__ import annotations

import os
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import WireError
from headrace.wire.compression import CODEC_NAMES, GZIP, LEVELS, LZ4, NONE, SNAPPY, ZSTD, compress, decompress

pytestmark = pytest.mark.both_kernels

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
NAMES = [CODEC_NAMES[codec] for codec in CODECS]


@settings(deadline=None)
@given(st.sampled_from([NONE, *CODECS]), st.binary(max_size=5000))
def test_data_survives_compression_and_decompression(codec, data):
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 64 * 1024, 64 * 1024 + 1, 1_000_000])
def test_sizes_at_block_boundaries_survive(codec, size):
    compressible, random = b"0123456789abcdef" * (size // 16 + 1), os.urandom(size)
    for data in (compressible[:size], random):
        assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", sorted(LEVELS), ids=[CODEC_NAMES[codec] for codec in sorted(LEVELS)])
def test_levels_at_both_ends_of_the_range_work(codec):
    data = b"some text that repeats, some text that repeats " * 100
    for level in (LEVELS[codec][0], LEVELS[codec][-1]):
        assert bytes(decompress(codec, compress(codec, data, level))) == data


def test_snappy_is_read_framed_and_as_a_raw_block():
    import pyarrow as pa

    data = b"librdkafka writes one raw block " * 10
    raw = pa.Codec("snappy").compress(data, asbytes=True)
    assert bytes(decompress(SNAPPY, raw)) == data
    assert bytes(compress(SNAPPY, data)).startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")


def test_lz4_blocks_are_independent_for_java():
    frame = compress(LZ4, b"x" * 200_000)
    assert frame[4] & 0x20


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_a_decompression_bomb_stops_at_the_limit(codec):
    bomb = bytes(compress(codec, bytes(20_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=r"at most 100000 bytes|its header says"):
            decompress(codec, bomb, 100_000)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS, ids=NAMES)
def test_truncated_data_is_an_error(codec):
    whole = bytes(compress(codec, os.urandom(500) * 3))
    for cut in range(len(whole)):
        try:
            result = bytes(decompress(codec, whole[:cut]))
        except WireError:
            continue
        # xerial framing has no end mark: it may end between blocks, but not in a block
        assert codec == SNAPPY
        assert result == b""


@settings(deadline=None)
@given(st.sampled_from([*CODECS, 5, 6, 7]), st.binary(max_size=200))
def test_garbage_is_a_wire_error(codec, data):
    try:
        decompress(codec, data, 65536)
    except WireError:
        return
