"""Bytes of a socket → frames.

    room() → recv_into it → received(count) → frames      a plain socket
    feed(data) → frames                                    TLS, which hands out bytes of its own

Frames that fit the chunk are cut out of it. A larger one gets memory of its own and is received in place. Memory
follows what has arrived, not what a size prefix promises: beyond a megabyte it is as much again three times, and what
is there moves along, so that a third of a large frame at most is copied by us at all.
"""

from __future__ import annotations

import struct

from headrace.errors import MalformedError
from headrace.wire.primitives import Buffer

CHUNK_BYTES = 64 * 1024
PROMISED_BYTES_MAX = 1024 * 1024
"""As much as is allocated because a size prefix says so."""
GROWTH = 4

_size = struct.Struct(">i")


class FrameReader:
    """Cuts what is received into frames, without their size prefixes."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._chunk = bytearray(CHUNK_BYTES)
        self._view = memoryview(self._chunk)
        self._end = 0  # of what the chunk holds: the beginning of a frame
        self._large: memoryview | None = None  # memory for a frame that the chunk is too small for
        self._large_bytes = 0  # of all of that frame
        self._filled = 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._large is not None:
            return self._large[self._filled :]
        return self._view[self._end :] if self._end else self._view

    def received(self, count: int, frames: list[Buffer]) -> None:
        """`count` bytes are in the room now: append the frames they complete."""
        if self._large is not None:
            self._filled += count
            if self._filled == self._large_bytes:
                frames.append(self._large)
                self._large = None
            elif self._filled == len(self._large):
                self._grow(self._large)
            return
        view, end, pos = self._view, self._end + count, 0
        while end - pos >= 4:
            (size,) = _size.unpack_from(view, pos)
            start = pos + 4
            if not 0 <= size <= self._frame_bytes_max:
                raise MalformedError(self._no_frame(bytes(view[pos:end])), offset=pos)
            if end - start < size:
                if size + 4 > CHUNK_BYTES:
                    self._begin_large(size, view[start:end])
                    return
                break
            pos = start + size
            frames.append(bytes(view[start:pos]))
        left = end - pos
        if pos and left:
            view[:left] = view[pos:end]
        self._end = left

    def feed(self, data: Buffer, frames: list[Buffer]) -> None:
        """The same with bytes that are somewhere else."""
        view = memoryview(data)
        while len(view):
            room = self.room()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            self.received(count, frames)
            view = view[count:]

    def _begin_large(self, size: int, begun: memoryview) -> None:
        self._large_bytes = size
        self._large = memoryview(bytearray(min(size, PROMISED_BYTES_MAX)))
        self._filled = len(begun)
        self._large[: self._filled] = begun
        self._end = 0

    def _grow(self, full: memoryview) -> None:
        self._large = memoryview(bytearray(min(self._large_bytes, GROWTH * len(full))))
        self._large[: len(full)] = full

    def _no_frame(self, start: bytes) -> str:
        """What the peer speaks, if that can be told from its first bytes."""
        (size,) = _size.unpack_from(start)
        # An alert (21) or a handshake record (22) of TLS 1.x.
        if start[0] in (21, 22) and start[1] == 3:
            return (
                "this port speaks TLS, we do not: set security.protocol to SSL (or SASL_SSL), or use the port of a "
                "plaintext listener"
            )
        if start.startswith((b"HTTP", b"<!DO", b"<htm")):
            return "this port speaks HTTP: bootstrap.servers wants the port of a Kafka listener"
        return (
            f"expected a response of 0 to {self._frame_bytes_max} bytes, got a size of {size}: is this the port of a "
            f"Kafka broker, and does security.protocol match its listener?"
        )
