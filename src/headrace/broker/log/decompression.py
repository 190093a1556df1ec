"""Limits on decompression of produce requests: small amounts on the event loop, the rest on a thread.

    Decompression ── payload ─► the records of a batch
        │   more than LOOP_BYTES_MAX on the event loop: OffLoopError, and the caller continues on a thread
        └── more than the limit of a batch, a request or the ratio: BrokerError, MESSAGE_TOO_LARGE

MESSAGE_TOO_LARGE makes producers split a batch and send it again. Decompression, and the check of many records, release
the GIL, so a thread with a large batch does not block the event loop.
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
"""Records of a request that are decompressed on the event loop: about a millisecond of work."""
PLAIN_BYTES_PER_BYTE = 8
"""Bytes of uncompressed records that cost the event loop the same as one decompressed byte."""
RATIO_FREE_BYTES = 16 * 1024 * 1024
"""Up to this size a batch may have any compression ratio: small batches of similar records compress well."""
OLD_BYTES_MAX = 32 * 1024 * 1024
"""Of a message set (magic 0 or 1), whose messages become Python objects before they are stored."""
RELEASE_RECORDS = 4096
"""Objects freed at once, so that other threads can take the GIL in between."""


class OffLoopError(Exception):
    """The limit of the event loop is reached: the caller has to continue on a thread."""


class DecompressionLimits(NamedTuple):
    """Limits of decompressed sizes; the defaults are those of the options."""

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
    """The decompression budget of one request. One thread at a time."""

    __slots__ = ("_bytes_left", "_limits", "_loop_bytes_left", "_on_loop")

    def __init__(self, limits: DecompressionLimits, *, on_loop: bool = False) -> None:
        self._limits = limits
        self._on_loop = on_loop
        self.begin()

    def begin(self) -> None:
        """Reset the budget for the next request."""
        self._bytes_left = self._limits.request_bytes_max
        self._loop_bytes_left = LOOP_BYTES_MAX

    def payload(self, batch: RecordBatch) -> Buffer:
        """Return the decompressed records of a batch. Raise BrokerError, WireError or OffLoopError."""
        if not batch.header.codec:
            self.count_plain(len(batch.view))
            return batch.view[HEADER_BYTES:]
        limits, size = self._limits, len(batch.view)
        allowed = min(limits.batch_bytes_max, self._bytes_left, max(RATIO_FREE_BYTES, size * limits.ratio_max))
        bytes_max = allowed = max(allowed, 0)
        if self._on_loop:
            # Importing the codecs (pyarrow) takes a quarter of a second.
            bytes_max = min(allowed, self._loop_bytes_left if "pyarrow" in sys.modules else 0)
            if bytes_max <= 0 < allowed:
                raise OffLoopError
        try:
            payload = batch.payload(bytes_max)
        except DecompressedSizeError:
            if bytes_max < allowed:
                raise OffLoopError from None
            self._bytes_left -= allowed  # the work was done although the batch is refused
            raise BrokerError(
                f"a batch of {size} bytes decompresses to more than {allowed} bytes: {self._limit(size, allowed)}",
                code=Code.MESSAGE_TOO_LARGE,
            ) from None
        self._bytes_left -= len(payload)
        self._loop_bytes_left -= len(payload)
        return payload

    def count_plain(self, size: int) -> None:
        """Count an uncompressed batch that is about to be checked. Raise OffLoopError."""
        if self._on_loop:
            if self._loop_bytes_left <= 0:
                raise OffLoopError
            self._loop_bytes_left -= size // PLAIN_BYTES_PER_BYTE

    def leave_loop(self) -> None:
        """Raise OffLoopError on the event loop: the next step takes long."""
        if self._on_loop:
            raise OffLoopError

    @property
    def old_bytes_max(self) -> int:
        """The limit of the next message set."""
        return max(min(OLD_BYTES_MAX, self._limits.batch_bytes_max, self._bytes_left), 0)

    def count_old(self, size: int) -> None:
        """Count a decompressed message set."""
        self._bytes_left -= size

    def _limit(self, size: int, allowed: int) -> str:
        """Return the option that limits a batch of `size` bytes to `allowed` bytes."""
        limits = self._limits
        if allowed == limits.batch_bytes_max:
            return "message.max.decompressed.bytes"
        if allowed == max(RATIO_FREE_BYTES, size * limits.ratio_max):
            return f"message.max.compression.ratio is {limits.ratio_max}"
        return f"request.max.decompressed.bytes is {limits.request_bytes_max} for all batches"


def release(records: list[Any]) -> None:
    """Empty a list of possibly millions of records in steps: freeing all at once would hold the GIL for long."""
    while records:
        del records[-RELEASE_RECORDS:]
