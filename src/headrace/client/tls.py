"""TLS on non-blocking sockets.

    TlsSettings (ssl.* options) → context() → wrap(socket) → handshake() until "done" → send() and receive()

Python's SSLSocket encrypts directly into the system's buffer, so it works with a selector loop. It has no gather write:
`send` joins small buffers, because each write makes at least one TLS record. A call that would block must be repeated
with the same bytes first, because OpenSSL has processed a part of them.

Permanent errors are a TlsError, bytes that are not TLS a NotTlsError; a connection that ended is a ConnectionError.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from headrace.config import Config
from headrace.config.openssl import (
    NOT_TLS_REASONS,
    Pem,
    load_authorities,
    load_certificate,
    openssl_name,
    openssl_reason,
)
from headrace.errors import ConfigError, TlsError
from headrace.wire.primitives import Buffer

if TYPE_CHECKING:
    import socket

SEND_BYTES = 64 * 1024
"""Bytes per call of OpenSSL: four TLS records, so that the cost of a call is negligible."""
PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

Outcome = Literal["done", "want_read", "want_write"]

_HOSTNAME_MISMATCH = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH and …_IP_ADDRESS_MISMATCH.
_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_CLIENT_CERTIFICATE_REJECTED = (
    "CERTIFICATE_REQUIRED",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_UNKNOWN",
)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The `ssl.*` options. Files and texts are PEM, at most one of each pair. The repr has no secrets."""

    ca_file: str | None = None
    ca_pem: str | None = None
    cert_file: str | None = None
    """The client's certificate chain, and its key if `key_file` is None."""
    cert_pem: str | None = None
    key_file: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    """Names of Java or OpenSSL; empty: OpenSSL's default."""

    @property
    def ca(self) -> str:
        """The trusted authorities, for messages."""
        return self.ca_file or (
            "ssl.truststore.certificates" if self.ca_pem else "the system's certificate authorities"
        )


def settings_from(config: Config, prefix: str = "") -> TlsSettings:
    """Return the settings of the `ssl.*` options. `prefix` is before their names, as in `schema.registry.ssl.*`."""
    location, certificates = f"{prefix}ssl.truststore.location", f"{prefix}ssl.truststore.certificates"
    keystore, chain = f"{prefix}ssl.keystore.location", f"{prefix}ssl.keystore.certificate.chain"
    key_location, key = f"{prefix}ssl.key.location", f"{prefix}ssl.keystore.key"
    for name, other in ((location, certificates), (keystore, chain), (keystore, key), (key_location, key)):
        if config[name] is not None and config[other] is not None:
            raise ConfigError(f"{name} and {other} are both set: unset one of them")
    return TlsSettings(
        ca_file=config.optional(str, location),
        ca_pem=config.revealed(certificates),
        cert_file=config.optional(str, keystore),
        cert_pem=config.revealed(chain),
        key_file=config.optional(str, key_location),
        key_pem=config.revealed(key),
        key_password=config.revealed(f"{prefix}ssl.key.password"),
        check_hostname=config[f"{prefix}ssl.endpoint.identification.algorithm"] == "https",
        protocols=config.of(tuple, f"{prefix}ssl.enabled.protocols"),
        ciphers=config.of(tuple, f"{prefix}ssl.cipher.suites"),
    )


class NotTlsError(TlsError):
    """The peer responds to the handshake, but not with TLS."""


class TlsContext(ssl.SSLContext):
    """An SSLContext with its trusted authorities, for messages."""

    ca: str = ""


def context(settings: TlsSettings) -> TlsContext:
    """Return a context with the certificates and key; raises ConfigError if they are invalid."""
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
        raise ConfigError(
            f"invalid ssl.enabled.protocols: expected {', '.join(PROTOCOLS)}, got {', '.join(names) or 'none'}"
        )
    made.minimum_version, made.maximum_version = versions[0], versions[-1]


