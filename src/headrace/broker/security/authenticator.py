"""Authentication on all listeners: TLS contexts, SASL mechanisms and principals.

It is built from the options when the broker starts, so that invalid options are reported at once.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, cast

from headrace.broker.broker_options import for_listener
from headrace.broker.catalog.security import Users
from headrace.broker.clock import TimerClock
from headrace.broker.context import Session
from headrace.broker.security.kerberos import RULES_OPTION, Acceptor
from headrace.broker.security.mechanisms import (
    OAuthBearer,
    PasswordCheck,
    Plain,
    UnsecuredTokens,
    Validator,
    check_against,
    jaas_users,
    load,
    plain_users,
)
from headrace.broker.security.sasl import MechanismFactory, SaslAuthentication, SaslSession
from headrace.broker.security.scram import Scram
from headrace.broker.security.tls import Certificate, MappingRules, server_context
from headrace.broker.server.listener import Listener
from headrace.config import Config, Secret, jaas_options
from headrace.errors import ConfigError
from headrace.wire.sasl import GSSAPI, MECHANISMS, OAUTHBEARER, PLAIN

_CALLBACK = "sasl.server.callback.handler.class"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_SIGNED = (None, f"{_OAUTH}.OAuthBearerValidatorCallbackHandler")
_UNSECURED = (
    "unsecured",
    f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
)


class Authenticator:
    """Creates sessions and TLS contexts for the listeners of a broker."""

    def __init__(self, config: Config, users: Users, clock: TimerClock) -> None:
        self._config = config
        self._users = users
        self._clock = clock
        self._mechanisms: dict[str, Mapping[str, MechanismFactory]] = {}  # by listener
        self._reauthentication: dict[str, Mapping[str, int]] = {}  # by listener and mechanism, in milliseconds
        self._rules: dict[str, MappingRules] = {}  # by listener

    def prepare(self, listener: Listener) -> None:
        """Read the options of a listener and load its certificates."""
        if listener.uses_sasl:
            self._mechanisms[listener.name] = enabled = self._enabled(listener.name)
            self._reauthentication[listener.name] = {
                name: cast(int, self._option(listener.name, "connections.max.reauth.ms", name)) for name in enabled
            }
        if listener.uses_tls:
            self._rules[listener.name] = MappingRules.parse(
                str(for_listener(self._config, listener.name, "ssl.principal.mapping.rules"))
            )
            listener.tls = self.tls(listener)

    def tls(self, listener: Listener) -> ssl.SSLContext | None:
        """Return the SSLContext of a listener; None if it has no TLS."""
        return server_context(self._config, listener.name) if listener.uses_tls else None

    def session(self, listener: Listener) -> Session:
        """Return the session for a new connection."""
        if not listener.uses_sasl:
            return Session("", listener.name)
        session = SaslSession("", listener.name)
        session.sasl = SaslAuthentication(
            session,
            self._mechanisms[listener.name],
            self._clock,
            reauthenticate_after_ms=self._reauthentication[listener.name],
            failure_delay_ms=self._config.of(int, "connection.failed.authentication.delay.ms"),
            frame_bytes_max=self._config.of(int, "sasl.server.max.receive.size"),
        )
        return session

    def identify(self, session: Session, certificate: Certificate | None) -> None:
        """Set the principal from the client certificate, unless the listener uses SASL."""
        if certificate and not isinstance(session, SaslSession):
            session.principal = f"User:{self._rules[session.listener].user(certificate)}"

    def _option(self, listener: str, option: str, mechanism: str = "") -> object:
        return for_listener(self._config, listener, option, mechanism)

    def _enabled(self, listener: str) -> dict[str, MechanismFactory]:
        names = cast("tuple[str, ...]", self._option(listener, "sasl.enabled.mechanisms"))
        for name in names:
            if name not in MECHANISMS:
                raise ConfigError(f"invalid sasl.enabled.mechanisms entry {name!r}: expected one of {_LISTED}")
        if not names:
            raise ConfigError(
                f"listener {listener} uses SASL, but sasl.enabled.mechanisms is empty: set some of {_LISTED}"
            )
        return {name: self._factory(listener, name) for name in names}

    def _factory(self, listener: str, name: str) -> MechanismFactory:
        if name == PLAIN:
            check = self._password_check(listener)
            return lambda: Plain(check)
        if name == OAUTHBEARER:
            validator = self._validator(listener)
            return lambda: OAuthBearer(validator)
        if name == GSSAPI:
            return self._acceptor(listener).mechanism
        return lambda: Scram(name, self._users)

    def _acceptor(self, listener: str) -> Acceptor:
        text = self._option(listener, "sasl.jaas.config", GSSAPI)
        given = jaas_options(text.reveal()) if isinstance(text, Secret) else {}
        rules = cast("tuple[str, ...]", self._option(listener, RULES_OPTION))
        return Acceptor(given.get("keyTab"), given.get("principal"), rules)

    def _password_check(self, listener: str) -> PasswordCheck:
        prefix = f"listener.name.{listener.lower()}.{PLAIN.lower()}."
        callback = self._config.get(f"{prefix}{_CALLBACK}")
        if callback is not None:
            return cast(PasswordCheck, _resolve_callback(callback))
        text = self._option(listener, "sasl.jaas.config", PLAIN)
        users = jaas_users(text.reveal()) if isinstance(text, Secret) else {}
        short = self._option(listener, "sasl.plain.users")
        if isinstance(short, Secret):
            users |= plain_users(short.reveal())
        return check_against(users)

    def _validator(self, listener: str) -> Validator:
        callback = self._option(listener, _CALLBACK, OAUTHBEARER)
        url = cast("str | None", self._option(listener, "sasl.oauthbearer.jwks.endpoint.url"))
        if callback in _SIGNED and url is not None:
            return self._signed(listener, url)
        if callback in _SIGNED:
            raise ConfigError(
                "SASL OAUTHBEARER needs a token validator: set sasl.oauthbearer.jwks.endpoint.url, or "
                f"listener.name.{listener.lower()}.oauthbearer.{_CALLBACK} to a function, or to `unsecured` for tests"
            )
        if callback not in _UNSECURED:
            return cast(Validator, _resolve_callback(callback))
        text = self._option(listener, "sasl.jaas.config", OAUTHBEARER)
        given = jaas_options(text.reveal()) if isinstance(text, Secret) else {}
        return UnsecuredTokens(
            self._clock,
            principal_claim=given.get("unsecuredValidatorPrincipalClaimName", "sub"),
            scope_claim=given.get("unsecuredValidatorScopeClaimName", "scope"),
            required_scope=frozenset(given.get("unsecuredValidatorRequiredScope", "").split()),
            skew_ms=int(given.get("unsecuredValidatorAllowableClockSkewMs", "0")),
        )

    def _signed(self, listener: str, url: str) -> Validator:
        # Imported here: it needs urllib.request, which few brokers do, and a broker has to start quickly.
        from headrace.broker.security.jwks import JwksSettings, JwksTokens

        def option(name: str) -> Any:
            return self._option(listener, name)

        settings = JwksSettings(
            url,
            option("sasl.oauthbearer.jwks.endpoint.refresh.ms"),
            option("sasl.oauthbearer.expected.audience"),
            option("sasl.oauthbearer.expected.issuer"),
            option("sasl.oauthbearer.sub.claim.name"),
            option("sasl.oauthbearer.scope.claim.name"),
            option("sasl.oauthbearer.clock.skew.seconds"),
        )
        return JwksTokens(settings, self._clock)


_LISTED = ", ".join(MECHANISMS)


def _resolve_callback(given: object) -> Callable[..., object]:
    """Return the callback of an option: a function, the dotted path of one, or a class whose instances are callable."""
    callback_object = load(given, _CALLBACK) if isinstance(given, str) else given
    if isinstance(callback_object, type):
        callback_object = callback_object()
    if not callable(callback_object):
        raise ConfigError(f"invalid {_CALLBACK} {callback_object!r}: expected a function or the path of one")
    return callback_object
