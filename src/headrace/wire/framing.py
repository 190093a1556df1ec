"""Bytes of a peer → frames.

    room() → recv_into it → received(count) → frames      a plain socket, or a `BufferedProtocol`
    feed(data) → frames                                    bytes that are somewhere else already

Frames are cut out of a chunk, which many readers may share if each of them receives in one go: between two calls a
reader keeps only what it has of an unfinished frame. A frame of which much has come gets memory of its own and the rest
of it is received in place. Memory follows what has arrived, not what a size prefix promises: it begins with sixteen
times that, beyond a megabyte it is as much again three times, and what is there moves along, so that a third of a large
frame at most is copied by us at all.
"""

from __future__ import annotations

import struct

from headrace.errors import MalformedError
from headrace.wire.primitives import Buffer

CHUNK_BYTES = 64 * 1024
OWN_BYTES_MIN = 16 * 1024
"""So much of a frame has to be there before it gets memory of its own; a chunk must be larger."""
PROMISED_BYTES_MAX = 1024 * 1024
"""As much as is allocated because a size prefix says so, and never more than PROMISED_RATIO_MAX times what came."""
PROMISED_RATIO_MAX = 16
GROWTH = 4

_size = struct.Struct(">i")


class FrameReader:
    """Cuts what is received into frames, without their size prefixes."""

    __slots__ = ("_filled", "_kept", "_own", "_own_bytes", "_view", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int, chunk: memoryview | None = None) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._view = memoryview(bytearray(CHUNK_BYTES)) if chunk is None else chunk
        self._kept = b""  # the beginning of a frame, its size included
        self._own: memoryview | None = None  # memory for a frame of which much has come
        self._own_bytes = 0  # of all of that frame
        self._filled = 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if self._own is not None:
            return self._own[self._filled :]
        kept = self._kept
        if not kept:
            return self._view
        count = len(kept)
        self._view[:count] = kept
        return self._view[count:]

    def received(self, count: int, frames: list[Buffer]) -> None:
        """`count` bytes are in the room now: append the frames they complete."""
        if self._own is not None:
            self._filled += count
            if self._filled == self._own_bytes:
                frames.append(self._own)
                self._own = None
            elif self._filled == len(self._own):
                self._grow(self._own)
            return
        view, end, pos = self._view, len(self._kept) + count, 0
        self._kept = b""
        while end - pos >= 4:
            (size,) = _size.unpack_from(view, pos)
            start = pos + 4
            if not 0 <= size <= self.frame_bytes_max:
                raise MalformedError(self._no_frame(bytes(view[pos:end])), offset=pos)
            if end - start < size:
                if end - start >= OWN_BYTES_MIN:
                    self._begin_own(size, view[start:end])
                    return
                break
            pos = start + size
            frames.append(bytes(view[start:pos]))
        if pos < end:
            self._kept = bytes(view[pos:end])

    def feed(self, data: Buffer, frames: list[Buffer]) -> None:
        """The same with bytes that are somewhere else."""
        view = memoryview(data)
        while len(view):
            room = self.room()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            self.received(count, frames)
            view = view[count:]

    @property
    def pending_bytes(self) -> int:
        """How much of an unfinished frame has come."""
        return len(self._kept) if self._own is None else self._filled

    @property
    def held_bytes(self) -> int:
        """How much memory an unfinished frame takes."""
        return len(self._kept) if self._own is None else len(self._own)

    def drop(self) -> None:
        """Forget what has come of an unfinished frame: no more will."""
        self._kept = b""
        self._own = None

    def _begin_own(self, size: int, begun: memoryview) -> None:
        self._own_bytes = size
        self._own = memoryview(bytearray(min(size, PROMISED_BYTES_MAX, PROMISED_RATIO_MAX * len(begun))))
        self._filled = len(begun)
        self._own[: self._filled] = begun

    def _grow(self, full: memoryview) -> None:
        self._own = memoryview(bytearray(min(self._own_bytes, GROWTH * len(full))))
        self._own[: len(full)] = full

    def _no_frame(self, start: bytes) -> str:
        """What the peer speaks, if that can be told from its first bytes."""
        (size,) = _size.unpack_from(start)
        # An alert (21) or a handshake record (22) of TLS 1.x.
        if start[0] in (21, 22) and start[1] == 3:
            return (
                "the peer speaks TLS, we do not: set security.protocol to SSL (or SASL_SSL), or use the port of a "
                "plaintext listener"
            )
        if start.startswith((b"HTTP", b"<!DO", b"<htm", b"GET ", b"POST", b"HEAD")):
            return "the peer speaks HTTP: bootstrap.servers wants the port of a Kafka listener"
        return (
            f"expected a frame of 0 to {self.frame_bytes_max} bytes, got a size of {size}: is this the port of a "
            f"Kafka broker, and does security.protocol match its listener?"
        )
