"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from headrace.broker.catalog.configs import BROKER, CLIENT_METRICS, GROUP, TOPIC, Configs
from headrace.broker.catalog.topics import check_name
from headrace.broker.configs import OPTIONS, TYPES, ConfigSource, Entry, ResourceType, check_values
from headrace.broker.context import Context, HandlerResult, Session
from headrace.broker.security.authorizer import Operation, Resource
from headrace.errors import BrokerError, Code
from headrace.wire.api.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
    ConfigResource,
    ConfigsResourceResult,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalConfigsResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

# -- DescribeConfigs -----------------------------------------------------------------------------


def handle_describe_configs(broker: Broker, context: Context, request: DescribeConfigsRequest) -> HandlerResult:
    """Return the options of a topic, broker, group or client metrics subscription with their values and sources.

    v1+ synonyms and the source of each value · v3+ type and documentation.
    """
    return DescribeConfigsResponse(
        results=[_describe_resource(broker, context, request, row) for row in request.resources]
    )


def _describe_resource(
    broker: Broker, context: Context, request: DescribeConfigsRequest, row: DescribeConfigsResource
) -> DescribeConfigsResult:
    name, requested = row.resource_name, row.configuration_keys
    try:
        kind = check_resource(broker, context.session, row.resource_type, name, Operation.DESCRIBE_CONFIGS)
        configurations = broker.configurations
        entries = {
            ResourceType.TOPIC: configurations.of_topic,
            ResourceType.BROKER: configurations.of_broker,
            ResourceType.GROUP: configurations.of_group,
            ResourceType.CLIENT_METRICS: configurations.of_client_metrics,
        }[kind](name)
        described = [
            _describe_entry(context, request, entry)
            for entry in entries
            if not requested or entry.option.name in requested
        ]
    except BrokerError as error:
        return DescribeConfigsResult(
            error_code=error.code,
            error_message=str(error.args[0]),
            resource_type=row.resource_type,
            resource_name=name,
        )
    return DescribeConfigsResult(
        error_message=None, resource_type=row.resource_type, resource_name=name, configs=described
    )


def _describe_entry(context: Context, request: DescribeConfigsRequest, entry: Entry) -> DescribeConfigsResourceResult:
    option, synonyms = entry.option, entry.synonyms if request.include_synonyms else ()
    documentation = None
    if request.include_documentation:
        documentation = f"{option.doc} No effect here: {option.no_effect}." if option.no_effect else option.doc
    return DescribeConfigsResourceResult(
        name=option.name,
        value=entry.value,
        read_only=entry.read_only,
        is_default=context.api_version == 0 and entry.source == ConfigSource.DEFAULT,  # v1+ has config_source instead
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=[DescribeConfigsSynonym(name=s.name, value=s.value, source=s.source) for s in synonyms],
        config_type=TYPES[option.kind],
        documentation=documentation,
    )


# -- AlterConfigs --------------------------------------------------------------------------------


def handle_alter_configs(broker: Broker, context: Context, request: AlterConfigsRequest) -> HandlerResult:
    """Replace all options set on a topic or broker. IncrementalAlterConfigs is the safer call."""
    outcomes = alter_each(request.resources, lambda row: _replace_configs(broker, context, request, row))
    return AlterConfigsResponse(responses=[_altered(*outcome) for outcome in outcomes])


def _replace_configs(broker: Broker, context: Context, request: AlterConfigsRequest, row: AlterConfigsResource) -> None:
    kind = check_resource(broker, context.session, row.resource_type, row.resource_name, Operation.ALTER_CONFIGS)
    values = {config.name: config.value for config in row.configs}
    if len(values) < len(row.configs):
        raise BrokerError("invalid request: duplicate option", code=Code.INVALID_REQUEST)
    replace_all(broker, kind, row.resource_name, values, validate_only=request.validate_only)


def _altered(row: AlterConfigsResource, code: int, text: str | None = None) -> ConfigsResourceResult:
    return ConfigsResourceResult(
        error_code=code, error_message=text, resource_type=row.resource_type, resource_name=row.resource_name
    )


# -- IncrementalAlterConfigs ---------------------------------------------------------------------


