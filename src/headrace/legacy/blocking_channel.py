"""A blocking socket: frames with their size in front go out and come in, and nothing takes longer than the timeout."""

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
    """What a sync producer needs of a connection."""

    @property
    def is_connected(self) -> bool: ...

    def connect(self) -> None: ...

    def send(self, frame: list[Buffer]) -> None: ...

    def receive(self) -> Buffer: ...

    def check_is_open(self) -> None: ...

    def disconnect(self) -> None: ...


class BlockingChannel:
    """One connection at a time to one broker. An error of any kind ends it.

    It blocks by waiting for the socket, which itself never does: so only a wait gives up the GIL, and a busy
    application is not given 5 ms of it at every step.
    """

    def __init__(self, endpoint: Endpoint, timeout_ms: float, send_buffer_bytes: int) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_ms / 1000.0
        self._send_buffer_bytes = send_buffer_bytes
        self._socket: PromptSocket | None = None
        # Of the socket, when there is one.
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._can_read = self._can_write = select.poll()

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def connect(self) -> None:
        try:
            dialled = socket.create_connection(self.endpoint, self._timeout_s)
            self._socket = PromptSocket(fileno=dialled.detach())
            self._socket.setblocking(False)
            self._reader = FrameReader(FRAME_BYTES_MAX)
            self._can_read, self._can_write = select.poll(), select.poll()
            self._can_read.register(self._socket, select.POLLIN)
            self._can_write.register(self._socket, select.POLLOUT)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer_bytes)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as error:  # a name that DNS could never know is a UnicodeError
            raise self._failed(error, "be reached") from error

    def send(self, frame: list[Buffer]) -> None:
        """Send a frame, which has its size in front."""
        connected = self._connected()
        left = memoryview(b"".join(frame))
        deadline = time.monotonic() + self._timeout_s
        try:
            while left:
                try:
                    left = left[connected.send(left) :]
                except BlockingIOError:
                    _wait(self._can_write, deadline)
        except OSError as error:
            raise self._failed(error, "be sent a request") from error

    def receive(self) -> Buffer:
        """The next frame, without its size."""
        connected = self._connected()
        reader = self._reader
        frames: list[Buffer] = []
        # For all of it: a peer that sends byte after byte must not have the timeout for each of them.
        deadline = time.monotonic() + self._timeout_s
        try:
            while not frames:
                _wait(self._can_read, deadline)
                count = connected.recv_into(reader.room())
                if not count:
                    raise ConnectionResetError("it has closed the connection without an answer")
                reader.received(count, frames)
            if len(frames) > 1 or reader.pending_bytes:
                raise MalformedError("expected one answer to one request, got more", offset=0)
        except OSError as error:
            raise self._failed(error, "answer") from error
        except MalformedError:
            self.disconnect()
            raise
        return frames[0]

    def check_is_open(self) -> None:
        """Raise if the broker has hung up. Nothing is due from it now: what there is to read can only be the end.

        Before a request without an answer: the first one after the end would go out without an error.
        """
        try:
            if not self._connected().recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("it has closed the connection")
        except BlockingIOError:
            return
        except OSError as error:
            raise self._failed(error, "be sent a request") from error

    def disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connected(self) -> PromptSocket:
        if self._socket is None:
            raise ConnectionFailedError(f"broker {self.endpoint} is not connected")
        return self._socket

    def _failed(self, error: OSError | UnicodeError, what: str) -> HeadraceError:
        self.disconnect()
        if isinstance(error, TimeoutError):
            return TimedOutError(
                f"broker {self.endpoint} did not {what} in {self._timeout_s * 1000:.0f} ms (request.timeout.ms)"
            )
        return ConnectionFailedError(f"broker {self.endpoint} could not {what}: {error}")


def _wait(ready: select.poll, deadline: float) -> None:
    if not ready.poll(max((deadline - time.monotonic()) * 1000.0, 0.0)):
        raise TimeoutError
