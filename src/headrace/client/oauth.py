"""Tokens for SASL OAUTHBEARER from an OIDC provider, or from a file (KIP-768).

    fetch (HTTP or file) → RenewedTokens: keeps the token, and a thread renews it in time → SASL

Only the first token is waited for: later, a slow or broken provider delays nothing until the token has expired.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener, url2pathname

from headrace.config import Config
from headrace.config.clock import Clock
from headrace.errors import AuthenticationError, ConfigError
from headrace.wire.sasl import Token

URL_OPTION = "sasl.oauthbearer.token.endpoint.url"
DEFAULT_TIMEOUT_MS = 10_000
RESPONSE_BYTES_MAX = 1024 * 1024
ERROR_CHARS_MAX = 300
LIFETIME_MS_WITHOUT_EXPIRY = 300_000
"""Of a token that says nothing about its expiry."""

log = logging.getLogger("headrace.client")


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """Requests tokens with the client credentials grant (RFC 6749, section 4.4)."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    is_urlencoded: bool = False
    timeout_ms: float = DEFAULT_TIMEOUT_MS
    backoff_ms: float = 100
    backoff_max_ms: float = 10_000

    def __call__(self) -> Token:
        """Return a new token, or raise AuthenticationError; temporary failures are retried for a while."""
        deadline, backoff_ms = time.monotonic() + self.timeout_ms / 1000, self.backoff_ms
        while True:
            try:
                return self._request()
            except (URLError, OSError) as error:  # HTTPError is a URLError
                refused = isinstance(error, HTTPError) and error.code < 500
                if refused or time.monotonic() + backoff_ms / 1000 > deadline:
                    raise self._failure(error) from None
            time.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, self.backoff_max_ms)

    def _request(self) -> Token:
        client = [self.client_id, self.client_secret]
        credentials = ":".join(quote(part, safe="") if self.is_urlencoded else part for part in client)
        fields = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        request = Request(
            self.url,
            urlencode(fields).encode(),
            {
                "Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}",
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        # Credentials must not follow a redirect to another server.
        with build_opener(_NoRedirects).open(request, timeout=self.timeout_ms / 1000) as response:
            data = response.read(RESPONSE_BYTES_MAX + 1)
        try:
            fields = json.loads(data)
            return _token(str(fields["access_token"]), fields.get("expires_in"))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise AuthenticationError(
                f"{self.url} returned no token: expected JSON with access_token, got {len(data)} bytes of something "
                f"else; check {URL_OPTION}"
            ) from None

    def _failure(self, error: URLError | OSError) -> AuthenticationError:
        if isinstance(error, HTTPError):
            text = error.read(ERROR_CHARS_MAX).decode(errors="replace")
            reason = f"HTTP status {error.code}: {text or error.reason}"
        else:
            reason = str(getattr(error, "reason", error))
        return AuthenticationError(
            f"no token from {self.url} for client {self.client_id!r}: {reason}; check {URL_OPTION} and "
            "sasl.oauthbearer.client.credentials.*"
        )


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Reads the token from a file, which another program renews."""

    path: Path

    def __call__(self) -> Token:
        try:
            text = self.path.read_text().strip()
        except OSError as error:
            raise AuthenticationError(f"no token: cannot read {self.path}: {error.strerror}") from error
        return _token(text)


class RenewedTokens:
    """A token provider that keeps a token and renews it in a thread before it expires."""

    def __init__(self, fetch: Callable[[], Token], clock: Clock, window_factor: float) -> None:
        self._fetch = fetch
        self._clock = clock
        self._window_factor = window_factor
        self._lock = threading.Lock()
        self._token: Token | None = None  # Guarded by _lock.
        self._renew_at_ms = 0.0  # Guarded by _lock.
        self._is_renewing = False  # Guarded by _lock.

    def __call__(self) -> Token:
        """Return a valid token; without one, wait for it."""
        now = self._clock.time_ms()
        with self._lock:
            token = self._token
            is_valid = token is not None and token.lifetime_ms is not None and now < token.lifetime_ms
            is_due = is_valid and now >= self._renew_at_ms and not self._is_renewing
            self._is_renewing = self._is_renewing or is_due
        if is_due:
            threading.Thread(target=self._renew, name="headrace-token", daemon=True).start()
        if is_valid:
            assert token is not None
            return token
        return self._keep(self._fetch())

    def _renew(self) -> None:
        try:
            self._keep(self._fetch())
        except AuthenticationError as error:
            log.warning("the token could not be renewed, and is used until it expires: %s", error)
        except Exception:
            log.exception("the token could not be renewed, and is used until it expires")
        finally:
            with self._lock:
                self._is_renewing = False

    def _keep(self, token: Token) -> Token:
        now = self._clock.time_ms()
        assert token.lifetime_ms is not None
        with self._lock:
            self._token = token
            self._renew_at_ms = now + (token.lifetime_ms - now) * self._window_factor
        return token


def token_provider(config: Config, clock: Clock) -> RenewedTokens | None:
    """Return the provider of sasl.oauthbearer.token.endpoint.url; None if it is not set."""
    url = config.optional(str, URL_OPTION)
    if url is None:
        return None
    window_factor = config.of(float, "sasl.login.refresh.window.factor")
    parts = urlsplit(url)
    if parts.scheme == "file":
        return RenewedTokens(TokenFile(Path(url2pathname(parts.path))), clock, window_factor)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"invalid {URL_OPTION} {url!r}: expected http://…, https://… or file:///…")
    client_id = config.optional(str, "sasl.oauthbearer.client.credentials.client.id")
    secret = config.revealed("sasl.oauthbearer.client.credentials.client.secret")
    if not client_id or not secret:
        raise ConfigError(
            f"{URL_OPTION} needs sasl.oauthbearer.client.credentials.client.id and "
            "sasl.oauthbearer.client.credentials.client.secret"
        )
    endpoint = TokenEndpoint(
        url,
        client_id,
        secret,
        config.optional(str, "sasl.oauthbearer.scope"),
        config.of(bool, "sasl.oauthbearer.header.urlencode"),
        config.optional(int, "sasl.login.read.timeout.ms") or DEFAULT_TIMEOUT_MS,
        config.of(int, "sasl.login.retry.backoff.ms"),
        config.of(int, "sasl.login.retry.backoff.max.ms"),
    )
    return RenewedTokens(endpoint, clock, window_factor)


def _token(text: str, expires_in: object = None) -> Token:
    """Return a token with its expiry: of its own claim, or as the provider says."""
    claims: Mapping[str, object] = {}
    parts = text.split(".")
    if len(parts) == 3:
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except ValueError:
            claims = {}  # an opaque token that happens to have two dots
    expires = claims.get("exp") if isinstance(claims, Mapping) else None
    now_ms = time.time() * 1000
    if isinstance(expires, int | float):
        return Token(text, int(expires * 1000))
    seconds = expires_in if isinstance(expires_in, int | float) else LIFETIME_MS_WITHOUT_EXPIRY / 1000
    return Token(text, int(now_ms + seconds * 1000))
