"""Validates the signed tokens of SASL OAUTHBEARER with the keys of their issuer (KIP-768).

It needs the package PyJWT (extra `oauth`).

    token → key by its id, from the JWKS endpoint → signature, expiry, issuer, audience → BearerToken

Keys are fetched in a thread, when the first token comes, when they are old, and when a token has an unknown key id.
Only tokens with unknown keys wait for that.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.request import urlopen

from headrace.broker.security.mechanisms import BearerToken
from headrace.broker.tasks import start_task
from headrace.config.clock import Clock
from headrace.errors import ConfigError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a private key only: with a shared one, those who can validate a token could make it."""
FETCH_SECONDS_MAX = 10
FETCH_BYTES_MAX = 1024 * 1024
FETCH_INTERVAL_MIN_MS = 10_000
"""Tokens with unknown keys fetch the keys again, but not more often."""
RETRY_INTERVAL_MS = 1_000
"""After a failure."""

log = logging.getLogger("headrace.broker")


@dataclass(frozen=True, slots=True)
class JwksSettings:
    """The `sasl.oauthbearer.*` options of a broker."""

    url: str
    refresh_ms: int = 3_600_000
    audience: tuple[str, ...] = ()
    issuer: str | None = None
    principal_claim: str = "sub"
    scope_claim: str = "scope"
    skew_seconds: int = 30


class JwksTokens:
    """A validator of tokens that an issuer has signed."""

    def __init__(self, settings: JwksSettings, clock: Clock) -> None:
        if not settings.url.startswith(("http://", "https://", "file://")):
            raise ConfigError(
                f"invalid sasl.oauthbearer.jwks.endpoint.url {settings.url!r}: expected http://…, https://… or file:///…"
            )
        try:
            self._jwt: Any = import_module("jwt")
        except ImportError as error:
            raise ConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url needs the package PyJWT ({error}): pip install 'headrace[oauth]'"
            ) from error
        self._settings = settings
        self._clock = clock
        self._keys: Mapping[str | None, Any] = {}
        self._refresh_at_ms = 0.0
        self._next_try_ms = 0.0
        self._fetch: asyncio.Task[None] | None = None

    async def __call__(self, token: str) -> BearerToken:
        settings = self._settings
        key = await self._key(self._jwt.get_unverified_header(token).get("kid"))
        claims = self._jwt.decode(
            token,
            key,
            algorithms=ALGORITHMS,
            audience=list(settings.audience) or None,
            issuer=settings.issuer,
            leeway=settings.skew_seconds,
            options={"require": ["exp", settings.principal_claim], "verify_aud": bool(settings.audience)},
        )
        principal = claims[settings.principal_claim]
        if not isinstance(principal, str) or not principal:
            raise ValueError(f"claim {settings.principal_claim} is not a name")
        scope = claims.get(settings.scope_claim, "")
        scopes = scope.split() if isinstance(scope, str) else [str(each) for each in scope]
        return BearerToken(principal, int(claims["exp"] * 1000), frozenset(scopes))

    async def _key(self, key_id: str | None) -> Any:
        """Return a key. A known one is not waited for, even if the keys are old or cannot be fetched."""
        now = self._clock.monotonic_ms()
        is_known = key_id in self._keys
        if (not is_known or now >= self._refresh_at_ms) and self._fetch is None and now >= self._next_try_ms:
            self._fetch = start_task(self._refresh(), "keys of tokens")
        if not is_known and self._fetch is not None:
            await asyncio.wait([self._fetch], timeout=FETCH_SECONDS_MAX)
        return self._keys[key_id]

    async def _refresh(self) -> None:
        """Replace the keys; if that fails, keep the old ones."""
        interval_ms = RETRY_INTERVAL_MS
        try:
            data = await asyncio.to_thread(self._read)
            keys = self._jwt.PyJWKSet.from_dict(json.loads(data)).keys
            self._keys = {key.key_id: key for key in keys if key.key_type != "oct"}
            self._refresh_at_ms = self._clock.monotonic_ms() + self._settings.refresh_ms
            interval_ms = FETCH_INTERVAL_MIN_MS
        except Exception as error:  # any: the provider may return anything
            log.warning("cannot get the keys of %s: %s", self._settings.url, error)
        finally:
            self._next_try_ms = self._clock.monotonic_ms() + interval_ms
            self._fetch = None

    def _read(self) -> bytes:
        with urlopen(self._settings.url, timeout=FETCH_SECONDS_MAX) as response:
            return bytes(response.read(FETCH_BYTES_MAX))
