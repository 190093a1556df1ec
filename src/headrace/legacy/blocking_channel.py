"""A blocking connection that sends and receives size-prefixed frames within a timeout."""

from __future__ import annotations

import select
import socket
import time
from typing import Protocol

from headrace.client.addresses import Endpoint
from headrace.client.prompt_socket import PromptSocket
from headrace.errors import ConnectionFailedError, HeadraceError, MalformedError, TimedOutError
from headrace.wire.frames import FRAME_BYTES_MAX
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer


class Channel(Protocol):
    """The connection of a SyncProducer."""

    @property
    def is_connected(self) -> bool: ...

    def connect(self) -> None: ...

    def send(self, frame: list[Buffer]) -> None: ...

    def receive(self) -> Buffer: ...

    def check_is_open(self) -> None: ...

    def disconnect(self) -> None: ...


class BlockingChannel:
    """A connection to one broker, which any error closes.

    The socket is non-blocking, and the channel waits with poll: so only a wait releases the GIL, and a busy application
    thread does not take it for 5 ms at every call.
    """

    def __init__(self, endpoint: Endpoint, timeout_ms: float, send_buffer_bytes: int) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_ms / 1000.0
        self._send_buffer_bytes = send_buffer_bytes
        self._socket: PromptSocket | None = None
        # Replaced with every connection.
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._can_read = self._can_write = select.poll()

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def connect(self) -> None:
        try:
            sock = socket.create_connection(self.endpoint, self._timeout_s)
            self._socket = PromptSocket(fileno=sock.detach())
            self._socket.setblocking(False)
            self._reader = FrameReader(FRAME_BYTES_MAX)
            self._can_read, self._can_write = select.poll(), select.poll()
            self._can_read.register(self._socket, select.POLLIN)
            self._can_write.register(self._socket, select.POLLOUT)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as error:  # UnicodeError: a host name that IDNA cannot encode
            raise self._failure(error, "connecting") from error

    def send(self, frame: list[Buffer]) -> None:
        """Send a frame, which includes its size."""
        sock = self._connected_socket()
        unsent = memoryview(b"".join(frame))
        deadline = time.monotonic() + self._timeout_s
        try:
            while unsent:
                try:
                    unsent = unsent[sock.send(unsent) :]
                except BlockingIOError:
                    _wait(self._can_write, deadline)
        except OSError as error:
            raise self._failure(error, "sending a request") from error

    def receive(self) -> Buffer:
        """Return the next frame, without its size."""
        sock = self._connected_socket()
        reader = self._reader
        frames: list[Buffer] = []
        # One deadline for the whole frame: a peer that sends byte by byte must not extend it.
        deadline = time.monotonic() + self._timeout_s
        try:
            while not frames:
                _wait(self._can_read, deadline)
                count = sock.recv_into(reader.room())
                if not count:
                    raise ConnectionResetError("the broker closed the connection without a response")
                reader.received(count, frames)
            if len(frames) > 1 or reader.pending_bytes:
                raise MalformedError("expected one response, got more bytes", offset=0)
        except OSError as error:
            raise self._failure(error, "waiting for a response") from error
        except MalformedError:
            self.disconnect()
            raise
        return frames[0]

    def check_is_open(self) -> None:
        """Raise if the broker has closed the connection.

        Called before a request without a response: sending the first one after the close would not fail.
        """
        try:
            if not self._connected_socket().recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("the broker closed the connection")
        except BlockingIOError:
            return
        except OSError as error:
            raise self._failure(error, "sending a request") from error

    def disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected_socket(self) -> PromptSocket:
        if self._socket is None:
            raise ConnectionFailedError(f"broker {self.endpoint} is not connected")
        return self._socket

    def _failure(self, error: OSError | UnicodeError, action: str) -> HeadraceError:
        self.disconnect()
        if isinstance(error, TimeoutError):
            return TimedOutError(
                f"broker {self.endpoint}: timed out after {self._timeout_s * 1000:.0f} ms (request.timeout.ms) {action}"
            )
        return ConnectionFailedError(f"broker {self.endpoint}: {action} failed: {error}")


def _wait(ready: select.poll, deadline: float) -> None:
    if not ready.poll(max((deadline - time.monotonic()) * 1000.0, 0.0)):
        raise TimeoutError
