"""What speaks at an address: a few bytes are sent, and the answer is looked at.

    ApiVersions in the clear → Kafka | TLS | HTTP | something else | silence
    TLS by the client's own settings → what the handshake says
    SaslHandshake for a mechanism that nobody has → the mechanisms there are, or that none is wanted

Plain blocking sockets, a new one for each question: a listener that is asked something wrong hangs up.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from headrace.client import tls
from headrace.client.addresses import Address
from headrace.errors import Code, HeadraceError, WireError
from headrace.wire import frames
from headrace.wire.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.wire.api.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.wire.framing import FrameReader
from headrace.wire.primitives import Buffer
from headrace.wire.schema import Message

CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 3.0
ANSWER_BYTES_MAX = 1024 * 1024
SHOWN_BYTES_MAX = 40
CLIENT_ID = "headrace-doctor"
NO_SUCH_MECHANISM = "NONE"
_TLS_ALERT, _TLS_MAJOR = 0x15, 0x03
_HTTP_QUESTION = b"GET / HTTP/1.0\r\n\r\n"


class Speaks(Enum):
    KAFKA = auto()
    TLS = auto()
    HTTP = auto()
    OTHER = auto()
    NOTHING = auto()


@dataclass(frozen=True, slots=True)
class Heard:
    """What an address said to ApiVersions in the clear."""

    speaks: Speaks
    said: bytes = b""

    @property
    def shown(self) -> str:
        return repr(self.said[:SHOWN_BYTES_MAX])[2:-1]


@contextlib.contextmanager
def connected(address: Address) -> Iterator[socket.socket]:
    """A connection; what cannot be reached is an OSError."""
    with socket.socket(address.family, socket.SOCK_STREAM) as sock:
        sock.settimeout(CONNECT_SECONDS_MAX)
        sock.connect(address.sockaddr)
        sock.settimeout(ANSWER_SECONDS_MAX)
        yield sock


def listen_to(address: Address) -> Heard:
    """Ask in the clear, and where that brings nothing, in other tongues."""
    said, is_kafka = _ask_in_the_clear(address)
    if is_kafka:
        return Heard(Speaks.KAFKA, said)
    if said[:1] == bytes([_TLS_ALERT]) and said[1:2] == bytes([_TLS_MAJOR]):
        return Heard(Speaks.TLS, said)
    if said.startswith(b"HTTP/"):
        return Heard(Speaks.HTTP, said)
    if said:
        return Heard(Speaks.OTHER, said)
    if _shakes_hands(address):
        return Heard(Speaks.TLS)
    answer = _ask_http(address)
    return Heard(Speaks.HTTP if answer.startswith(b"HTTP/") else Speaks.OTHER if answer else Speaks.NOTHING, answer)


def _ask_in_the_clear(address: Address) -> tuple[bytes, bool]:
    """What was said, and whether it was an answer."""
    said = bytearray()
    with contextlib.suppress(OSError, WireError), connected(address) as sock:
        ask(sock, ApiVersionsRequest(), 0, said)
        return bytes(said), True
    return bytes(said), False


def ask(sock: socket.socket, message: Message, version: int, said: bytearray | None = None) -> Message:
    """Send a request and read its answer; `said` gets the bytes as they come, also those that make no sense."""
    for part in frames.encode_request(message, version, 1, CLIENT_ID):
        sock.sendall(part)
    reader, found = FrameReader(ANSWER_BYTES_MAX), list[Buffer]()
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while not found:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer in {ANSWER_SECONDS_MAX:g} s")
        data = sock.recv(ANSWER_BYTES_MAX)
        if not data:
            raise ConnectionError("it hung up")
        if said is not None:
            said += data
        reader.feed(data, found)
    _, answer = frames.decode_response(message.api_key, version, found[0])
    return answer


def _shakes_hands(address: Address) -> bool:
    """Whether it speaks TLS; who it is does not matter here, and nothing is sent."""
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    try:
        with connected(address) as sock, anyone.wrap_socket(sock):
            return True
    except ssl.SSLError as error:
        # One that wants our certificate, or another protocol version, says so in an alert.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _ask_http(address: Address) -> bytes:
    with contextlib.suppress(OSError), connected(address) as sock:
        sock.sendall(_HTTP_QUESTION)
        return sock.recv(SHOWN_BYTES_MAX)
    return b""


@contextlib.contextmanager
def secured(address: Address, host: str, context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    """A connection with TLS if there is a context; what the handshake minds is a TlsError or a ConnectionError."""
    with connected(address) as sock:
        if context is None:
            yield sock
            return
        with context.wrap_socket(sock, server_hostname=host.rstrip("."), do_handshake_on_connect=False) as wrapped:
            wrapped.settimeout(ANSWER_SECONDS_MAX)
            try:
                wrapped.do_handshake()
            except TimeoutError:
                raise ConnectionError(f"no answer to the TLS handshake in {ANSWER_SECONDS_MAX:g} s") from None
            except OSError as error:
                raise tls.explain(error, wrapped) from None
            yield wrapped


def ask_listener(
    address: Address, host: str, context: ssl.SSLContext | None
) -> tuple[tuple[str, ...] | None, ApiVersionsResponse]:
    """The SASL mechanisms of a listener, None if it wants no SASL; and what it speaks."""
    with secured(address, host, context) as sock:
        # In this order, as every client does: some listeners hang up on others.
        versions = ask(sock, ApiVersionsRequest(), 0)
        assert isinstance(versions, ApiVersionsResponse)
        answer = ask(sock, SaslHandshakeRequest(mechanism=NO_SUCH_MECHANISM), 1)
        assert isinstance(answer, SaslHandshakeResponse)
        if answer.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
            return tuple(answer.mechanisms), versions
        if answer.error_code == Code.ILLEGAL_SASL_STATE:
            return None, versions
        raise HeadraceError(f"it answers a SASL handshake with error {answer.error_code}")
