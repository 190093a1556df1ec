"""TLS of the server: the SSLContext of a listener, connections between brokers, and principals from certificates."""

from __future__ import annotations

import re
import ssl
from typing import Any, Final, NamedTuple, cast

from headrace.broker.broker_options import for_listener
from headrace.config import Config, Secret
from headrace.config.openssl import NOT_TLS_REASONS, Pem, load_authorities, load_certificate, openssl_name
from headrace.errors import ConfigError

PROTOCOLS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
Certificate = dict[str, Any]
"""As returned by `SSLObject.getpeercert()`; empty or None if the client has sent none."""

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(config: Config, listener: str) -> ssl.SSLContext:
    """Return the SSLContext of a listener, or raise ConfigError."""
    options = _ListenerOptions(config, listener)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslobject_class = _AlertingSslObject
    names = cast("tuple[str, ...]", options["ssl.enabled.protocols"])
    versions = sorted(PROTOCOLS[name] for name in names if name in PROTOCOLS)
    if not versions or len(versions) != len(names):
        raise ConfigError(
            f"invalid ssl.enabled.protocols {', '.join(names)!r}: expected some of {', '.join(PROTOCOLS)}"
        )
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    suites = cast("tuple[str, ...]", options["ssl.cipher.suites"])
    if suites:
        _limit_ciphers(context, suites)
    context.verify_mode = _CLIENT_AUTH[str(options["ssl.client.auth"])]
    if context.verify_mode != ssl.CERT_NONE:
        _load_trust_store(context, options)
    _load_key_store(context, options)
    return context


def client_context(config: Config, listener: str) -> ssl.SSLContext:
    """Return the SSLContext for connections to other brokers' listener of that name."""
    options = _ListenerOptions(config, listener)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # As in Kafka, an empty ssl.endpoint.identification.algorithm disables host name verification.
    context.check_hostname = bool(options["ssl.endpoint.identification.algorithm"])
    _load_trust_store(context, options)
    _load_key_store(context, options)
    return context


class _AlertingSslObject(ssl.SSLObject):
    """Sends the TLS alert of a failed handshake to the peer.

    OpenSSL queues an alert, but asyncio closes the connection without sending it: a client with a rejected certificate
    would not learn why and retry forever. asyncio does flush pending output when the handshake wants to read, so the
    first failure pretends that; the handshake fails for good with the next input, EOF or timeout. A peer that does not
    use TLS gets no alert: the connection is closed at once.
    """

    _has_failed = False

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self._has_failed or error.reason in NOT_TLS_REASONS:
                raise
            self._has_failed = True
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "sending an alert") from error


class _ListenerOptions:
    def __init__(self, config: Config, listener: str) -> None:
        self._config = config
        self.listener = listener

    def __getitem__(self, name: str) -> object:
        return for_listener(self._config, self.listener, name)

    def text(self, name: str) -> str | None:
        value = self[name]
        return value.reveal() if isinstance(value, Secret) else cast("str | None", value)


def _limit_ciphers(context: ssl.SSLContext, suites: tuple[str, ...]) -> None:
    """Restrict the cipher suites. Python cannot select among those of TLS 1.3: naming one enables all."""
    tls12 = [openssl_name(suite) for suite in suites if "_WITH_" in suite or not suite.startswith("TLS_")]
    if len(tls12) == len(suites):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not tls12:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    try:
        context.set_ciphers(":".join(tls12))
    except ssl.SSLError:
        raise ConfigError(f"invalid ssl.cipher.suites: OpenSSL supports none of {', '.join(suites)}") from None


def _load_trust_store(context: ssl.SSLContext, options: _ListenerOptions) -> None:
    authorities = Pem(options.text("ssl.truststore.location"), options.text("ssl.truststore.certificates"))
    if authorities:
        load_authorities(context, authorities)
    else:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)


def _load_key_store(context: ssl.SSLContext, options: _ListenerOptions) -> None:
    chain = Pem(options.text("ssl.keystore.location"), options.text("ssl.keystore.certificate.chain"))
    if not chain:
        raise ConfigError(
            f"listener {options.listener} uses TLS but has no certificate: set ssl.keystore.location to a PEM file "
            "with the certificate chain and the key"
        )
    key, password = (
        Pem(options.text("ssl.key.location"), options.text("ssl.keystore.key")),
        options.text("ssl.key.password"),
    )
    load_certificate(context, chain, key, password, f"the certificate of listener {options.listener}")


# -- principals --------------------------------------------------------------------------------------


# The short names of RFC 2253; OpenSSL returns the long ones.
_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_EMAIL = "1.2.840.113549.1.9.1"
_IA5_STRING = 0x16
_SHORT_LENGTH_MAX = 127

_RULE = re.compile(r"DEFAULT|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)(?=,|$)")


def distinguished_name(certificate: Certificate) -> str:
    """Return the subject like Java's X500Principal.getName(): most specific part first, escaped as in RFC 2253."""
    parts = ("+".join(_attribute(name, value) for name, value in rdn) for rdn in reversed(certificate["subject"]))
    return ",".join(parts)


def _attribute(name: str, value: str) -> str:
    if name == "emailAddress":  # has no short name in RFC 2253: OID and DER in hexadecimal
        data = value.encode()[:_SHORT_LENGTH_MAX]
        return f"{_EMAIL}=#{bytes([_IA5_STRING, len(data)]).hex()}{data.hex()}"
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    escaped = re.sub(r"^([ #])", r"\\\1", escaped)
    escaped = re.sub(r"(?<=.) $", r"\\ ", escaped)
    return f"{_SHORT_NAMES.get(name, name)}={escaped}"


class _Rule(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str


class MappingRules:
    """The rules of ssl.principal.mapping.rules, which map certificate subjects to user names."""

    def __init__(self, rules: list[_Rule | None]) -> None:
        self._rules = rules

    @classmethod
    def parse(cls, text: str) -> MappingRules:
        rules: list[_Rule | None] = []
        rest = text.strip()
        while rest:
            match = _RULE.match(rest)
            if match is None:
                raise ConfigError(
                    f"invalid ssl.principal.mapping.rules at {rest!r}: expected DEFAULT or "
                    "RULE:pattern/replacement/[L|U], separated by commas"
                )
            if match[1] is None:
                rules.append(None)
            else:
                rules.append(_Rule(_compile(match[1]), from_java_replacement(match[2]), match[3]))
            rest = rest[match.end() :].lstrip(",").lstrip()
        return cls(rules)

    def user(self, certificate: Certificate) -> str:
        """Return the user name for a certificate."""
        name = distinguished_name(certificate)
        for rule in self._rules:
            if rule is None:
                return name
            match = rule.pattern.fullmatch(name)
            if match is not None:
                user = match.expand(rule.replacement)
                return user.lower() if rule.case == "L" else user.upper() if rule.case == "U" else user
        return name


def from_java_replacement(text: str) -> str:
    """Return the replacement of a rule in Python's form: Java writes groups as $1, and the whole match as $0."""
    return re.sub(r"\$(\d)", r"\\g<\1>", text)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"invalid pattern {pattern!r} in ssl.principal.mapping.rules: {error}") from error
