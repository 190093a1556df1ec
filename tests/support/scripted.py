"""A server on loopback that follows a script, valid or not: the other end of the link tests.

    ScriptedServer(script, …): the first connection gets the first script, and so on; the last one stays
    script(peer): reads requests, sends responses or other bytes, closes the connection

Each script runs in a thread, and ends with the server at the latest.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from headrace.wire import frames
from headrace.wire.api.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.wire.frames import RequestHeader
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message

SECONDS_MAX = 20
NODE_ID = 1
API_VERSIONS, METADATA = ApiVersionsRequest.api_key, MetadataRequest.api_key

Script = Callable[["Peer"], None]
Handler = Callable[["Peer", RequestHeader, Message], "Message | bytes | None"]
"""A response, raw bytes to send instead, or None for no response."""


class HungUpError(Exception):
    """The client has closed the connection, which ends the script."""


class Peer:
    """The server's end of one connection."""

    def __init__(self, server: ScriptedServer, sock: socket.socket) -> None:
        self.server = server
        self.socket = sock
        self._reader = FrameReader(frames.FRAME_BYTES_MAX)
        self._waiting: list[Buffer] = []

    def request(self) -> tuple[RequestHeader, Message]:
        """Return the next request."""
        while not self._waiting:
            self._reader.feed(self._receive(), self._waiting)
        frame = self._waiting.pop(0)
        header, pos = frames.decode_request_header(frame)
        return header, frames.decode_request_body(header, frame, pos)

    def _receive(self) -> bytes:
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            raise HungUpError
        return data

    def respond(self, header: RequestHeader, message: Message, *, version: int | None = None, shift: int = 0) -> None:
        """Send a response to a request; `shift` makes its correlation id invalid."""
        self.send(encoded(header, message, version=version, shift=shift))

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError:
            raise HungUpError from None

    def drip(self, data: bytes) -> None:
        """Send data byte by byte."""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(data)):
            self.send(data[i : i + 1])

    def silence(self) -> None:
        """Send nothing until the client closes the connection."""
        while True:
            self._receive()

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
        raise HungUpError

    def serve(self, handlers: Mapping[int, Handler] | None = None, *, requests_max: int = 1 << 30) -> None:
        """Respond to ApiVersions and Metadata, and to other requests with `handlers`, which may replace those two."""
        table: dict[int, Handler] = {API_VERSIONS: api_versions, METADATA: metadata, **(handlers or {})}
        for _ in range(requests_max):
            header, message = self.request()
            response = table[header.api_key](self, header, message)
            if isinstance(response, bytes):
                self.send(response)
            elif response is not None:
                self.respond(header, response)


def encoded(header: RequestHeader, message: Message, *, version: int | None = None, shift: int = 0) -> bytes:
    """Return the frame of a response."""
    version = header.api_version if version is None else version
    return b"".join(frames.encode_response(message, version, header.correlation_id + shift))


def api_versions(peer: Peer, header: RequestHeader, message: Message) -> Message:
    ranges = peer.server.api_ranges
    return ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges.items()]
    )


def metadata(peer: Peer, header: RequestHeader, message: Message) -> Message:
    """Return metadata of a one-node cluster: this server leads the only partition of every topic."""
    assert isinstance(message, MetadataRequest)
    partition = MetadataResponsePartition(
        partition_index=0, leader_id=NODE_ID, leader_epoch=1, replica_nodes=[NODE_ID], isr_nodes=[NODE_ID]
    )
    topics = [MetadataResponseTopic(name=topic.name, partitions=[partition]) for topic in message.topics or ()]
    broker = MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=peer.server.port)
    return MetadataResponse(brokers=[broker], controller_id=NODE_ID, topics=topics)


def behave(peer: Peer) -> None:
    peer.serve()


class ScriptedServer:
    """Listens on loopback when it is created; `with` closes it."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.scripts = list(scripts) or [behave]
        self.api_ranges: dict[int, tuple[int, int]] = {0: (3, 9), 1: (4, 12), 3: (1, 9), 18: (0, 3)}
        self.accepted = 0
        self.errors: list[BaseException] = []
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            script = self.scripts[min(self.accepted, len(self.scripts) - 1)]
            self.accepted += 1
            sock.settimeout(SECONDS_MAX)
            self._sockets.append(sock)
            thread = threading.Thread(target=self._run, args=(script, sock))
            self._threads.append(thread)
            thread.start()

    def _run(self, script: Script, sock: socket.socket) -> None:
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            script(Peer(self, sock))
        except (HungUpError, OSError):
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            sock.close()

    def close(self) -> None:
        """Close all connections, and raise the first error of a script."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(SECONDS_MAX)
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        if self.errors:
            raise self.errors[0]

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
