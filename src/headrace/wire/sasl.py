"""SASL, the client side: the exchange of requests, and the mechanisms PLAIN, SCRAM and OAUTHBEARER.

GSSAPI (Kerberos) needs a library that talks to the KDC, so it is in client/kerberos.py.

    authenticate(mechanism)    a generator: SaslHandshake → SaslAuthenticate … → session lifetime
    mechanism.first()          → the token of the first SaslAuthenticate request
    mechanism.step(challenge)  → the next token, or None if both sides are authenticated
    mechanism.failure(reason)  → the error to raise

Clients and brokers (for inter-broker connections) use the same exchange; they only send the requests.

User names and passwords are plain UTF-8, without SASLprep: Kafka derives the stored credentials that way (against
RFC 5802), and a client that normalized them could not authenticate.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.errors import AuthenticationError, Code, error_name
from headrace.wire.api.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from headrace.wire.schema import Message, RequestMessage

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
GSSAPI = "GSSAPI"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER, GSSAPI)

HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
SCRAM_NUMBERS = {SCRAM_SHA_256: 1, SCRAM_SHA_512: 2}
"""The numbers of the SCRAM mechanisms in requests."""

HANDSHAKE_VERSION = 1
AUTHENTICATE_VERSIONS = (0, 2)
ROUND_TRIPS_MAX = 4
"""No supported mechanism has more SaslAuthenticate requests."""

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
"""About half a second of hashing: more would block the I/O thread."""
REFUSAL_BYTES_MAX = 1000
"""The maximum size of a broker's explanation in an error."""

NO_SECURITY_LAYER = b"\x01\0\0\0"
"""GSSAPI's choice of a security layer, and its buffer size: Kafka's protocol has none (RFC 4752)."""

_NONCE_BYTES = 24
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. `lifetime_ms` is when it expires, in milliseconds since 1970 (as Kafka names it)."""

    value: str = field(repr=False)
    lifetime_ms: int | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)


TokenProvider: TypeAlias = Callable[[], "str | Token"]


class Mechanism:
    """The client side of one authentication: `first`, then `step` until it returns None."""

    name: str
    remedy: str
    Factory: TypeAlias = Callable[[str], "Mechanism"]

    def __init__(self, host: str, identity: str) -> None:
        """`host` and `identity` (such as `user 'ann'`) are for messages."""
        self.host = host
        self.identity = identity

    def first(self) -> bytes:
        """Return the first token."""
        raise NotImplementedError

    def step(self, challenge: bytes) -> bytes | None:
        """Return the token for a challenge of the broker, or None if the exchange is complete."""
        raise NotImplementedError

    def failure(self, reason: str) -> AuthenticationError:
        """Return the error for an error response of the broker, or for an invalid challenge."""
        reason = reason.rstrip(". ")
        return AuthenticationError(
            f"{self.host} did not accept {self.identity} with SASL {self.name}: {reason}; {self.remedy}"
        )

    def not_offered(self, offered: Iterable[str]) -> AuthenticationError:
        """Return the error for a mechanism that is not enabled on the listener."""
        names = ", ".join(sorted(offered)) or "none"
        return AuthenticationError(
            f"{self.host} does not offer SASL {self.name} on this port, it offers {names}; set sasl.mechanism to one "
            f"of those, or connect to another listener"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} for {self.identity} at {self.host}>"


def authenticate(
    mechanism: Mechanism, version: int = AUTHENTICATE_VERSIONS[1]
) -> Generator[tuple[RequestMessage[Any], int], Message, int]:
    """Run a SASL exchange: each `yield` sends a request in a version and returns its response.

    `version` is the version of SaslAuthenticate. Returns the lifetime of the session in ms; 0: unlimited.
    """
    response = yield SaslHandshakeRequest(mechanism=mechanism.name), HANDSHAKE_VERSION
    assert isinstance(response, SaslHandshakeResponse)
    if response.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
        raise mechanism.not_offered(response.mechanisms)
    if response.error_code:
        raise AuthenticationError(
            f"{mechanism.host} does not use SASL on this port ({error_name(response.error_code)}): set "
            f"security.protocol to PLAINTEXT or SSL, or use the port of a SASL listener"
        )
    token = mechanism.first()
    for _ in range(ROUND_TRIPS_MAX):
        response = yield SaslAuthenticateRequest(auth_bytes=token), version
        assert isinstance(response, SaslAuthenticateResponse)
        if response.error_code:
            raise mechanism.failure(response.error_message or error_name(response.error_code))
        next_token = mechanism.step(response.auth_bytes)
        if next_token is None:
            return response.session_lifetime_ms
        token = next_token
    raise mechanism.failure(f"the broker exceeded the limit of {ROUND_TRIPS_MAX} SASL round trips")


def offers_no_security_layer(layers: bytes) -> bool:
    """Return whether a message about GSSAPI's security layers allows to have none."""
    return len(layers) >= len(NO_SECURITY_LAYER) and bool(layers[0] & NO_SECURITY_LAYER[0])


