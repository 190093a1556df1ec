"""What goes out: by reference where the socket is plain, through asyncio where TLS has to see the bytes.

asyncio joins and copies what a socket does not take at once. For the answers of fetches, which are megabytes of a file
that lies in memory already, that is half of all the work: so a plain socket is written to here, and what it does not
take waits as it is.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from headrace.wire.primitives import Buffer

GATHER_BUFFERS_MAX = 512  # in one system call, which allows 1024
TLS_UNSENT_BYTES_MAX = 64 * 1024
"""asyncio tells us when it holds more than this, and again when most of it is gone."""


class Sender(Protocol):
    """One connection's way out."""

    unsent_bytes: int
    """What the peer has not taken yet."""

    def send(self, buffers: list[Buffer], size: int) -> None:
        """Hand over `size` bytes; `drained` is called when the last of them that had to wait is gone."""
        ...

    def close(self) -> None:
        """The connection is gone."""
        ...


class SocketSender:
    """Writes to a plain socket itself."""

    __slots__ = ("_drained", "_fd", "_loop", "_transport", "_waiting", "_watched_fd", "unsent_bytes")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, drained: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._drained = drained
        self._fd: int = transport.get_extra_info("socket").fileno()
        self._watched_fd = -1  # another number of the same socket: asyncio lets nobody watch the first one
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
        """Write as much as the system takes; what is left."""
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
        except OSError:  # the peer is gone
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
    """Leaves it to asyncio, which encrypts it."""

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
        """asyncio has more than it likes."""
        self.unsent_bytes = self._transport.get_write_buffer_size()

    def resumed(self) -> None:
        self.unsent_bytes = 0
        self._drained()

    def close(self) -> None:
        self.unsent_bytes = 0


def _rest(buffers: list[Buffer], sent: int) -> list[Buffer]:
    """What is left after the first `sent` bytes."""
    for place, buffer in enumerate(buffers):
        if sent < len(buffer):
            return [memoryview(buffer)[sent:], *islice(buffers, place + 1, None)]
        sent -= len(buffer)
    return []
