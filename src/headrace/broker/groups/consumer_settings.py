"""What consumer and share groups need to know about the cluster: options, topics, and when topics have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.broker.catalog.configs import GROUP
from headrace.broker.catalog.topics import Topics
from headrace.broker.group_options import ConsumerGroupTimes, share_times_of, times_of
from headrace.config import Config
from headrace.errors import BrokerError, Code


class SetOptions(Protocol):
    """The part of the catalog with the options of groups."""

    def of(self, resource: str, name: str) -> Mapping[str, str]: ...


class MetadataImage(Protocol):
    """The part of the catalog that is used here."""

    @property
    def topics(self) -> Topics: ...

    @property
    def configs(self) -> SetOptions: ...

    @property
    def offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class MigrationPolicy:
    """Whether a group with members may change its protocol."""

    upgrade: bool
    downgrade: bool

    @classmethod
    def of(cls, name: str) -> MigrationPolicy:
        return cls(name in ("upgrade", "bidirectional"), name in ("downgrade", "bidirectional"))


class ConsumerSettings:
    """The options of consumer groups, and the topics of the cluster."""

    def __init__(self, config: Config, image: MetadataImage) -> None:
        self._config = config
        self._image = image
        self.is_enabled = "consumer" in config.of(tuple, "group.coordinator.rebalance.protocols")
        self.assignors: tuple[str, ...] = config.of(tuple, "group.consumer.assignors")
        self.members_max = config.of(int, "group.consumer.max.size")
        self.share_members_max = config.of(int, "group.share.max.size")
        self.share_assignor: str = config.of(tuple, "group.share.assignors")[0]
        self.classic_members_max = config.of(int, "group.max.size")
        self.migration = MigrationPolicy.of(config.of(str, "group.consumer.migration.policy"))
        self.topics_version = image.offset  # of the catalog, when topics have last changed

    @property
    def topics(self) -> Topics:
        return self._image.topics

    @property
    def image_version(self) -> int:
        """The version of the catalog."""
        return self._image.offset

    def note_topics_changed(self) -> None:
        """Note that a topic was created, deleted or extended: groups check their subscriptions."""
        self.topics_version = self._image.offset

    def reconfigure(self, config: Config) -> None:
        """Use other times of the broker for groups that set none."""
        self._config = config

    def times_of(self, group_id: str) -> ConsumerGroupTimes:
        """Return the times that apply to a group."""
        return times_of(self._image.configs.of(GROUP, group_id), self._config)

    def share_times_of(self, group_id: str) -> ConsumerGroupTimes:
        """Return the times that apply to a share group."""
        return share_times_of(self._image.configs.of(GROUP, group_id), self._config)

    def check_enabled(self) -> None:
        """Raise UNSUPPORTED_VERSION unless the consumer protocol is enabled."""
        if not self.is_enabled:
            raise BrokerError(
                "the consumer protocol is disabled on this broker (group.coordinator.rebalance.protocols)",
                code=Code.UNSUPPORTED_VERSION,
            )
