"""SASL: who we are, proved in a few messages. Nothing in here knows a socket.

    client.credentials.SaslSettings.mechanism(host) → Mechanism, one for each authentication

    mechanism.first()          → bytes of the first SaslAuthenticate request
    mechanism.step(challenge)  → bytes of the next one, or None: the broker has accepted us, and we the broker
    mechanism.failure(said)    → the error for what the broker said instead

User names and passwords go out as plain UTF-8, without SASLprep: that is how Kafka derives the credentials it
stores, and a client that normalised them would be locked out (RFC 5802 would have it otherwise).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.errors import AuthenticationError

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 1_000_000
"""About half a second of hashing: a broker that asks for more would stop the I/O thread."""
REFUSAL_BYTES_MAX = 1000
"""As much of a broker's reasons as goes into an error."""

_NONCE_BYTES = 24
_HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. `lifetime_ms` is when it ends, in milliseconds since 1970 (Kafka's meaning of the word)."""

    value: str = field(repr=False)
    lifetime_ms: int | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)


TokenProvider: TypeAlias = Callable[[], "str | Token"]


class Mechanism:
    """One authentication: `first`, then `step` until it returns None."""

    name: str
    remedy: str
    Factory: TypeAlias = Callable[[str], "Mechanism"]

    def __init__(self, host: str, who: str) -> None:
        self.host = host
        self.who = who

    def first(self) -> bytes:
        """What to send first."""
        raise NotImplementedError

    def step(self, challenge: bytes) -> bytes | None:
        """What to send in answer to the broker, or None when both sides are satisfied."""
        raise NotImplementedError

    def failure(self, said: str) -> AuthenticationError:
        """The error to raise where the broker answered with an error (SaslAuthenticate, or a broken exchange)."""
        said = said.rstrip(". ")
        return AuthenticationError(
            f"{self.host} did not accept {self.who} with SASL {self.name}: {said}; {self.remedy}"
        )

    def not_offered(self, offered: Iterable[str]) -> AuthenticationError:
        """The error to raise where SaslHandshake says that the broker does not know the mechanism."""
        names = ", ".join(sorted(offered)) or "none"
        return AuthenticationError(
            f"{self.host} does not offer SASL {self.name} on this port, it offers {names}; set sasl.mechanism to one "
            f"of those, or connect to another listener"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} for {self.who} at {self.host}>"


class PlainMechanism(Mechanism):
    """RFC 4616: user and password in one message. Only TLS keeps it from being read on the way."""

    name = PLAIN
    remedy = "check sasl.username and sasl.password"

    def __init__(self, host: str, username: str, password: str) -> None:
        super().__init__(host, f"user {username!r}")
        self._message = b"\0" + username.encode() + b"\0" + password.encode()

    def first(self) -> bytes:
        return self._message

    def step(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise self.failure(f"it asked for more after the password, with {len(challenge)} bytes")
        return None


class ScramMechanism(Mechanism):
    """RFC 5802: both sides prove that they know the password, and nobody sends it.

    first → client-first; step(server-first) → client-final; step(server-final) → None
    """

    remedy = "check sasl.username, sasl.password, and that the broker has credentials of this mechanism for the user"

    def __init__(
        self, host: str, name: str, username: str, password: str, *, token_auth: bool = False, nonce: str | None = None
    ) -> None:
        super().__init__(host, f"{'delegation token' if token_auth else 'user'} {username!r}")
        self.name = name
        self._hash = _HASHES[name]
        self._password = password.encode()
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        saslname = username.replace("=", "=3D").replace(",", "=2C")
        # Kafka's extension for delegation tokens (KIP-48): the user is a token's id, the password its HMAC.
        extension = ",tokenauth=true" if token_auth else ""
        self._first_bare = f"n={saslname},r={self._nonce}{extension}"
        self._server_signature: bytes | None = None
        self._done = False

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def step(self, challenge: bytes) -> bytes | None:
        if self._done:
            raise self.failure("it went on after the exchange was over")
        if self._server_signature is None:
            return self._prove(challenge)
        self._verify(challenge)
        self._done = True
        return None

    def _prove(self, server_first: bytes) -> bytes:
        fields = self._fields(server_first)
        if "m" in fields:
            raise self.failure(f"it demands an extension that nobody has defined, m={fields['m']}")
        nonce, salt, iterations = self._field(fields, "r"), self._base64(fields, "s"), self._iterations(fields)
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise self.failure("its nonce does not continue ours: the answer belongs to another exchange")
        final = f"c=biws,r={nonce}"  # "biws" is "n,,": no channel binding
        proven = f"{self._first_bare},{server_first.decode()},{final}".encode()

        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        signature = hmac.digest(stored_key, proven, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), proven, self._hash)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, server_final: bytes) -> None:
        assert self._server_signature is not None
        fields = self._fields(server_final)
        if "e" in fields:
            raise self.failure(fields["e"])
        if not hmac.compare_digest(self._base64(fields, "v"), self._server_signature):
            raise self.failure(
                "its signature is wrong, so it does not know the password: it may not be the broker it claims to be"
            )

    def _fields(self, message: bytes) -> dict[str, str]:
        try:
            parts = [part.partition("=") for part in message.decode().split(",")]
        except UnicodeDecodeError:
            raise self.failure(f"expected a SCRAM message, got {len(message)} bytes that are not UTF-8") from None
        return {name: value for name, equals, value in parts if equals}

    def _field(self, fields: dict[str, str], name: str) -> str:
        if name not in fields:
            raise self.failure(f"expected {name}= in its SCRAM message, got {', '.join(fields) or 'no field'}")
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
                f"it asks for {value} iterations, and {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed: "
                f"fewer would give the password away, more would block the client"
            )
        return int(value)


class OAuthBearerMechanism(Mechanism):
    """RFC 7628: a token from somewhere else.

    A broker that refuses the token says why in JSON; it is owed a 0x01 before it says so in its error code.
    """

    name = OAUTHBEARER
    remedy = "check that the token provider returns a token that is still valid and meant for this broker"

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
        self._refusal = _refusal(challenge)
        return b"\x01"

    def failure(self, said: str) -> AuthenticationError:
        return super().failure(": ".join(part for part in (said.rstrip(". "), self._refusal) if part))

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
                f"characters that are no bearer token (letters, digits and -._~+/= only)"
            )
        for name, value in token.extensions.items():
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
                raise AuthenticationError(
                    f"SASL {self.name} extension {name!r}: names are letters only, not 'auth', values printable ASCII"
                )
        return token


def _refusal(challenge: bytes) -> str:
    """Why a broker refused a token: status, scope and configuration, where it says so in proper JSON."""
    text = challenge[:REFUSAL_BYTES_MAX].decode(errors="replace")
    try:
        reasons = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(reasons, dict):
        return text
    return ", ".join(f"{name} {value}" for name, value in reasons.items()) or "no reason given"
