"""Batches made anew: message sets of old clients, and batches that the topic wants compressed otherwise.

Apart from the rest because it needs the codecs, and those take a while to import.
"""

from __future__ import annotations

from headrace.broker.log.config import LogConfig
from headrace.errors import BrokerError, Code, CorruptBatchError, WireError
from headrace.wire import message_sets, records
from headrace.wire.compression import compress
from headrace.wire.kernel import kernel
from headrace.wire.layout import (
    ATTRIBUTES_OFFSET,
    CODEC_MASK,
    HEADER_BYTES,
    MAGIC_OFFSET,
    PREFIX_BYTES,
    BatchHeader,
    header_layout,
)
from headrace.wire.primitives import Buffer

_ATTRIBUTES_AT = MAGIC_OFFSET + 1  # in a message of magic 0 or 1, from its magic on: crc, magic, attributes


def recompress(payload: Buffer, header: BatchHeader, codec: int, level: int | None) -> tuple[memoryview, BatchHeader]:
    """A batch of the same records in another codec."""
    return rebuild(compress(codec, payload, level), header, codec=codec)


def rebuild(packed: Buffer, header: BatchHeader, *, codec: int) -> tuple[memoryview, BatchHeader]:
    """A batch with that header and those records, already compressed: length, codec and checksum are set to fit."""
    header = header._replace(
        length=HEADER_BYTES - PREFIX_BYTES + len(packed), attributes=header.attributes & ~CODEC_MASK | codec, crc=0
    )
    fresh = bytearray(header_layout.pack(*header)) + packed
    with memoryview(fresh) as view:
        header = header._replace(crc=kernel.crc32c(view[ATTRIBUTES_OFFSET:]))
    header_layout.pack_into(fresh, 0, *header)
    return memoryview(fresh), header


def convert_up(view: memoryview, config: LogConfig, bytes_max: int) -> tuple[memoryview, BatchHeader]:
    """A message set of magic 0 or 1 as one batch, compressed as it was unless the topic says otherwise.

    What is compressed in it may come to `bytes_max`.
    """
    try:
        rows = message_sets.decode(view, bytes_max=bytes_max)
    except CorruptBatchError as error:
        raise BrokerError(str(error), code=Code.CORRUPT_MESSAGE) from None
    except WireError as error:
        raise BrokerError(str(error), code=Code.INVALID_RECORD) from None
    if not rows:
        raise BrokerError("expected messages, got none", code=Code.INVALID_RECORD)
    codec = view[_ATTRIBUTES_AT] & CODEC_MASK if config.codec is None else config.codec
    fresh = records.encode(rows, codec=codec, level=config.codec_level)
    return fresh, BatchHeader._make(header_layout.unpack_from(fresh))
