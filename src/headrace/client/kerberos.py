"""SASL GSSAPI, the client side: Kerberos 5 with the package gssapi (extra `kerberos`), RFC 4752.

    first → AP-REQ; step(AP-REP) → empty; step(security layers) → "none"; step(empty) → None

Tickets come from the user's cache (`kinit`), or from a keytab: then the library gets and renews them by itself, in a
cache in memory. It may have to wait for the KDC, on the I/O thread, as long as krb5.conf lets it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from headrace.config.kerberos import error_text, load_gssapi
from headrace.errors import AuthenticationError, ConfigError
from headrace.wire.sasl import GSSAPI, NO_SECURITY_LAYER, Mechanism, offers_no_security_layer

_REMEDY = (
    "check the ticket (klist), sasl.kerberos.service.name, and that the broker's host name is that of its principal"
)


@dataclass(frozen=True, slots=True)
class KerberosSettings:
    """The service of the brokers, and where the client's tickets come from."""

    service: str
    """The first part of the brokers' principals: kafka of kafka/host@REALM."""
    principal: str | None = None
    keytab: str | None = None
    """Without it, tickets are those of the user's cache."""

    def __post_init__(self) -> None:
        if not self.service:
            raise ConfigError(
                "sasl.mechanism=GSSAPI needs sasl.kerberos.service.name, which is not set: the first part of the "
                "brokers' principal, usually kafka"
            )
        load_gssapi()

    def mechanism(self, host: str) -> Mechanism:
        """Return a new authentication exchange with the broker at an endpoint."""
        return KerberosMechanism(host, self)


class KerberosMechanism(Mechanism):
    """One authentication with Kerberos."""

    name = GSSAPI
    remedy = _REMEDY

    def __init__(self, host: str, settings: KerberosSettings) -> None:
        super().__init__(host, f"principal {settings.principal!r}" if settings.principal else "the user's ticket")
        self._gssapi = load_gssapi()
        self._settings = settings
        self._context: Any = None
        self._done = False

    def first(self) -> bytes:
        gssapi, settings = self._gssapi, self._settings
        host_name = self.host.rpartition(":")[0].strip("[]")
        try:
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(f"{settings.service}@{host_name}", gssapi.NameType.hostbased_service),
                creds=self._credentials(),
                usage="initiate",
                mech=gssapi.MechType.kerberos,
                flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
            )
            return self._context.step() or b""
        except gssapi.exceptions.GSSError as error:
            raise AuthenticationError(
                f"no Kerberos ticket for {settings.service}/{host_name} with {self.identity}: {error_text(error)}; run "
                "kinit, or set sasl.kerberos.keytab and sasl.kerberos.principal"
            ) from error

    def step(self, challenge: bytes) -> bytes | None:
        if self._done:
            if challenge:
                raise self.failure("expected an empty response at the end of the exchange")
            return None
        try:
            if not self._context.complete:
                return self._context.step(challenge) or b""
            layers = self._context.unwrap(challenge).message
            if not offers_no_security_layer(layers):
                raise self.failure("it requires a SASL security layer, which Kafka's protocol does not have")
            self._done = True
            return bytes(self._context.wrap(NO_SECURITY_LAYER, False).message)
        except self._gssapi.exceptions.GSSError as error:
            raise self.failure(error_text(error)) from error

    def _credentials(self) -> Any:
        gssapi, settings = self._gssapi, self._settings
        name = (
            None if settings.principal is None else gssapi.Name(settings.principal, gssapi.NameType.kerberos_principal)
        )
        if settings.keytab is None:
            return None if name is None else gssapi.Credentials(name=name, usage="initiate")
        # A cache for each keytab and principal: its tickets serve all connections of the process.
        cache = hashlib.sha256(f"{settings.keytab}\0{settings.principal}".encode()).hexdigest()
        store = {"client_keytab": settings.keytab, "ccache": f"MEMORY:headrace-{cache}"}
        return gssapi.Credentials(name=name, usage="initiate", store=store)
