"""A raw connection: pipelined requests, partial requests, and arbitrary bytes."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import TypeVar

from headrace.wire.frames import FRAME_BYTES_MAX, RequestHeader, decode_response_to, encode_request
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message, RequestMessage

RESPONSE_SECONDS_MAX = 30
R = TypeVar("R", bound=Message)


def frame(message: Message, version: int, correlation_id: int = 1, client_id: str | None = "tests") -> bytes:
    """Return a request with its size prefix."""
    return b"".join(encode_request(message, version, correlation_id, client_id))


class RawConnection:
    """Sends bytes and reads frames."""

    def __init__(self, bootstrap: str, receive_buffer_bytes: int = 0) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(RESPONSE_SECONDS_MAX)
        self.socket.connect((host, int(port)))
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self._frames: list[Buffer] = []

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frames(self, count: int) -> list[bytes]:
        """Return the next responses; fewer if the broker closes the connection."""
        while len(self._frames) < count:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                break
            self._reader.feed(data, self._frames)
        taken, self._frames = self._frames[:count], self._frames[count:]
        return [bytes(each) for each in taken]

    def correlation_ids(self, count: int) -> list[int]:
        return [struct.unpack(">i", each[:4])[0] for each in self.frames(count)]

    def response(self, request: RequestMessage[R], version: int) -> R:
        """Return the next response, which is for `request`."""
        (body,) = self.frames(1)
        return decode_response_to(request, version, body)[1]

    def is_closed(self) -> bool:
        """Wait until the broker closes the connection; return False if it sends data instead."""
        return not self.frames(1)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def header(api_key: int, version: int, correlation_id: int = 1) -> bytes:
    """Return a request with a header only, with its size prefix."""
    known = RequestHeader(api_key, version, correlation_id, None)
    body = struct.pack(">hhih", known.api_key, known.api_version, known.correlation_id, -1)
    return struct.pack(">i", len(body)) + body
