"""SASL on the server's side: what a mechanism is, and PLAIN. Nothing in here knows a socket.

    Gate (one a connection) → mechanism.step(token) → the answer, until mechanism.user is set

What a client is told of a refusal is the text of the AuthenticationError: no more than that it was refused.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Protocol

from headrace.config import Secret
from headrace.errors import AuthenticationError, ConfigError

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)


class Mechanism(Protocol):
    """One authentication."""

    user: str | None
    """Who it is, when it is proved."""
    expires_ms: int | None
    """When what proved it ends, in milliseconds since 1970; None: it does not."""

    async def step(self, token: bytes) -> bytes:
        """What to answer a client, or AuthenticationError."""
        ...


PasswordCheck = Callable[[str, str], "bool | Awaitable[bool]"]
"""User and password in, whether they are right out."""


class Plain:
    """RFC 4616: user and password in one message."""

    expires_ms: int | None = None

    def __init__(self, check: PasswordCheck) -> None:
        self._check = check
        self.user: str | None = None

    async def step(self, token: bytes) -> bytes:
        try:
            authorization, user, password = token.decode().split("\0")
        except ValueError:  # UnicodeDecodeError is one
            raise AuthenticationError("SASL PLAIN takes an identity, a user and a password, in UTF-8") from None
        if not user or not password:
            raise AuthenticationError("SASL PLAIN takes a user and a password, neither of them empty")
        right = self._check(user, password)
        if not (right if isinstance(right, bool) else await right):
            raise AuthenticationError("the user or the password is wrong (SASL PLAIN)")
        if authorization not in ("", user):
            raise AuthenticationError("a user can act for nobody else (SASL PLAIN)")
        self.user = user
        return b""


def check_against(users: Mapping[str, Secret]) -> PasswordCheck:
    """A check that takes as long for a user who does not exist as for a password that is wrong."""

    def check(user: str, password: str) -> bool:
        known = users.get(user)
        expected = known.reveal() if known else "\0"  # no password has a NUL in it
        return hmac.compare_digest(expected.encode(), password.encode())

    return check


def load(path: str, option: str) -> object:
    """The object of a dotted path."""
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option}: cannot find {path}: {error}") from error
