"""Received bytes → frames.

    room() → recv_into it → received(count) → frames      a plain socket, or a `BufferedProtocol`
    feed(data) → frames                                    bytes that are already in memory

Frames are copied out of a chunk. Readers may share a chunk if nothing runs between `room` and `received`: between two
calls a reader keeps only the incomplete frame. Once OWN_BYTES_MIN of a frame have arrived, it gets its own buffer, and
the rest is received in place. The buffer grows with the received bytes, not with the size prefix: it starts with up to
16 times their size (at most 1 MiB) and grows by a factor of 4, so at most a third of a large frame is copied. An
`allocate` of the caller gets more at once (up to 64 MiB): its memory must cost nothing until it is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from headrace.errors import MalformedError
from headrace.wire.primitives import Buffer

CHUNK_BYTES = 64 * 1024
OWN_BYTES_MIN = 16 * 1024
"""The received bytes from which on an incomplete frame has its own buffer; less than a chunk."""
FIRST_BUFFER_BYTES_MAX = 1024 * 1024
"""The limit of the first buffer, and FIRST_BUFFER_RATIO_MAX its ratio to the received bytes."""
FIRST_BUFFER_RATIO_MAX = 16
ALLOCATED_BYTES_MAX = 64 * 1024 * 1024
"""The limit of the first buffer that `allocate` returns."""
GROWTH_FACTOR = 4

_size = struct.Struct(">i")


class FrameReader:
    """Splits received bytes into frames, without their size prefixes."""

    __slots__ = ("_allocate_buffer", "_chunk", "_filled", "_frame_bytes", "_kept", "_own", "frame_bytes_max")

    def __init__(
        self,
        frame_bytes_max: int,
        chunk: memoryview | None = None,
        allocate: Callable[[int], memoryview] | None = None,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._allocate_buffer = allocate
        self._chunk = memoryview(bytearray(CHUNK_BYTES)) if chunk is None else chunk
        self._kept = b""  # the start of an incomplete frame, with its size prefix
        self._own: memoryview | None = None  # the buffer of a large incomplete frame
        self._frame_bytes = 0  # the size of that frame
        self._filled = 0  # the received bytes of that frame

    def room(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        if self._own is not None:
            return self._own[self._filled :]
        kept = self._kept
        if not kept:
            return self._chunk
        count = len(kept)
        self._chunk[:count] = kept
        return self._chunk[count:]

    def received(self, count: int, frames: list[Buffer]) -> None:
        """Process `count` bytes that were written to `room()`: append the completed frames."""
        if self._own is not None:
            self._filled += count
            if self._filled == self._frame_bytes:
                frames.append(self._own)
                self._own = None
            elif self._filled == len(self._own):
                self._grow(self._own)
            return
        view, end, pos = self._chunk, len(self._kept) + count, 0
        self._kept = b""
        while end - pos >= 4:
            (size,) = _size.unpack_from(view, pos)
            start = pos + 4
            if not 0 <= size <= self.frame_bytes_max:
                raise MalformedError(self._explain_size(bytes(view[pos:end])), offset=pos)
            if end - start < size:
                if end - start >= OWN_BYTES_MIN:
                    self._allocate(size, view[start:end])
                    return
                break
            pos = start + size
            frames.append(bytes(view[start:pos]))
        if pos < end:
            self._kept = bytes(view[pos:end])

    def feed(self, data: Buffer, frames: list[Buffer]) -> None:
        """Copy bytes to `room()` and process them."""
        view = memoryview(data)
        while len(view):
            room = self.room()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            self.received(count, frames)
            view = view[count:]

    @property
    def pending_bytes(self) -> int:
        """The received bytes of an incomplete frame."""
        return len(self._kept) if self._own is None else self._filled

    @property
    def held_bytes(self) -> int:
        """The allocated bytes for an incomplete frame."""
        return len(self._kept) if self._own is None else len(self._own)

    def drop(self) -> None:
        """Discard an incomplete frame: the connection is closed."""
        self._kept = b""
        self._own = None

    def _allocate(self, size: int, received: memoryview) -> None:
        self._frame_bytes = size
        if self._allocate_buffer is not None:
            self._own = self._allocate_buffer(min(size, ALLOCATED_BYTES_MAX))
        else:
            buffer_bytes = min(size, FIRST_BUFFER_BYTES_MAX, FIRST_BUFFER_RATIO_MAX * len(received))
            self._own = memoryview(bytearray(buffer_bytes))
        self._filled = len(received)
        self._own[: self._filled] = received

    def _grow(self, full: memoryview) -> None:
        self._own = memoryview(bytearray(min(self._frame_bytes, GROWTH_FACTOR * len(full))))
        self._own[: len(full)] = full

    def _explain_size(self, start: bytes) -> str:
        """Return the error for an invalid size; names the protocol of the peer if its first bytes show it."""
        (size,) = _size.unpack_from(start)
        # An alert (21) or a handshake record (22) of TLS 1.x.
        if start[0] in (21, 22) and start[1] == 3:
            return (
                "the peer uses TLS, but security.protocol is without TLS: set it to SSL or SASL_SSL, or use the port "
                "of a plaintext listener"
            )
        if start.startswith((b"HTTP", b"<!DO", b"<htm", b"GET ", b"POST", b"HEAD")):
            return "the peer uses HTTP: set bootstrap.servers to the port of a Kafka listener"
        return (
            f"expected a frame of 0 to {self.frame_bytes_max} bytes, got a size of {size}: check that this is the port "
            f"of a Kafka broker, and that security.protocol matches its listener"
        )
