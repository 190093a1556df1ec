"""SASL GSSAPI: headrace's clients and broker, Apache Kafka and Java's client, in a Kerberos realm."""

from __future__ import annotations

import pytest

from headrace import Consumer, Producer
from headrace.broker import EmbeddedBroker
from headrace.broker.ports import free_port
from headrace.client.admin import AdminClient
from headrace.client.credentials import SaslSettings
from headrace.client.kerberos import KerberosSettings
from headrace.errors import AuthenticationError, TopicAuthorizationError
from headrace.wire.api.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.support import kerberos_realm
from tests.support.kerberos_realm import REALM, Realm
from tests.support.peers import java
from tests.support.peers.connection import Connection
from tests.support.peers.real_kafka import RealKafka
from tests.support.topics import unique

SERVICE = "kafka/localhost"
LOGIN_MODULE = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
RULES = r"RULE:[2:$1](spark)s/spark/batch-$0/, DEFAULT"


class KerberosBroker:
    """A broker with a GSSAPI listener at `bootstrap`, and the users that it sees."""

    def __init__(self, bootstrap, keytabs):
        self.bootstrap = bootstrap
        self.keytabs = keytabs

    def options(self, name, **more):
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "GSSAPI",
            "sasl_kerberos_service_name": "kafka",
            "sasl_kerberos_keytab": self.keytabs[name],
            "sasl_kerberos_principal": name,
            **more,
        }


@pytest.fixture(scope="module")
def realm(tmp_path_factory):
    if (reason := kerberos_realm.missing_reason()) is not None:
        pytest.skip(f"no Kerberos: {reason}")
    realm = Realm(tmp_path_factory.mktemp("kerberos"))
    with pytest.MonkeyPatch.context() as patch, realm.running():
        for name, value in realm.environment.items():
            patch.setenv(name, value)
        yield realm


@pytest.fixture(scope="module")
def keytabs(realm):
    return {name: realm.keytab(name) for name in (SERVICE, "ann", "spark/worker1")}


def jaas(keytab):
    return f'{LOGIN_MODULE} keyTab="{keytab}" principal="{SERVICE}@{REALM}";'


@pytest.fixture(scope="module")
def apache(kafka_jars, tmp_path_factory, realm, keytabs):
    options = (f"-Djava.security.krb5.conf={realm.environment['KRB5_CONFIG']}", *java.SHORT_LIVED)
    broker = RealKafka(kafka_jars("4.3.0"), tmp_path_factory.mktemp("kerberos") / "kafka", jvm_options=options)
    lines = (
        "sasl.enabled.mechanisms=GSSAPI",
        "sasl.kerberos.service.name=kafka",
        f"listener.name.kerberos.gssapi.sasl.jaas.config={jaas(keytabs[SERVICE])}",
    )
    address = broker.add_listener("KERBEROS", "SASL_PLAINTEXT", lines, host="localhost")
    try:
        broker.start()
        yield KerberosBroker(address, keytabs)
    finally:
        broker.remove()


@pytest.fixture(scope="module")
def ours(realm, keytabs):
    options = {
        "listeners": f"SASL_PLAINTEXT://localhost:{free_port()}",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.jaas.config": jaas(keytabs[SERVICE]),
        "sasl.kerberos.principal.to.local.rules": RULES,
        "authorizer.class.name": "acl",
        "super.users": "User:ann;User:batch-spark",
    }
    with EmbeddedBroker(options) as broker:
        yield KerberosBroker(broker.bootstrap, keytabs)


@pytest.fixture(params=["apache", "ours"])
def kerberos(request):
    return request.getfixturevalue(request.param)


def sasl_of(broker, name="ann"):
    return SaslSettings("GSSAPI", kerberos=KerberosSettings("kafka", name, broker.keytabs[name]))


