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
from headrace.errors import BrokerError, Code, TimedOutError

CREATE_MS_MAX = 30_000.0
"""How long to wait until brokers know a new topic and its leaders."""
POLL_MS = 20.0
SETTINGS_PREFIX = "topic.config."
_NOT_AUTHORIZED = (Code.TOPIC_AUTHORIZATION_FAILED, Code.CLUSTER_AUTHORIZATION_FAILED)
_WRONG_SETTINGS = {
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
        """Create those topics that are missing, and return all when their partitions have leaders."""
        names = list(topics)
        admin = TopicAdmin(client)
        deadline = client.deadline(min(CREATE_MS_MAX, client.settings.timeout_ms))
        existing = admin.describe_topics(names, missing_ok=True)
        for name in names:
            if name not in existing:
                self._create(admin, name)
        while not _are_ready(existing := admin.describe_topics(names, missing_ok=True), names):
            if client.clock.monotonic_ms() >= deadline:
                unknown = [name for name in names if name not in existing] or names
                raise TimedOutError(f"timed out waiting for leaders of new topics: {', '.join(unknown)}")
            client.poll(POLL_MS)
        return existing

    def _create(self, admin: TopicAdmin, name: str) -> None:
        try:
            admin.create_topics([NewTopic(name, self.partitions, self.replication_factor, self.configs)])
        except BrokerError as error:
            if error.code == Code.TOPIC_ALREADY_EXISTS:
                return
            if error.code in _NOT_AUTHORIZED:
                raise BrokerError(
                    f"not authorized to create topic {name!r} (topic.create=true): allow the operation Create on the "
                    f"topic (kafka-acls.sh --add --allow-principal … --operation Create --topic {name}), or create it",
                    code=error.code,
                ) from error
            remedy = _WRONG_SETTINGS.get(Code(error.code))
            if remedy is None:
                raise
            raise BrokerError(f"topic.create=true: {error.args[0]}; {remedy}", code=error.code) from error


def _are_ready(topics: Mapping[str, TopicDescription], names: Iterable[str]) -> bool:
    return all(
        name in topics
        and topics[name].partitions
        and all(partition.leader != NO_LEADER for partition in topics[name].partitions)
        for name in names
    )
