"""How well a topic's records compress, learned batch by batch.

A batch is built uncompressed and compressed when it is sealed. With the ratio seen so far its room can be chosen so
that about `batch.size` bytes go over the wire, and a request can be filled by what its batches will come to.
"""

from __future__ import annotations

IMPROVING_STEP = 0.005  # better than expected: believe it slowly
WORSENING_STEP = 0.05  # worse: at once, and a bit more, for too large a batch costs a round trip
SAFETY = 1.05
ROOM_FACTOR_MAX = 8  # times batch.size: what compresses even better is mostly zeros


class CompressionRatio:
    """Compressed to uncompressed size, of one topic. Written by the I/O thread, read by any."""

    __slots__ = ("estimate",)

    def __init__(self) -> None:
        self.estimate = 1.0

    def observe(self, compressed_bytes: int, plain_bytes: int) -> None:
        """A batch was compressed."""
        seen = compressed_bytes / plain_bytes
        if seen > self.estimate:
            self.estimate = max(self.estimate + WORSENING_STEP, seen)
        else:
            self.estimate = max(self.estimate - IMPROVING_STEP, seen)

    def reset(self) -> None:
        """A batch was too large after all: begin anew."""
        self.estimate = 1.0

    def room_bytes(self, batch_bytes: int, limit_bytes: int) -> int:
        """Room for records that come to about `batch_bytes`; powers of two of it, so that sizes repeat."""
        factor = 1
        while 2 * factor <= ROOM_FACTOR_MAX and 2 * factor * self.estimate * SAFETY <= 1:
            factor *= 2
        return max(batch_bytes, min(factor * batch_bytes, limit_bytes))
