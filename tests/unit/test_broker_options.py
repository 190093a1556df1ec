"""The options of a broker: a server.properties of Kafka can be used, and differences are documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import broker
from headrace.broker.broker_options import BROKER_OPTIONS, data_folder, for_listener, resolve
from headrace.config import Secret, parse_properties
from headrace.errors import ConfigError

# What comes with Apache Kafka 4.3, without its comments.
SERVER_PROPERTIES = """
process.roles=broker,controller
node.id=7
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_a_server_properties_of_kafka_can_be_used() -> None:
    config = resolve(("file", parse_properties(SERVER_PROPERTIES)))
    assert config.unused == set()
    assert config["node.id"] == 7
    assert data_folder(config) == Path("/tmp/kraft-combined-logs")


def test_every_default_is_valid() -> None:
    for option in BROKER_OPTIONS.values():
        if option.default is not None:
            assert option.parse(option.default) == option.default, option.name
            assert option.parse(option.show(option.default)) == option.default, option.name
        assert option.doc.endswith("."), option.name


def test_by_default_the_broker_listens_on_the_loopback_interface_only() -> None:
    assert resolve()["listeners"] == ("PLAINTEXT://127.0.0.1:9092",)


def test_deprecated_names_are_resolved() -> None:
    assert resolve(("file", {"broker.id": "5"}))["node.id"] == 5
    assert resolve(("file", {"broker.id": "5", "node.id": "6"}))["node.id"] == 6
    assert data_folder(resolve(("file", {"log.dir": "here"}))) == Path("here")


def test_several_data_folders_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"log\.dirs is '.*,.*'; it may be one folder"):
        data_folder(resolve(("file", {"log.dirs": "a,b"})))


def test_the_option_of_a_listener_overrides_the_general_one() -> None:
    config = resolve(
        (
            "file",
            {
                "ssl.client.auth": "required",
                "listener.name.inside.ssl.client.auth": "none",
                "sasl.jaas.config": "for all",
                "listener.name.inside.plain.sasl.jaas.config": "for one",
                "connections.max.reauth.ms": "10",
                "listener.name.inside.scram-sha-256.connections.max.reauth.ms": "20",
            },
        )
    )
    assert for_listener(config, "INSIDE", "ssl.client.auth") == "none"
    assert for_listener(config, "OUTSIDE", "ssl.client.auth") == "required"
    assert for_listener(config, "INSIDE", "sasl.jaas.config", "PLAIN") == Secret("for one")
    assert for_listener(config, "OUTSIDE", "sasl.jaas.config", "PLAIN") == Secret("for all")
    assert for_listener(config, "INSIDE", "connections.max.reauth.ms", "SCRAM-SHA-256") == 20
    assert for_listener(config, "INSIDE", "connections.max.reauth.ms", "PLAIN") == 10
    assert config.unused == set()  # all of them were read


def test_no_secret_is_ever_shown() -> None:
    config = resolve(("file", {"sasl.plain.users": "ann:verysecret", "ssl.key.password": "verysecret"}))
    assert "verysecret" not in repr(config)
    assert not any("verysecret" in text for _, text, _ in config.rows())


def test_every_option_that_claims_to_have_an_effect_is_read_somewhere() -> None:
    folder = Path(broker.__file__).parent
    sources = [path for path in folder.rglob("*.py") if folder / "options" not in path.parents]
    text = "".join(path.read_text() for path in sources)
    checked_only = {"ssl.keystore.type", "ssl.truststore.type"}
    acting = {name for name, option in BROKER_OPTIONS.items() if not option.no_effect}
    assert {name for name in acting if f'"{name}"' not in text} == checked_only