class PlainMechanism(Mechanism):
    """RFC 4616: user and password in one message. It needs TLS to keep them secret."""

    name = PLAIN
    remedy = "check sasl.username and sasl.password"

    def __init__(self, host: str, username: str, password: str) -> None:
        super().__init__(host, f"user {username!r}")
        self._message = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        return self._message

    def step(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise self.failure(f"expected an empty response to the password, got {len(challenge)} bytes")
        return None


class ScramMechanism(Mechanism):
    """RFC 5802: both sides prove that they know the password without sending it.

    first → client-first; step(server-first) → client-final; step(server-final) → None
    """

    remedy = "check sasl.username, sasl.password, and that the broker has credentials of this mechanism for the user"

    def __init__(
        self, host: str, name: str, username: str, password: str, *, token_auth: bool = False, nonce: str | None = None
    ) -> None:
        super().__init__(host, f"{'delegation token' if token_auth else 'user'} {username!r}")
        self.name = name
        self._hash = HASHES[name]
        self._password = password.encode()
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        saslname = username.replace("=", "=3D").replace(",", "=2C")
        # Kafka's extension for delegation tokens (KIP-48): the user is the token id, the password its HMAC.
        extension = ",tokenauth=true" if token_auth else ""
        self._first_bare = f"n={saslname},r={self._nonce}{extension}"
        self._server_signature: bytes | None = None
        self._done = False

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        if self._done:
            raise self.failure("expected no challenge after the end of the exchange")
        if self._server_signature is None:
            return self._prove(challenge)
        self._verify(challenge)
        self._done = True
        return None

    def _prove(self, server_first: bytes) -> bytes:
        fields = self._fields(server_first)
        if "m" in fields:
            raise self.failure(f"it requires an unknown SCRAM extension, m={fields['m']}")
        nonce, salt, iterations = self._field(fields, "r"), self._base64(fields, "s"), self._iterations(fields)
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise self.failure("its nonce does not start with the client's: the challenge is of another exchange")
        final = f"c=biws,r={nonce}"  # "biws" is "n,,": no channel binding
        auth_message = f"{self._first_bare},{server_first.decode()},{final}".encode()

        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored_key, auth_message, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), auth_message, self._hash)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, server_final: bytes) -> None:
        assert self._server_signature is not None
        fields = self._fields(server_final)
        if "e" in fields:
            raise self.failure(fields["e"])
        if not hmac.compare_digest(self._base64(fields, "v"), self._server_signature):
            raise self.failure(
                "its signature is invalid, so it does not know the password: it may not be the broker it claims to be"
            )

    def _fields(self, message: bytes) -> dict[str, str]:
        try:
            parts = [part.partition("=") for part in message.decode().split(",")]
        except UnicodeDecodeError:
            raise self.failure(f"expected a SCRAM message, got {len(message)} bytes that are not UTF-8") from None
        return {name: value for name, equals, value in parts if equals}

    def _field(self, fields: dict[str, str], name: str) -> str:
        if name not in fields:
            raise self.failure(f"expected {name}= in its SCRAM message, got {', '.join(fields) or 'no fields'}")
        return fields[name]

    def _base64(self, fields: dict[str, str], name: str) -> bytes:
        value = self._field(fields, name)
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise self.failure(f"expected base64 in {name}= of its SCRAM message, got {value!r}") from None

    def _iterations(self, fields: dict[str, str]) -> int:
        value = self._field(fields, "i")
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            raise self.failure(f"expected a number of iterations, got {value[:40]!r}")
        if not ITERATIONS_MIN <= int(value) <= ITERATIONS_MAX:
            raise self.failure(
                f"expected {ITERATIONS_MIN} to {ITERATIONS_MAX} iterations, got {value}: fewer are insecure, "
                f"more would block the client"
            )
        return int(value)


class OAuthBearerMechanism(Mechanism):
    """RFC 7628: a token of an external provider.

    A broker that rejects the token explains it in JSON, and fails the exchange when the client has sent 0x01.
    """

    name = OAUTHBEARER
    remedy = "check that the token provider returns a token that is valid and intended for this broker"

    def __init__(self, host: str, provider: TokenProvider) -> None:
        super().__init__(host, "the bearer token")
        self._provider = provider
        self._refusal: str | None = None

    def first(self) -> bytes:
        token = self._fetch()
        extensions = "".join(f"{name}={value}\x01" for name, value in token.extensions.items())
        return f"n,,\x01auth=Bearer {token.value}\x01{extensions}\x01".encode()

    def step(self, challenge: bytes) -> bytes | None:
        if self._refusal is not None:
            raise self.failure("")
        if not challenge:
            return None
        self._refusal = _explanation(challenge)
        return b"\x01"

    def failure(self, reason: str) -> AuthenticationError:
        return super().failure(": ".join(part for part in (reason.rstrip(". "), self._refusal) if part))

    def _fetch(self) -> Token:
        try:
            token = self._provider()
        except Exception as error:
            raise AuthenticationError(
                f"no token for SASL {self.name} at {self.host}: the token provider raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if isinstance(token, str):
            token = Token(token)
        if not _TOKEN.fullmatch(token.value):
            raise AuthenticationError(
                f"no token for SASL {self.name} at {self.host}: the token provider returned {len(token.value)} "
                f"characters that are not a bearer token (letters, digits and -._~+/= only)"
            )
        for name, value in token.extensions.items():
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
                raise AuthenticationError(
                    f"invalid SASL {self.name} extension {name!r}: expected a name of letters other than 'auth', and "
                    f"a value of printable ASCII"
                )
        return token


def _explanation(challenge: bytes) -> str:
    """Return why a broker rejected a token: status, scope and configuration if it is JSON, otherwise the text."""
    text = challenge[:REFUSAL_BYTES_MAX].decode(errors="replace")
    try:
        reasons = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(reasons, dict):
        return text
    return ", ".join(f"{name} {value}" for name, value in reasons.items()) or "no reason given"
