"""Finds out which protocol a listener uses, after it has closed a connection before its first response.

    closed in the TLS handshake             → ApiVersions without TLS → a response: it does not use TLS
    closed after ApiVersions without TLS    → a TLS handshake → a TLS record: it uses TLS
    closed after a request without SASL     → SaslHandshake → a list of mechanisms: it uses SASL
    anything else                           → the error of the first connection

A TLS alert in response to ApiVersions without TLS means that the listener uses TLS, as the client does: a later
connection can succeed.

For example, a plaintext listener of Kafka reads the first bytes of a TLS handshake as the size of a request, finds it
too large, and closes the connection without a response. A broker that restarts closes connections, too. Only the first
is permanent; Kafka's own clients retry both until their timeout.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from headrace.client import tls
from headrace.client.connection import Connection, Doubt
from headrace.errors import AuthenticationError, Code, HeadraceError, TlsError
from headrace.wire import sasl
from headrace.wire.api.metadata import ApiVersionsRequest
from headrace.wire.api.sasl import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.wire.schema import Message

PROBE_MS_MAX = 2000.0
UNKNOWN_MECHANISM = "NONE"


class ProtocolProbe(Connection):
    """A connection with another protocol to a listener that has closed a connection. It never becomes ready."""

    def __init__(self, failed: Connection, error: HeadraceError, now: float) -> None:
        """`failed` has a `doubt`, and failed with `error`."""
        self._failed = failed
        self._error = error
        self._finding: AuthenticationError | None = None
        self._tries_tls = failed.doubt is Doubt.TLS and failed.settings.tls_context is None
        settings = replace(failed.settings, mechanism_factory=None)
        if failed.doubt is Doubt.TLS:
            context = tls.context_without_verification() if self._tries_tls else None
            settings = replace(settings, tls_context=context)
        super().__init__(
            failed.node_id, failed.endpoint, failed.address, settings, now, connect_timeout_ms=PROBE_MS_MAX
        )

    def _negotiate(self, now: float) -> None:
        if self._tries_tls:  # the handshake is complete
            raise self._conclude(self._failed.wrong_protocol(uses_tls=True))
        super()._negotiate(now)

    def _set_up(self, now: float) -> Generator[tuple[Message, int], Message, None]:
        yield ApiVersionsRequest(), 0
        if self._failed.doubt is Doubt.TLS:
            raise self._conclude(self._failed.wrong_protocol(uses_tls=False))
        response = yield SaslHandshakeRequest(mechanism=UNKNOWN_MECHANISM), sasl.HANDSHAKE_VERSION
        assert isinstance(response, SaslHandshakeResponse)
        if response.error_code == Code.UNSUPPORTED_SASL_MECHANISM:
            raise self._conclude(self._failed.sasl_required(response.mechanisms))
        raise self._error

    def _conclude(self, finding: AuthenticationError) -> AuthenticationError:
        self._finding = finding
        return finding

    def cause(self, error: HeadraceError) -> HeadraceError:
        """Return why the first connection failed, after this one has failed with `error`."""
        if self._tries_tls and isinstance(error, TlsError) and not isinstance(error, tls.NotTlsError):
            return self._failed.wrong_protocol(uses_tls=True)  # for example, it requires a client certificate
        return self._finding or self._error
