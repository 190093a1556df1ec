"""Listeners with TLS and SASL: valid and invalid credentials with every client."""

from __future__ import annotations

import base64
import json
import socket
import struct
import time

import confluent_kafka
import pytest

from headrace import AuthenticationError, Producer, TlsError, Token
from headrace.broker import EmbeddedBroker
from headrace.client.admin import AdminClient
from headrace.client.credentials import SaslSettings
from headrace.client.tls import TlsSettings
from headrace.errors import Code, ConfigError
from headrace.wire.api.access import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from headrace.wire.api.metadata import ApiVersionsRequest, MetadataRequest
from headrace.wire.api.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.support import sessions
from tests.support.peers.connection import Connection
from tests.support.scram_users import salted
from tests.support.secure_broker import OPENSSL, SecureBroker, make_certificates
from tests.support.sessions import FastClock, assert_renewed_on_the_same_connection
from tests.support.topics import unique
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(OPENSSL is None, reason="the openssl command makes the certificates")

SECONDS = 20
SESSION_SECONDS = 1.0
FAILURE_DELAY_MS = 300
UNAUTHENTICATED_BYTES_MAX = 512 * 1024
PASSWORD = "pa,ss=w:ord"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def secure(certificates):
    options = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.jaas.config": f'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="{PASSWORD}";',
        "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": "unsecured",
        "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": "unsecured",
        "listener.name.sasl_ssl.plain.connections.max.reauth.ms": sessions.LIFETIME_MS,
        "listener.name.mtls.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/U,DEFAULT",
        "connection.failed.authentication.delay.ms": FAILURE_DELAY_MS,
    }
    with SecureBroker(certificates, options) as broker:
        with Connection(broker.at["PLAINTEXT"]) as connection:
            users = [
                ScramCredentialUpsertion(name="ann", mechanism=number, **salted(number, PASSWORD)) for number in (1, 2)
            ]
            for user in users:
                response = connection.call(AlterUserScramCredentialsRequest(upsertions=[user]), 0)
                assert [row.error_code for row in response.results] == [0]
        yield broker


def token(subject="ann", seconds=60.0) -> Token:
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now = time.time()
    text = f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now, 'exp': now + seconds})}."
    return Token(text, int((now + seconds) * 1000))


def settings(mechanism, password=PASSWORD) -> SaslSettings:
    if mechanism == "OAUTHBEARER":
        return SaslSettings(mechanism, token_provider=token)
    return SaslSettings(mechanism, username="ann", password=password)


def tls(certificates, name=None) -> TlsSettings:
    own = str(certificates / f"{name}-both.pem") if name else None
    return TlsSettings(ca_file=str(certificates / "ca.pem"), cert_file=own)


