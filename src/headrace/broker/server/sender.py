"""Writing responses: directly to plain sockets, through asyncio with TLS.

asyncio joins and copies what a socket does not accept at once. For fetch responses, which are megabytes of mapped
files, that is half of the work. So plain sockets are written here, and unsent buffers are kept by reference.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from headrace.wire.primitives import Buffer

GATHER_BUFFERS_MAX = 512  # per system call; the limit is 1024
TLS_UNSENT_BYTES_MAX = 64 * 1024
"""asyncio calls pause_writing above this, and resume_writing when most of it is sent."""


class ResponseSender(Protocol):
    """Writes the responses of one connection."""

    unsent_bytes: int
    """Bytes that are not written to the socket yet."""

    def send(self, buffers: list[Buffer], size: int) -> None:
        """Send `size` bytes; `drained` is called when the last buffer that had to wait is written."""
        ...

    def close(self) -> None:
        """Drop unsent buffers: the connection is closed."""
        ...


class SocketSender:
    """Writes to a plain socket."""

    __slots__ = ("_drained", "_fd", "_loop", "_transport", "_waiting", "_watched_fd", "unsent_bytes")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, drained: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._drained = drained
        self._fd: int = transport.get_extra_info("socket").fileno()
        self._watched_fd = -1  # a duplicate: asyncio does not allow watching the descriptor of a transport
        self._waiting: list[Buffer] = []
        self.unsent_bytes = 0

    def send(self, buffers: list[Buffer], size: int) -> None:
        if self._fd < 0:
            return
        self.unsent_bytes += size
        if self._waiting:
            self._waiting += buffers
            return
        self._waiting = self._write(buffers)
        if self._waiting:
            if self._watched_fd < 0:
                self._watched_fd = os.dup(self._fd)
            self._loop.add_writer(self._watched_fd, self._write_more)

    def _write_more(self) -> None:
        self._waiting = self._write(self._waiting)
        if not self._waiting:
            self._loop.remove_writer(self._watched_fd)
            self._drained()

    def _write(self, buffers: list[Buffer]) -> list[Buffer]:
        """Write as much as possible; return the rest."""
        try:
            while buffers:
                sent = os.writev(
                    self._fd, buffers if len(buffers) <= GATHER_BUFFERS_MAX else buffers[:GATHER_BUFFERS_MAX]
                )
                self.unsent_bytes -= sent
                if not self.unsent_bytes:
                    return []
                buffers = _rest(buffers, sent)
        except BlockingIOError:
            return buffers
        except OSError:  # the peer has disconnected
            self.unsent_bytes = 0
            self._transport.abort()
        return []

    def close(self) -> None:
        self._fd = -1
        self._waiting = []
        self.unsent_bytes = 0
        if self._watched_fd >= 0:
            self._loop.remove_writer(self._watched_fd)
            os.close(self._watched_fd)
            self._watched_fd = -1


class TlsSender:
    """Writes through asyncio, which encrypts."""

    __slots__ = ("_drained", "_transport", "unsent_bytes")

    def __init__(self, transport: asyncio.Transport, drained: Callable[[], None]) -> None:
        self._transport = transport
        self._drained = drained
        transport.set_write_buffer_limits(TLS_UNSENT_BYTES_MAX)
        self.unsent_bytes = 0

    def send(self, buffers: list[Buffer], size: int) -> None:
        self._transport.write(b"".join(buffers))
        if self.unsent_bytes:
            self.unsent_bytes += size

    def paused(self) -> None:
        """Called when the buffer of asyncio is above its limit."""
        self.unsent_bytes = self._transport.get_write_buffer_size()

    def resumed(self) -> None:
        self.unsent_bytes = 0
        self._drained()

    def close(self) -> None:
        self.unsent_bytes = 0


def _rest(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """Return the buffers after the first `sent` bytes."""
    for index, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *islice(buffers, index + 1, None)]
        sent -= len(buffer)
    return []
