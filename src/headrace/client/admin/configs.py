"""What topics and brokers are set to, and changing it one option at a time (KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.client.blocking import Role, Target
from headrace.wire.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


class ResourceKind(Enum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


class ConfigResource(NamedTuple):
    """Whose options; a broker's name is its id, or nothing for the defaults of all brokers."""

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower().replace('_', ' ')} {self.name!r}"


class ConfigSource(Enum):
    """Role a value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    BROKER_FILE = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


@dataclass(slots=True, frozen=True)
class ConfigEntry:
    """An option; the value of a secret one is None."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


class Append(NamedTuple):
    """Add to an option that is a list."""

    value: str


class Subtract(NamedTuple):
    """Take away from an option that is a list."""

    value: str


ConfigChange = str | Append | Subtract | None
"""A new value, a change to a list, or None: back to the default."""


class ConfigAdmin(Admin):
    """Options of topics and brokers."""

    def describe_configs(self, resources: Iterable[ConfigResource]) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """All options of each, by name."""
        found: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        for to, group in _by_target(resources).items():
            asked = [
                DescribeConfigsResource(resource_type=r.kind.value, resource_name=r.name, configuration_keys=None)
                for r in group
            ]
            answer = self.client.request(DescribeConfigsRequest(resources=asked), to, versions=(1, 4))
            raise_failures(_failures(answer.results))
            for result in answer.results:
                found[_resource(result)] = {config.name: _entry(config) for config in result.configs}
        return found

    def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, ConfigChange]], *, validate_only: bool = False
    ) -> None:
        """Set options, leaving the others as they are; None puts one back to its default."""
        for to, group in _by_target(changes, otherwise=Role.CONTROLLER).items():
            resources = [
                AlterConfigsResource(
                    resource_type=resource.kind.value,
                    resource_name=resource.name,
                    configs=[_alterable(name, change) for name, change in changes[resource].items()],
                )
                for resource in group
            ]
            message = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
            answer = self.client.request(
                message, to, codes=lambda answer: [result.error_code for result in answer.responses]
            )
            raise_failures(_failures(answer.responses))


def _by_target(
    resources: Iterable[ConfigResource], otherwise: Role = Role.ANY_BROKER
) -> dict[Target, list[ConfigResource]]:
    """A broker answers for itself alone; for the rest anyone, or the controller, will do."""
    targets: dict[Target, list[ConfigResource]] = {}
    for resource in resources:
        its_own = resource.kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) and resource.name
        targets.setdefault(int(resource.name) if its_own else otherwise, []).append(resource)
    return targets


def _resource(result: Any) -> ConfigResource:
    return ConfigResource(ResourceKind(result.resource_type), result.resource_name)


def _failures(results: Iterable[Any]) -> list[Failure]:
    return [Failure(str(_resource(result)), result.error_code, result.error_message) for result in results]


def _entry(config: Any) -> ConfigEntry:
    known = config.config_source in {source.value for source in ConfigSource}
    source = ConfigSource(config.config_source) if known else ConfigSource.UNKNOWN
    return ConfigEntry(config.name, config.value, source, config.read_only, config.is_sensitive)


def _alterable(name: str, change: ConfigChange) -> AlterableConfig:
    if change is None:
        return AlterableConfig(name=name, config_operation=_DELETE, value=None)
    if isinstance(change, str):
        return AlterableConfig(name=name, config_operation=_SET, value=change)
    operation = _APPEND if isinstance(change, Append) else _SUBTRACT
    return AlterableConfig(name=name, config_operation=operation, value=change.value)
