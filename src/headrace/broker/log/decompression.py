"""How far the compressed batches of a produce request are opened: a little on the event loop, the rest in a thread.

    Decompression ── payload ─► the records of a batch
        │   more than LOOP_BYTES_MAX on the event loop: OffLoopError, and the caller goes on in a thread
        └── more than a batch, a request or a ratio allows: BrokerError, MESSAGE_TOO_LARGE

MESSAGE_TOO_LARGE makes producers split a batch and send it again. Decompression lets go of the GIL, and so does the
check of many records, so that a thread which opens a large batch does not hold up the event loop.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Self

from headrace.config import Config
from headrace.errors import BrokerError, Code, DecompressedSizeError
from headrace.wire.layout import HEADER_BYTES
from headrace.wire.primitives import Buffer
from headrace.wire.records import RecordBatch

LOOP_BYTES_MAX = 256 * 1024
"""Records of one request that are decompressed on the event loop: about a millisecond of work."""
PLAIN_BYTES_PER_BYTE = 8
"""Records that are not compressed cost the event loop so much less."""
RATIO_FREE_BYTES = 16 * 1024 * 1024
"""Up to this much a batch may expand by any ratio: small batches of like records compress well."""
OLD_BYTES_MAX = 32 * 1024 * 1024
"""Of a message set, whose messages become objects before they are stored."""


RELEASE_RECORDS = 4096
"""Freed at once: others can have the GIL in between."""


class OffLoopError(Exception):
    """The event loop has done its share of a request: the rest is for a thread."""


class DecompressionLimits(NamedTuple):
    """What compressed batches may come to; the defaults are those of the options."""

    batch_bytes_max: int = 128 * 1024 * 1024
    request_bytes_max: int = 256 * 1024 * 1024
    ratio_max: int = 1000

    @classmethod
    def of(cls, config: Config) -> Self:
        return cls(
            config.of(int, "message.max.decompressed.bytes"),
            config.of(int, "request.max.decompressed.bytes"),
            config.of(int, "message.max.compression.ratio"),
        )


class Decompression:
    """What the batches of one request may still come to. One thread at a time."""

    __slots__ = ("_bytes_left", "_limits", "_loop_bytes_left", "_on_loop")

    def __init__(self, limits: DecompressionLimits, *, on_loop: bool = False) -> None:
        self._limits = limits
        self._on_loop = on_loop
        self.begin()

    def begin(self) -> None:
        """Count anew, for the next request."""
        self._bytes_left = self._limits.request_bytes_max
        self._loop_bytes_left = LOOP_BYTES_MAX

    def payload(self, batch: RecordBatch) -> Buffer:
        """The records of a batch, decompressed. Raises BrokerError, WireError or OffLoopError."""
        if not batch.header.codec:
            self.count_plain(len(batch.view))
            return batch.view[HEADER_BYTES:]
        limits, size = self._limits, len(batch.view)
        allowed = min(limits.batch_bytes_max, self._bytes_left, max(RATIO_FREE_BYTES, size * limits.ratio_max))
        bytes_max = allowed = max(allowed, 0)
        if self._on_loop:
            # The codecs take a quarter of a second to import.
            bytes_max = min(allowed, self._loop_bytes_left if "pyarrow" in sys.modules else 0)
            if bytes_max <= 0 < allowed:
                raise OffLoopError
        try:
            payload = batch.payload(bytes_max)
        except DecompressedSizeError:
            if bytes_max < allowed:
                raise OffLoopError from None
            self._bytes_left -= allowed  # the work is done, and refused
            raise BrokerError(
                f"a batch of {size} bytes decompresses to more than {allowed} bytes: {self._limit(size, allowed)}",
                code=Code.MESSAGE_TOO_LARGE,
            ) from None
        self._bytes_left -= len(payload)
        self._loop_bytes_left -= len(payload)
        return payload

    def count_plain(self, size: int) -> None:
        """A batch that is not compressed is about to be checked. Raises OffLoopError."""
        if self._on_loop:
            if self._loop_bytes_left <= 0:
                raise OffLoopError
            self._loop_bytes_left -= size // PLAIN_BYTES_PER_BYTE

    def leave_loop(self) -> None:
        """Raise OffLoopError if this is the event loop: what comes next takes long."""
        if self._on_loop:
            raise OffLoopError

    @property
    def old_bytes_max(self) -> int:
        """What the next message set may come to."""
        return max(min(OLD_BYTES_MAX, self._limits.batch_bytes_max, self._bytes_left), 0)

    def count_old(self, size: int) -> None:
        """Take what a message set came to off what is left."""
        self._bytes_left -= size

    def _limit(self, size: int, allowed: int) -> str:
        """The option by which a batch of `size` bytes may not come to more than `allowed`."""
        limits = self._limits
        if allowed == limits.batch_bytes_max:
            return "message.max.decompressed.bytes"
        if allowed == max(RATIO_FREE_BYTES, size * limits.ratio_max):
            return f"message.max.compression.ratio is {limits.ratio_max}"
        return f"request.max.decompressed.bytes is {limits.request_bytes_max} for all batches"


def release(records: list[Any]) -> None:
    """Empty a list of what may be millions of records. To free them all at once would hold the GIL for long."""
    while records:
        del records[-RELEASE_RECORDS:]
