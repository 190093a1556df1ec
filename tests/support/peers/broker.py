"""The interface of the brokers that tests use: Apache Kafka, or the embedded one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tests.support.waiting import eventually

ADMIN_SECONDS_MAX = 30


class Broker(Protocol):
    """A broker of one node on loopback."""

    @property
    def bootstrap(self) -> str:
        """host:port, the same over restarts."""

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic, wait until it is there, and return its name."""

    def kill(self) -> None:
        """End it as a power cut would."""

    def stop(self) -> None:
        """End it in good order. Both may be called again when there is nothing left to end."""

    def restart(self) -> None:
        """Start the broker again with the same port and data, after stopping it if it is running."""


def create_topic(
    bootstrap: str, name: str, partitions: int, configs: Mapping[str, str] | None, replication_factor: int = 1
) -> str:
    """Create a topic by librdkafka's admin client, and wait until every partition has a leader that knows it."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topic = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=dict(configs or {}))
    admin.create_topics([topic], request_timeout=ADMIN_SECONDS_MAX)[name].result(timeout=ADMIN_SECONDS_MAX)
    # The response comes, and metadata has the topic, before the leader has created its log.
    spec = OffsetSpec.latest()
    specs = {TopicPartition(name, number): spec for number in range(partitions)}
    eventually(f"leaders of topic {name}", lambda: _all_have_logs(admin, specs))
    return name


def _all_have_logs(admin: AdminClient, specs: dict[TopicPartition, OffsetSpec]) -> bool:
    futures = admin.list_offsets(specs, request_timeout=ADMIN_SECONDS_MAX)
    return not any(future.exception(timeout=ADMIN_SECONDS_MAX) for future in futures.values())
