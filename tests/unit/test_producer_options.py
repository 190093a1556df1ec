"""The producer's options: the table, how they are settled, and what the producer gets."""

from __future__ import annotations

import itertools
import logging
import re
from typing import Any

import pytest

from headrace.client.addresses import Endpoint
from headrace.client.plugins import PluginLoader
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.producer import partitioners
from headrace.producer import settings as settings_module
from headrace.producer.options import PRODUCER_OPTIONS, PROFILES
from headrace.producer.partitioners import DefaultPartitioner24
from headrace.producer.settings import ProducerSettings, resolve
from headrace.wire.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD

BOOTSTRAP = {"bootstrap.servers": "localhost:9092"}

# What Kafka 2.4.0 and 4.3.0 list as a producer's options; a line in front of `+` is in both.
KAFKA_OPTIONS = """
acks batch.size bootstrap.servers buffer.memory client.dns.lookup client.id compression.type connections.max.idle.ms
delivery.timeout.ms enable.idempotence interceptor.classes key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.age.ms metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms partitioner.class receive.buffer.bytes reconnect.backoff.max.ms
reconnect.backoff.ms request.timeout.ms retries retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config
sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
sasl.login.class sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.mechanism security.protocol security.providers
send.buffer.bytes ssl.cipher.suites ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.key.password
ssl.keymanager.algorithm ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.location ssl.truststore.password
ssl.truststore.type transaction.timeout.ms transactional.id value.serializer
+
compression.gzip.level compression.lz4.level compression.zstd.level config.providers enable.metrics.push
metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.ignore.keys
retry.backoff.max.ms sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.retry.backoff.max.ms
sasl.login.retry.backoff.ms sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
sasl.oauthbearer.token.endpoint.url socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
ssl.engine.factory.class ssl.keystore.certificate.chain ssl.keystore.key ssl.truststore.certificates
transaction.two.phase.commit.enable
"""

DEFAULTS = {
    "acks": "all",
    "batch.size": 16384,
    "buffer.memory": 32 * 1024 * 1024,
    "client.dns.lookup": "use_all_dns_ips",
    "compression.type": "none",
    "connections.max.idle.ms": 540_000,
    "delivery.timeout.ms": 120_000,
    "enable.idempotence": True,
    "linger.ms": 5,
    "max.block.ms": 60_000,
    "max.in.flight.requests.per.connection": 5,
    "max.request.size": 1024 * 1024,
    "metadata.max.age.ms": 300_000,
    "metadata.max.idle.ms": 300_000,
    "metadata.recovery.strategy": "rebootstrap",
    "partitioner.class": None,
    "request.timeout.ms": 30_000,
    "retries": 2**31 - 1,
    "retry.backoff.ms": 100,
    "retry.backoff.max.ms": 1000,
    "security.protocol": "PLAINTEXT",
    "transaction.timeout.ms": 60_000,
}


@pytest.fixture(autouse=True)
def _fresh_warnings(monkeypatch):
    monkeypatch.setattr(settings_module, "_warned_no_effect", set())


def settle(**options: Any) -> ProducerSettings:
    return build(resolve(BOOTSTRAP, **options))


def build(config: Config) -> ProducerSettings:
    return ProducerSettings.build(config, PluginLoader(config))


# -- the table ---------------------------------------------------------------------------------


@pytest.mark.behaviour("P02")
def test_every_producer_option_of_kafka_2_4_and_4_3_is_declared():
    expected = set(KAFKA_OPTIONS.split()) - {"+"}
    assert len(expected) == 113
    own = {"sasl.username", "sasl.password", "ssl.key.location", "view.url", "view.token"}
    own |= {"sasl.kerberos.keytab", "sasl.kerberos.principal"}  # librdkafka's
    assert set(PRODUCER_OPTIONS) == expected | own | {"auto.include.jmx.reporter"}  # the last is Kafka 3's


