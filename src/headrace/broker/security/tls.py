"""TLS on the server's side: what a listener shows, and whom it asks for a certificate; and between brokers."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from headrace.broker.broker_options import for_listener
from headrace.config import Config, Secret
from headrace.config.cipher_names import openssl_name
from headrace.errors import ConfigError

PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
Certificate = dict[str, Any]
"""As `SSLObject.getpeercert()` gives it; empty or None if the client has shown none."""

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_PEM_MARK = b"-----BEGIN "


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
    file, text = options.text("ssl.truststore.location"), options.text("ssl.truststore.certificates")
    if file is None and text is None:
        made.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    if file is not None:
        _check_pem(file, "ssl.truststore.location")
    try:
        made.load_verify_locations(cafile=file, cadata=text)
    except (ssl.SSLError, ValueError) as error:
        source = file or "ssl.truststore.certificates"
        raise ConfigError(f"no certificate authority could be read from {source}: {error}") from None


def _load_certificate(made: ssl.SSLContext, options: _ListenerOptions) -> None:
    chain_file, key_file = options.text("ssl.keystore.location"), options.text("ssl.key.location")
    chain, key = options.text("ssl.keystore.certificate.chain"), options.text("ssl.keystore.key")
    if chain_file is None and chain is None:
        raise ConfigError(
            f"listener {options.listener} has TLS, which needs a certificate: set ssl.keystore.location to a PEM file "
            "with the chain and the key"
        )
    for option, file in (("ssl.keystore.location", chain_file), ("ssl.key.location", key_file)):
        if file is not None:
            _check_pem(file, option)
    password = options.text("ssl.key.password")
    with _as_file(chain_file, chain) as chain_path, _as_file(key_file, key) as key_path:
        assert chain_path is not None
        try:
            # Without a function to ask, OpenSSL would ask the terminal.
            made.load_cert_chain(chain_path, key_path, lambda: password or "")
        except ssl.SSLError as error:
            hint = "; is ssl.key.password right?" if password else "; if the key is encrypted, set ssl.key.password"
            reason = (error.reason or "expected a PEM certificate chain and its private key").lower().replace("_", " ")
            raise ConfigError(
                f"the certificate of listener {options.listener} cannot be used: {reason}{hint}"
            ) from None


def _check_pem(file: str, option: str) -> None:
    """PEM is all Python's TLS can read: say so before OpenSSL says something stranger."""
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {file}: {error.strerror}") from None
    if _PEM_MARK not in content:
        raise ConfigError(
            f"{option}: expected PEM in {file}, found something else; a Java key store is converted by keytool "
            "-importkeystore to PKCS12, and from there by openssl pkcs12 -nodes to PEM"
        )


@contextmanager
def _as_file(file: str | None, text: str | None) -> Iterator[str | None]:
    """A file with the text for as long as it takes to load it: OpenSSL's loader takes no text."""
    if file is not None or text is None:
        yield file
        return
    handle, path = tempfile.mkstemp(suffix=".pem")  # nobody else may read it
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
        yield path
    finally:
        os.unlink(path)
