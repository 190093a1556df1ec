"""Real listeners with TLS and SASL: valid credentials are accepted, others get an error with the reason."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace import AuthenticationError, Producer, TlsError, Token
from tests.support.peers.real_kafka import RealKafka, free_ports
from tests.support.topics import new_topic

SECONDS = 20
OPENSSL = shutil.which("openssl")

pytestmark = pytest.mark.skipif(
    OPENSSL is None, reason="the openssl command makes the certificates, and it is not here"
)

MODULES = "org.apache.kafka.common.security"


def openssl(*args):
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *map(str, args)], check=True, capture_output=True, timeout=SECONDS)


def make_certificates(folder):
    """Create PEM files: an authority, and certificates of a server and a client. Keys are in PKCS 8, for Java."""
    openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test authority", "-days", "2"),
        *("-keyout", folder / "ca.key", "-out", folder / "ca.pem"),
    )
    for name in ("server", "client"):
        key, request, certificate = (folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        (folder / "extension").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
        openssl(
            *("x509", "-req", "-in", request, "-out", certificate, "-days", "2", "-extfile", folder / "extension"),
            *("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-CAcreateserial"),
        )
        (folder / f"{name}-both.pem").write_text(key.read_text() + certificate.read_text())


class GuardedKafka:
    """A broker with a listener of each kind."""

    def __init__(self, jars, folder):
        self.folder = folder
        make_certificates(folder)
        self.broker = RealKafka(jars, folder / "kafka")
        self.ports = dict(zip(("SASL", "TLS", "BOTH"), free_ports(3), strict=True))
        config = self.broker.data_dir / "server.properties"
        text = config.read_text()
        extra = [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        for option in ("listeners", "advertised.listeners"):
            (old,) = re.findall(rf"^{re.escape(option)}=(.*)$", text, re.MULTILINE)
            text += f"{option}={','.join([old, *extra])}\n"
        config.write_text(
            text
            + f"""\
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SSL,BOTH:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
ssl.keystore.type=PEM
ssl.keystore.location={folder / "server-both.pem"}
ssl.truststore.type=PEM
ssl.truststore.location={folder / "ca.pem"}
listener.name.tls.ssl.client.auth=required
"""
            + "".join(
                f"listener.name.{listener}.{mechanism}.sasl.jaas.config={MODULES}.{module} required {options};\n"
                for listener in ("sasl", "both")
                for mechanism, module, options in (
                    ("plain", "plain.PlainLoginModule", 'user_alice="wonder"'),
                    ("scram-sha-256", "scram.ScramLoginModule", ""),
                    ("scram-sha-512", "scram.ScramLoginModule", ""),
                    ("oauthbearer", "oauthbearer.OAuthBearerLoginModule", 'unsecuredLoginStringClaim_sub="broker"'),
                )
            )
        )
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion("alice", ScramCredentialInfo(kind, 4096), b"wonder")
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(SECONDS)

    def address(self, listener):
        return f"127.0.0.1:{self.ports[listener]}"


@pytest.fixture(scope="module")
def guarded(kafka_jars, tmp_path_factory):
    kafka = GuardedKafka(kafka_jars("4.3.0"), tmp_path_factory.mktemp("guarded"))
    try:
        yield kafka
    finally:
        kafka.broker.remove()


@pytest.fixture(scope="module")
def topic(guarded):
    return new_topic(guarded.broker, "guarded")


def sends(topic, max_block_ms=8000, **options):
    with Producer(max_block_ms=max_block_ms, **options) as producer:
        return producer.send(topic, b"v").result(SECONDS).has_offset


def sasl(guarded, mechanism="PLAIN", password="wonder", listener="SASL", **options):
    return {
        "bootstrap_servers": guarded.address(listener),
        "security_protocol": "SASL_PLAINTEXT" if listener == "SASL" else "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_jaas_config": f'{MODULES}.Any required username="alice" password="{password}";',
        **options,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.behaviour("P44")
def test_a_correct_password_is_accepted_and_a_wrong_one_fails_at_once(guarded, topic, mechanism):
    assert sends(topic, **sasl(guarded, mechanism))
    started = time.monotonic()
    with pytest.raises(AuthenticationError, match=r"127.0.0.1.*(?i:authentication|password)"):
        sends(topic, **sasl(guarded, mechanism, password="wrong"))
    assert time.monotonic() - started < 6


@pytest.mark.behaviour("P44")
def test_scram_over_tls_needs_a_trusted_authority(guarded, topic):
    known = {"ssl_truststore_location": str(guarded.folder / "ca.pem"), "ssl_truststore_type": "PEM"}
    assert sends(topic, **sasl(guarded, "SCRAM-SHA-512", listener="BOTH", **known))
    with pytest.raises(TlsError, match=r"(?i)certificate"):
        sends(topic, **sasl(guarded, "SCRAM-SHA-512", listener="BOTH"))


@pytest.mark.behaviour("P44")
def test_a_client_certificate_is_accepted_by_a_tls_listener(guarded, topic):
    options = {
        "bootstrap_servers": guarded.address("TLS"),
        "security_protocol": "SSL",
        "ssl_truststore_location": str(guarded.folder / "ca.pem"),
        "ssl_truststore_type": "PEM",
    }
    mine = {"ssl_keystore_location": str(guarded.folder / "client-both.pem"), "ssl_keystore_type": "PEM"}
    assert sends(topic, **options, **mine)
    with pytest.raises(TlsError, match=r"(?i)certificate"):
        sends(topic, **options)


@pytest.mark.behaviour("P44")
def test_a_bearer_token_is_fetched_once_for_all_connections(guarded, topic):
    calls = []

    def part(content):
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()

    def provider():
        calls.append(1)
        now = time.time()
        claims = {"sub": "alice", "iat": now, "exp": now + 600}
        return Token(f"{part({'alg': 'none'})}.{part(claims)}.", int((now + 600) * 1000))

    assert sends(
        topic,
        bootstrap_servers=guarded.address("SASL"),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_login_callback_handler_class=provider,
    )
    assert calls == [1], "the bootstrap connection and the broker's share it"


def test_a_plaintext_producer_at_a_tls_port_gets_a_hint(guarded):
    started = time.monotonic()
    with pytest.raises(TlsError, match=r"uses TLS, but security.protocol is PLAINTEXT: set security.protocol=SSL"):
        sends("t", bootstrap_servers=guarded.address("TLS"))
    assert time.monotonic() - started < 5
