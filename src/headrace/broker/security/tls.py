"""TLS on the server's side: what a listener shows, and whom it asks for a certificate; and between brokers."""

from __future__ import annotations

import ssl
from typing import Any, Final, cast

from headrace.broker.broker_options import for_listener
from headrace.config import Config, Secret
from headrace.config.openssl import Pem, load_authorities, load_certificate, openssl_name
from headrace.errors import ConfigError

PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
Certificate = dict[str, Any]
"""As `SSLObject.getpeercert()` gives it; empty or None if the client has shown none."""

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(config: Config, listener: str) -> ssl.SSLContext:
    """The certificate and the rules of a listener. What is wrong with them is a ConfigError."""
    options = _ListenerOptions(config, listener)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.sslobject_class = _TellingSslObject
    names = cast("tuple[str, ...]", options["ssl.enabled.protocols"])
    versions = sorted(PROTOCOLS[name] for name in names if name in PROTOCOLS)
    if not versions or len(versions) != len(names):
        raise ConfigError(f"ssl.enabled.protocols: {', '.join(names) or 'none'}: choose from {', '.join(PROTOCOLS)}")
    made.minimum_version, made.maximum_version = versions[0], versions[-1]
    suites = cast("tuple[str, ...]", options["ssl.cipher.suites"])
    if suites:
        _limit_ciphers(made, suites)
    made.verify_mode = _CLIENT_AUTH[str(options["ssl.client.auth"])]
    if made.verify_mode != ssl.CERT_NONE:
        _load_authorities(made, options)
    _load_certificate(made, options)
    return made


def client_context(config: Config, listener: str) -> ssl.SSLContext:
    """What a broker shows to another one's listener of that name, and whom it trusts there."""
    options = _ListenerOptions(config, listener)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # As in Kafka, an empty ssl.endpoint.identification.algorithm leaves out the check of the host's name.
    made.check_hostname = bool(options["ssl.endpoint.identification.algorithm"])
    _load_authorities(made, options)
    _load_certificate(made, options)
    return made


class _TellingSslObject(ssl.SSLObject):
    """Lets a peer know why its handshake failed.

    OpenSSL leaves an alert to be sent, but asyncio hangs up without sending it: a client whose certificate is not
    accepted would hear nothing, and try for ever. It sends what is there when the handshake wants to read more, so that
    is what it is told at first; it fails when the peer hangs up, says more, or does nothing until the time is up.
    """

    _has_failed = False

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self._has_failed:
                raise
            self._has_failed = True
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "an alert has to be sent") from error


class _ListenerOptions:
    def __init__(self, config: Config, listener: str) -> None:
        self._config = config
        self.listener = listener

    def __getitem__(self, name: str) -> object:
        return for_listener(self._config, self.listener, name)

    def text(self, name: str) -> str | None:
        value = self[name]
        return value.reveal() if isinstance(value, Secret) else cast("str | None", value)


def _limit_ciphers(made: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    """Allow these suites only. Those of TLS 1.3 cannot be chosen from in Python: naming any of them leaves all."""
    older = [openssl_name(suite) for suite in suites if "_WITH_" in suite or not suite.startswith("TLS_")]
    if len(older) == len(suites):
        made.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        made.set_ciphers(":".join(older))
    except ssl.SSLError:
        raise ConfigError(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(suites)}") from None


def _load_authorities(made: ssl.SSLContext, options: _ListenerOptions) -> None:
    authorities = Pem(options.text("ssl.truststore.location"), options.text("ssl.truststore.certificates"))
    if authorities:
        load_authorities(made, authorities)
    else:
        made.load_default_certs(ssl.Purpose.CLIENT_AUTH)


def _load_certificate(made: ssl.SSLContext, options: _ListenerOptions) -> None:
    chain = Pem(options.text("ssl.keystore.location"), options.text("ssl.keystore.certificate.chain"))
    if not chain:
        raise ConfigError(
            f"listener {options.listener} has TLS, which needs a certificate: set ssl.keystore.location to a PEM file "
            "with the chain and the key"
        )
    key, password = (
        Pem(options.text("ssl.key.location"), options.text("ssl.keystore.key")),
        options.text("ssl.key.password"),
    )
    load_certificate(made, chain, key, password, f"the certificate of listener {options.listener}")
