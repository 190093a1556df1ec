"""Configurations of topics and brokers, and incremental changes of them (KIP-339)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from headrace.client.admin.base import Admin, Failure, raise_failures
from headrace.client.blocking import Role, Target
from headrace.wire.api.configs import (
    ConfigsResourceResult,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalConfigsResource,
)

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


class ResourceKind(Enum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """A resource with options. The name of a broker is its id, or empty for the defaults of all brokers."""

    kind: ResourceKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name.lower().replace('_', ' ')} {self.name!r}"


class ConfigSource(Enum):
    """The source of a value."""

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
    """An option; the value of a sensitive one is None."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT


class Append(NamedTuple):
    """Append to an option that is a list."""

    value: str


class Subtract(NamedTuple):
    """Remove from an option that is a list."""

    value: str


ConfigChange = str | Append | Subtract | None
"""A new value, a change to a list, or None for the default."""


class ConfigAdmin(Admin):
    """Configurations of topics and brokers."""

    def describe_configs(self, resources: Iterable[ConfigResource]) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Return all options of each resource, by name."""
        configs: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        for to, group in _by_target(resources).items():
            described = [
                DescribeConfigsResource(resource_type=r.kind.value, resource_name=r.name, configuration_keys=None)
                for r in group
            ]
            response = self.client.request(DescribeConfigsRequest(resources=described), to, versions=(1, 4))
            raise_failures(_failures(response.results))
            for result in response.results:
                configs[_resource(result)] = {config.name: _entry(config) for config in result.configs}
        return configs

    def alter_configs(
        self, changes: Mapping[ConfigResource, Mapping[str, ConfigChange]], *, validate_only: bool = False
    ) -> None:
        """Change options, and keep the others; None resets an option to its default."""
        for to, group in _by_target(changes, otherwise=Role.CONTROLLER).items():
            resources = [
                IncrementalConfigsResource(
                    resource_type=resource.kind.value,
                    resource_name=resource.name,
                    configs=[_alterable(name, change) for name, change in changes[resource].items()],
                )
                for resource in group
            ]
            message = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
            response = self.client.request(
                message, to, codes=lambda response: [result.error_code for result in response.responses]
            )
            raise_failures(_failures(response.responses))


def _by_target(
    resources: Iterable[ConfigResource], otherwise: Role = Role.ANY_BROKER
) -> dict[Target, list[ConfigResource]]:
    """Group resources by target: a broker's own go to that broker, the rest to `otherwise`."""
    targets: dict[Target, list[ConfigResource]] = {}
    for resource in resources:
        is_local = resource.kind in (ResourceKind.BROKER, ResourceKind.BROKER_LOGGER) and resource.name
        targets.setdefault(int(resource.name) if is_local else otherwise, []).append(resource)
    return targets


_Result = DescribeConfigsResult | ConfigsResourceResult


def _resource(result: _Result) -> ConfigResource:
    return ConfigResource(ResourceKind(result.resource_type), result.resource_name)


def _failures(results: Iterable[_Result]) -> list[Failure]:
    return [Failure(str(_resource(result)), result.error_code, result.error_message) for result in results]


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    known = config.config_source in {source.value for source in ConfigSource}
    source = ConfigSource(config.config_source) if known else ConfigSource.UNKNOWN
    return ConfigEntry(config.name, config.value, source, config.read_only, config.is_sensitive)


def _alterable(name: str, change: ConfigChange) -> IncrementalConfig:
    if change is None:
        return IncrementalConfig(name=name, config_operation=_DELETE, value=None)
    if isinstance(change, str):
        return IncrementalConfig(name=name, config_operation=_SET, value=change)
    operation = _APPEND if isinstance(change, Append) else _SUBTRACT
    return IncrementalConfig(name=name, config_operation=operation, value=change.value)