def admin_at(address, **options) -> AdminClient:
    return AdminClient(address, timeout_ms=10_000, **options)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_the_headrace_client_authenticates_with_every_mechanism(secure, certificates, listener, mechanism):
    options = {"tls": tls(certificates)} if listener == "SASL_SSL" else {}
    with admin_at(secure.at[listener], sasl=settings(mechanism), **options) as admin:
        broker = admin.describe_cluster().brokers[0]
        assert f"127.0.0.1:{broker.port}" == secure.at[listener], (
            "clients get the address of the listener they are connected to"
        )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_librdkafka_authenticates_with_every_mechanism(secure, certificates, listener, mechanism):
    options = {
        "bootstrap.servers": secure.at[listener],
        "security.protocol": listener,
        "sasl.mechanism": mechanism,
        "sasl.username": "ann",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(certificates / "ca.pem"),
    }
    topic = unique("secure")
    producer = confluent_kafka.Producer(options)
    errors = []
    producer.produce(topic, b"hello", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(SECONDS) == 0
    assert errors == [None]
    consumer = confluent_kafka.Consumer({**options, "group.id": unique("group"), "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.value() == b"hello"
    finally:
        consumer.close()


@pytest.mark.parametrize("name", ["SSL", "MTLS", "SASL_SSL"])
def test_the_headrace_producer_sends_over_tls(secure, certificates, name):
    options = {
        "bootstrap.servers": secure.at[name],
        "security.protocol": "SASL_SSL" if name == "SASL_SSL" else "SSL",
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "ann",
        "sasl.password": PASSWORD,
    }
    if name == "MTLS":
        options["ssl.keystore.location"] = str(certificates / "client-both.pem")
    with Producer(options) as producer:
        sent = [producer.send(unique("tls"), bytes(100_000)) for _ in range(20)]
        assert [future.result(SECONDS).offset for future in sent] == [0] * 20


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_fails_after_a_delay(secure, mechanism):
    began = time.monotonic()
    with (
        admin_at(secure.at["SASL_PLAINTEXT"], sasl=settings(mechanism, "wrong")) as admin,
        pytest.raises(AuthenticationError, match="invalid user or password"),
    ):
        admin.describe_cluster()
    assert time.monotonic() - began >= FAILURE_DELAY_MS / 1000


def test_an_expired_token_is_rejected(secure):
    sasl = SaslSettings("OAUTHBEARER", token_provider=lambda: token(seconds=-5))
    with (
        admin_at(secure.at["SASL_PLAINTEXT"], sasl=sasl) as admin,
        pytest.raises(AuthenticationError, match="invalid token"),
    ):
        admin.describe_cluster()


@pytest.mark.parametrize("name", [None, "stranger"])
def test_a_missing_or_untrusted_client_certificate_is_rejected(secure, certificates, name):
    with (
        admin_at(secure.at["MTLS"], tls=tls(certificates, name)) as admin,
        pytest.raises(TlsError, match="rejected the client certificate"),
    ):
        admin.describe_cluster()


def test_a_session_continues_after_reauthentication(secure, certificates):
    options = {"tls": tls(certificates), "sasl": settings("PLAIN"), "clock": FastClock()}
    with admin_at(secure.at["SASL_SSL"], **options) as admin:
        assert_renewed_on_the_same_connection(admin)


def is_closed(connection) -> bool:
    try:
        connection.call(MetadataRequest(topics=[]), 9)
    except ConnectionError:
        return True
    return False


def test_an_expired_session_is_closed(secure):
    with Connection(secure.at["SASL_PLAINTEXT"]) as connection:
        connection.call(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        short = f"n,,\x01auth=Bearer {token(seconds=SESSION_SECONDS).value}\x01\x01".encode()
        began = time.monotonic()
        response = connection.call(SaslAuthenticateRequest(auth_bytes=short), 2)
        assert 0 < response.session_lifetime_ms <= SESSION_SECONDS * 1000
        eventually("the end of the session", lambda: is_closed(connection), SECONDS)
        assert time.monotonic() - began > response.session_lifetime_ms / 1000


def test_only_authentication_requests_are_served_before_login(secure):
    with Connection(secure.at["SASL_PLAINTEXT"]) as connection:
        assert connection.call(ApiVersionsRequest(), 0).error_code == Code.NONE
        with pytest.raises(ConnectionError):
            connection.call(MetadataRequest(topics=[]), 9)


def test_a_token_before_the_handshake_closes_the_connection(secure):
    with Connection(secure.at["SASL_PLAINTEXT"]) as connection:
        assert connection.call(SaslAuthenticateRequest(auth_bytes=b"x"), 2).error_code == Code.ILLEGAL_SASL_STATE
        with pytest.raises(ConnectionError):
            connection.call(ApiVersionsRequest(), 0)


def test_an_unknown_mechanism_returns_the_enabled_ones(secure):
    with Connection(secure.at["SASL_PLAINTEXT"]) as connection:
        response = connection.call(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
        assert response.error_code == Code.UNSUPPORTED_SASL_MECHANISM
        assert list(response.mechanisms) == MECHANISMS
        with pytest.raises(ConnectionError):
            connection.call(ApiVersionsRequest(), 0)


def test_sasl_on_a_listener_without_it_fails_and_keeps_the_connection(secure):
    with Connection(secure.at["PLAINTEXT"]) as connection:
        assert connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == Code.ILLEGAL_SASL_STATE
        assert connection.call(SaslAuthenticateRequest(auth_bytes=b"x"), 2).error_code == Code.ILLEGAL_SASL_STATE
        assert connection.call(ApiVersionsRequest(), 0).error_code == Code.NONE


def test_bare_tokens_after_the_oldest_handshake(secure):
    with Connection(secure.at["SASL_PLAINTEXT"]) as connection:
        assert connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 0).error_code == Code.NONE
        raw = connection._socket
        message = b"\0ann\0" + PASSWORD.encode()
        raw.sendall(struct.pack(">i", len(message)) + message)
        assert raw.recv(4) == struct.pack(">i", 0)
        assert connection.call(MetadataRequest(topics=[]), 9).brokers


def test_an_invalid_bare_token_gets_no_response(secure):
    with Connection(secure.at["SASL_PLAINTEXT"]) as connection:
        connection.call(SaslHandshakeRequest(mechanism="PLAIN"), 0)
        raw = connection._socket
        raw.sendall(struct.pack(">i", 10) + b"\0ann\0wrong")
        assert raw.recv(4) == b""


def test_a_large_frame_before_authentication_is_not_read(secure):
    host, port = secure.at["SASL_PLAINTEXT"].split(":")
    with socket.create_connection((host, int(port)), timeout=SECONDS) as raw:
        raw.sendall(struct.pack(">i", UNAUTHENTICATED_BYTES_MAX + 1))
        assert raw.recv(1) == b""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, "uses TLS but has no certificate"),
        ({"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": "/nowhere.pem"}, "cannot read /nowhere.pem"),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "NTLM"},
            "expected one of PLAIN",
        ),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "OAUTHBEARER"},
            "needs a token validator",
        ),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.plain.users": "ann"}, "expected user:password pairs"),
    ],
)
def test_invalid_security_options_are_reported_at_start(options, words):
    with pytest.raises(ConfigError, match=words), EmbeddedBroker(options):
        pass


def test_the_log_contains_no_secret(secure):
    assert PASSWORD not in secure.embedded.log_text
