"""TLS and SASL with Apache Kafka: one broker with a listener for each, and headrace clients."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import time

import pytest

from headrace.client.admin import AdminClient
from headrace.client.credentials import SaslSettings, TokenCache
from headrace.client.tls import TlsSettings
from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import AuthenticationError, TlsError
from headrace.wire.api.access import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from headrace.wire.sasl import Token
from tests.support import sessions
from tests.support.peers.connection import Connection
from tests.support.peers.real_kafka import RealKafka
from tests.support.sessions import FastClock, assert_renewed_on_the_same_connection

LOGIN = "org.apache.kafka.common.security"
PROPERTIES = """
ssl.keystore.type=PEM
ssl.keystore.location={folder}/both.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/cert.pem
listener.name.mtls.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasltls.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_ann="secret";
listener.name.sasltls.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;
listener.name.sasltls.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;
listener.name.sasltls.oauthbearer.sasl.jaas.config={login}.oauthbearer.OAuthBearerLoginModule required \
unsecuredLoginStringClaim_sub="broker";
listener.name.sasltls.plain.connections.max.reauth.ms={reauthenticate}
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2", "-subj", "/CN=test"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    (folder / "both.pem").write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return folder


class SecureKafka:
    def __init__(self, broker, mtls, sasl):
        self.broker = broker
        self.mtls = mtls
        self.sasl = sasl


@pytest.fixture(scope="module")
def secure(kafka_jars, tmp_path_factory, certificates):
    broker = RealKafka(kafka_jars("4.3.0"), tmp_path_factory.mktemp("secure") / "kafka")
    more = PROPERTIES.format(folder=certificates, login=LOGIN, reauthenticate=sessions.LIFETIME_MS)
    mtls = broker.add_listener("MTLS", "SSL", [more])
    sasl = broker.add_listener("SASLTLS", "SASL_SSL", [])
    try:
        broker.start()
        for mechanism, number, digest in (("SCRAM-SHA-256", 1, "sha256"), ("SCRAM-SHA-512", 2, "sha512")):
            add_scram_user(broker, mechanism, number, digest)
        yield SecureKafka(broker, mtls, sasl)
    finally:
        broker.remove()


def add_scram_user(broker, mechanism, number, digest):
    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac(digest, b"secret", salt, 4096)
    user = ScramCredentialUpsertion(name="ann", mechanism=number, iterations=4096, salt=salt, salted_password=salted)
    with Connection(broker.bootstrap) as connection:
        response = connection.call(AlterUserScramCredentialsRequest(upsertions=[user]), 0)
    assert [result.error_code for result in response.results] == [0], mechanism


def unsecured_token(subject="ann", seconds=60):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    now = time.time()
    return Token(
        f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now, 'exp': now + seconds})}.",
        int((now + seconds) * 1000),
    )


def admin_at(address, certificates, **options):
    tls = options.pop("tls", TlsSettings(ca_file=str(certificates / "cert.pem")))
    return AdminClient(address, timeout_ms=10_000, tls=tls, **options)


def eventually_in(admin):
    """SCRAM credentials take a moment to reach the listener."""
    deadline = SYSTEM_CLOCK.monotonic_ms() + 10_000
    while True:
        try:
            return admin.describe_cluster()
        except AuthenticationError:
            if SYSTEM_CLOCK.monotonic_ms() > deadline:
                raise


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_every_sasl_mechanism_works_over_tls(secure, certificates, mechanism):
    if mechanism == "OAUTHBEARER":
        sasl = SaslSettings(mechanism, token_provider=TokenCache(unsecured_token, SYSTEM_CLOCK.time_ms))
    else:
        sasl = SaslSettings(mechanism, username="ann", password="secret")
    with admin_at(secure.sasl, certificates, sasl=sasl) as admin:
        assert eventually_in(admin).brokers[0].port == int(secure.sasl.rpartition(":")[2])


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_an_unknown_user_gets_an_error_with_a_remedy(secure, certificates, mechanism):
    if mechanism == "OAUTHBEARER":
        sasl = SaslSettings(mechanism, token_provider=lambda: unsecured_token(seconds=-100))
    else:
        sasl = SaslSettings(mechanism, username="ann", password="wrong")
    with (
        admin_at(secure.sasl, certificates, sasl=sasl) as admin,
        pytest.raises(AuthenticationError, match=f"with SASL {mechanism}.*check"),
    ):
        admin.describe_cluster()


def test_a_session_is_renewed_on_the_same_connection_repeatedly(secure, certificates):
    sasl = SaslSettings("PLAIN", username="ann", password="secret")
    with admin_at(secure.sasl, certificates, sasl=sasl, clock=FastClock()) as admin:
        assert_renewed_on_the_same_connection(admin)


def test_a_client_certificate_is_accepted_and_its_absence_explained(secure, certificates):
    folder = certificates
    mine = TlsSettings(
        ca_file=str(folder / "cert.pem"), cert_file=str(folder / "cert.pem"), key_file=str(folder / "key.pem")
    )
    with admin_at(secure.mtls, folder, tls=mine) as admin:
        assert admin.describe_cluster().controller_id == 1
    with admin_at(secure.mtls, folder) as admin, pytest.raises(TlsError, match=r"ssl.keystore"):
        admin.describe_cluster()


def test_a_broker_with_an_untrusted_certificate_is_refused(secure, certificates):
    with admin_at(secure.mtls, certificates, tls=TlsSettings()) as admin, pytest.raises(TlsError, match="not trusted"):
        admin.describe_cluster()


@pytest.mark.parametrize("secured", [True, False], ids=["TLS at a plain port", "plain at a TLS port"])
def test_a_wrong_security_protocol_fails_at_once_with_the_option_to_change(secure, certificates, secured):
    tls = TlsSettings(ca_file=str(certificates / "cert.pem")) if secured else None
    address = secure.broker.bootstrap if secured else secure.mtls
    fact = "does not use TLS, but security.protocol is SSL" if secured else "uses TLS, but security.protocol is PLAIN"
    started = time.monotonic()
    with AdminClient(address, timeout_ms=20_000, tls=tls) as admin, pytest.raises(TlsError, match=fact):
        admin.describe_cluster()
    assert time.monotonic() - started < 5


def test_a_client_without_sasl_is_told_the_mechanisms_of_a_sasl_listener(secure, certificates):
    started = time.monotonic()
    with admin_at(secure.sasl, certificates) as admin, pytest.raises(AuthenticationError) as caught:
        admin.describe_cluster()
    assert f"{secure.sasl} uses SASL (" in str(caught.value)
    assert "set security.protocol=SASL_SSL and sasl.mechanism" in str(caught.value)
    assert time.monotonic() - started < 5
