"""TLS on non-blocking sockets.

    TlsSettings (ssl.* options) → context() → wrap(socket) → handshake() until "done" → send() and receive()

Python's SSLSocket encrypts straight into the system's buffer, so it serves a selector loop as it is. It has no gather
write, though: `send` joins small buffers, because each write makes at least one TLS record. A call that would block is
to be made again with the same bytes first, more may follow: OpenSSL has part of them under way.

What cannot get better by itself is a TlsError; a connection that just ended is a ConnectionError.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from headrace.config.cipher_names import openssl_name
from headrace.config.pem import Pem, load_authorities, load_certificate, openssl_reason
from headrace.errors import ConfigError, TlsError
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    import socket

SEND_BYTES = 64 * 1024
"""What goes to OpenSSL in one call: four TLS records, so that the price of a call no longer counts."""
PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

Outcome = Literal["done", "want_read", "want_write"]

_HOSTNAME_MISMATCH = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and …_IP_ADDRESS_MISMATCH
# What OpenSSL says of bytes that are not TLS; newer releases tell less and less.
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_OURS_REFUSED = ("CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "UNKNOWN_CA", "CERTIFICATE_EXPIRED", "CERTIFICATE_UNKNOWN")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """What `ssl.*` options come to. Files and texts are PEM, one of each pair at most. The repr keeps secrets."""

    ca_file: str | None = None
    ca_pem: str | None = None
    cert_file: str | None = None
    """The client's certificate chain, and its key if `key_file` is not given."""
    cert_pem: str | None = None
    key_file: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    """Names as Java or as OpenSSL writes them; empty: the library's choice."""

    @property
    def ca(self) -> str:
        """Whom we trust, for messages."""
        return self.ca_file or (
            "ssl.truststore.certificates" if self.ca_pem else "the system's certificate authorities"
        )


class TlsContext(ssl.SSLContext):
    """An SSLContext that remembers whom it trusts, for messages."""

    ca: str = ""


def context(settings: TlsSettings) -> TlsContext:
    """Load certificates and key. What is wrong with them is a ConfigError, before anything is dialled."""
    made = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    made.ca = settings.ca
    made.check_hostname = settings.check_hostname
    _limit_protocols(made, settings.protocols)
    if settings.ciphers:
        _limit_ciphers(made, settings.ciphers)
    _load_authorities(made, settings)
    _load_own_certificate(made, settings)
    return made


def _limit_protocols(made: TlsContext, names: tuple[str, ...]) -> None:
    versions = sorted(PROTOCOLS[name] for name in names if name in PROTOCOLS)
    if not versions or len(versions) != len(names):
        raise ConfigError(f"ssl.enabled.protocols: {', '.join(names) or 'none'}: choose from {', '.join(PROTOCOLS)}")
    made.minimum_version, made.maximum_version = versions[0], versions[-1]


def _limit_ciphers(made: TlsContext, names: tuple[str, ...]) -> None:
    """Allow these suites only. Python cannot pick among those of TLS 1.3: it is all of them, or no TLS 1.3."""
    modern = {str(cipher["name"]) for cipher in made.get_ciphers() if str(cipher["name"]).startswith("TLS_")}
    chosen_modern = modern.intersection(names)
    older = [openssl_name(name) for name in names if name not in modern]
    if not chosen_modern:
        made.maximum_version = ssl.TLSVersion.TLSv1_2
    elif chosen_modern != modern and made.maximum_version != ssl.TLSVersion.TLSv1_2:
        raise ConfigError(
            f"ssl.cipher.suites: Python cannot leave out {', '.join(sorted(modern - chosen_modern))}; name all suites "
            f"of TLS 1.3 or none, or set ssl.enabled.protocols=TLSv1.2"
        )
    if not older:
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        made.set_ciphers(":".join(older))
    except ssl.SSLError:
        raise ConfigError(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(names)}") from None


def _load_authorities(made: TlsContext, settings: TlsSettings) -> None:
    authorities = Pem(settings.ca_file, settings.ca_pem)
    if authorities:
        load_authorities(made, authorities)
    else:
        made.load_default_certs()


