"""How far the compressed batches of a produce request are opened: a little on the event loop, the rest in a thread.

    Decompression ── payload ─► the records of a batch
        │   more than LOOP_BYTES_MAX in a request: OffLoopError, and the caller goes on in a thread with `off_loop`
        └── more than a batch, a request or a ratio allows: BrokerError, MESSAGE_TOO_LARGE

MESSAGE_TOO_LARGE makes producers split a batch and send it again. Decompression lets go of the GIL, and so does the
check of many records, so that a thread which opens a large batch does not hold up the event loop.
"""

from __future__ import annotations

import sys
from typing import NamedTuple, Self

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

    def __init__(self, limits: DecompressionLimits, *, on_loop: bool = False) -> None:
        self._limits = limits
        self._bytes_left = limits.request_bytes_max
        self._on_loop = on_loop
        self._loop_bytes_left = LOOP_BYTES_MAX

    def off_loop(self) -> Self:
        """Go on in a thread, with what is left."""
        self._on_loop = False
        return self

    def payload(self, batch: RecordBatch) -> Buffer:
        """The records of a batch, decompressed. Raises BrokerError, WireError or OffLoopError."""
        if not batch.header.codec:
            plain = batch.view[HEADER_BYTES:]
            self._spend(len(plain) // PLAIN_BYTES_PER_BYTE)
            return plain
        allowed, option = self._allowed(len(batch.view))
        bytes_max = allowed
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
                f"a batch of {len(batch.view)} bytes decompresses to more than {allowed} bytes: {option}",
                code=Code.MESSAGE_TOO_LARGE,
            ) from None
        self._bytes_left -= len(payload)
        self._loop_bytes_left -= len(payload)
        return payload

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

    def _spend(self, size: int) -> None:
        if self._on_loop and self._loop_bytes_left <= 0:
            raise OffLoopError
        self._loop_bytes_left -= size

    def _allowed(self, size: int) -> tuple[int, str]:
        """How many bytes a batch of `size` may come to, and the option that says so."""
        limits = self._limits
        return min(
            (limits.batch_bytes_max, "message.max.decompressed.bytes"),
            (max(self._bytes_left, 0), f"request.max.decompressed.bytes is {limits.request_bytes_max} for all batches"),
            (
                max(RATIO_FREE_BYTES, size * limits.ratio_max),
                f"message.max.compression.ratio is {limits.ratio_max}",
            ),
        )
