"""`ssl.*` options for OpenSSL: certificates and keys in PEM, names of cipher suites, reasons of errors.

PEM is the only format that Python's TLS reads. Invalid files are a ConfigError with a clearer message than OpenSSL's.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import ConfigError

_MARK = b"-----BEGIN "
_STORES = {b"\xfe\xed\xfe\xed": "a Java keystore (JKS)", b"\xce\xce\xce\xce": "a Java keystore (JCEKS)"}
_DER_SEQUENCE = b"\x30"
NOT_TLS_REASONS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "RECORD_LAYER_FAILURE",
    "PACKET_LENGTH_TOO_LONG",
)
"""OpenSSL's reasons for bytes that are not TLS."""


@dataclass(frozen=True, slots=True)
class Pem:
    """A PEM file or text, or neither."""

    file: str | None
    text: str | None = field(repr=False)

    def __bool__(self) -> bool:
        return self.file is not None or self.text is not None

    def check(self, option: str) -> None:
        """Raise ConfigError unless the file of `option` is PEM."""
        if self.file is None:
            return
        try:
            content = Path(self.file).read_bytes()
        except OSError as error:
            raise ConfigError(f"{option}: cannot read {self.file}: {error.strerror}") from None
        if _MARK in content:
            return
        other = "a PKCS12 keystore or DER" if content[:1] == _DER_SEQUENCE else "something else"
        raise ConfigError(
            f"{option}: expected PEM in {self.file}, found {_STORES.get(content[:4], other)}; convert it: keytool "
            f"-importkeystore -srckeystore {self.file} -destkeystore store.p12 -deststoretype PKCS12 && openssl pkcs12 "
            "-in store.p12 -nodes -out store.pem"
        )

    @contextmanager
    def as_file(self) -> Iterator[str | None]:
        """Provide the text as a temporary file, because OpenSSL loads files only."""
        if self.file is not None or self.text is None:
            yield self.file
            return
        handle, path = tempfile.mkstemp(suffix=".pem")  # readable by this user only
        try:
            with os.fdopen(handle, "w") as out:
                out.write(self.text)
            yield path
        finally:
            os.unlink(path)


def load_authorities(made: ssl.SSLContext, authorities: Pem) -> None:
    """Load trusted certificate authorities into a context."""
    authorities.check("ssl.truststore.location")
    try:
        made.load_verify_locations(cafile=authorities.file, cadata=authorities.text)
    except (ssl.SSLError, ValueError) as error:
        source = authorities.file or "ssl.truststore.certificates"
        raise ConfigError(f"cannot read certificate authorities from {source}: {openssl_reason(error)}") from None


def load_certificate(made: ssl.SSLContext, chain: Pem, key: Pem, password: str | None, whose: str) -> None:
    """Load a certificate chain and its key, which may be in the same file, into a context."""
    chain.check("ssl.keystore.location")
    key.check("ssl.key.location")
    was_called = False

    def was_called_password() -> str:
        nonlocal was_called
        was_called = True
        return password or ""

    with chain.as_file() as chain_path, key.as_file() as key_path:
        assert chain_path is not None
        try:
            # Without a function, OpenSSL would prompt on the terminal.
            made.load_cert_chain(chain_path, key_path, was_called_password)
        except ssl.SSLError as error:
            if was_called:
                problem = "ssl.key.password is wrong" if password else "its key needs ssl.key.password"
            elif error.reason == "KEY_VALUES_MISMATCH":
                problem = "its key belongs to another certificate"
            else:
                problem = f"{openssl_reason(error)}; expected a PEM certificate chain and its private key"
            raise ConfigError(f"{whose} cannot be used: {problem}") from None


def openssl_reason(error: OSError | ValueError) -> str:
    """Return OpenSSL's reason without its source lines."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def openssl_name(name: str) -> str:
    """Return OpenSSL's name of a cipher suite: TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 → ECDHE-RSA-AES256-GCM-SHA384."""
    if "_WITH_" not in name:
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    prefix = "" if exchange == "RSA" else f"{exchange}_"
    return f"{prefix}{cipher}".replace("_", "-")
