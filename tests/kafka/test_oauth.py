"""SASL OAUTHBEARER with an OIDC provider: headrace's clients and broker, Apache Kafka, Java and librdkafka."""

from __future__ import annotations

import base64
import json
import time

import jwt
import pytest
from confluent_kafka.admin import AdminClient as ConfluentAdmin

from headrace import ConfigError, Producer
from headrace.broker import EmbeddedBroker
from headrace.broker.ports import free_port
from headrace.client.admin import AdminClient
from headrace.client.credentials import SaslSettings
from headrace.client.oauth import RenewedTokens, TokenEndpoint
from headrace.config.clock import SYSTEM_CLOCK
from headrace.errors import AuthenticationError
from tests.support.peers import java
from tests.support.peers.oidc_provider import AUDIENCE, CLIENT_ID, CLIENT_SECRET, SCOPE, OidcProvider
from tests.support.peers.real_kafka import RealKafka
from tests.support.topics import unique
from tests.support.waiting import eventually

OAUTH = "org.apache.kafka.common.security.oauthbearer"
LIFETIME_SECONDS = 60
SHORT_SECONDS = 4


@pytest.fixture(scope="module")
def provider():
    provider = OidcProvider(LIFETIME_SECONDS)
    yield provider
    provider.close()


def validation(provider):
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": provider.issuer,
        "sasl.oauthbearer.clock.skew.seconds": "1",
    }


@pytest.fixture(scope="module")
def apache(kafka_jars, tmp_path_factory, provider):
    options = (f"-D{'org.apache.kafka.sasl.oauthbearer.allowed.urls'}={provider.keys_url}", *java.SHORT_LIVED)
    broker = RealKafka(kafka_jars("4.3.0"), tmp_path_factory.mktemp("oauth") / "kafka", jvm_options=options)
    prefix = "listener.name.oauth.oauthbearer."
    lines = (
        *(f"{name}={value}" for name, value in validation(provider).items()),
        f"{prefix}sasl.server.callback.handler.class={OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{prefix}sasl.jaas.config={OAUTH}.OAuthBearerLoginModule required;",
    )
    address = broker.add_listener("OAUTH", "SASL_PLAINTEXT", lines)
    try:
        broker.start()
        yield address
    finally:
        broker.remove()


@pytest.fixture(scope="module")
def ours(provider):
    listeners = f"SASL_PLAINTEXT://127.0.0.1:{free_port()}"
    options = {**validation(provider), "listeners": listeners, "authorizer.class.name": "acl"}
    with EmbeddedBroker({**options, "super.users": f"User:{CLIENT_ID}"}) as broker:
        yield broker.bootstrap


@pytest.fixture(params=["apache", "ours"])
def bootstrap(request):
    return request.getfixturevalue(request.param)


def client_options(provider, **more):
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.scope": SCOPE,
        **more,
    }


def test_a_producer_gets_its_token_from_the_provider(bootstrap, provider):
    with Producer({"bootstrap.servers": bootstrap, **client_options(provider)}) as producer:
        assert producer.send(unique("oauth"), b"one").result(30).offset == 0


def test_a_token_in_a_file_is_used(bootstrap, provider, tmp_path):
    file = tmp_path / "token.jwt"
    file.write_text(f"{endpoint(provider)().value}\n")
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    options |= {"bootstrap.servers": bootstrap, "sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    with Producer(options) as producer:
        assert producer.send(unique("oauth"), b"one").result(30).offset == 0


def endpoint(provider, secret=CLIENT_SECRET, **more):
    return TokenEndpoint(provider.token_url, CLIENT_ID, secret, SCOPE, **more)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sasl.oauthbearer.client.credentials.client.secret": "wrong"}, "HTTP status 401: .*invalid_client"),
        ({"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"}, "Connection refused; check sasl.oauth"),
        ({"sasl.oauthbearer.token.endpoint.url": "file:///nowhere/token"}, "cannot read /nowhere/token"),
    ],
)
def test_a_token_that_cannot_be_had_is_an_error_with_the_reason(ours, provider, change, text):
    options = client_options(provider, **{"bootstrap.servers": ours, "sasl.login.read.timeout.ms": 500, **change})
    with Producer(options) as producer, pytest.raises(AuthenticationError, match=text):
        producer.send(unique("oauth"), b"one").result(30)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sasl.oauthbearer.token.endpoint.url": "ftp://x/y"}, "expected http"),
        ({"sasl.oauthbearer.client.credentials.client.secret": None}, "needs sasl.oauthbearer.client.credentials"),
        ({"sasl.oauthbearer.token.endpoint.url": None}, "needs a token provider"),
    ],
)
def test_incomplete_options_are_refused(ours, provider, change, text):
    with pytest.raises(ConfigError, match=text):
        Producer({"bootstrap.servers": ours, **client_options(provider), **change})


