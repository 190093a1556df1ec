"""SASL mechanisms of the server: PLAIN and OAUTHBEARER, and the users in options. SCRAM is in `scram`.

    SaslAuthentication (one per connection) → mechanism.step(token) → response token, until mechanism.user is set

The text of an AuthenticationError is sent to the client, so it says only that and why it was refused.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, TypeAlias

from headrace.config import Secret, jaas_options
from headrace.config.clock import Clock
from headrace.errors import AuthenticationError, ConfigError


class ServerMechanism(Protocol):
    """The server side of one SASL exchange."""

    user: str | None
    """The authenticated user; None until the exchange is complete."""
    expires_ms: int | None
    """When the credential expires, in ms since the epoch; None: never."""

    async def step(self, token: bytes) -> bytes:
        """Return the response to a token, or raise AuthenticationError."""
        ...


PasswordCheck = Callable[[str, str], "bool | Awaitable[bool]"]
"""Takes user and password, returns whether they are valid."""


class Plain:
    """SASL PLAIN (RFC 4616): user and password in one message."""

    expires_ms: int | None = None

    def __init__(self, check: PasswordCheck) -> None:
        self._check = check
        self.user: str | None = None

    async def step(self, token: bytes) -> bytes:
        try:
            authorization, user, password = token.decode().split("\0")
        except ValueError:  # includes UnicodeDecodeError
            raise AuthenticationError(
                "invalid SASL PLAIN message: expected authorization id, user and password in UTF-8"
            ) from None
        if not user or not password:
            raise AuthenticationError("invalid SASL PLAIN message: user or password is empty")
        is_valid = self._check(user, password)
        if not (is_valid if isinstance(is_valid, bool) else await is_valid):
            raise AuthenticationError("invalid user or password (SASL PLAIN)")
        if authorization not in ("", user):
            raise AuthenticationError("the authorization id must equal the user (SASL PLAIN)")
        self.user = user
        return b""


def check_against(users: Mapping[str, Secret]) -> PasswordCheck:
    """Return a check that takes as long for an unknown user as for a wrong password."""

    def check(user: str, password: str) -> bool:
        secret = users.get(user)
        expected = secret.reveal() if secret else "\0"  # no password contains NUL
        return hmac.compare_digest(expected.encode(), password.encode())

    return check


def load(path: str, option: str) -> object:
    """Return the object at a dotted path."""
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"invalid {option}: cannot import {path}: {error}") from error


# -- OAUTHBEARER -------------------------------------------------------------------------------------


_INITIAL_RESPONSE = re.compile(
    rb"n,(?:a=(?P<authorization>[^,]*))?,\x01auth=[Bb]earer (?P<token>[A-Za-z0-9\-._~+/]+=*)\x01"
    rb"(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*\x01"
)
_INVALID_TOKEN = json.dumps({"status": "invalid_token"}, separators=(",", ":")).encode()
_ACKNOWLEDGED = b"\x01"


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A validated token. `lifetime_ms` is when it expires, in ms since the epoch."""

    principal: str
    lifetime_ms: int | None = None
    scope: frozenset[str] = field(default=frozenset())


Validator: TypeAlias = Callable[[str], "BearerToken | Awaitable[BearerToken]"]
"""Takes a token, returns its contents or raises."""


class OAuthBearer:
    """SASL OAUTHBEARER (RFC 7628).

    The response to an invalid token is JSON; the client acknowledges that with 0x01, then the authentication fails.
    """

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._refused = False
        self.user: str | None = None
        self.expires_ms: int | None = None

    async def step(self, token: bytes) -> bytes:
        if self._refused:
            raise AuthenticationError("invalid token (SASL OAUTHBEARER)")
        initial = _INITIAL_RESPONSE.fullmatch(token)
        if initial is None:
            raise AuthenticationError("invalid message: expected a bearer token (SASL OAUTHBEARER)")
        try:
            decoded = self._validator(initial["token"].decode())
            accepted = decoded if isinstance(decoded, BearerToken) else await decoded
        except Exception:  # any exception means invalid; its text may contain the token
            self._refused = True
            return _INVALID_TOKEN
        if initial["authorization"] and initial["authorization"] != accepted.principal.encode():
            raise AuthenticationError("the authorization id must equal the user (SASL OAUTHBEARER)")
        self.user, self.expires_ms = accepted.principal, accepted.lifetime_ms
        return b""


class UnsecuredTokens:
    """A validator of unsigned tokens (JWS with `alg` none), for tests only: anybody can make one.

    Claims are checked as in Kafka's unsecured validator: user, expiry, issue time and required scopes.
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
        if _decode_part(header).get("alg") != "none" or signature:
            raise ValueError("expected an unsigned token")
        return self._checked(_decode_part(claims))

    def _checked(self, claims: Mapping[str, object]) -> BearerToken:
        now_ms = self._clock.time_ms()
        principal, expires_ms = claims.get(self._principal_claim), _claim_ms(claims, "exp")
        if not isinstance(principal, str) or not principal:
            raise ValueError(f"missing claim {self._principal_claim}")
        if expires_ms is None or now_ms - self._skew_ms >= expires_ms:
            raise ValueError("the token has expired")
        issued_ms = _claim_ms(claims, "iat")
        if issued_ms is not None and (int(issued_ms) > now_ms + self._skew_ms or issued_ms >= expires_ms):
            raise ValueError("the token is issued in the future or after its expiry")
        scope = claims.get(self._scope_claim, ())
        scopes = frozenset(scope.split() if isinstance(scope, str) else map(str, scope))  # type: ignore[call-overload]
        if not scopes >= self._required_scope:
            raise ValueError("missing scope")
        return BearerToken(principal, int(expires_ms), scopes)


def _decode_part(part: str) -> dict[str, object]:
    decoded = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    if not isinstance(decoded, dict):
        raise ValueError("expected a JSON object")
    return decoded


def _claim_ms(claims: Mapping[str, object], name: str) -> float | None:
    """Return a time claim, which is in seconds, in ms."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"claim {name} is not a number")
    return value * 1000


# -- users in options --------------------------------------------------------------------------------


_USER_PREFIX = "user_"


def jaas_users(text: str) -> dict[str, Secret]:
    """Return the users of a JAAS entry: `user_alice="secret"`."""
    return {
        name.removeprefix(_USER_PREFIX): Secret(value)
        for name, value in jaas_options(text).items()
        if name.startswith(_USER_PREFIX)
    }


def plain_users(text: str, option: str = "sasl.plain.users") -> dict[str, Secret]:
    """Return the users of an option such as sasl.plain.users: `alice:secret,bob:other`, or a JSON object."""
    if text.startswith("{"):
        try:
            pairs = [*json.loads(text).items()]
        except ValueError:
            raise _invalid_plain_users(option) from None
    else:
        parts = (part.strip().partition(":") for part in text.split(","))
        pairs = [(user, password) for user, _, password in parts]
    if not all(isinstance(word, str) and word for pair in pairs for word in pair):
        raise _invalid_plain_users(option)
    return {user: Secret(password) for user, password in pairs}


def _invalid_plain_users(option: str) -> ConfigError:
    return ConfigError(f"invalid {option}: expected user:password pairs separated by commas, or a JSON object")