def test_records_are_sent_and_read_with_a_keytab(kerberos):
    topic = unique("kerberos")
    with Producer(**kerberos.options("ann")) as producer:
        assert producer.send(topic, b"one").result(30).offset == 0
    with Consumer(**kerberos.options("ann"), group_id=unique("group"), auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        assert next(iter(consumer)).value == b"one"


def test_java_names_of_the_credentials_work(kerberos):
    keytab = kerberos.keytabs["spark/worker1"]
    text = f'{LOGIN_MODULE} keyTab="{keytab}" principal="spark/worker1@{REALM}" serviceName="kafka";'
    options = kerberos.options("ann", sasl_jaas_config=text)
    for name in ("sasl_kerberos_keytab", "sasl_kerberos_principal", "sasl_kerberos_service_name"):
        del options[name]
    with Producer(**options) as producer:
        assert producer.send(unique("kerberos"), b"one").result(30).offset == 0


def test_the_ticket_of_kinit_is_used(kerberos, realm):
    settings = SaslSettings("GSSAPI", kerberos=KerberosSettings("kafka"))
    realm.kinit("ann", kerberos.keytabs["ann"])
    with AdminClient(kerberos.bootstrap, sasl=settings) as admin:
        assert admin.describe_cluster().brokers
    realm.kdestroy()
    with AdminClient(kerberos.bootstrap, sasl=settings) as admin, pytest.raises(AuthenticationError, match="run kinit"):
        admin.describe_cluster()


def test_an_unknown_service_is_an_error_with_a_remedy(kerberos):
    settings = KerberosSettings("kafak", "ann", kerberos.keytabs["ann"])
    with (
        AdminClient(kerberos.bootstrap, sasl=SaslSettings("GSSAPI", kerberos=settings)) as admin,
        pytest.raises(AuthenticationError, match=r"no Kerberos ticket for kafak/localhost .*not found in Kerberos"),
    ):
        admin.describe_cluster()


def test_users_are_named_by_rules_and_others_refused(ours, realm):
    with AdminClient(ours.bootstrap, sasl=sasl_of(ours, "spark/worker1")) as admin:
        assert admin.describe_cluster().brokers
    keytab = realm.keytab("eve/host")
    options = ours.options("ann", sasl_kerberos_principal="eve/host", sasl_kerberos_keytab=keytab)
    with Producer(**options) as producer, pytest.raises(TopicAuthorizationError):
        producer.send(unique("kerberos"), b"one").result(30)


@pytest.mark.parametrize("token", [b"", b"garbage", b"\x60\x82\xff\xff" + bytes(2000)])
def test_invalid_tickets_are_refused(ours, token):
    host, _, port = ours.bootstrap.rpartition(":")
    assert host == "localhost"
    with Connection(f"127.0.0.1:{port}") as connection:
        assert connection.call(SaslHandshakeRequest(mechanism="GSSAPI"), 1).error_code == 0
        response = connection.call(SaslAuthenticateRequest(auth_bytes=token), 2)
        assert response.error_code == 58
        assert "invalid Kerberos ticket" in str(response.error_message)


def test_javas_tools_log_in_to_the_headrace_broker(ours, realm, kafka_jars, tmp_path):
    config = tmp_path / "client.properties"
    text = f'{LOGIN_MODULE} keyTab="{ours.keytabs["ann"]}" principal="ann@{REALM}";'
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        f"sasl.jaas.config={text}\n"
    )
    topic = unique("kerberos")
    command = java.java_command(
        kafka_jars("4.3.0"),
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", ours.bootstrap, "--command-config", str(config)),
        *("--create", "--topic", topic),
        options=(f"-Djava.security.krb5.conf={realm.environment['KRB5_CONFIG']}", *java.SHORT_LIVED),
    )
    assert f"Created topic {topic}" in java.run(command)


def test_a_missing_keytab_keeps_the_broker_from_starting(realm, tmp_path):
    options = {
        "listeners": "SASL_PLAINTEXT://localhost:0",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.jaas.config": jaas(tmp_path / "none.keytab"),
    }
    with pytest.raises(Exception, match=r"none\.keytab has no usable key of kafka/localhost"):
        EmbeddedBroker(options).start()