def handle_incremental_alter_configs(
    broker: Broker, context: Context, request: IncrementalAlterConfigsRequest
) -> HandlerResult:
    """Set, delete, append to or subtract from options of a topic or broker (KIP-339)."""
    outcomes = alter_each(request.resources, lambda row: _alter_configs(broker, context, request, row))
    return IncrementalAlterConfigsResponse(responses=[_incrementally_altered(*outcome) for outcome in outcomes])


def _alter_configs(
    broker: Broker, context: Context, request: IncrementalAlterConfigsRequest, row: IncrementalConfigsResource
) -> None:
    kind = check_resource(broker, context.session, row.resource_type, row.resource_name, Operation.ALTER_CONFIGS)
    changes = [ConfigChange(config.name, config.config_operation, config.value) for config in row.configs]
    alter_options(broker, kind, row.resource_name, changes, validate_only=request.validate_only)


def _incrementally_altered(
    row: IncrementalConfigsResource, code: int, text: str | None = None
) -> ConfigsResourceResult:
    return ConfigsResourceResult(
        error_code=code, error_message=text, resource_type=row.resource_type, resource_name=row.resource_name
    )


# -- ListConfigResources -------------------------------------------------------------------------


def handle_list_config_resources(
    broker: Broker, context: Context, request: ListConfigResourcesRequest
) -> HandlerResult:
    """Return the resources that have options (KIP-1142).

    v0 lists client metrics subscriptions only.
    """
    try:
        broker.authorizer.require_on_cluster(context.session, Operation.DESCRIBE_CONFIGS)
    except BrokerError as error:
        return ListConfigResourcesResponse(error_code=error.code)
    known = {kind for kind in ResourceType if kind != ResourceType.UNKNOWN}
    requested = {ResourceType.CLIENT_METRICS} if context.api_version == 0 else set(request.resource_types) or known
    if not requested <= known:
        return ListConfigResourcesResponse(error_code=Code.UNSUPPORTED_VERSION)
    resources: list[tuple[str, int]] = []
    if ResourceType.TOPIC in requested:
        resources += [(name, ResourceType.TOPIC) for name in sorted(broker.catalog.topics.by_name)]
    if ResourceType.BROKER in requested:
        resources.append((str(broker.node_id), ResourceType.BROKER))
    if ResourceType.GROUP in requested:
        resources += [(name, ResourceType.GROUP) for name in sorted(broker.catalog.configs.names(GROUP))]
    if ResourceType.CLIENT_METRICS in requested:
        names = sorted(broker.catalog.configs.names(CLIENT_METRICS))
        resources += [(name, ResourceType.CLIENT_METRICS) for name in names]
    rows = [ConfigResource(resource_name=name, resource_type=kind) for name, kind in resources]
    return ListConfigResourcesResponse(config_resources=rows)


# -- applying changes ----------------------------------------------------------------------------


_THROTTLES = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Kafka's tools delete these options when a reassignment completes. headrace does not throttle: they are ignored."""
_SECTIONS = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.BROKER: BROKER,
    ResourceType.GROUP: GROUP,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS,
}


class Op(IntEnum):
    """How to change an option, with Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """The change of one option."""

    name: str
    op: int
    value: str | None


def check_resource(broker: Broker, session: Session, kind: int, name: str, operation: Operation) -> ResourceType:
    """Return the type of an existing resource that the client is authorized for, or raise."""
    if kind == ResourceType.TOPIC:
        broker.authorizer.require(session, operation, Resource.TOPIC, name)
        check_name(name)
        if name not in broker.catalog.topics.by_name:
            raise BrokerError(f"unknown topic {name}", code=Code.UNKNOWN_TOPIC_OR_PARTITION)
        return ResourceType.TOPIC
    if kind == ResourceType.GROUP:
        broker.authorizer.require(session, operation, Resource.GROUP, name)
        if not name:
            raise BrokerError("invalid group '': expected the id of a group", code=Code.INVALID_REQUEST)
        return ResourceType.GROUP
    broker.authorizer.require_on_cluster(session, operation)
    if kind == ResourceType.CLIENT_METRICS:
        if not name:
            raise BrokerError(
                "invalid client metrics '': expected the name of a subscription", code=Code.INVALID_REQUEST
            )
        return ResourceType.CLIENT_METRICS
    if kind != ResourceType.BROKER:
        raise BrokerError(
            f"invalid resource type {kind}: only topics (2), brokers (4), client metrics (16) and groups (32) have "
            "options",
            code=Code.INVALID_REQUEST,
        )
    if name not in map(str, broker.catalog.brokers.by_id):  # every broker of the cluster can be configured
        broker.configurations.check_broker(name)
    return ResourceType.BROKER


def replace_all(
    broker: Broker, kind: ResourceType, name: str, values: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Replace all options set on a resource."""
    for option, value in values.items():
        if value is None:
            raise BrokerError(f"{option} has no value; omit it to delete it", code=Code.INVALID_REQUEST)
    before = broker.catalog.configs.of(_SECTIONS[kind], name)
    _record(broker, kind, name, {**dict.fromkeys(before), **values}, validate_only=validate_only)