def test_every_option_has_a_doc_and_a_default_that_passes_its_own_check():
    for option in PRODUCER_OPTIONS.values():
        assert re.fullmatch(r"[A-Z`].*\.", option.doc), option.name
        if option.default is not None:
            assert option.parse(option.default) == option.default, option.name
            assert option.parse(option.show(option.default)) == option.default, option.name
        assert f"| `{option.name}` |" in PRODUCER_OPTIONS.markdown()


def test_defaults_are_those_of_kafka_4_3():
    config = resolve(BOOTSTRAP)
    assert {name: config[name] for name in DEFAULTS} == DEFAULTS


@pytest.mark.behaviour("P02")
def test_the_profile_brings_back_the_defaults_of_2_4():
    config = resolve(BOOTSTRAP, profile="2.4", retry_backoff_ms=70)
    assert config["acks"] == "1"
    assert config["enable.idempotence"] is False
    assert config["linger.ms"] == 0
    assert config["client.dns.lookup"] == "default"
    assert config["metadata.recovery.strategy"] == "none"
    assert config["retry.backoff.max.ms"] == config["retry.backoff.ms"] == 70
    assert config["socket.connection.setup.timeout.max.ms"] == config["socket.connection.setup.timeout.ms"] == 10_000
    assert config.origin("acks") == "profile"
    partitioner = PluginLoader(config).load("partitioner.class", config["partitioner.class"], partitioners.KIND)
    assert type(partitioner) is DefaultPartitioner24


def test_profiles_give_way_to_what_is_given_and_unknown_ones_are_refused():
    assert resolve(BOOTSTRAP, profile="2.4", linger_ms=3, retry_backoff_max_ms=500)["linger.ms"] == 3
    assert resolve(BOOTSTRAP, profile="2.4", retry_backoff_max_ms=500)["retry.backoff.max.ms"] == 500
    with pytest.raises(ConfigError, match=r"invalid profile: expected 2.4 or None, got '1.0'"):
        resolve(BOOTSTRAP, profile="1.0")
    assert all(name in PRODUCER_OPTIONS for profile in PROFILES.values() for name in profile)


# -- ways in -----------------------------------------------------------------------------------


def test_mapping_keywords_and_file_come_to_the_same(tmp_path):
    path = tmp_path / "producer.properties"
    path.write_text("bootstrap.servers = a:1,\\\n  b:2\nbatch.size = 7\nclient.id = me\nvalue.serializer = json\n")
    by_file = resolve(path)
    by_mapping = resolve(
        {"bootstrap.servers": ["a:1", "b:2"], "batch.size": 7, "client.id": "me", "value.serializer": "json"}
    )
    by_keywords = resolve(bootstrap_servers="a:1,b:2", batch_size=7, client_id="me", value_serializer="json")
    assert build(by_file) == build(by_mapping) == build(by_keywords)
    assert by_file.origin("batch.size") == "file"
    assert by_keywords.origin("batch.size") == "argument"
    assert resolve(str(path), batch_size=8)["batch.size"] == 8


def test_serializer_objects_win_over_configured_ones():
    config = resolve({**BOOTSTRAP, "key.serializer": "json", "value.serializer": "json"}, key_serializer=str.encode)
    assert config["key.serializer"] is str.encode or config["key.serializer"] == str.encode
    assert config["value.serializer"] == "json"


# -- what options mean together ----------------------------------------------------------------


