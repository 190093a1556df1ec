"""SASL over a link: authentication errors have a reason, and sessions are renewed before they end (KIP-368)."""

from __future__ import annotations

import re

import pytest

from headrace.client.credentials import SaslSettings
from headrace.client.network import NetworkSettings
from headrace.errors import AuthenticationError, ConnectionFailedError
from headrace.wire.api.metadata import MetadataRequest
from headrace.wire.api.sasl import SaslAuthenticateResponse, SaslHandshakeResponse
from tests.support.fake_network import FakeClock
from tests.support.scripted import METADATA, ScriptedServer, metadata

HANDSHAKE, AUTHENTICATE = 17, 36
METADATA_REQUEST = MetadataRequest(topics=[])
PLAIN = SaslSettings("PLAIN", username="ann", password="secret").mechanism
LIFETIME_MS = 10_000
BUSY_STEPS = 300


@pytest.fixture
def clock():
    return FakeClock()


class SaslBroker:
    """Return a server script that accepts user ann, and records the requests in order."""

    def __init__(self, **options):
        self.requests = []
        self.lifetime_ms = options.get("lifetime_ms", 0)
        self.handshake_error = options.get("handshake_error", 0)
        self.refuse_after = options.get("refuse_after", 1 << 30)

    def __call__(self, peer):
        peer.server.api_ranges.update({HANDSHAKE: (0, 1), AUTHENTICATE: (0, 2)})
        peer.serve({HANDSHAKE: self.handshake, AUTHENTICATE: self.authenticate, METADATA: self.metadata})

    def handshake(self, peer, header, message):
        self.requests.append("handshake")
        return SaslHandshakeResponse(error_code=self.handshake_error, mechanisms=["SCRAM-SHA-256", "GSSAPI"])

    def authenticate(self, peer, header, message):
        self.requests.append("authenticate")
        if message.auth_bytes != b"\0ann\0secret" or self.requests.count("authenticate") > self.refuse_after:
            return SaslAuthenticateResponse(error_code=58, error_message="Authentication failed")
        return SaslAuthenticateResponse(session_lifetime_ms=self.lifetime_ms)

    def metadata(self, peer, header, message):
        self.requests.append("metadata")
        return metadata(peer, header, message)


def test_valid_credentials_are_accepted(links):
    broker = SaslBroker()
    link = links.to(broker, mechanism_factory=PLAIN)
    assert link.send_request(METADATA_REQUEST).error is None
    assert broker.requests == ["handshake", "authenticate", "metadata"]


@pytest.mark.parametrize(
    ("broker", "password", "reason"),
    [
        (SaslBroker(), "wrong", "did not accept user 'ann'.*Authentication failed; check sasl.username"),
        (SaslBroker(handshake_error=33), "secret", "it offers GSSAPI, SCRAM-SHA-256; set sasl.mechanism"),
        (SaslBroker(handshake_error=34), "secret", "does not use SASL on this port.*set security.protocol"),
    ],
    ids=["wrong password", "mechanism not offered", "no SASL listener"],
)
def test_refused_credentials_raise_an_authentication_error_with_the_reason(links, broker, password, reason):
    mechanism = SaslSettings("PLAIN", username="ann", password=password).mechanism
    link = links.to(broker, mechanism_factory=mechanism)
    failure = link.fail_to_connect()
    assert re.search(reason, failure), failure
    assert isinstance(link.auth_errors[0], AuthenticationError)
    assert password not in failure


def test_a_broker_without_sasl_is_an_authentication_error(links):
    link = links.to(lambda peer: peer.serve(), mechanism_factory=PLAIN)
    assert "does not support the SASL protocol" in link.fail_to_connect()
    assert isinstance(link.auth_errors[0], AuthenticationError)


def test_a_client_without_sasl_at_a_sasl_port_gets_a_hint(links):
    """Such a broker responds to ApiVersions, and closes the connection at any other request."""

    def sasl_only(peer):
        peer.serve(requests_max=1)
        peer.request()

    response = links.to(sasl_only).send_request(METADATA_REQUEST)
    assert isinstance(response.error, ConnectionFailedError)
    assert "if its listener uses SASL" in str(response.error)


def test_a_session_is_renewed_on_the_same_connection_before_it_ends(links, clock):
    broker = SaslBroker(lifetime_ms=LIFETIME_MS)
    server: ScriptedServer = links.server(broker)
    link = links.link(server, mechanism_factory=PLAIN, clock=clock)
    link.send_request(METADATA_REQUEST)
    clock.advance(0.84 * LIFETIME_MS)
    assert link.send_request(METADATA_REQUEST).error is None
    assert broker.requests == ["handshake", "authenticate", "metadata", "metadata"]
    clock.advance(0.11 * LIFETIME_MS)  # it is renewed at 85 to 95 %
    link.until("a second authentication", lambda: broker.requests.count("authenticate") == 2)
    assert link.send_request(METADATA_REQUEST).error is None
    assert server.accepted == 1
    assert broker.requests[4:] == ["handshake", "authenticate", "metadata"]


def test_reauthentication_waits_for_requests_in_flight_and_holds_back_new_ones(links, clock):
    broker = SaslBroker(lifetime_ms=LIFETIME_MS)
    link = links.to(broker, mechanism_factory=PLAIN, clock=clock)
    waiting = []
    # Always busy: the renewal has to hold back requests.
    for _ in range(BUSY_STEPS):
        waiting.append(link.begin(METADATA_REQUEST))
        link.turn(0)
        clock.advance(3 * LIFETIME_MS / BUSY_STEPS)
    link.until("the rest", lambda: all(waiting))
    assert not [responses for responses in waiting if responses[0].error]
    renewals = [i for i, what in enumerate(broker.requests) if what == "handshake"]
    assert len(renewals) >= 3
    assert all(broker.requests[i + 1] == "authenticate" for i in renewals)


def test_a_failed_reauthentication_closes_the_connection(links, clock):
    broker = SaslBroker(lifetime_ms=LIFETIME_MS, refuse_after=1)
    link = links.to(broker, mechanism_factory=PLAIN, clock=clock)
    link.send_request(METADATA_REQUEST)
    clock.advance(LIFETIME_MS)
    link.until("the refusal", lambda: link.auth_errors)
    assert "did not accept user 'ann'" in str(link.auth_errors[0])
    assert not link.client.is_connected(1)


def test_renewing_does_not_keep_an_idle_connection_alive(links, clock):
    network = NetworkSettings(connections_max_idle_ms=3.5 * LIFETIME_MS)
    broker = SaslBroker(lifetime_ms=LIFETIME_MS)
    link = links.to(broker, network=network, mechanism_factory=PLAIN, clock=clock)
    link.send_request(METADATA_REQUEST)
    for count in (2, 3, 4):
        clock.advance(LIFETIME_MS)
        link.until("a renewal", lambda count=count: broker.requests.count("authenticate") == count)
    clock.advance(LIFETIME_MS)
    link.until("its end", lambda: link.client.connection_count() == 0)
