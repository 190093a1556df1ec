"""Who is let in on each listener: made from the options when the broker starts, so that mistakes show then.

Authenticator(config, users, clock)
    .tls(listener)                     its SSLContext, None without TLS
    .session(listener)                 for a new connection; `gate_of(session)` is what SASL has to get through
    .identify(session, certificate)    when the TLS handshake is over: who the certificate says it is
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import cast

from headrace.broker.broker_options import for_listener
from headrace.broker.catalog.users import Users
from headrace.broker.clock import Clock
from headrace.broker.context import Session
from headrace.broker.security.gate import Factory, Gate
from headrace.broker.security.jaas import jaas_options, users_in_short, users_of
from headrace.broker.security.mechanisms import (
    MECHANISMS,
    OAUTHBEARER,
    PLAIN,
    PasswordCheck,
    Plain,
    check_against,
    load,
)
from headrace.broker.security.oauth import OAuthBearer, UnsecuredTokens, Validator
from headrace.broker.security.principals import MappingRules
from headrace.broker.security.scram import Scram
from headrace.broker.security.sessions import SecureSession
from headrace.broker.security.tls import Certificate, server_context
from headrace.broker.server.listener import Listener
from headrace.config import Config, Secret
from headrace.errors import ConfigError

_CALLBACK = "sasl.server.callback.handler.class"
_UNSECURED = (
    "unsecured",
    "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
)


class Authenticator:
    """What all connections of a broker share."""

    def __init__(self, config: Config, users: Users, clock: Clock) -> None:
        self._config = config
        self._users = users
        self._clock = clock
        self._mechanisms: dict[str, Mapping[str, Factory]] = {}  # by listener
        self._reauthentication: dict[str, Mapping[str, int]] = {}  # by listener and mechanism, in milliseconds
        self._rules: dict[str, MappingRules] = {}  # by listener

    def prepare(self, listener: Listener) -> None:
        """Read what the options say about a listener, and load its certificates."""
        if listener.wants_sasl:
            self._mechanisms[listener.name] = enabled = self._enabled(listener.name)
            self._reauthentication[listener.name] = {
                name: cast(int, self._option(listener.name, "connections.max.reauth.ms", name)) for name in enabled
            }
        if listener.wants_tls:
            self._rules[listener.name] = MappingRules.parse(
                str(for_listener(self._config, listener.name, "ssl.principal.mapping.rules"))
            )
            listener.tls = self.tls(listener)

    def tls(self, listener: Listener) -> ssl.SSLContext | None:
        """What a listener shows and asks for; None: it has no TLS."""
        return server_context(self._config, listener.name) if listener.wants_tls else None

    def session(self, listener: Listener) -> Session:
        """Of a new connection."""
        if not listener.wants_sasl:
            return Session("", listener.name)
        session = SecureSession("", listener.name)
        session.gate = Gate(
            session,
            self._mechanisms[listener.name],
            self._clock,
            reauthenticate_after_ms=self._reauthentication[listener.name],
            failure_delay_ms=self._config.of(int, "connection.failed.authentication.delay.ms"),
            frame_bytes_max=self._config.of(int, "sasl.server.max.receive.size"),
        )
        return session

    def identify(self, session: Session, certificate: Certificate | None) -> None:
        """Take the principal from a client's certificate, unless SASL is to name it."""
        if certificate and not isinstance(session, SecureSession):
            session.principal = f"User:{self._rules[session.listener].user(certificate)}"

    def _option(self, listener: str, option: str, mechanism: str = "") -> object:
        return for_listener(self._config, listener, option, mechanism)

    def _enabled(self, listener: str) -> dict[str, Factory]:
        names = cast("tuple[str, ...]", self._option(listener, "sasl.enabled.mechanisms"))
        for name in names:
            if name not in MECHANISMS:
                hint = "; Kerberos is not supported" if name == "GSSAPI" else ""
                raise ConfigError(f"sasl.enabled.mechanisms has {name!r}; each must be one of {_LISTED}{hint}")
        if not names:
            raise ConfigError(f"listener {listener} has SASL, but sasl.enabled.mechanisms names none of {_LISTED}")
        return {name: self._factory(listener, name) for name in names}

    def _factory(self, listener: str, name: str) -> Factory:
        if name == PLAIN:
            check = self._password_check(listener)
            return lambda: Plain(check)
        if name == OAUTHBEARER:
            validator = self._validator(listener)
            return lambda: OAuthBearer(validator)
        return lambda: Scram(name, self._users)

    def _password_check(self, listener: str) -> PasswordCheck:
        prefix = f"listener.name.{listener.lower()}.{PLAIN.lower()}."
        callback = self._config.get(f"{prefix}{_CALLBACK}")
        if callback is not None:
            return cast(PasswordCheck, _called(callback))
        text = self._option(listener, "sasl.jaas.config", PLAIN)
        users = users_of(text.reveal()) if isinstance(text, Secret) else {}
        short = self._option(listener, "sasl.plain.users")
        if isinstance(short, Secret):
            users |= users_in_short(short.reveal())
        return check_against(users)

    def _validator(self, listener: str) -> Validator:
        callback = self._option(listener, _CALLBACK, OAUTHBEARER)
        if callback is None:
            raise ConfigError(
                f"SASL OAUTHBEARER needs somebody to check tokens: set listener.name.{listener.lower()}.oauthbearer."
                f"{_CALLBACK} to a function, or to `unsecured` for tests"
            )
        if callback not in _UNSECURED:
            return cast(Validator, _called(callback))
        text = self._option(listener, "sasl.jaas.config", OAUTHBEARER)
        given = jaas_options(text.reveal()) if isinstance(text, Secret) else {}
        return UnsecuredTokens(
            self._clock,
            principal_claim=given.get("unsecuredValidatorPrincipalClaimName", "sub"),
            scope_claim=given.get("unsecuredValidatorScopeClaimName", "scope"),
            required_scope=frozenset(given.get("unsecuredValidatorRequiredScope", "").split()),
            skew_ms=int(given.get("unsecuredValidatorAllowableClockSkewMs", "0")),
        )


_LISTED = ", ".join(MECHANISMS)


def _called(given: object) -> Callable[..., object]:
    """A function as it is given: itself, the path of one, or a class whose object is one."""
    found = load(given, _CALLBACK) if isinstance(given, str) else given
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise ConfigError(f"{_CALLBACK} is {found!r}; it may be a function, or the path of one")
    return found