@pytest.mark.parametrize("profile", [None, "2.4"])
@pytest.mark.behaviour("T01")
def test_idempotence_and_its_needs_are_settled_as_in_kafka(profile):
    """All combinations; the expectation is what KafkaProducer 4.3.0 and 2.4.0 were seen to do."""
    choices = {
        "acks": (None, "all", -1, 0, "1"),
        "retries": (None, 0, 3),
        "max_in_flight_requests_per_connection": (None, 5, 6),
        "enable_idempotence": (None, True, False),
        "transactional_id": (None, "t"),
    }
    for combination in itertools.product(*choices.values()):
        given = dict(zip(choices, combination, strict=True))
        acks, retries, in_flight, idempotence, transactional_id = combination
        expected = idempotence or transactional_id is not None
        on = expected or (idempotence is None and profile is None)
        fits = acks in (None, "all", -1) and retries != 0
        refused = (
            (transactional_id is not None and idempotence is False)
            or (expected and not fits)
            or (on and in_flight == 6)
        )
        if refused:
            with pytest.raises(ConfigError):
                resolve(BOOTSTRAP, profile=profile, **given)
            continue
        settings = build(resolve(BOOTSTRAP, profile=profile, **given))
        assert settings.enable_idempotence == (on and fits), given
        default_acks = 1 if profile == "2.4" and not on else -1
        assert settings.acks == {None: default_acks, "all": -1, -1: -1, 0: 0, "1": 1}[acks], given


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_idempotence": True, "acks": 1}, "acks is 1, but enable.idempotence is set and needs all"),
        ({"enable_idempotence": True, "retries": 0}, "retries is 0, but enable.idempotence is set"),
        ({"transactional_id": "t", "acks": 0}, "acks is 0, but transactional.id is set and needs all"),
        ({"transactional_id": "t", "retries": 0}, "retries is 0, but transactional.id is set"),
        ({"transactional_id": "t", "enable_idempotence": False}, "enable.idempotence is false: transactions need it"),
        ({"transactional_id": ""}, "transactional.id is ''; it may be anything but empty"),
        (
            {"max_in_flight_requests_per_connection": 6},
            "max.in.flight.requests.per.connection is 6, but idempotence allows at most 5",
        ),
        (
            {"delivery_timeout_ms": 30_004},
            "delivery.timeout.ms is 30004, but must be at least 30005: linger.ms (5) + request.timeout.ms (30000)",
        ),
        ({"transaction_two_phase_commit_enable": True}, "but no released broker supports it"),
        ({"bootstrap_servers": ""}, "bootstrap.servers is empty: set at least one broker as host:port"),
        ({"bootstrap_servers": "a:1,b"}, "bootstrap.servers: expected host:port, got 'b'"),
        ({"bootstrap_servers": "a:1,::1:9092"}, "expected host:port ([address]:port for IPv6), got '::1:9092'"),
        ({"acks": 2}, "acks is 2; it may be all, -1, 0, 1"),
        ({"compression_gzip_level": 0}, "compression.gzip.level is 0; it may be 1 to 9, or -1"),
        (
            {"security_protocol": "TLS"},
            "security.protocol is 'TLS'; it may be PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ({"ssl_keystore_type": "JKS"}, "ssl.keystore.type is 'JKS'; it may be PEM"),
        ({"lingre_ms": 5}, "unknown option 'lingre_ms'; did you mean 'linger.ms'?"),
    ],
)
@pytest.mark.behaviour("P02", "T01")
def test_contradictions_are_refused_with_the_reason(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve(BOOTSTRAP, **options)


# The lowest values in Kafka's own declarations.
LOWEST = {
    "batch.size": 0,
    "buffer.memory": 0,
    "delivery.timeout.ms": 0,
    "linger.ms": 0,
    "max.block.ms": 0,
    "max.in.flight.requests.per.connection": 1,
    "max.request.size": 0,
    "metadata.max.age.ms": 0,
    "metadata.max.idle.ms": 5000,
    "metrics.num.samples": 1,
    "metrics.sample.window.ms": 0,
    "receive.buffer.bytes": -1,
    "reconnect.backoff.max.ms": 0,
    "reconnect.backoff.ms": 0,
    "request.timeout.ms": 0,
    "retries": 0,
    "retry.backoff.max.ms": 0,
    "retry.backoff.ms": 0,
    "send.buffer.bytes": -1,
}


@pytest.mark.behaviour("P02")
@pytest.mark.parametrize("name", LOWEST)
def test_a_number_below_the_lowest_is_refused_with_name_value_and_range(name):
    option, lowest = PRODUCER_OPTIONS[name], LOWEST[name]
    assert option.parse(lowest) == lowest
    with pytest.raises(ConfigError, match=re.escape(f"{name} is {lowest - 1}; it may be {lowest} ")):
        option.parse(lowest - 1)


WRONG = {
    "bool": ("perhaps", "true or false"),
    "short": ("1.5", "a whole number"),
    "int": ("many", "a whole number"),
    "long": ("1e3", "a whole number"),
    "double": ("nan", "a number"),
    "str": (1.5, "a text"),
    "list": (7, "a list, or a text with commas between the items"),
    "class": (7, "an object, a class, or the path of a class"),
}


@pytest.mark.behaviour("P02")
def test_a_value_of_another_type_is_refused_for_every_option():
    for option in PRODUCER_OPTIONS.values():
        if option.kind in WRONG:
            value, allowed = WRONG[option.kind]
            with pytest.raises(ConfigError, match=re.escape(f"{option.name} is {value!r}; it may be {allowed}")):
                option.parse(value)


def test_bootstrap_servers_are_required():
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is empty: set at least one broker"):
        resolve()


def test_a_default_delivery_timeout_that_is_too_short_is_raised(caplog):
    config = resolve(BOOTSTRAP, linger_ms=1_000, request_timeout_ms=120_000)
    assert config["delivery.timeout.ms"] == 121_000
    assert config.origin("delivery.timeout.ms") == "derived"
    assert "delivery.timeout.ms is raised to 121000" in caplog.text
    assert resolve(BOOTSTRAP, linger_ms=2**63 - 1)["delivery.timeout.ms"] == 2**31 - 1


def test_a_reconnect_backoff_without_its_limit_is_constant():
    assert resolve(BOOTSTRAP, reconnect_backoff_ms=7)["reconnect.backoff.max.ms"] == 7
    assert resolve(BOOTSTRAP, reconnect_backoff_ms=7, reconnect_backoff_max_ms=9)["reconnect.backoff.max.ms"] == 9
    assert resolve(BOOTSTRAP)["reconnect.backoff.max.ms"] == 1000


def test_a_retry_backoff_above_its_limit_is_warned_of(caplog):
    resolve(BOOTSTRAP, retry_backoff_ms=2000)
    assert "retry.backoff.ms is 2000, above retry.backoff.max.ms, 1000" in caplog.text


def test_a_client_id_is_made_up_when_missing():
    first, second = (resolve(BOOTSTRAP).of(str, "client.id") for _ in range(2))
    assert re.fullmatch(r"producer-\d+", first)
    assert int(second.partition("-")[2]) == int(first.partition("-")[2]) + 1
    assert resolve(BOOTSTRAP, transactional_id="t")["client.id"] == "producer-t"
    assert resolve(BOOTSTRAP, client_id="me", transactional_id="t")["client.id"] == "me"


def test_options_of_java_are_accepted_and_warned_of_once(caplog):
    for _ in range(2):
        resolve({**BOOTSTRAP, "client.id": "c", "ssl.provider": "SunJSSE", "auto.include.jmx.reporter": "true"})
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "[producer client_id=c] option auto.include.jmx.reporter has no effect: Python has no JMX",
        "[producer client_id=c] option ssl.provider has no effect: TLS is OpenSSL's",
    ]
    assert settle(metric_reporters="org.apache.kafka.common.metrics.JmxReporter,my.R").metric_reporters == ("my.R",)