def _limit_ciphers(made: TlsContext, names: tuple[str, ...]) -> None:
    """Allow these suites only. Python cannot select suites of TLS 1.3: all of them, or no TLS 1.3."""
    modern = {str(cipher["name"]) for cipher in made.get_ciphers() if str(cipher["name"]).startswith("TLS_")}
    chosen_modern = modern.intersection(names)
    older = [openssl_name(name) for name in names if name not in modern]
    if not chosen_modern:
        made.maximum_version = ssl.TLSVersion.TLSv1_2
    elif chosen_modern != modern and made.maximum_version != ssl.TLSVersion.TLSv1_2:
        raise ConfigError(
            f"ssl.cipher.suites: Python cannot disable {', '.join(sorted(modern - chosen_modern))}; list all suites "
            f"of TLS 1.3 or none, or set ssl.enabled.protocols=TLSv1.2"
        )
    if not older:
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        made.set_ciphers(":".join(older))
    except ssl.SSLError:
        raise ConfigError(f"ssl.cipher.suites: OpenSSL supports none of {', '.join(names)}") from None


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
        raise ConfigError("client key without a certificate: set ssl.keystore.certificate.chain, too")


def context_without_verification() -> TlsContext:
    """Return a context to find out whether a peer uses TLS: it accepts any certificate, so send nothing."""
    made = TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


def wrap(sock: socket.socket, tls_context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
    """Return a connected socket wrapped in TLS, non-blocking. The handshake follows."""
    sock.setblocking(False)
    # A trailing dot belongs to DNS; certificates have none.
    return tls_context.wrap_socket(sock, server_hostname=host.rstrip("."), do_handshake_on_connect=False)


def handshake(sock: ssl.SSLSocket) -> Outcome:
    """Continue the handshake without blocking."""
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
    """Write from the front of a gather list; returns the number of bytes, 0 if the socket is not writable."""
    try:
        return sock.send(_front(buffers))
    except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
        return 0
    except OSError as error:
        raise explain(error, sock) from None


def _front(buffers: Iterable[Buffer]) -> Buffer:
    """Return the first SEND_BYTES of a gather list; large buffers are not copied. Never less than the last time."""
    parts: list[Buffer] = []
    room = SEND_BYTES
    for buffer in buffers:
        parts.append(memoryview(buffer)[:room])
        room -= len(parts[-1])
        if not room:
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def receive(sock: ssl.SSLSocket, bytes_max: int) -> bytes | None:
    """Return received bytes; b"" at the end of the stream, None if there are none.

    One call returns at most one TLS record. The rest stays in the system's buffer, so the selector reports it again.
    """
    try:
        return sock.recv(bytes_max)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return None
    except OSError as error:
        raise explain(error, sock) from None


def explain(error: OSError, sock: ssl.SSLSocket) -> TlsError | ConnectionError:
    """Return an error that explains a socket error, with a remedy."""
    host, detail = sock.server_hostname, openssl_reason(error)
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    # In TLS 1.3, a broker verifies the client's certificate after the client's handshake is complete.
    if "ALERT" in reason and reason.endswith(_CLIENT_CERTIFICATE_REJECTED):
        return TlsError(
            f"{host} rejected the client certificate ({detail}); set ssl.keystore.* to a certificate that the "
            f"broker's truststore has"
        )
    if sock.version() is not None:
        return ConnectionError(f"TLS connection to {host} failed: {detail}")
    if not isinstance(error, ssl.SSLError) or isinstance(error, _ENDED):
        return ConnectionError(
            f"{host} closed the connection in the TLS handshake: does it use TLS on this port (security.protocol), "
            f"and does it require a client certificate?"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(verification_problem(error, host, getattr(sock.context, "ca", "")))
    if reason in NOT_TLS_REASONS:
        return NotTlsError(
            f"{host} does not use TLS on this port ({detail}); use the port of its TLS listener, or "
            f"security.protocol=PLAINTEXT (SASL_PLAINTEXT) for this one"
        )
    return TlsError(
        f"TLS with {host} failed: {detail}; compare ssl.enabled.protocols and ssl.cipher.suites with the broker's, "
        f"and check whether it requires a client certificate"
    )


def verification_problem(
    error: ssl.SSLCertVerificationError, host: str | None, ca: str, *, option_prefix: str = ""
) -> str:
    """Return why a certificate was not accepted, with a remedy. `ca`: the trusted authorities."""
    if error.verify_code in _HOSTNAME_MISMATCH:
        return (
            f"the certificate of {host} is for other host names; connect with one of them (openssl s_client shows "
            f"them), or set {option_prefix}ssl.endpoint.identification.algorithm to empty, which accepts any trusted "
            f"certificate"
        )
    return (
        f"the certificate of {host} is not trusted: {error.verify_message}; trusted: {ca}. Set "
        f"{option_prefix}ssl.truststore.location to a PEM file with the authority that signed it"
    )
