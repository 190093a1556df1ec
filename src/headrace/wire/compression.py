"""The four compression codecs, in the framing that Kafka uses.

    gzip    one gzip stream
    snappy  written in the xerial framing that Java clients use; read in it or as one raw block (librdkafka)
    lz4     standard LZ4 frames, independent blocks
    zstd    one frame

All of them come from pyarrow, which releases the GIL and can decompress in bounded steps.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

from headrace.errors import CorruptBatchError, DecompressedSizeError, MalformedError
from headrace.wire.primitives import Buffer, read_uvarint

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CODEC_IDS = {name: codec for codec, name in enumerate(CODEC_NAMES)}

LEVELS = {GZIP: range(1, 10), LZ4: range(1, 18), ZSTD: range(-131072, 23)}
"""The levels that Kafka accepts; snappy has none."""
DEFAULT_LEVELS = {GZIP: 6, LZ4: 1, ZSTD: 3}

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
"""More than any sensible batch; less than what a small decompression bomb could allocate."""

_LZ4_LEVEL_MAX = 12  # of the library; Java accepts 17
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_HEAD = b"\x04\x22\x4d\x18\x60\x40\x82"  # version 1, independent blocks of up to 64 KiB, header checksum
_LZ4_UNCOMPRESSED = 0x80000000  # flag in the size of a block
_LZ4_END = bytes(4)
_XERIAL_HEAD = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_MAGIC_BYTES = 8
_XERIAL_BLOCK_BYTES = 32 * 1024
_READ_BYTES = 64 * 1024
_int32 = struct.Struct(">i")
_little_uint32 = struct.Struct("<I")


@cache
def _pyarrow() -> Any:
    import pyarrow  # on first use: importing it takes 0.25 s

    return pyarrow


def compress(codec: int, data: Buffer, level: int | None = None) -> Buffer:
    """Return `data` compressed; the default level is Kafka's."""
    if codec == NONE:
        return data
    if codec == SNAPPY:
        return _compress_xerial(data)
    if level is None:
        level = DEFAULT_LEVELS[codec]
    if codec == LZ4:
        return _compress_lz4(data, min(level, _LZ4_LEVEL_MAX))
    # As bytes: a memoryview of pyarrow's buffer would have its allocated size, not the used one.
    return bytes(_pyarrow().Codec(CODEC_NAMES[codec], level).compress(data, asbytes=True))


def decompress(codec: int, data: Buffer, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """Return `data` decompressed. Memory grows with the output, up to `bytes_max`."""
    if codec == NONE:
        return data
    if codec == SNAPPY:
        return _decompress_snappy(memoryview(data), bytes_max)
    if codec >= len(CODEC_NAMES):
        raise CorruptBatchError(f"expected a compression codec of 0 to 4, got {codec}")
    if not len(data):
        raise CorruptBatchError(f"expected {CODEC_NAMES[codec]} data, got 0 bytes")
    return _decompress_stream(CODEC_NAMES[codec], data, bytes_max)


def _decompress_stream(name: str, data: Buffer, bytes_max: int) -> Buffer:
    pa = _pyarrow()
    parts: list[bytes] = []
    size = 0
    # One read is enough for a ratio of up to 4, as of most batches; further reads grow.
    step = max(4 * len(data), _READ_BYTES) if len(data) > _READ_BYTES else _READ_BYTES
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
            while part := stream.read(min(step, bytes_max + 1 - size)):
                parts.append(part)
                size += len(part)
                if size > bytes_max:
                    raise DecompressedSizeError(
                        f"expected at most {bytes_max} bytes from {len(data)} bytes of {name}, got more"
                    )
                step *= 2
    except OSError as error:
        raise CorruptBatchError(f"invalid {name} data of {len(data)} bytes: {error}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_lz4(data: Buffer, level: int) -> bytes:
    """Return an LZ4 frame of independent blocks: pyarrow's frames have linked blocks, which Java does not support."""
    codec = _pyarrow().Codec("lz4_raw", level)
    view = memoryview(data)
    out = bytearray(_LZ4_HEAD)
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            out += _little_uint32.pack(len(block))
            out += block
        else:
            out += _little_uint32.pack(len(plain) | _LZ4_UNCOMPRESSED)
            out += plain
    return bytes(out + _LZ4_END)


def _compress_xerial(data: Buffer) -> bytes:
    codec = _pyarrow().Codec("snappy")
    view = memoryview(data)
    out = bytearray(_XERIAL_HEAD)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = codec.compress(view[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        out += _int32.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: memoryview, bytes_max: int) -> Buffer:
    if data[:_XERIAL_MAGIC_BYTES] != _XERIAL_HEAD[:_XERIAL_MAGIC_BYTES]:
        return _decompress_snappy_block(data, bytes_max)
    out = bytearray()
    pos, end = len(_XERIAL_HEAD), len(data)
    while pos < end:
        if end - pos < _int32.size:
            raise MalformedError(f"expected the size of a snappy block, {end - pos} bytes left", offset=pos)
        (size,) = _int32.unpack_from(data, pos)
        pos += _int32.size
        if not 0 <= size <= end - pos:
            raise MalformedError(f"expected a snappy block of {size} bytes, {end - pos} left", offset=pos)
        out += _decompress_snappy_block(data[pos : pos + size], bytes_max - len(out))
        pos += size
    return out


def _decompress_snappy_block(block: memoryview, bytes_max: int) -> Buffer:
    size, _ = read_uvarint(block, 0, len(block))
    if size > bytes_max:
        raise DecompressedSizeError(f"expected at most {bytes_max} bytes from a snappy block, its header says {size}")
    # Three bytes of snappy data expand to at most 64: check before allocating.
    if size > 64 * len(block):
        raise CorruptBatchError(
            f"invalid snappy block: {len(block)} bytes cannot hold the {size} bytes that its header says"
        )
    pa = _pyarrow()
    try:
        return bytes(pa.Codec("snappy").decompress(block, size, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise CorruptBatchError(f"invalid snappy data of {len(block)} bytes: {error}") from None
