"""The kernel in plain Python: the definition of `_kernel`, and the fallback without a C compiler."""

from headrace.wire._reference.batches import cut_batches, find_timestamp, scan_batches, scan_records
from headrace.wire._reference.checksums import crc32c, murmur2
from headrace.wire._reference.columns import ColumnDecoder, encode_columns, hash_rows, largest_row, partition_keys
from headrace.wire._reference.message_sets import decode_message_set, encode_message_set
from headrace.wire._reference.messages import MessageCodec
from headrace.wire._reference.produce import encode_produced, scan_produce
from headrace.wire._reference.records import (
    OpenBatch,
    check_records,
    decode_consumer_records,
    decode_records,
    write_header,
)

__all__ = [
    "ColumnDecoder",
    "MessageCodec",
    "OpenBatch",
    "check_records",
    "crc32c",
    "cut_batches",
    "decode_consumer_records",
    "decode_message_set",
    "decode_records",
    "encode_columns",
    "encode_message_set",
    "encode_produced",
    "find_timestamp",
    "hash_rows",
    "largest_row",
    "murmur2",
    "partition_keys",
    "scan_batches",
    "scan_produce",
    "scan_records",
    "write_header",
]
