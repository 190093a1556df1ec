"""SASL SCRAM of the server (RFC 5802, RFC 7677): both sides prove that they know the password without sending it.

    client-first → server-first → client-final → server-final

User names are plain UTF-8 without SASLprep, as in Kafka. Unknown users get a challenge too, with a salt that is
constant for the name, so that only the last message tells that the authentication failed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets

from headrace.broker.catalog.security import Credential, Users
from headrace.errors import AuthenticationError
from headrace.wire.sasl import HASHES

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
"""Kafka's bounds: fewer iterations are insecure, more would let an attacker keep clients busy."""

_SALT_BYTES = 24
_NONCE_BYTES = 24
_DECOY_KEY = secrets.token_bytes(32)
_FIRST = re.compile(
    rb"n,(?:a=(?P<authorization>[^,]*))?,(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)"
)
_FINAL = re.compile(rb"(?P<without_proof>c=(?P<binding>[^,]+),r=(?P<nonce>[^,]+)(?:,.*)?),p=(?P<proof>[A-Za-z0-9+/=]+)")


def derive(mechanism: str, password: str, *, iterations: int = ITERATIONS_MIN) -> Credential:
    """Return the credential of a password."""
    salt = secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)
    return from_salted(mechanism, salted, salt, iterations)


def from_salted(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Return the credential of a salted password (AlterUserScramCredentials)."""
    name = HASHES[mechanism]
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    return Credential(iterations, salt, stored, hmac.digest(salted, b"Server Key", name))


class Scram:
    """The server side of one SCRAM exchange."""

    expires_ms: int | None = None

    def __init__(self, mechanism: str, users: Users, *, nonce: str | None = None) -> None:
        self.user: str | None = None
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._users = users
        self._server_nonce = (nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()).encode()
        self._claimed = ""
        self._known = False
        self._credential: Credential | None = None  # between the two steps
        self._header = b""
        self._nonce = b""
        self._first_two = b""

    async def step(self, token: bytes) -> bytes:
        if self._credential is None:
            return self._challenge(token)
        credential, self._credential = self._credential, None
        return self._verify(token, credential)

    def _challenge(self, client_first: bytes) -> bytes:
        first = _FIRST.fullmatch(client_first)
        if first is None or self.user is not None:
            raise self._error("invalid message: expected client-first without channel binding")
        self._claimed = self._name(first["user"])
        if first["authorization"] and self._name(first["authorization"]) != self._claimed:
            raise self._error("the authorization id must equal the user")
        credential = self._users.credential(self._claimed, self._mechanism)
        self._known = credential is not None
        self._credential = credential = credential or self._decoy()
        self._header = client_first[: first.start("bare")]
        self._nonce = first["nonce"] + self._server_nonce
        salt = base64.b64encode(credential.salt)
        server_first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, credential.iterations)
        self._first_two = first["bare"] + b"," + server_first
        return server_first

    def _verify(self, client_final: bytes, credential: Credential) -> bytes:
        final = _FINAL.fullmatch(client_final)
        if final is None:
            raise self._error("invalid message: expected client-final with a proof")
        if final["binding"] != base64.b64encode(self._header) or not hmac.compare_digest(final["nonce"], self._nonce):
            raise self._error("the client-final message belongs to another exchange")
        proven = self._first_two + b"," + final["without_proof"]
        signature = hmac.digest(credential.stored_key, proven, self._hash)
        try:
            proof = base64.b64decode(final["proof"], validate=True)
            client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        except (binascii.Error, ValueError):
            raise self._error("invalid proof") from None
        is_valid = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        if not is_valid or not self._known:
            raise self._error("invalid user or password, or no credential for this mechanism")
        self.user = self._claimed
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, proven, self._hash))

    def _decoy(self) -> Credential:
        """Return the credential to challenge an unknown user with."""
        name = f"{self._mechanism}\0{self._claimed}".encode()
        salt = hmac.digest(_DECOY_KEY, name, "sha256")[:_SALT_BYTES]
        nothing = bytes(hashlib.new(self._hash).digest_size)
        return Credential(ITERATIONS_MIN, salt, nothing, nothing)

    def _name(self, saslname: bytes) -> str:
        try:
            text = saslname.decode()
        except UnicodeDecodeError:
            raise self._error("invalid user name: expected UTF-8") from None
        if re.search("=(?!2C|3D)", text):
            raise self._error("invalid user name: = and , must be encoded as =3D and =2C")
        return text.replace("=2C", ",").replace("=3D", "=")

    def _error(self, why: str) -> AuthenticationError:
        return AuthenticationError(f"{why} (SASL {self._mechanism})")
