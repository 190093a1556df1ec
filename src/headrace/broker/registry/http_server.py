"""A small HTTP/1.1 server on the event loop: keep-alive, bodies with a length or in chunks, limits for everything.

    bytes → HttpRequest → handler → HttpResponse → bytes

A client costs at most a connection, of which there are CONNECTIONS_MAX, the head of a request and its body; bodies of
all connections together have BODIES_BYTES_MAX. Time is limited, too: for the head, for the body, for an idle connection
and for a client that does not read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from headrace.broker.ports import bind

log = logging.getLogger("headrace.broker.registry")

HEAD_BYTES_MAX = 16 * 1024
HEADERS_MAX = 100
BODY_BYTES_MAX = 1024 * 1024
BODIES_BYTES_MAX = 32 * 1024 * 1024
"""Bodies that are being read or handled, of all connections."""
CONNECTIONS_MAX = 256
HEAD_SECONDS_MAX = 10.0
BODY_SECONDS_MAX = 30.0
IDLE_SECONDS_MAX = 60.0
WRITE_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 3.0
LINGER_BYTES_MAX = 16 * 1024 * 1024
"""Read and dropped behind a refused request: a client that is still sending would not see the response otherwise."""
LINGER_SECONDS_MAX = 5.0
CHUNK_LINE_BYTES_MAX = 1024
_BACKLOG = 128
_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


class HttpError(Exception):
    """A request that cannot be served: the status and a message. The connection is closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. Names of headers are in lower case; parts of the path are decoded."""

    method: str
    path: tuple[str, ...]
    query: str
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response."""

    status: int
    body: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Head:
    request: HttpRequest
    is_kept_alive: bool
    body_bytes: int | None  # None: in chunks


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]
ErrorBody = Callable[[int, str], HttpResponse]


class HttpServer:
    """Serves a handler. Event loop only."""

    def __init__(self, handler: Handler, error_response: ErrorBody) -> None:
        """`error_response` returns the response for a status and a message, if a request is not even one."""
        self._handler = handler
        self._error_response = error_response
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], bool] = {}  # whether it is handling a request
        self._held_bytes = 0
        self._is_stopping = False

    async def listen(self, host: str, port: int, purpose: str) -> str:
        """Listen on a port, and return the URL. `purpose` is for the error if the port is in use."""
        sock = bind(host, port, purpose)
        try:
            await self.start(sock)
        except BaseException:
            sock.close()
            raise
        name = f"[{host}]" if ":" in host else host or "localhost"
        return f"http://{name}:{sock.getsockname()[1]}"

    async def start(self, sock: socket.socket) -> None:
        """Serve the connections of a bound socket."""
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=HEAD_BYTES_MAX, backlog=_BACKLOG)

    async def stop(self) -> None:
        """Stop accepting, let running requests finish for a short time, and close."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        for task, is_busy in self._connections.items():
            if not is_busy:
                task.cancel()
        if self._connections:
            await asyncio.wait(self._connections, timeout=STOP_SECONDS_MAX)
        for task in self._connections:
            task.cancel()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = False
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError):  # OSError: also a TimeoutError
                if len(self._connections) > CONNECTIONS_MAX:
                    refusal = f"too many connections: {CONNECTIONS_MAX} are open; retry later, or close some"
                    await self._write(writer, self._error_response(503, refusal), is_kept_alive=False)
                    return
                while not self._is_stopping and await self._serve_request(task, reader, writer):
                    pass
        except Exception:
            log.exception("internal error in a connection of the schema registry")
        finally:
            del self._connections[task]
            writer.close()

    async def _serve_request(
        self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Serve one request; return whether the connection may have another one."""
        reserved = 0
        try:
            head = await _read_head(reader)
            if head is None:
                return False
            self._connections[task] = True
            reserved = BODY_BYTES_MAX if head.body_bytes is None else head.body_bytes
            self._held_bytes += reserved
            if self._held_bytes > BODIES_BYTES_MAX:
                raise HttpError(503, "too many large requests at once: retry later")
            request = await self._read_body(head, reader, writer)
            response = await self._handler(request)
            await self._write(writer, response, is_kept_alive=head.is_kept_alive, is_head=request.method == "HEAD")
            return head.is_kept_alive
        except HttpError as error:
            await self._write(writer, self._error_response(error.status, error.message), is_kept_alive=False)
            if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                await _drop_input(reader, writer)
            return False
        finally:
            self._held_bytes -= reserved
            self._connections[task] = False

    async def _read_body(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest:
        request = head.request
        if head.body_bytes == 0:
            return request
        if request.headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(BODY_SECONDS_MAX):
                if head.body_bytes is None:
                    body = await _read_chunks(reader)
                else:
                    body = await reader.readexactly(head.body_bytes)
        except TimeoutError:
            raise HttpError(408, f"timed out after {BODY_SECONDS_MAX:g} s waiting for the body") from None
        return HttpRequest(request.method, request.path, request.query, request.headers, body)

    async def _write(
        self, writer: asyncio.StreamWriter, response: HttpResponse, *, is_kept_alive: bool, is_head: bool = False
    ) -> None:
        lines = [
            f"HTTP/1.1 {response.status} {_reason(response.status)}",
            f"Content-Type: {response.content_type}",
            f"Content-Length: {len(response.body)}",
            *(f"{name}: {value}" for name, value in response.headers.items()),
            f"Connection: {'keep-alive' if is_kept_alive else 'close'}",
        ]
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (b"" if is_head else response.body))
        async with asyncio.timeout(WRITE_SECONDS_MAX):
            await writer.drain()


