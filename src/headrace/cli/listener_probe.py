"""Detection of the protocol that a listener speaks.

    ApiVersions without TLS → Kafka | TLS | HTTP | another protocol | no response
    a TLS handshake with the client's settings → its result
    SaslHandshake for an unknown mechanism → the supported mechanisms, or that SASL is not enabled

Uses a new blocking socket for each request, because a listener closes the connection on an unexpected one.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeVar

from headrace.client import tls
from headrace.client.addresses import Address
from headrace.errors import Code, HeadraceError, WireError
from headrace.wire import frames
from headrace.wire.api.metadata import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.api.sasl import SaslHandshakeRequest
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message, RequestMessage

CONNECT_SECONDS_MAX = 5.0
RESPONSE_SECONDS_MAX = 3.0
RESPONSE_BYTES_MAX = 1024 * 1024
SHOWN_BYTES_MAX = 40
CLIENT_ID = "headrace-doctor"
UNKNOWN_MECHANISM = "NONE"
R = TypeVar("R", bound=Message)

_TLS_ALERT, _TLS_MAJOR = 0x15, 0x03
_HTTP_REQUEST = b"GET / HTTP/1.0\r\n\r\n"


class ListenerProtocol(Enum):
    KAFKA = auto()
    TLS = auto()
    HTTP = auto()
    OTHER = auto()
    NO_RESPONSE = auto()


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The protocol of a listener, and the bytes that it sent."""

    protocol: ListenerProtocol
    received: bytes = b""

    @property
    def excerpt(self) -> str:
        return repr(self.received[:SHOWN_BYTES_MAX])[2:-1]


@contextlib.contextmanager
def connected(address: Address) -> Iterator[socket.socket]:
    """Yield a TCP connection; raise OSError if the address is not reachable."""
    with socket.socket(address.family, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_SECONDS_MAX)
        sock.connect(address.sockaddr)
        sock.settimeout(RESPONSE_SECONDS_MAX)
        yield sock


def probe(address: Address) -> ProbeResult:
    """Detect the protocol: Kafka without TLS first, then TLS, then HTTP."""
    received, is_kafka = _probe_kafka(address)
    if is_kafka:
        return ProbeResult(ListenerProtocol.KAFKA, received)
    if received:
        return ProbeResult(_classify(received), received)
    if _accepts_tls(address):
        return ProbeResult(ListenerProtocol.TLS)
    response = _probe_http(address)
    return ProbeResult(_classify(response) if response else ListenerProtocol.NO_RESPONSE, response)


def _classify(received: bytes) -> ListenerProtocol:
    if received[:2] == bytes([_TLS_ALERT, _TLS_MAJOR]):
        return ListenerProtocol.TLS
    return ListenerProtocol.HTTP if received.startswith(b"HTTP/") else ListenerProtocol.OTHER


def _probe_kafka(address: Address) -> tuple[bytes, bool]:
    """Return the bytes received, and whether they are a valid response."""
    received = bytearray()
    with contextlib.suppress(OSError, WireError), connected(address) as sock:
        _request(sock, ApiVersionsRequest(), 0, received)
        return bytes(received), True
    return bytes(received), False


def _request(sock: socket.socket, message: RequestMessage[R], version: int, received: bytearray | None = None) -> R:
    """Send a request and read its response; `received` gets all bytes, including invalid ones."""
    for part in frames.encode_request(message, version, 1, CLIENT_ID):
        sock.sendall(part)
    reader, responses = FrameReader(RESPONSE_BYTES_MAX), list[Buffer]()
    deadline = time.monotonic() + RESPONSE_SECONDS_MAX
    while not responses:
        if time.monotonic() > deadline:
            raise TimeoutError(f"timed out after {RESPONSE_SECONDS_MAX:g} s waiting for the response")
        data = sock.recv(RESPONSE_BYTES_MAX)
        if not data:
            raise ConnectionError("the listener closed the connection")
        if received is not None:
            received += data
        reader.feed(data, responses)
    _, response = frames.decode_response_to(message, version, responses[0])
    return response


def _accepts_tls(address: Address) -> bool:
    """Return whether the listener speaks TLS; its identity is not verified, and no data is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with connected(address) as sock, context.wrap_socket(sock):
            return True
    except ssl.SSLError as error:
        # A listener that requires a client certificate, or another TLS version, sends an alert.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _probe_http(address: Address) -> bytes:
    with contextlib.suppress(OSError), connected(address) as sock:
        sock.sendall(_HTTP_REQUEST)
        return sock.recv(SHOWN_BYTES_MAX)
    return b""


@contextlib.contextmanager
def secured(address: Address, host: str, context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    """Yield a connection, with TLS if a context is given; raise TlsError or ConnectionError if the handshake fails."""
    with connected(address) as sock:
        if context is None:
            yield sock
            return
        with context.wrap_socket(sock, server_hostname=host.rstrip("."), do_handshake_on_connect=False) as wrapped:
            wrapped.settimeout(RESPONSE_SECONDS_MAX)
            try:
                wrapped.do_handshake()
            except TimeoutError:
                raise ConnectionError(
                    f"timed out after {RESPONSE_SECONDS_MAX:g} s waiting for the TLS handshake"
                ) from None
            except OSError as error:
                raise tls.explain(error, wrapped) from None
            yield wrapped


def query_listener(
    address: Address, host: str, context: ssl.SSLContext | None
) -> tuple[tuple[str, ...] | None, ApiVersionsResponse]:
    """Return the SASL mechanisms of a listener, or None if SASL is not enabled; and its API versions."""
    with secured(address, host, context) as sock:
        # In this order, like every client: some listeners close the connection otherwise.
        versions = _request(sock, ApiVersionsRequest(), 0)
        response = _request(sock, SaslHandshakeRequest(mechanism=UNKNOWN_MECHANISM), 1)
        if response.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
            return tuple(response.mechanisms), versions
        if response.error_code == Code.ILLEGAL_SASL_STATE:
            return None, versions
        raise HeadraceError(f"unexpected error {response.error_code} in the SASL handshake response")
