"""The topics in a consumer's subscription.

Groups may speak any protocol; to the broker the metadata of members is bytes. Only for protocol type "consumer" it
looks at the topics, so that it does not forget offsets of topics that are being read. The first fields are the same in
every version of that format: version, topics.
"""

from __future__ import annotations

import struct

PROTOCOL_TYPE = "consumer"

_head = struct.Struct(">hi")
_length = struct.Struct(">h")


def topics(metadata: bytes) -> set[str] | None:
    """The topics, or None if the bytes are something else."""
    found: set[str] = set()
    try:
        _, count = _head.unpack_from(metadata)
        pos = _head.size
        for _ in range(count):  # each takes two bytes or more, so the bytes bound it
            (length,) = _length.unpack_from(metadata, pos)
            pos += _length.size
            if length < 0 or pos + length > len(metadata):
                return None
            found.add(metadata[pos : pos + length].decode())
            pos += length
    except (struct.error, UnicodeDecodeError):
        return None
    return found
