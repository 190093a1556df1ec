"""The brokers that suites run on: Apache Kafka 4.3, one headrace broker, and three."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from headrace.broker import EmbeddedBroker, EmbeddedCluster
from headrace.broker.ports import free_port
from tests.suites.suite import Target
from tests.support.peers.maven import kafka_jars
from tests.support.peers.real_kafka import RealKafka, free_ports

APACHE_VERSION = "4.3.0"
SCRAM_USER, SCRAM_PASSWORD = "suite", "suite-secret"
ADMIN_SECONDS_MAX = 30
# As librdkafka and confluent-kafka set up Kafka for their tests; racks are for fetches from followers.
_COMMON = {
    "num.partitions": "4",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "group.initial.rebalance.delay.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
}
_ALONE = {
    "broker.rack": "RACK1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
_SCRAM = {
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    )
}


@contextmanager
def apache(options: Mapping[str, str]) -> Iterator[Target]:
    """Apache Kafka, one node."""
    with tempfile.TemporaryDirectory() as folder:
        (scram_port,) = free_ports(1)
        properties = {**_COMMON, **_ALONE, **_SCRAM, **options}
        kafka = RealKafka(kafka_jars(APACHE_VERSION), Path(folder) / "kafka", properties)
        clients = f"PLAINTEXT://127.0.0.1:{kafka.port},SASL_PLAINTEXT://127.0.0.1:{scram_port}"
        kafka.set(
            listeners=f"{clients},CONTROLLER://127.0.0.1:{kafka.controller_port}",
            advertised_listeners=clients,
            listener_security_protocol_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            inter_broker_listener_name="PLAINTEXT",
            controller_quorum_voters=f"{options.get('node.id', 1)}@127.0.0.1:{kafka.controller_port}",
        )
        try:
            kafka.start()
            yield _target("apache", kafka.bootstrap, f"127.0.0.1:{scram_port}", 1)
        finally:
            kafka.remove()


@contextmanager
def headrace(options: Mapping[str, str]) -> Iterator[Target]:
    """One headrace broker."""
    scram = f"127.0.0.1:{free_port()}"
    listeners = f"PLAINTEXT://127.0.0.1:{free_port()},SASL_PLAINTEXT://{scram}"
    addresses = {"listeners": listeners, "advertised.listeners": listeners}
    with EmbeddedBroker({**_COMMON, **_ALONE, **addresses, **options}) as broker:
        yield _target("headrace", broker.bootstrap, scram, 1)


@contextmanager
def headrace_cluster(options: Mapping[str, str]) -> Iterator[Target]:
    """Three headrace brokers, and a controller."""
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    racks = ("RACK1", "RACK2", "RACK3")
    # Kafka's default; that of EmbeddedCluster is 2.
    common = {**_COMMON, "listeners": listeners, "min.insync.replicas": "1", **options}
    with EmbeddedCluster(3, common, racks=racks) as cluster:
        nodes = cluster.controller.known_brokers()
        hosts = [nodes[number]["listeners"]["SASL_PLAINTEXT"] for number in (1, 2, 3)]
        scram = ",".join(f"{host}:{port}" for host, port in hosts)
        yield _target("cluster", cluster.bootstrap_servers, scram, 3)


Start = Callable[[Mapping[str, str]], AbstractContextManager[Target]]
TARGETS: dict[str, Start] = {"apache": apache, "headrace": headrace, "cluster": headrace_cluster}


def _target(name: str, bootstrap_servers: str, scram: str, brokers: int) -> Target:
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion(SCRAM_USER, credential, SCRAM_PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(ADMIN_SECONDS_MAX)
    return Target(name, bootstrap_servers, brokers, scram, SCRAM_USER, SCRAM_PASSWORD)
