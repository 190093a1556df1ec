"""SASL credentials: a user name and password, a token provider, or Kerberos.

options → SaslSettings (checked) → mechanism(host) for each connection → wire/sasl.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headrace.client import tls
from headrace.client.kerberos import KerberosSettings
from headrace.client.plugins import PluginKind, PluginLoader
from headrace.client.tls import TlsSettings
from headrace.config import Config, jaas_options
from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import ConfigError
from headrace.wire.sasl import (
    GSSAPI,
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    Mechanism,
    OAuthBearerMechanism,
    PlainMechanism,
    ScramMechanism,
    Token,
    TokenProvider,
)

REFRESH_WINDOW_FACTOR = 0.8
"""The share of a token's lifetime after which it is renewed (Kafka's sasl.login.refresh.window.factor)."""


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """The mechanism and its credentials. Checked on creation; the repr has no secrets."""

    name: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token_provider: TokenProvider | None = field(default=None, repr=False)
    token_auth: bool = False
    """User name and password are the id and HMAC of a delegation token (KIP-48)."""
    kerberos: KerberosSettings | None = None

    def __post_init__(self) -> None:
        if self.name not in MECHANISMS:
            raise ConfigError(f"sasl.mechanism: {self.name!r} is not one of {', '.join(MECHANISMS)}")
        if self.name == GSSAPI:
            if self.kerberos is None:
                raise ConfigError("sasl.mechanism=GSSAPI needs KerberosSettings")
            return
        if self.name == OAUTHBEARER:
            if not callable(self.token_provider):
                raise ConfigError(
                    f"sasl.mechanism={self.name} needs a token provider: set sasl.oauthbearer.token.endpoint.url, or "
                    "sasl.login.callback.handler.class to a callable that returns a token"
                )
            return
        for option, value in (("sasl.username", self.username), ("sasl.password", self.password)):
            if not value:
                raise ConfigError(f"sasl.mechanism={self.name} needs {option}, which is not set")
            if "\0" in value:
                raise ConfigError(f"{option} contains a NUL character, which SASL cannot carry")
        if self.token_auth and self.name == PLAIN:
            raise ConfigError(f"delegation tokens need {SCRAM_SHA_256} or {SCRAM_SHA_512}, not sasl.mechanism={PLAIN}")

    def mechanism(self, host: str) -> Mechanism:
        """Return a new authentication exchange with the broker at an endpoint."""
        if self.kerberos is not None:
            return self.kerberos.mechanism(host)
        if self.name == OAUTHBEARER:
            assert self.token_provider is not None
            return OAuthBearerMechanism(host, self.token_provider)
        assert self.username is not None
        assert self.password is not None
        if self.name == PLAIN:
            return PlainMechanism(host, self.username, self.password)
        return ScramMechanism(host, self.name, self.username, self.password, token_auth=self.token_auth)


class TokenCache:
    """A token provider that caches the token of another one until it is about to expire.

    Every new connection needs a token, and fetching one may need a request to another server.
    """

    def __init__(self, provider: TokenProvider, time_ms: Callable[[], float]) -> None:
        self._provider = provider
        self._time_ms = time_ms
        # I/O thread only, both.
        self._token: Token | None = None
        self._refresh_at_ms = 0.0

    def __call__(self) -> str | Token:
        now, kept = self._time_ms(), self._token
        if kept is not None and now < self._refresh_at_ms:
            return kept
        try:
            token = self._provider()
        except Exception:
            if kept is not None and kept.lifetime_ms is not None and now < kept.lifetime_ms:
                return kept  # still valid
            raise
        if isinstance(token, Token) and token.lifetime_ms is not None:
            self._token = token
            self._refresh_at_ms = now + (token.lifetime_ms - now) * REFRESH_WINDOW_FACTOR
        return token


class _TokenPlugin:
    """Wraps a token provider as a plug-in."""

    def __init__(self, provider: TokenProvider) -> None:
        self.provider = provider
        self._configure = getattr(provider, "configure", None)
        self.close = getattr(provider, "close", lambda: None)

    def configure(self, config: Mapping[str, object]) -> None:
        if self._configure is not None:
            self._configure(config)


def _adapt(value: object) -> _TokenPlugin | None:
    return _TokenPlugin(value) if callable(value) else None


_TOKEN_PROVIDER = PluginKind("token provider (a callable that returns a token)", _TokenPlugin, adapt=_adapt)


def tls_settings(config: Config) -> TlsSettings | None:
    """Return the TLS settings for `SSL` and `SASL_SSL`; None for other protocols."""
    if not config.of(str, "security.protocol").endswith("SSL"):
        return None
    return tls.settings_from(config)


def sasl_settings(config: Config, plugins: PluginLoader) -> SaslSettings | None:
    """Return the SASL settings for `SASL_PLAINTEXT` and `SASL_SSL`; None for other protocols."""
    if not config.of(str, "security.protocol").startswith("SASL"):
        return None
    mechanism = config.of(str, "sasl.mechanism").upper()
    if mechanism == OAUTHBEARER:
        return SaslSettings(mechanism, token_provider=_token_provider(config, plugins))
    jaas = config.revealed("sasl.jaas.config")
    from_jaas = {} if jaas is None else jaas_options(jaas)
    if mechanism == GSSAPI:
        return SaslSettings(mechanism, kerberos=_kerberos(config, from_jaas))
    return SaslSettings(
        mechanism,
        username=config.optional(str, "sasl.username") or from_jaas.get("username"),
        password=config.revealed("sasl.password") or from_jaas.get("password"),
        token_auth=from_jaas.get("tokenauth", "").lower() == "true",
    )


def _kerberos(config: Config, from_jaas: Mapping[str, str]) -> KerberosSettings:
    """Return the Kerberos settings; those of sasl.jaas.config are named as for Java's Krb5LoginModule."""
    return KerberosSettings(
        config.optional(str, "sasl.kerberos.service.name") or from_jaas.get("serviceName", ""),
        config.optional(str, "sasl.kerberos.principal") or from_jaas.get("principal"),
        config.optional(str, "sasl.kerberos.keytab") or from_jaas.get("keyTab"),
    )


def _token_provider(config: Config, plugins: PluginLoader) -> TokenProvider | None:
    option = "sasl.login.callback.handler.class"
    value = config[option]
    if value is None:
        # Imported here: it needs urllib.request, which few clients do.
        from headrace.client.oauth import token_provider

        return token_provider(config, SYSTEM_CLOCK)
    return TokenCache(plugins.load(option, value, _TOKEN_PROVIDER).provider, SYSTEM_CLOCK.time_ms)
