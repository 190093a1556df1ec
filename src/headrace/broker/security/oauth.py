"""SASL OAUTHBEARER on the server's side (RFC 7628): a token, and somebody who knows whether it is good.

A refused token is answered in JSON; the client owes a 0x01 for it, and only then the authentication fails.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from headrace.broker.clock import Clock
from headrace.errors import AuthenticationError

_FIRST = re.compile(
    rb"n,(?:a=(?P<authorization>[^,]*))?,\x01auth=[Bb]earer (?P<token>[A-Za-z0-9\-._~+/]+=*)\x01"
    rb"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*\x01"
)
_REFUSED = json.dumps({"status": "invalid_token"}, separators=(",", ":")).encode()
_ACKNOWLEDGED = b"\x01"


@dataclass(frozen=True, slots=True)
class BearerToken:
    """What a validator made of a token. `lifetime_ms` is when it ends, in milliseconds since 1970."""

    principal: str
    lifetime_ms: int | None = None
    scope: frozenset[str] = field(default=frozenset())


Validator: TypeAlias = Callable[[str], "BearerToken | Awaitable[BearerToken]"]
"""A token in, whose it is out, or an exception."""


class OAuthBearer:
    """One authentication."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._refused = False
        self.user: str | None = None
        self.expires_ms: int | None = None

    async def step(self, token: bytes) -> bytes:
        if self._refused:
            raise AuthenticationError("the token was not accepted (SASL OAUTHBEARER)")
        first = _FIRST.fullmatch(token)
        if first is None:
            raise AuthenticationError("expected a bearer token (SASL OAUTHBEARER)")
        try:
            found = self._validator(first["token"].decode())
            accepted = found if isinstance(found, BearerToken) else await found
        except Exception:  # whatever a validator raises is a no; its words may have the token in them
            self._refused = True
            return _REFUSED
        if first["authorization"] and first["authorization"] != accepted.principal.encode():
            raise AuthenticationError("a user can act for nobody else (SASL OAUTHBEARER)")
        self.user, self.expires_ms = accepted.principal, accepted.lifetime_ms
        return b""


class UnsecuredTokens:
    """Takes tokens that nobody has signed (JWS with `alg` none): for tests, anybody can make one.

    Claims are checked as by Kafka's unsecured validator: a user, an end that has not come, a beginning that has, and
    the scopes that are required.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        principal_claim: str = "sub",
        scope_claim: str = "scope",
        required_scope: frozenset[str] = frozenset(),
        skew_ms: int = 0,
    ) -> None:
        self._clock = clock
        self._principal_claim = principal_claim
        self._scope_claim = scope_claim
        self._required_scope = required_scope
        self._skew_ms = skew_ms

    def __call__(self, token: str) -> BearerToken:
        header, claims, signature = token.split(".")
        if _decoded(header).get("alg") != "none" or signature:
            raise ValueError("only tokens without a signature are taken")
        return self._checked(_decoded(claims))

    def _checked(self, claims: Mapping[str, object]) -> BearerToken:
        now_ms = self._clock.time_ms()
        principal, expires_ms = claims.get(self._principal_claim), _ms(claims, "exp")
        if not isinstance(principal, str) or not principal:
            raise ValueError(f"no claim {self._principal_claim}")
        if expires_ms is None or now_ms - self._skew_ms >= expires_ms:
            raise ValueError("it has ended")
        issued_ms = _ms(claims, "iat")
        if issued_ms is not None and (int(issued_ms) > now_ms + self._skew_ms or issued_ms >= expires_ms):
            raise ValueError("it has not begun")
        scope = claims.get(self._scope_claim, ())
        scopes = frozenset(scope.split() if isinstance(scope, str) else map(str, scope))  # type: ignore[call-overload]
        if not scopes >= self._required_scope:
            raise ValueError("a scope is missing")
        return BearerToken(principal, int(expires_ms), scopes)


def _decoded(part: str) -> dict[str, object]:
    found = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    if not isinstance(found, dict):
        raise ValueError("expected an object")
    return found


def _ms(claims: Mapping[str, object], name: str) -> float | None:
    """A time of a token: seconds, perhaps with a fraction."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is no number")
    return value * 1000
