"""Options of topics and brokers: precedence, sources and changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.broker_options import BROKER_OPTIONS, resolve
from headrace.broker.catalog import Catalog
from headrace.broker.catalog.configs import BROKER, TOPIC
from headrace.broker.configs import DYNAMIC, ConfigSource, Configurations, Entry, ResourceType
from headrace.broker.handlers.configs import ConfigChange, Op, alter_options, replace_all
from headrace.broker.topic_options import TOPIC_OPTIONS
from headrace.errors import BrokerError, Code

NODE = 1
DAY_MS = 24 * 60 * 60 * 1000


class Rig:
    def __init__(self, folder: Path, **static: str) -> None:
        config = resolve(("file", {name.replace("_", "."): value for name, value in static.items()}))
        self.catalog = Catalog(folder / "catalog")
        self.catalog.record(self.catalog.topics.creation("orders", [[NODE]]))
        self.configurations = Configurations(config, self.catalog, NODE)
        self.broker: Any = SimpleNamespace(config=config, catalog=self.catalog, configurations=self.configurations)

    def topic(self, option: str) -> Entry:
        return next(entry for entry in self.configurations.of_topic("orders") if entry.option.name == option)

    def node(self, option: str, name: str = str(NODE)) -> Entry:
        return next(entry for entry in self.configurations.of_broker(name) if entry.option.name == option)

    def change(self, *changes: tuple[str, Op, str | None], kind=ResourceType.TOPIC, name="orders", dry=False) -> None:
        alter_options(self.broker, kind, name, [ConfigChange(*row) for row in changes], validate_only=dry)

    def set(self, option: str, value: str, **where: Any) -> None:
        self.change((option, Op.SET, value), **where)

    @property
    def own(self) -> dict[str, str]:
        return dict(self.catalog.configs.of(TOPIC, "orders"))


ON_NODE: dict[str, Any] = {"kind": ResourceType.BROKER, "name": str(NODE)}
ON_ALL: dict[str, Any] = {"kind": ResourceType.BROKER, "name": ""}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_every_option_has_its_default(rig) -> None:
    entries = {entry.option.name: entry for entry in rig.configurations.of_topic("orders")}
    assert entries.keys() == {name for name in TOPIC_OPTIONS if not name.startswith("internal.")}
    # As in Apache Kafka with KIP-966: an option of all brokers.
    assert entries.pop("min.insync.replicas").source == ConfigSource.DYNAMIC_DEFAULT_BROKER
    assert all(entry.source == ConfigSource.DEFAULT for entry in entries.values())
    assert {entry.option.name for entry in rig.configurations.of_broker(str(NODE))} == BROKER_OPTIONS.keys()


def test_the_most_specific_value_applies(tmp_path) -> None:
    rig = Rig(tmp_path, message_max_bytes="1000")
    assert (rig.topic("max.message.bytes").value, rig.topic("max.message.bytes").source) == (
        "1000",
        ConfigSource.STATIC_BROKER,
    )
    rig.set("message.max.bytes", "2000", **ON_ALL)
    assert (rig.topic("max.message.bytes").value, rig.topic("max.message.bytes").source) == (
        "2000",
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
    )
    rig.set("message.max.bytes", "3000", **ON_NODE)
    rig.set("max.message.bytes", "4000")
    entry = rig.topic("max.message.bytes")
    assert entry.value == "4000"
    assert [tuple(synonym) for synonym in entry.synonyms] == [
        ("max.message.bytes", "4000", ConfigSource.DYNAMIC_TOPIC),
        ("message.max.bytes", "3000", ConfigSource.DYNAMIC_BROKER),
        ("message.max.bytes", "2000", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("message.max.bytes", "1000", ConfigSource.STATIC_BROKER),
        ("message.max.bytes", "1048588", ConfigSource.DEFAULT),
    ]
    rig.change(("max.message.bytes", Op.DELETE, None))
    assert rig.topic("max.message.bytes").value == "3000"
    assert rig.node("message.max.bytes").value == "3000"
    assert rig.node("message.max.bytes", "").value == "2000"
    rig.change(("message.max.bytes", Op.DELETE, None), **ON_NODE)
    rig.change(("message.max.bytes", Op.DELETE, None), **ON_ALL)
    assert rig.topic("max.message.bytes").value == "1000"


def test_a_duration_may_be_set_in_another_unit(tmp_path) -> None:
    rig = Rig(tmp_path, log_retention_hours="24")
    entry = rig.topic("retention.ms")
    assert (entry.value, entry.source) == (str(DAY_MS), ConfigSource.STATIC_BROKER)
    assert entry.synonyms[0] == ("log.retention.hours", "24", ConfigSource.STATIC_BROKER)


def test_secrets_are_hidden(tmp_path) -> None:
    rig = Rig(tmp_path, ssl_key_password="verysecret")
    entry = rig.node("ssl.key.password")
    assert entry.is_sensitive
    assert entry.value is None
    assert [tuple(synonym) for synonym in entry.synonyms] == [("ssl.key.password", None, ConfigSource.STATIC_BROKER)]
    assert not any("verysecret" in str((row.value, row.synonyms)) for row in rig.configurations.of_broker(str(NODE)))


def test_only_dynamic_options_are_writable(rig) -> None:
    assert not rig.node("log.retention.ms").read_only
    assert rig.node("listeners").read_only
    assert BROKER_OPTIONS.keys() >= DYNAMIC
    with pytest.raises(BrokerError, match="listeners cannot be changed at run time") as caught:
        rig.set("listeners", "PLAINTEXT://:1", **ON_NODE)
    assert caught.value.code == Code.INVALID_REQUEST


def test_lists_support_append_and_subtract(rig) -> None:
    rig.change(("cleanup.policy", Op.APPEND, "compact"))
    assert rig.own == {"cleanup.policy": "delete,compact"}
    rig.change(("cleanup.policy", Op.APPEND, "compact"))
    assert rig.own == {"cleanup.policy": "delete,compact"}
    rig.change(("cleanup.policy", Op.SUBTRACT, "delete"))
    assert rig.own == {"cleanup.policy": "compact"}
    with pytest.raises(BrokerError, match=r"APPEND is invalid for retention\.ms: it is not a list") as caught:
        rig.change(("retention.ms", Op.APPEND, "5"))
    assert caught.value.code == Code.INVALID_CONFIG


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ([("retention.ms", Op.SET, "-5")], Code.INVALID_CONFIG, "retention.ms is '-5'; it may be -1 or more"),
        ([("cleanup.policy", Op.SET, "shred")], Code.INVALID_CONFIG, "compact, delete"),
        ([("retention.sm", Op.SET, "5")], Code.INVALID_CONFIG, "did you mean 'retention.ms'?"),
        ([("retention.sm", Op.DELETE, None)], Code.INVALID_CONFIG, "did you mean 'retention.ms'?"),
        ([("retention.ms", Op.SET, None)], Code.INVALID_REQUEST, "retention.ms has no value"),
        ([("retention.ms", 9, "5")], Code.INVALID_REQUEST, "invalid operation 9"),
        (
            [("retention.ms", Op.SET, "5"), ("retention.ms", Op.SET, "6")],
            Code.INVALID_REQUEST,
            "duplicate option retention.ms",
        ),
    ],
)
def test_an_invalid_change_is_rejected_as_a_whole(rig, changes, code, words) -> None:
    with pytest.raises(BrokerError) as caught:
        rig.change(("segment.ms", Op.SET, "7"), *changes)
    assert caught.value.code == code
    assert words in str(caught.value)
    assert rig.own == {}


def test_validate_only_changes_nothing(rig) -> None:
    rig.change(("retention.ms", Op.SET, "5"), dry=True)
    assert rig.own == {}
    with pytest.raises(BrokerError):
        rig.change(("retention.ms", Op.SET, "never"), dry=True)


def test_replacing_deletes_options_that_are_omitted(rig) -> None:
    rig.set("retention.ms", "5")
    replace_all(rig.broker, ResourceType.TOPIC, "orders", {"segment.ms": "6"}, validate_only=False)
    assert rig.own == {"segment.ms": "6"}
    with pytest.raises(BrokerError, match=r"segment\.ms has no value"):
        replace_all(rig.broker, ResourceType.TOPIC, "orders", {"segment.ms": None}, validate_only=False)
    replace_all(rig.broker, ResourceType.TOPIC, "orders", {}, validate_only=False)
    assert rig.own == {}


def test_an_unchanged_value_is_not_recorded(rig) -> None:
    rig.set("retention.ms", "5")
    heard: list[object] = []
    rig.catalog.listeners.append(heard.append)
    rig.set("retention.ms", "5")
    rig.change(("segment.ms", Op.DELETE, None))
    assert heard == []
    rig.set("retention.ms", "6")
    assert heard == [rig.catalog.configs.change(TOPIC, "orders", {"retention.ms": "6"})]


def test_the_current_configuration_includes_dynamic_changes(rig) -> None:
    assert rig.configurations.current() is rig.broker.config
    rig.set("log.retention.ms", "5", **ON_ALL)
    rig.set("log.retention.ms", "6", **ON_NODE)
    assert rig.configurations.current()["log.retention.ms"] == 6
    assert rig.catalog.configs.of(BROKER, "") == {"log.retention.ms": "5"}


def test_options_of_another_broker_are_rejected(rig) -> None:
    with pytest.raises(BrokerError, match="invalid broker '9': expected 1"):
        next(rig.configurations.of_broker("9"))