async def _drop_input(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what a client still sends, within limits."""
    if writer.can_write_eof():
        writer.write_eof()
    dropped = 0
    async with asyncio.timeout(LINGER_SECONDS_MAX):
        while dropped < LINGER_BYTES_MAX and (data := await reader.read(HEAD_BYTES_MAX)):
            dropped += len(data)


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


async def _read_head(reader: asyncio.StreamReader) -> _Head | None:
    """Read the head of a request; None if the client has closed the connection, or was idle."""
    try:
        async with asyncio.timeout(IDLE_SECONDS_MAX):
            first = await reader.read(1)
            while first in (b"\r", b"\n"):  # empty lines before a request are allowed
                first = await reader.read(1)
    except TimeoutError:
        return None
    if not first:
        return None
    try:
        async with asyncio.timeout(HEAD_SECONDS_MAX):
            data = first + await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise HttpError(408, f"timed out after {HEAD_SECONDS_MAX:g} s waiting for the headers") from None
    except asyncio.LimitOverrunError:
        raise HttpError(431, f"headers are too large: at most {HEAD_BYTES_MAX} bytes") from None
    return _parse_head(data)


def _parse_head(data: bytes) -> _Head:
    lines = data.decode("latin-1").split("\r\n")[:-2]
    parts = lines[0].split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise HttpError(400, "invalid request line: expected METHOD TARGET HTTP/1.1")
    method, target, version = parts
    if method not in _METHODS:
        raise HttpError(405, f"method {method[:20]!r} is not supported: expected one of {', '.join(_METHODS)}")
    headers = _parse_headers(lines[1:])
    try:
        url = urlsplit(target)
        path = tuple(unquote(part, errors="strict") for part in url.path.split("/") if part)
    except ValueError:
        raise HttpError(400, "invalid request target: expected a path in percent-encoded UTF-8") from None
    is_kept_alive = headers.get("connection", "").lower() != "close" and version == "HTTP/1.1"
    return _Head(HttpRequest(method, path, url.query, headers), is_kept_alive, _body_bytes(headers))


def _parse_headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise HttpError(431, f"too many headers: at most {HEADERS_MAX}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or "\n" in line or "\r" in line or "\0" in line:
            raise HttpError(400, f"invalid header line {line[:100]!r}: expected NAME: VALUE")
        if name in headers and name in ("content-length", "transfer-encoding", "host"):
            raise HttpError(400, f"header {name} is given twice")
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return headers


def _body_bytes(headers: Mapping[str, str]) -> int | None:
    """Return the length of the body; None if it comes in chunks."""
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise HttpError(400, "invalid body: expected Content-Length, or Transfer-Encoding: chunked")
        return None
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()) or len(length) > len(str(BODY_BYTES_MAX)) + 10:
        raise HttpError(400, f"invalid Content-Length {length[:30]!r}: expected a number")
    if int(length) > BODY_BYTES_MAX:
        raise _too_large(f"{int(length):,} bytes")
    return int(length)


def _too_large(size: str) -> HttpError:
    return HttpError(413, f"the body is too large: {size}, at most {BODY_BYTES_MAX:,} bytes are read")


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size = await _read_chunk_size(reader)
        if len(body) + size > BODY_BYTES_MAX:
            raise _too_large("chunks")
        if not size:
            break
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise HttpError(400, "invalid chunk: expected CRLF behind it")
    for _ in range(HEADERS_MAX):  # trailers
        if await _read_chunk_line(reader) == b"":
            return bytes(body)
    raise HttpError(431, f"too many headers: at most {HEADERS_MAX}")


async def _read_chunk_size(reader: asyncio.StreamReader) -> int:
    text = (await _read_chunk_line(reader)).partition(b";")[0].strip()
    if not text or len(text) > 8 or text.strip(b"0123456789abcdefABCDEF"):
        raise HttpError(400, f"invalid chunk size {text[:20]!r}: expected hexadecimal digits")
    return int(text, 16)


async def _read_chunk_line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.LimitOverrunError:
        line = b" " * (CHUNK_LINE_BYTES_MAX + 1)
    if len(line) > CHUNK_LINE_BYTES_MAX:
        raise HttpError(431, f"a line of a chunked body is too long: at most {CHUNK_LINE_BYTES_MAX} bytes")
    return line[:-2]
