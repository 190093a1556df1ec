"""What `security.protocol`, `ssl.*` and `sasl.*` come to: settings for the client layer, or None."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client.clock import SYSTEM_CLOCK
from headrace.client.credentials import SaslSettings, TokenCache, jaas_options
from headrace.client.tls import TlsSettings
from headrace.config import Config, Secret
from headrace.errors import ConfigError
from headrace.producer.plugins import PluginKind, PluginLoader
from headrace.wire.sasl import OAUTHBEARER, TokenProvider


class _TokenPlugin:
    """A token provider as a plug-in."""

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
    """For `SSL` and `SASL_SSL`; None for the others."""
    if not config.of(str, "security.protocol").endswith("SSL"):
        return None
    for one, other in (
        ("ssl.truststore.location", "ssl.truststore.certificates"),
        ("ssl.keystore.location", "ssl.keystore.certificate.chain"),
        ("ssl.keystore.location", "ssl.keystore.key"),
        ("ssl.key.location", "ssl.keystore.key"),
    ):
        if config[one] is not None and config[other] is not None:
            raise ConfigError(f"{one} and {other} are both set; keep one of them")
    return TlsSettings(
        ca_file=config.optional(str, "ssl.truststore.location"),
        ca_pem=_revealed(config, "ssl.truststore.certificates"),
        cert_file=config.optional(str, "ssl.keystore.location"),
        cert_pem=_revealed(config, "ssl.keystore.certificate.chain"),
        key_file=config.optional(str, "ssl.key.location"),
        key_pem=_revealed(config, "ssl.keystore.key"),
        key_password=_revealed(config, "ssl.key.password"),
        check_hostname=config["ssl.endpoint.identification.algorithm"] == "https",
        protocols=config.of(tuple, "ssl.enabled.protocols"),
        ciphers=config.of(tuple, "ssl.cipher.suites"),
    )


def sasl_settings(config: Config, plugins: PluginLoader) -> SaslSettings | None:
    """For `SASL_PLAINTEXT` and `SASL_SSL`; None for the others."""
    if not config.of(str, "security.protocol").startswith("SASL"):
        return None
    mechanism = config.of(str, "sasl.mechanism").upper()
    if mechanism == OAUTHBEARER:
        return SaslSettings(mechanism, token_provider=_token_provider(config, plugins))
    jaas = _revealed(config, "sasl.jaas.config")
    from_jaas = {} if jaas is None else jaas_options(jaas)
    return SaslSettings(
        mechanism,
        username=config.optional(str, "sasl.username") or from_jaas.get("username"),
        password=_revealed(config, "sasl.password") or from_jaas.get("password"),
        token_auth=from_jaas.get("tokenauth", "").lower() == "true",
    )


def _token_provider(config: Config, plugins: PluginLoader) -> TokenProvider | None:
    option = "sasl.login.callback.handler.class"
    value = config[option]
    if value is None:
        return None
    return TokenCache(plugins.load(option, value, _TOKEN_PROVIDER).provider, SYSTEM_CLOCK.time_ms)


def _revealed(config: Config, name: str) -> str | None:
    secret = config.optional(Secret, name)
    return None if secret is None else secret.reveal()