def _load_own_certificate(made: TlsContext, settings: TlsSettings) -> None:
    chain, key = Pem(settings.cert_file, settings.cert_pem), Pem(settings.key_file, settings.key_pem)
    if chain:
        load_certificate(made, chain, key, settings.key_password, "the client certificate")
    elif key:
        raise ConfigError("a client key without a certificate: set ssl.keystore.certificate.chain as well")


def wrap(sock: socket.socket, tls_context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """A connected socket, made non-blocking, with TLS around it. The handshake is yet to be done."""
    sock.setblocking(False)
    # A dot at the end of a name is DNS's business; certificates have none.
    return tls_context.wrap_socket(sock, server_hostname=host.rstrip("."), do_handshake_on_connect=False)


def handshake(sock: ssl.SSLSocket) -> Outcome:
    """Go on with the handshake as far as it goes without waiting."""
    try:
        sock.do_handshake()
    except ssl.SSLWantReadError:
        return "want_read"
    except ssl.SSLWantWriteError:
        return "want_write"
    except OSError as error:
        raise explain(error, sock) from None
    return "done"


def send(sock: ssl.SSLSocket, buffers: Iterable[Buffer]) -> int:
    """Write from the front of a gather list and return how many bytes went; 0: wait until the socket is writable."""
    try:
        return sock.send(_front(buffers))
    except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
        return 0
    except OSError as error:
        raise explain(error, sock) from None


def _front(buffers: Iterable[Buffer]) -> Buffer:
    """The first SEND_BYTES of a gather list; large buffers are not copied. Never less than the last time."""
    parts: list[Buffer] = []
    room = SEND_BYTES
    for buffer in buffers:
        parts.append(memoryview(buffer)[:room])
        room -= len(parts[-1])
        if not room:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def receive(sock: ssl.SSLSocket, bytes_max: int) -> bytes | None:
    """What has come, b"" at the end of the stream, None if nothing is there.

    One call gives one TLS record at most. What is left stays in the system's buffer, so a selector fires again.
    """
    try:
        return sock.recv(bytes_max)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    except OSError as error:
        raise explain(error, sock) from None


def explain(error: OSError, sock: ssl.SSLSocket) -> TlsError | ConnectionError:
    """What an error of the socket means, and what to do about it."""
    host, said = sock.server_hostname, openssl_reason(error)
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    # In TLS 1.3 a broker looks at our certificate when the handshake is over for us.
    if "ALERT" in reason and reason.endswith(_OURS_REFUSED):
        return TlsError(
            f"{host} did not accept our certificate ({said}); set ssl.keystore.* to a certificate that the "
            f"broker's truststore knows"
        )
    if sock.version() is not None:
        return ConnectionError(f"TLS connection to {host} broke: {said}")
    if not isinstance(error, ssl.SSLError) or isinstance(error, _ENDED):
        return ConnectionError(
            f"{host} ended the connection in the TLS handshake: does it speak TLS on this port (security.protocol), "
            f"and does it ask for a client certificate?"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(_verification_problem(error, host, getattr(sock.context, "ca", "")))
    if reason in _NOT_TLS:
        return TlsError(
            f"{host} does not speak TLS on this port ({said}); use the port of its TLS listener, or "
            f"security.protocol=PLAINTEXT (SASL_PLAINTEXT) for this one"
        )
    return TlsError(
        f"TLS with {host} failed: {said}; compare ssl.enabled.protocols and ssl.cipher.suites with its own, "
        f"and see whether it wants a client certificate"
    )


def _verification_problem(error: ssl.SSLCertVerificationError, host: str | None, ca: str) -> str:
    if error.verify_code in _HOSTNAME_MISMATCH:
        return (
            f"the certificate of {host} is for other names; connect by a name that it has (openssl s_client shows "
            f"them), or set ssl.endpoint.identification.algorithm= to nothing, which lets anyone with a certificate in"
        )
    return (
        f"the certificate of {host} is not trusted: {error.verify_message}; trusted are {ca}: set "
        f"ssl.truststore.location to a PEM file with the authority that signed it"
    )
