"""Creating, extending and deleting topics: validation, then an event in the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.broker.catalog import Catalog
from headrace.broker.catalog.configs import TOPIC, Configs
from headrace.broker.catalog.topics import Topic, Topics, check_name
from headrace.broker.configs import ResourceType, check_values
from headrace.broker.placement import place_with_inactive
from headrace.config import Config
from headrace.errors import BrokerError, Code
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.broker.log.manager import Stray

PARTITIONS_MAX = 10_000
"""The limit for a topic and for a request, as in Kafka's controller."""
DEFAULT = -1
"""A number of partitions or replicas that the broker's configuration determines."""

Assignment = Sequence[Sequence[int]]
"""The replicas of each partition, the preferred leader first."""


class TopicManager:
    """Creates, extends and deletes topics. Errors are BrokerErrors with Kafka's codes."""

    def __init__(
        self, catalog: Catalog, node_id: int | None, config: Config, strays: Mapping[TopicPartition, Stray]
    ) -> None:
        """`node_id` is the broker for all partitions of a standalone broker; None: it has no partitions.

        `strays` are stray data folders by topic and partition, whose names new topics must not use.
        """
        self._catalog = catalog
        self._node_id = node_id
        self._config = config
        self._strays = strays

    def create(
        self,
        name: str,
        partitions: int = DEFAULT,
        replication_factor: int = DEFAULT,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Assignment | None = None,
        validate_only: bool = False,
        internal: bool = False,
    ) -> Topic:
        """Create a topic; with `validate_only` only return what it would be."""
        self._check_new_name(name, internal)
        if assignment is None:
            assignment = self._assign(partitions, replication_factor)
        else:
            self._check_assignment(assignment, partitions, replication_factor)
        self.check_configs(configs or {})
        creation = Topics.creation(name, assignment, self._is_active)
        if validate_only:
            scratch = Topics()
            scratch.apply(creation)
            return scratch.by_name[name]
        # The options first: the log is created with the topic.
        changes = [Configs.change(TOPIC, name, configs)] if configs else []
        self._catalog.record(*changes, creation)
        return self._catalog.topics.by_name[name]

    def auto_create(self, name: str) -> Topic:
        """Create a topic with default settings, for auto.create.topics.enable."""
        return self.create(name)

    def delete(self, topic: Topic) -> None:
        """Delete a topic and its options."""
        if not self._config.of(bool, "delete.topic.enable"):
            raise BrokerError("delete.topic.enable is false on this broker", code=Code.TOPIC_DELETION_DISABLED)
        configs = self._catalog.configs.of(TOPIC, topic.name)
        changes = [Configs.change(TOPIC, topic.name, dict.fromkeys(configs))] if configs else []
        self._catalog.record(Topics.deletion(topic), *changes)

    def add_partitions(
        self, topic: Topic, total: int, assignment: Assignment | None = None, *, validate_only: bool = False
    ) -> None:
        """Extend a topic to `total` partitions; `assignment` has the replicas of the new ones."""
        added = total - len(topic.partitions)
        if added <= 0:
            raise BrokerError(
                f"invalid partition count {total}: topic {topic.name} already has {len(topic.partitions)} partitions",
                code=Code.INVALID_PARTITIONS,
            )
        _check_count(added)
        if assignment is None:
            replicas = len(topic.partitions[0].replicas)
            assignment = self._assign(added, replicas, first_partition=len(topic.partitions))
        elif len(assignment) != added:
            raise BrokerError(
                f"invalid assignment: it has {len(assignment)} partitions, expected {added}",
                code=Code.INVALID_REPLICA_ASSIGNMENT,
            )
        else:
            self._check_assignment(assignment, DEFAULT, DEFAULT)
        if not validate_only:
            self._catalog.record(Topics.growth(topic, assignment, self._is_active))

    def check_configs(self, configs: Mapping[str, str | None]) -> None:
        """Raise INVALID_CONFIG unless all are topic options with valid values."""
        for name, value in configs.items():
            if value is None:
                raise BrokerError(f"{name} has no value", code=Code.INVALID_CONFIG)
        check_values(ResourceType.TOPIC, configs, self._config)

    # -- checks ----------------------------------------------------------------------------------

    def _check_new_name(self, name: str, internal: bool) -> None:
        check_name(name)
        if name in self._catalog.topics.by_name:
            raise BrokerError(f"topic {name} already exists", code=Code.TOPIC_ALREADY_EXISTS)
        if Topic(name, b"", []).is_internal and not internal:
            raise BrokerError(f"topic {name} is internal and created by the broker", code=Code.INVALID_TOPIC_EXCEPTION)
        for (topic, _), stray in self._strays.items():
            if topic == name:
                raise BrokerError(
                    f"cannot create topic {name}: {stray.folder} has records of another topic of that name "
                    f"({stray.reason}); run `headrace broker repair` on that broker's data folder",
                    code=Code.INVALID_TOPIC_EXCEPTION,
                )
        similar = next((other for other in self._catalog.topics.by_name if _folded(other) == _folded(name)), None)
        if similar is not None:
            raise BrokerError(
                f"invalid topic name {name}: it collides with {similar} in metrics (. and _ are equal there)",
                code=Code.INVALID_TOPIC_EXCEPTION,
            )

    def _assign(self, partitions: int, replication_factor: int, *, first_partition: int = 0) -> Assignment:
        if partitions == DEFAULT:
            partitions = self._config.of(int, "num.partitions")
        if replication_factor == DEFAULT:
            replication_factor = self._config.of(int, "default.replication.factor")
        if partitions < 1:
            raise BrokerError(
                f"invalid partition count {partitions}: expected at least 1", code=Code.INVALID_PARTITIONS
            )
        _check_count(partitions)
        if replication_factor < 1:
            raise BrokerError(
                f"invalid replication factor {replication_factor}: expected at least 1",
                code=Code.INVALID_REPLICATION_FACTOR,
            )
        if self._catalog.brokers.by_id or self._node_id is None:
            brokers = self._catalog.brokers.by_id
            racks = {node_id: broker.rack for node_id, broker in brokers.items() if self._is_active(node_id)}
            inactive = [node_id for node_id in sorted(brokers) if node_id not in racks]
            return place_with_inactive(racks, inactive, partitions, replication_factor, first_partition)
        if replication_factor > 1:
            raise BrokerError(
                f"invalid replication factor {replication_factor}: this is the only broker",
                code=Code.INVALID_REPLICATION_FACTOR,
            )
        return [[self._node_id]] * partitions

    def _check_assignment(self, assignment: Assignment, partitions: int, replication_factor: int) -> None:
        if partitions != DEFAULT or replication_factor != DEFAULT:
            raise BrokerError(
                "invalid request: an assignment excludes partition count and replication factor",
                code=Code.INVALID_REQUEST,
            )
        _check_count(len(assignment))
        for index, brokers in enumerate(assignment):
            self.check_replicas(f"partition {index}", brokers)
            if not any(map(self._is_active, brokers)):
                raise BrokerError(
                    f"partition {index}: none of the brokers {list(brokers)} is live",
                    code=Code.INVALID_REPLICA_ASSIGNMENT,
                )
            if len(brokers) != len(assignment[0]):
                raise BrokerError(
                    f"partition {index} has {len(brokers)} replicas, partition 0 has {len(assignment[0])}",
                    code=Code.INVALID_REPLICA_ASSIGNMENT,
                )

    def check_replicas(self, what: str, brokers: Sequence[int]) -> None:
        """Raise unless the replicas are known brokers without duplicates."""
        if not brokers or len(set(brokers)) != len(brokers):
            raise BrokerError(
                f"{what}: invalid replicas {list(brokers)}: expected one or more brokers without duplicates",
                code=Code.INVALID_REPLICA_ASSIGNMENT,
            )
        known = self._catalog.brokers.by_id.keys() or {self._node_id}
        for broker in brokers:
            if broker not in known:
                raise BrokerError(f"{what}: unknown broker {broker}", code=Code.INVALID_REPLICA_ASSIGNMENT)

    def _is_active(self, node_id: int) -> bool:
        row = self._catalog.brokers.by_id.get(node_id)
        return row is None or not (row.fenced or row.stopping)


def _folded(name: str) -> str:
    return name.replace(".", "_")


def _check_count(partitions: int) -> None:
    if partitions > PARTITIONS_MAX:
        raise BrokerError(
            f"invalid partition count {partitions}: the maximum is {PARTITIONS_MAX}",
            code=Code.POLICY_VIOLATION,
        )