# -- typed settings ----------------------------------------------------------------------------


def test_settings_have_addresses_codes_and_numbers():
    settings = settle(bootstrap_servers="a:1,[::1]:9093,a:1", acks="all", metadata_recovery_strategy="NONE")
    assert settings.bootstrap_servers == (Endpoint("a", 1), Endpoint("::1", 9093))
    assert settings.acks == -1
    assert settings.rebootstrap is False
    assert settings.batch_size == 16384
    assert settings.transactional_id is None
    assert settings.tls is None
    assert settings.sasl is None


@pytest.mark.parametrize(
    ("options", "codec", "level"),
    [
        ({}, NONE, None),
        ({"compression_type": "snappy", "compression_gzip_level": 9}, SNAPPY, None),
        ({"compression_type": "gzip"}, GZIP, None),
        ({"compression_type": "gzip", "compression_gzip_level": 9}, GZIP, 9),
        ({"compression_type": "lz4"}, LZ4, None),
        ({"compression_type": "lz4", "compression_lz4_level": 12}, LZ4, 12),
        ({"compression_type": "zstd"}, ZSTD, 3),
        ({"compression_type": "zstd", "compression_zstd_level": -5}, ZSTD, -5),
    ],
)
def test_compression_comes_to_a_codec_and_a_level(options, codec, level):
    settings = settle(**options)
    assert (settings.codec, settings.compression_level) == (codec, level)


JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p\\"q"'


def test_sasl_credentials_come_from_options_or_from_jaas():
    by_jaas = settle(security_protocol="sasl_plaintext", sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=f"{JAAS};")
    assert by_jaas.sasl is not None
    assert (by_jaas.sasl.name, by_jaas.sasl.username, by_jaas.sasl.password) == ("SCRAM-SHA-256", "u", 'p"q')
    assert by_jaas.tls is None
    both = settle(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="v",
        sasl_password="w",
        sasl_jaas_config=f"{JAAS} tokenauth=false;",
    )
    assert both.sasl is not None
    assert both.tls is not None
    assert (both.sasl.username, both.sasl.password, both.sasl.token_auth) == ("v", "w", False)
    token = settle(
        security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=f'{JAAS} tokenauth="true";'
    )
    assert token.sasl is not None
    assert token.sasl.token_auth


def test_secrets_are_in_no_repr():
    config = resolve(
        BOOTSTRAP,
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_jaas_config=JAAS.replace('"u"', '"hush"'),
        sasl_username="me",
        sasl_password="hush",
        ssl_key_password="hush",
        ssl_keystore_key="hush",
        ssl_keystore_certificate_chain="chain",
    )
    settings = build(config)
    assert "hush" not in f"{config!r} {config.rows()} {settings!r}"
    assert settings.tls is not None
    assert settings.tls.key_password == "hush"


def test_a_token_provider_may_be_an_object_or_a_path_and_is_closed():
    class Provider:
        calls: list[str] = []  # noqa: RUF012 - one list for the test to see

        def configure(self, config):
            self.calls.append(config["client.id"])

        def close(self):
            self.calls.append("closed")

        def __call__(self):
            return "token"

    config = resolve(
        BOOTSTRAP,
        client_id="me",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_login_callback_handler_class=Provider,
    )
    plugins = PluginLoader(config)
    settings = ProducerSettings.build(config, plugins)
    assert settings.sasl is not None
    assert settings.sasl.token_provider is not None
    assert settings.sasl.token_provider() == "token"
    plugins.close()
    assert Provider.calls == ["me", "closed"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "GSSAPI needs sasl.kerberos.service.name"),
        ({"sasl_mechanism": "PLAIN"}, "needs sasl.username"),
        ({"sasl_mechanism": "OAUTHBEARER"}, "needs a token provider"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": "hush"}, "sasl.jaas.config: expected"),
    ],
)
def test_sasl_that_cannot_work_is_refused(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        settle(security_protocol="SASL_PLAINTEXT", **options)
    assert "hush" not in str(caught.value)


def test_tls_takes_pem_files_or_texts_but_not_both():
    settings = settle(
        security_protocol="SSL",
        ssl_truststore_location="ca.pem",
        ssl_keystore_location="me.pem",
        ssl_key_location="me.key",
        ssl_endpoint_identification_algorithm="",
        ssl_enabled_protocols="TLSv1.3",
    )
    assert settings.tls is not None
    assert (settings.tls.ca_file, settings.tls.cert_file, settings.tls.key_file) == ("ca.pem", "me.pem", "me.key")
    assert settings.tls.check_hostname is False
    assert settings.tls.protocols == ("TLSv1.3",)
    with pytest.raises(ConfigError, match=r"ssl.truststore.location and ssl.truststore.certificates are both set"):
        settle(security_protocol="SSL", ssl_truststore_location="ca.pem", ssl_truststore_certificates="text")