def made_by_ourselves(provider, **changes):
    claims = {"sub": CLIENT_ID, "iss": provider.issuer, "aud": AUDIENCE, "exp": time.time() + 60}
    return jwt.encode({**claims, **changes}, "a secret that the broker does not have", "HS256", {"kid": "own"})


def unsigned(provider):
    header, claims = {"alg": "none"}, {"sub": CLIENT_ID, "iss": provider.issuer, "aud": AUDIENCE, "exp": 2e9}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims)]
    return ".".join([*parts, ""])


def changed(provider):
    header, claims, signature = endpoint(provider)().value.split(".")
    decoded = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    text = json.dumps({**decoded, "sub": "root"}).encode()
    return f"{header}.{base64.urlsafe_b64encode(text).rstrip(b'=').decode()}.{signature}"


@pytest.mark.parametrize("make", [made_by_ourselves, unsigned, changed], ids=lambda make: make.__name__)
def test_tokens_that_the_issuer_has_not_signed_are_refused(bootstrap, provider, make):
    token = make(provider)
    sasl = SaslSettings("OAUTHBEARER", token_provider=lambda: token)
    with AdminClient(bootstrap, sasl=sasl) as admin, pytest.raises(AuthenticationError, match="OAUTHBEARER"):
        admin.describe_cluster()


@pytest.mark.parametrize(
    "option", ["sasl.oauthbearer.expected.audience", "sasl.oauthbearer.expected.issuer"], ids=["audience", "issuer"]
)
def test_tokens_for_others_are_refused(provider, option):
    listeners = f"SASL_PLAINTEXT://127.0.0.1:{free_port()}"
    sasl = SaslSettings("OAUTHBEARER", token_provider=endpoint(provider))
    with (
        EmbeddedBroker({**validation(provider), "listeners": listeners, option: "another"}) as broker,
        AdminClient(broker.bootstrap, sasl=sasl) as admin,
        pytest.raises(AuthenticationError),
    ):
        admin.describe_cluster()


def test_an_expired_token_ends_the_session_and_is_renewed(ours):
    short = OidcProvider(SHORT_SECONDS)
    try:
        options = {**validation(short), "listeners": f"SASL_PLAINTEXT://127.0.0.1:{free_port()}"}
        with (
            EmbeddedBroker(options) as broker,
            Producer({"bootstrap.servers": broker.bootstrap, **client_options(short)}) as producer,
        ):
            topic = unique("oauth")
            deadline = time.monotonic() + 2.5 * SHORT_SECONDS
            while time.monotonic() < deadline:
                producer.send(topic, b"one").result(30)
                time.sleep(0.1)
    finally:
        short.close()


def test_a_provider_that_hangs_delays_nothing_while_the_token_is_valid(provider):
    tokens = RenewedTokens(endpoint(provider, timeout_ms=2_000), SYSTEM_CLOCK, window_factor=0.0)  # due at once
    first = tokens()
    provider.pause()
    try:
        started = time.monotonic()
        assert tokens() == first
        assert time.monotonic() - started < 0.5
    finally:
        provider.resume()
    eventually("a renewed token", lambda: tokens() != first)


def test_known_keys_are_used_while_the_provider_hangs(provider):
    options = {**validation(provider), "listeners": f"SASL_PLAINTEXT://127.0.0.1:{free_port()}"}
    options["sasl.oauthbearer.jwks.endpoint.refresh.ms"] = "1"  # due for each log-in
    token = endpoint(provider)()
    sasl = SaslSettings("OAUTHBEARER", token_provider=lambda: token)
    with EmbeddedBroker(options) as broker:
        with AdminClient(broker.bootstrap, sasl=sasl) as admin:
            assert admin.describe_cluster().brokers
        provider.pause()
        try:
            for _ in range(3):
                started = time.monotonic()
                with AdminClient(broker.bootstrap, sasl=sasl) as admin:
                    assert admin.describe_cluster().brokers
                assert time.monotonic() - started < 5
        finally:
            provider.resume()


def test_javas_client_logs_in_to_the_headrace_broker(ours, provider, kafka_jars, tmp_path):
    config = tmp_path / "client.properties"
    lines = {
        **client_options(provider),
        "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    topic = unique("oauth")
    command = java.java_command(
        kafka_jars("4.3.0"),
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", ours, "--command-config", str(config), "--create", "--topic", topic),
        options=(f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.token_url}", *java.SHORT_LIVED),
    )
    assert f"Created topic {topic}" in java.run(command)


def test_librdkafka_logs_in_to_the_headrace_broker(ours, provider):
    admin = ConfluentAdmin(
        {
            "bootstrap.servers": ours,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT_ID,
            "sasl.oauthbearer.client.secret": CLIENT_SECRET,
            "sasl.oauthbearer.scope": SCOPE,
            "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        }
    )
    assert admin.list_topics(timeout=30).brokers
