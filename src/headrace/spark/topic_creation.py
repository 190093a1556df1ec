"""Creates missing topics, with the option topic.create.

    planning    the topics of the options topic and dead.letter.topic, before the first batch
    tasks       topics that rows name, when a task sends to one for the first time
    committing  topics that inline rows name

Several of them may create a topic at the same time: the first succeeds, and the others use its topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headrace.client.admin.topics import BROKERS_DEFAULT, NewTopic, TopicAdmin, TopicDescription
from headrace.client.blocking import BlockingClient
from headrace.client.metadata import NO_LEADER
from headrace.errors import BrokerError, Code, UnknownTopicOrPartitionError
from headrace.spark.errors import PlanError

CREATE_MS_MAX = 30_000.0
"""How long to wait until brokers know a new topic and its leaders."""
POLL_MS = 20.0
SETTINGS_PREFIX = "topic.config."
_NOT_AUTHORIZED = (Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED)
_WRONG_SETTINGS: dict[int, str] = {
    Code.INVALID_PARTITIONS: "change topic.partitions",
    Code.INVALID_REPLICATION_FACTOR: "change topic.replication.factor",
    Code.INVALID_CONFIG: f"change {SETTINGS_PREFIX}*",
    Code.POLICY_VIOLATION: f"change topic.partitions, topic.replication.factor or {SETTINGS_PREFIX}*",
}


@dataclass(frozen=True, slots=True)
class TopicCreation:
    """The settings of topics that the sink creates."""

    partitions: int = BROKERS_DEFAULT
    replication_factor: int = BROKERS_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)

    def ensure(self, client: BlockingClient, topics: Iterable[str]) -> dict[str, TopicDescription]:
        """Create those topics that are missing, wait until their partitions have leaders, and return all topics."""
        admin = TopicAdmin(client)
        deadline = client.deadline(min(CREATE_MS_MAX, client.settings.timeout_ms))
        descriptions: dict[str, TopicDescription] = {}
        for name in topics:
            topic = _describe(admin, name)
            if topic is not None:
                descriptions[name] = topic
                continue
            self._create(admin, name)
            while topic is None or any(partition.leader == NO_LEADER for partition in topic.partitions):
                if client.clock.monotonic_ms() >= deadline:
                    raise PlanError(f"topic {name!r} was created, but has no leaders yet: check the brokers")
                client.poll(POLL_MS)
                topic = _describe(admin, name)
            descriptions[name] = topic
        return descriptions

    def _create(self, admin: TopicAdmin, name: str) -> None:
        try:
            admin.create_topics([NewTopic(name, self.partitions, self.replication_factor, self.configs)])
        except BrokerError as error:
            if error.code == Code.TOPIC_ALREADY_EXISTS:
                return
            if error.code in _NOT_AUTHORIZED:
                raise PlanError(
                    f"not authorized to create topic {name!r} (topic.create=true): allow the operation Create on the "
                    f"topic (kafka-acls.sh --add --allow-principal … --operation Create --topic {name}), or create it"
                ) from error
            remedy = _WRONG_SETTINGS.get(error.code)
            if remedy is None:
                raise
            raise PlanError(f"topic.create=true: {error}; {remedy}") from error


def _describe(admin: TopicAdmin, name: str) -> TopicDescription | None:
    """Return a topic, or None if it does not exist."""
    try:
        return admin.describe_topics([name])[name]
    except UnknownTopicOrPartitionError:
        return None
