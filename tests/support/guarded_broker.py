"""Brokers with ACLs and a listener for SCRAM users: Apache Kafka and headrace, with the same settings."""

from __future__ import annotations

from pathlib import Path

from headrace.broker import EmbeddedBroker
from tests.support.peers.broker import Broker
from tests.support.peers.embedded import OwnBroker
from tests.support.peers.real_kafka import RealKafka, free_ports

_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_OPTIONS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class GuardedBroker:
    """`bootstrap` is for the super user, without authentication; `sasl` for SCRAM users."""

    def __init__(self, kind: str, jars: Path, data_dir: Path) -> None:
        plain, sasl, controller = free_ports(3)
        self.bootstrap, self.sasl = f"127.0.0.1:{plain}", f"127.0.0.1:{sasl}"
        clients = f"PLAINTEXT://{self.bootstrap},SASL_PLAINTEXT://{self.sasl}"
        self.broker: Broker
        if kind == "headrace":
            self.broker = OwnBroker(EmbeddedBroker({**_OPTIONS, "listeners": clients}))
            self.broker.embedded.start()
            return
        names = ("scram-sha-256", "scram-sha-512")
        options = {
            **_OPTIONS,
            **{f"listener.name.sasl_plaintext.{name}.sasl.jaas.config": _LOGIN for name in names},
            "listeners": f"{clients},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": clients,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        }
        self.broker = RealKafka(jars, data_dir, options)
        self.broker.port = plain
        self.broker.start()

    def remove(self) -> None:
        assert isinstance(self.broker, OwnBroker | RealKafka)
        self.broker.remove()