def alter_options(
    broker: Broker, kind: ResourceType, name: str, changes: Iterable[ConfigChange], *, validate_only: bool
) -> None:
    """ConfigChange some of the options set on a resource."""
    before = broker.catalog.configs.of(_SECTIONS[kind], name)
    values: dict[str, str | None] = {}
    for change in changes:
        if change.name in values:
            raise BrokerError(f"duplicate option {change.name}", code=Code.INVALID_REQUEST)
        values[change.name] = _new_value(broker, kind, change, before)
    _record(broker, kind, name, values, validate_only=validate_only)


def _new_value(broker: Broker, kind: ResourceType, change: ConfigChange, before: Mapping[str, str]) -> str | None:
    if change.op == Op.DELETE:
        return None
    if change.value is None:
        raise BrokerError(f"{change.name} has no value", code=Code.INVALID_REQUEST)
    if change.op == Op.SET:
        return change.value
    if change.op not in (Op.APPEND, Op.SUBTRACT):
        raise BrokerError(f"{change.name}: invalid operation {change.op}: expected 0 to 3", code=Code.INVALID_REQUEST)
    option = OPTIONS[kind].get(change.name)
    if option is None or option.kind not in ("list", "classes"):
        verb = Op(change.op).name
        raise BrokerError(f"{verb} is invalid for {change.name}: it is not a list", code=Code.INVALID_CONFIG)
    current = before[change.name] if change.name in before else broker.configurations.default(kind, option)
    items = [item.strip() for item in current.split(",") if item.strip()]
    given = [item.strip() for item in change.value.split(",") if item.strip()]
    if change.op == Op.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


def _record(
    broker: Broker, kind: ResourceType, name: str, values: Mapping[str, str | None], *, validate_only: bool
) -> None:
    section = _SECTIONS[kind]
    before = broker.catalog.configs.of(section, name)
    deleted = {option for option, value in values.items() if value is None}
    after = {**{option: value for option, value in before.items() if option not in deleted}, **values}
    current = broker.configurations.current()
    # A deleted option may be unknown: a newer broker may have set it.
    check_values(kind, {option: value for option, value in after.items() if option not in deleted}, current)
    unknown = deleted - before.keys() - OPTIONS[kind].keys() - _THROTTLES
    if unknown:
        check_values(kind, dict.fromkeys(unknown), current)
    changed = {option: value for option, value in values.items() if before.get(option) != value}
    if changed and not validate_only:
        broker.catalog.record(Configs.change(section, name, changed))


class ConfigResourceRow(Protocol):
    """A resource in a request."""

    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=ConfigResourceRow)


def alter_each(rows: Sequence[R], alter: Callable[[R], None]) -> Iterator[tuple[R, int, str | None]]:
    """Alter each resource and yield it with its error code and message. Duplicate resources fail."""
    named = [(row.resource_type, row.resource_name) for row in rows]
    for row in rows:
        try:
            if named.count((row.resource_type, row.resource_name)) > 1:
                raise BrokerError(f"duplicate resource {row.resource_name!r}", code=Code.INVALID_REQUEST)
            alter(row)
        except BrokerError as error:
            yield row, error.code, str(error.args[0])
        else:
            yield row, Code.NONE, None
