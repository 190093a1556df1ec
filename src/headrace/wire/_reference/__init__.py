"""The kernel in plain Python: the definition of what `_kernel` does, and the fallback where there is no compiler."""

from headrace.wire._reference.checksums import crc32c, murmur2
from headrace.wire._reference.columns import ColumnDecoder, encode_columns, largest_row, partition_keys
from headrace.wire._reference.lane import Lane, RecordFuture, SendPath, run_callbacks
from headrace.wire._reference.messages import MessageCodec
from headrace.wire._reference.records import OpenBatch, decode_records, write_header

__all__ = [
    "ColumnDecoder",
    "Lane",
    "MessageCodec",
    "OpenBatch",
    "RecordFuture",
    "SendPath",
    "crc32c",
    "decode_records",
    "encode_columns",
    "largest_row",
    "murmur2",
    "partition_keys",
    "run_callbacks",
    "write_header",
]
